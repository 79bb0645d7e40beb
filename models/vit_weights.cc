#include "models/vit_weights.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace switchyard {
namespace {

constexpr const char* kPatchWeight = "patch_embed.proj.weight";
constexpr std::array<const char*, 3> kProjections = {"query", "key", "value"};

using Renaming = std::pair<std::string, std::string>;  // timm's, Hugging Face's
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

// `name` with one prefix of the table exchanged; the name itself where none fits.
std::string Exchange(const std::string& name, const std::vector<Renaming>& table, bool to_timm) {
  for (const auto& [timm, other] : table) {
    const std::string &from = to_timm ? other : timm, &to = to_timm ? timm : other;
    if (name.starts_with(from)) return to + name.substr(from.size());
  }
  return name;
}

// The renamed name; inside a block the part behind its number is translated by the block's table.
std::string Rename(const std::string& name, bool to_timm) {
  const std::string &from = to_timm ? kOtherBlocks : kTimmBlocks, &to = to_timm ? kTimmBlocks : kOtherBlocks;
  const size_t dot = name.find('.', from.size());
  if (!name.starts_with(from) || dot == std::string::npos) return Exchange(name, kOutside, to_timm);
  return to + name.substr(from.size(), dot + 1 - from.size()) + Exchange(name.substr(dot + 1), kInBlock, to_timm);
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

// The tensors below one another; nullopt unless they differ at most in the first extent.
std::optional<HostTensor> Stack(const std::array<const HostTensor*, 3>& parts) {
  HostTensor result = {parts[0]->shape, {}};
  if (result.shape.empty()) return std::nullopt;
  result.shape[0] = 0;
  for (const HostTensor* part : parts) {
    if (part->shape.size() != result.shape.size() ||
        !std::equal(part->shape.begin() + 1, part->shape.end(), result.shape.begin() + 1)) {
      return std::nullopt;
    }
    result.shape[0] += part->shape[0];
    result.values.insert(result.values.end(), part->values.begin(), part->values.end());
  }
  return result;
}

// attn.qkv.{query,key,value}.{weight,bias} → attn.qkv.{weight,bias}, where all three are there and fit.
void JoinProjections(HostTensors& tensors) {
  std::vector<std::string> queries;
  for (const auto& [name, tensor] : tensors) {
    if (name.find(".attn.qkv.query.") != std::string::npos) queries.push_back(name);
  }
  for (const std::string& query : queries) {
    const size_t at = query.find("query.");
    const std::string before = query.substr(0, at), kind = query.substr(at + 6);
    std::array<const HostTensor*, 3> parts{};
    for (size_t i = 0; i < 3; ++i) {
      const auto part = tensors.find(before + kProjections[i] + "." + kind);
      if (part != tensors.end()) parts[i] = &part->second;
    }
    if (parts[1] == nullptr || parts[2] == nullptr) continue;
    auto joined = Stack(parts);
    if (!joined) continue;
    for (const char* projection : kProjections) tensors.erase(before + projection + "." + kind);
    tensors[before + kind] = std::move(*joined);
  }
}

// The i-th third of the rows.
HostTensor Third(const HostTensor& source, size_t i) {
  HostTensor part = {source.shape, {}};
  part.shape[0] /= 3;
  const auto count = static_cast<std::ptrdiff_t>(source.values.size() / 3);
  const auto first = source.values.begin() + static_cast<std::ptrdiff_t>(i) * count;
  part.values.assign(first, first + count);
  return part;
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
    JoinProjections(tensors);
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
  HostTensors result;
  for (auto& [name, tensor] : parameters) {
    const std::string other = Rename(name, false);
    const std::string full = other.starts_with("classifier.") ? other : "vit." + other;
    const size_t at = full.find(".attention.attention.");
    if (at == std::string::npos) {
      result[full] = std::move(tensor);
      continue;
    }
    const size_t end = at + std::string(".attention.attention.").size();
    for (size_t i = 0; i < 3; ++i) {
      result[full.substr(0, end) + kProjections[i] + "." + full.substr(end)] = Third(tensor, i);
    }
  }
  return result;
}

}  // namespace switchyard
