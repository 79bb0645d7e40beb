// convolution and its two gradients on cuDNN graphs, images NHWC and volumes NDHWC, weights (K, kernel, C/groups):
// cuDNN's dims are (N, C, spatial) and the strides say that channels lie innermost. A bias joins the convolution's
// graph where cuDNN has an engine for that, else it is added by our own pass. f32 stays f32 unless TF32 is
// asked for.
#include "backends/cuda/cudnn.h"
#include "backends/cuda/kernel.h"

namespace switchyard {
namespace {

enum : int64_t { kX = 1, kW, kY, kBias };  // tensor ids
enum class Direction { kForward, kData, kWeights };

uint64_t Aligned(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// (N, spatial, C) row-major as cuDNN sees it.
TensorDims Dims(const sy_tensor& t) {
  TensorDims dims = {t.dims[0], t.dims[t.rank - 1]};
  dims.insert(dims.end(), t.dims + 1, t.dims + t.rank - 1);
  return dims;
}
TensorDims Strides(const sy_tensor& t) {
  TensorDims strides(static_cast<size_t>(t.rank));
  int64_t stride = strides[1] = 1;
  stride *= t.dims[t.rank - 1];
  for (int axis = t.rank - 2; axis >= 1; --axis) {
    strides[static_cast<size_t>(axis) + 1] = stride;
    stride *= t.dims[axis];
  }
  strides[0] = stride;
  return strides;
}

struct ConvolutionBound : Bound {
  ConvolutionBound(Bound&& bound, CudnnDescriptor&& made) : Bound(std::move(bound)), pack(std::move(made)) {}
  CudnnDescriptor pack;
};

class Convolution : public Kernel {
 public:
  Convolution(const Request& request, const sy_convolution_attributes& attributes, Direction direction)
      : Kernel(request), t_(attributes), direction_(direction) {
    t_.bias = t_.bias && direction == Direction::kForward;
  }

  // Throws CudnnError.
  void Prepare(const Request& request) {
    const bool strict = inputs[0].dtype == SY_F32 && !device->tf32;
    if (t_.bias) {
      try {
        graph_ = Describe(true);
        graph_->Build(request.workspace_limit, request.deterministic, strict);
        own_bias_ = false;
      } catch (const CudnnError&) {
        graph_.reset();
      }
    }
    if (graph_ == nullptr) {
      graph_ = Describe(false);
      graph_->Build(request.workspace_limit, request.deterministic, strict);
      own_bias_ = t_.bias;
    }
    workspace_bytes = Aligned(graph_->workspace_bytes());
    repeatable = request.deterministic;  // otherwise the engine was not asked
    std::string dims;
    for (const std::vector<sy_tensor>* tensors : {&inputs, &outputs})
      for (const sy_tensor& t : *tensors)
        for (int32_t d = 0; d < t.rank; ++d)
          dims += (d > 0 ? "x" : dims.empty() ? "" : ", ") + std::to_string(t.dims[d]);
    device->instance->Log(0, Format("cuda: %s %s: engine %lld of cuDNN's", request.op, dims.c_str(),
                                    static_cast<long long>(graph_->engine())));
  }

  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    std::vector<std::pair<int64_t, void*>> places;
    for (size_t i = 0; i < 2; ++i) places.emplace_back(InputId(i), (*bound)->inputs[i]);
    places.emplace_back(OutputId(), (*bound)->outputs[0]);
    if (t_.bias && !own_bias_) places.emplace_back(kBias, (*bound)->inputs[2]);
    try {
      CudnnDescriptor pack = graph_->Pack(places, (*bound)->workspace);
      *bound = std::make_unique<ConvolutionBound>(std::move(**bound), std::move(pack));
      return SY_OK;
    } catch (const CudnnError& failure) {
      return SY_FAIL(error, SY_INTERNAL, "convolution: %.400s", failure.what());
    }
  }

  sy_status Run(const Bound& bound, const LaunchContext& context, sy_error* error) const override {
    SY_TRY(graph_->Run(static_cast<const ConvolutionBound&>(bound).pack, context.stream, error));
    if (!own_bias_) return SY_OK;
    MatmulEpilogue pass;
    pass.accumulator = pass.output = bound.outputs[0];
    pass.accumulator_dtype = pass.output_dtype = outputs[0].dtype;
    pass.bias = bound.inputs[2];
    pass.bias_dtype = inputs[2].dtype;
    pass.columns = outputs[0].dims[outputs[0].rank - 1];
    pass.rows = Elements(outputs[0]) / pass.columns;
    SY_CUDA(error, LaunchMatmulEpilogue(pass, context.stream));
    return SY_OK;
  }

 private:
  int64_t InputId(size_t i) const {
    constexpr int64_t kIds[3][2] = {{kX, kW}, {kY, kW}, {kX, kY}};
    return kIds[static_cast<int>(direction_)][i];
  }
  int64_t OutputId() const { return direction_ == Direction::kForward ? kY : direction_ == Direction::kData ? kX : kW; }

  std::unique_ptr<OperationGraph> Describe(bool with_bias) const {
    auto graph = std::make_unique<OperationGraph>(*device);
    const auto rank = static_cast<size_t>(t_.spatial_rank);
    const auto vector = [&](const int32_t* values) { return TensorDims(values, values + rank); };
    CudnnDescriptor function(*device, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    function.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
        .Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, static_cast<int64_t>(rank))
        .Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, vector(t_.before))
        .Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, vector(t_.after))
        .Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, vector(t_.stride))
        .Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, vector(t_.dilation))
        .Finalize();
    const auto tensor = [&](int64_t id, const sy_tensor& t) -> const CudnnDescriptor& {
      return graph->Tensor(id, t.dtype, Dims(t), Strides(t));
    };
    const CudnnDescriptor &first = tensor(InputId(0), inputs[0]), &second = tensor(InputId(1), inputs[1]);
    const CudnnDescriptor& output = tensor(OutputId(), outputs[0]);
    const float one = 1, zero = 0;
    switch (direction_) {
      case Direction::kForward: {
        const CudnnDescriptor& product =
            with_bias ? graph->Virtual(SY_F32, Dims(outputs[0]), Strides(outputs[0])) : output;
        graph->Add(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, first)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, second)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, product)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, function)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, one)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, zero)
            .Finalize();
        if (!with_bias) break;
        const int64_t filters = inputs[1].dims[0];
        TensorDims dims(rank + 2, 1), strides(rank + 2, filters);
        dims[1] = filters;
        strides[1] = 1;
        const CudnnDescriptor& bias = graph->Tensor(kBias, inputs[2].dtype, dims, strides);
        graph->Pointwise(CUDNN_POINTWISE_ADD, product, &bias, output);
        break;
      }
      case Direction::kData:
        graph->Add(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, first)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, second)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, output)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, function)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, one)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, zero)
            .Finalize();
        break;
      case Direction::kWeights:
        graph->Add(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, first)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, second)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, output)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, function)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, one)
            .Set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, zero)
            .Finalize();
        break;
    }
    return graph;
  }

  sy_convolution_attributes t_;
  const Direction direction_;
  std::unique_ptr<OperationGraph> graph_;
  bool own_bias_ = false;
};

// The shapes are those of one convolution: spatial' = ⌊(n + before + after − dilation·(k−1) − 1)/stride⌋ + 1.
bool ShapesFit(const sy_convolution_attributes& t, const sy_tensor& x, const sy_tensor& w, const sy_tensor& y) {
  const int last = t.spatial_rank + 1;
  if (t.groups < 1 || x.dims[0] != y.dims[0] || w.dims[0] != y.dims[last] || w.dims[0] % t.groups != 0 ||
      w.dims[last] * t.groups != x.dims[last])
    return false;
  for (int i = 0; i < t.spatial_rank; ++i) {
    if (t.stride[i] < 1 || t.dilation[i] < 1 || t.before[i] < 0 || t.after[i] < 0) return false;
    const int64_t span = x.dims[1 + i] + t.before[i] + t.after[i] - t.dilation[i] * (w.dims[1 + i] - 1) - 1;
    if (span < 0 || span / t.stride[i] + 1 != y.dims[1 + i]) return false;
  }
  return true;
}

KernelPointer Prepare(const Request& r, Direction direction) {
  const auto t = r.Attributes<sy_convolution_attributes>();
  const size_t count = direction == Direction::kForward && t.bias ? 3 : 2;
  if (!r.HasCounts(count, count, 1)) return nullptr;
  if (t.spatial_rank != 2 && t.spatial_rank != 3) return SY_REFUSE(r, "%s: spatial rank %d", r.op, t.spatial_rank);
  if (r.Accumulates()) return SY_REFUSE(r, "%s: cannot accumulate", r.op);
  // Seen on an H100 with cuDNN 9.19: wrong in volumes cut into groups.
  if (direction == Direction::kWeights && t.spatial_rank == 3 && t.groups > 1 && r.inputs[0].dtype != SY_F32)
    return SY_MISS(r, "%s: cuDNN's gradient of weights is wrong in grouped volumes of halves (9.19)", r.op);
  const sy_tensor *x = &r.inputs[0], *w = &r.inputs[1], *y = &r.outputs[0];
  if (direction == Direction::kData) x = &r.outputs[0], y = &r.inputs[0];
  if (direction == Direction::kWeights) w = &r.outputs[0], y = &r.inputs[1];
  for (const sy_tensor* each : {x, w, y}) {
    if (each->rank != t.spatial_rank + 2) return SY_REFUSE(r, "%s: a tensor of rank %d", r.op, each->rank);
    if (!r.RequireFloat(*each, "x, w or y") || !r.RequireDtype(*each, r.inputs[0].dtype, "x, w or y")) return nullptr;
  }
  if (!ShapesFit(t, *x, *w, *y)) return SY_REFUSE(r, "%s: the shapes do not fit the attributes", r.op);
  if (count == 3 && (!r.RequireFloat(r.inputs[2], "bias") || !r.RequireElements(r.inputs[2], w->dims[0], "bias")))
    return nullptr;
  if (r.device->cudnn == nullptr) return SY_MISS(r, "%s: %.300s", r.op, r.device->missing.c_str());
  try {
    auto kernel = std::make_unique<Convolution>(r, t, direction);
    kernel->Prepare(r);
    return kernel;
  } catch (const CudnnError& failure) {
    return SY_MISS(r, "%s: cuDNN: %.400s", r.op, failure.what());
  }
}

KernelPointer PrepareConvolution(const Request& r) { return Prepare(r, Direction::kForward); }
KernelPointer PrepareConvolutionBackwardData(const Request& r) { return Prepare(r, Direction::kData); }
KernelPointer PrepareConvolutionBackwardWeights(const Request& r) { return Prepare(r, Direction::kWeights); }

const Registration kConvolution{"convolution", PrepareConvolution, sizeof(sy_convolution_attributes), kLibrary};
const Registration kConvolutionBackwardData{"convolution_backward_data", PrepareConvolutionBackwardData,
                                            sizeof(sy_convolution_attributes), kLibrary};
const Registration kConvolutionBackwardWeights{"convolution_backward_weights", PrepareConvolutionBackwardWeights,
                                               sizeof(sy_convolution_attributes), kLibrary};

}  // namespace
}  // namespace switchyard
