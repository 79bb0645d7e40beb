// The ops that the plugin offers, each with the function that prepares it, in the file of its family.
#pragma once

#include "backends/opencl/kernel.h"

namespace switchyard {

// Every op: its name, its prepare function, its attributes (sy_header: it has none).
#define SY_OPENCL_OPS(X)                                                                 \
  X(matmul, Matmul, sy_matmul_attributes)                                                \
  X(attention, Attention, sy_attention_attributes)                                       \
  X(attention_backward, AttentionBackward, sy_attention_attributes)                      \
  X(layer_norm, LayerNorm, sy_layer_norm_attributes)                                     \
  X(layer_norm_backward, LayerNormBackward, sy_layer_norm_attributes)                    \
  X(softmax, Softmax, sy_header)                                                         \
  X(softmax_backward, SoftmaxBackward, sy_header)                                        \
  X(cross_entropy, CrossEntropy, sy_cross_entropy_attributes)                            \
  X(cross_entropy_backward, CrossEntropyBackward, sy_cross_entropy_attributes)           \
  X(label_rank, LabelRank, sy_header)                                                    \
  X(pointwise, Pointwise, sy_pointwise_attributes)                                       \
  X(reduce, Reduce, sy_reduce_attributes)                                                \
  X(squared_norm, SquaredNorm, sy_header)                                                \
  X(transpose, Transpose, sy_axes_attributes)                                            \
  X(slice, Slice, sy_slice_attributes)                                                   \
  X(pad, Pad, sy_pad_attributes)                                                         \
  X(roll, Roll, sy_axes_attributes)                                                      \
  X(concat, Concat, sy_axes_attributes)                                                  \
  X(gather, Gather, sy_header)                                                           \
  X(scatter_add, ScatterAdd, sy_header)                                                  \
  X(dropout, Dropout, sy_dropout_attributes)                                             \
  X(optimizer_update, OptimizerUpdate, sy_optimizer_attributes)                          \
  X(convolution, Convolution, sy_convolution_attributes)                                 \
  X(convolution_backward_data, ConvolutionBackwardData, sy_convolution_attributes)       \
  X(convolution_backward_weights, ConvolutionBackwardWeights, sy_convolution_attributes) \
  X(pool, Pool, sy_pool_attributes)                                                      \
  X(pool_backward, PoolBackward, sy_pool_attributes)                                     \
  X(batch_norm, BatchNorm, sy_batch_norm_attributes)                                     \
  X(batch_norm_inference, BatchNormInference, sy_batch_norm_attributes)                  \
  X(batch_norm_backward, BatchNormBackward, sy_batch_norm_attributes)                    \
  X(resize, Resize, sy_resize_attributes)                                                \
  X(resize_backward, ResizeBackward, sy_resize_attributes)
#define SY_DECLARE_PREPARE(op, name, attributes) sy_status Prepare##name(const Request& request, Kernel& kernel);
SY_OPENCL_OPS(SY_DECLARE_PREPARE)
#undef SY_DECLARE_PREPARE

}  // namespace switchyard
