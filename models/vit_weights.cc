#include "models/vit_weights.h"

#include <array>
#include <utility>

#include "models/packed_projections.h"
#include "models/renaming.h"

namespace switchyard {
namespace {

constexpr const char* kPatchWeight = "patch_embed.proj.weight";

const std::vector<Renaming> kOutside = {{"cls_token", "embeddings.cls_token"},
                                        {"pos_embed", "embeddings.position_embeddings"},
                                        {"patch_embed.proj.", "embeddings.patch_embeddings.projection."},
                                        {"norm.", "layernorm."},
                                        {"head.", "classifier."}};
const std::vector<Renaming> kInBlock = {
    {"norm1.", "layernorm_before."},       {"norm2.", "layernorm_after."},
    {"attn.qkv.", "attention.attention."}, {"attn.proj.", "attention.output.dense."},
    {"mlp.fc1.", "intermediate.dense."},   {"mlp.fc2.", "output.dense."}};
const std::string kTimmBlocks = "blocks.", kOtherBlocks = "encoder.layer.";

// The renamed name; inside a block the part behind its number is translated by the block's table.
std::string Rename(const std::string& name, bool to_timm) {
  const std::string &from = to_timm ? kOtherBlocks : kTimmBlocks, &to = to_timm ? kTimmBlocks : kOtherBlocks;
  const size_t dot = name.find('.', from.size());
  if (!name.starts_with(from) || dot == std::string::npos) return ExchangePrefix(name, kOutside, to_timm);
  return to + name.substr(from.size(), dot + 1 - from.size()) + ExchangePrefix(name.substr(dot + 1), kInBlock, to_timm);
}

// (D, a, b, c) with the last three axes in another order: order[i] is the old axis (1 to 3) that comes i-th.
HostTensor PermutePatches(const HostTensor& source, std::array<size_t, 3> order) {
  const Shape& s = source.shape;
  const std::array<int64_t, 4> stride = {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
  HostTensor result = {{s[0], s[order[0]], s[order[1]], s[order[2]]}, {}};
  result.values.reserve(source.values.size());
  for (int64_t d = 0; d < s[0]; ++d) {
    for (int64_t i = 0; i < result.shape[1]; ++i) {
      for (int64_t j = 0; j < result.shape[2]; ++j) {
        for (int64_t k = 0; k < result.shape[3]; ++k) {
          const int64_t from = d * stride[0] + i * stride[order[0]] + j * stride[order[1]] + k * stride[order[2]];
          result.values.push_back(source.values[static_cast<size_t>(from)]);
        }
      }
    }
  }
  return result;
}

void PermutePatchWeight(HostTensors& tensors, std::array<size_t, 3> order) {
  const auto weight = tensors.find(kPatchWeight);
  if (weight != tensors.end() && weight->second.shape.size() == 4) {
    weight->second = PermutePatches(weight->second, order);
  }
}

}  // namespace

HostTensors VitWeightsFromFile(HostTensors tensors) {
  const bool prefixed = tensors.contains("vit.embeddings.cls_token");
  if (prefixed || tensors.contains("embeddings.cls_token")) {
    HostTensors renamed;
    for (auto& [name, tensor] : tensors) {
      const std::string bare = prefixed && name.starts_with("vit.") ? name.substr(4) : name;
      if (!bare.starts_with("pooler.")) renamed[Rename(bare, true)] = std::move(tensor);
    }
    tensors = std::move(renamed);
    JoinProjections(&tensors);
  }
  PermutePatchWeight(tensors, {2, 3, 1});  // (D, C, p, p) → (D, p, p, C)
  return tensors;
}

HostTensors VitWeightsToTimm(HostTensors parameters) {
  PermutePatchWeight(parameters, {3, 1, 2});  // (D, p, p, C) → (D, C, p, p)
  return parameters;
}

HostTensors VitWeightsToHuggingFace(HostTensors parameters) {
  parameters = VitWeightsToTimm(std::move(parameters));
  SplitProjections(&parameters);
  HostTensors result;
  for (auto& [name, tensor] : parameters) {
    const std::string other = Rename(name, false);
    result[other.starts_with("classifier.") ? other : "vit." + other] = std::move(tensor);
  }
  return result;
}

}  // namespace switchyard
