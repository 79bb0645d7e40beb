#include "models/swin_weights.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "models/convolution_weights.h"
#include "models/packed_projections.h"
#include "models/renaming.h"

namespace switchyard {
namespace {

const std::vector<Renaming> kSwinOutside = {{"patch_embed.proj.", "embeddings.patch_embeddings.projection."},
                                            {"patch_embed.norm.", "embeddings.norm."},
                                            {"norm.", "layernorm."},
                                            {"head.fc.", "classifier."}};
// Of two that begin alike the longer comes first.
const std::vector<Renaming> kSwinInBlock = {
    {"norm1.", "layernorm_before."},
    {"norm2.", "layernorm_after."},
    {"attn.relative_position_bias_table", "attention.self.relative_position_bias_table"},
    {"attn.qkv.", "attention.self."},
    {"attn.proj.", "attention.output.dense."},
    {"mlp.fc1.", "intermediate.dense."},
    {"mlp.fc2.", "output.dense."}};
const std::string kSwinLayers = "layers.", kSwinBlocks = "blocks.", kSwinDownsample = "downsample.",
                  kSwinEncoder = "encoder.";
const std::string kSwinPatches = "embeddings.patch_embeddings.projection.weight", kSwinPrefix = "swin.";

// "layers.<i>.downsample.…" with another number: of the layer before which it stands here, behind which it stands
// there.
std::string MoveDownsample(const std::string& name, int by) {
  const size_t dot = name.find('.', kSwinLayers.size());
  int layer = 0;
  if (!name.starts_with(kSwinLayers) || dot == std::string::npos ||
      name.compare(dot + 1, kSwinDownsample.size(), kSwinDownsample) != 0 ||
      !absl::SimpleAtoi(name.substr(kSwinLayers.size(), dot - kSwinLayers.size()), &layer)) {
    return name;
  }
  return fmt::format("{}{}{}", kSwinLayers, layer + by, name.substr(dot));
}

// The part behind "layers.i.blocks.j." is translated by the block's table.
std::string RenameInLayer(const std::string& name, bool to_timm) {
  const size_t dot = name.find('.', kSwinLayers.size());
  if (dot == std::string::npos || name.compare(dot + 1, kSwinBlocks.size(), kSwinBlocks) != 0) return name;
  const size_t end = name.find('.', dot + 1 + kSwinBlocks.size());
  if (end == std::string::npos) return name;
  return name.substr(0, end + 1) + ExchangePrefix(name.substr(end + 1), kSwinInBlock, to_timm);
}

template <typename F>
HostTensors Renamed(HostTensors tensors, const F& rename) {
  HostTensors result;
  for (auto& [name, tensor] : tensors) {
    const std::string other = rename(name);
    result[other] = std::move(tensor);
  }
  return result;
}

std::string FromHuggingFace(const std::string& name) {
  const std::string bare = name.starts_with(kSwinPrefix) ? name.substr(kSwinPrefix.size()) : name;
  if (!bare.starts_with(kSwinEncoder + kSwinLayers)) return ExchangePrefix(bare, kSwinOutside, true);
  return RenameInLayer(MoveDownsample(bare.substr(kSwinEncoder.size()), 1), true);
}

std::string ToHuggingFace(const std::string& name) {
  if (name.starts_with(kSwinLayers)) return kSwinPrefix + kSwinEncoder + RenameInLayer(MoveDownsample(name, -1), false);
  const std::string other = ExchangePrefix(name, kSwinOutside, false);
  return other.starts_with("classifier.") ? other : kSwinPrefix + other;
}

std::string FromMicrosoft(const std::string& name) {
  return name.starts_with("head.") ? "head.fc." + name.substr(5) : MoveDownsample(name, 1);
}

std::string ToMicrosoft(const std::string& name) {
  return name.starts_with("head.fc.") ? "head." + name.substr(8) : MoveDownsample(name, -1);
}

}  // namespace

HostTensors SwinWeightsFromFile(HostTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) {
    return entry.first.ends_with("relative_position_index") || entry.first.ends_with("attn_mask");
  });
  if (tensors.contains(kSwinPrefix + kSwinPatches) || tensors.contains(kSwinPatches)) {
    tensors = Renamed(std::move(tensors), FromHuggingFace);
    JoinProjections(&tensors);
  } else if (tensors.contains("layers.0.downsample.reduction.weight") || tensors.contains("head.weight")) {
    tensors = Renamed(std::move(tensors), FromMicrosoft);
  }
  return ConvolutionWeightsFromFile(std::move(tensors));
}

HostTensors SwinWeightsToTimm(HostTensors parameters) { return ConvolutionWeightsToFile(std::move(parameters)); }

HostTensors SwinWeightsToMicrosoft(HostTensors parameters) {
  return Renamed(SwinWeightsToTimm(std::move(parameters)), ToMicrosoft);
}

HostTensors SwinWeightsToHuggingFace(HostTensors parameters) {
  parameters = SwinWeightsToTimm(std::move(parameters));
  SplitProjections(&parameters);
  return Renamed(std::move(parameters), ToHuggingFace);
}

}  // namespace switchyard
