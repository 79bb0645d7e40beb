// Weights between us and the world. In memory a model's parameters have timm's names and our layout (images are NHWC,
// so that the patch projection is (D, p, p, C)). In files they have the layout of PyTorch, (D, C, p, p), and the names
// of timm or of Hugging Face:
//
//   timm                              Hugging Face
//   cls_token, pos_embed              vit.embeddings.cls_token, .position_embeddings
//   patch_embed.proj                  vit.embeddings.patch_embeddings.projection
//   blocks.i.norm1, norm2             vit.encoder.layer.i.layernorm_before, layernorm_after
//   blocks.i.attn.qkv                 vit.encoder.layer.i.attention.attention.query, key, value (its rows in turn)
//   blocks.i.attn.proj                vit.encoder.layer.i.attention.output.dense
//   blocks.i.mlp.fc1, fc2             vit.encoder.layer.i.intermediate.dense, output.dense
//   norm, head                        vit.layernorm, classifier
//
// It works on tensors in memory; core/train reads and writes the files, hugging_face.h the JSON beside them.
// Thread-safe: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/graph/host_tensor.h"
#include "models/model.h"

namespace switchyard {

enum class WeightStyle { kTimm, kHuggingFace };

// File → model: finds out the style, renames, and checks every name and shape. reset_head leaves the classifier out
// (its parameters are then missing from the result and start fresh). InvalidArgument lists what is missing, superfluous
// or of another shape.
StatusOr<HostTensors> ImportWeights(const ResolvedModel& model, HostTensors tensors, bool reset_head);

// Model → file. InvalidArgument for Hugging Face's style of a model that it does not have.
StatusOr<HostTensors> ExportWeights(const ResolvedModel& model, HostTensors parameters, WeightStyle style);

}  // namespace switchyard
