#include "models/packed_projections.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace switchyard {
namespace {

constexpr std::array<const char*, 3> kProjections = {"query", "key", "value"};
const std::string kPacked = ".attn.qkv.";

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

void JoinProjections(HostTensors* tensors) {
  std::vector<std::string> queries;
  for (const auto& [name, tensor] : *tensors) {
    if (name.find(kPacked + "query.") != std::string::npos) queries.push_back(name);
  }
  for (const std::string& query : queries) {
    const size_t at = query.find(kPacked) + kPacked.size();
    const std::string before = query.substr(0, at), kind = query.substr(at + std::string("query.").size());
    std::array<const HostTensor*, 3> parts{};
    for (size_t i = 0; i < 3; ++i) {
      const auto part = tensors->find(before + kProjections[i] + "." + kind);
      if (part != tensors->end()) parts[i] = &part->second;
    }
    if (parts[1] == nullptr || parts[2] == nullptr) continue;
    auto joined = Stack(parts);
    if (!joined) continue;
    for (const char* projection : kProjections) tensors->erase(before + projection + "." + kind);
    (*tensors)[before + kind] = std::move(*joined);
  }
}

void SplitProjections(HostTensors* tensors) {
  HostTensors result;
  for (auto& [name, tensor] : *tensors) {
    const size_t at = name.find(kPacked);
    if (at == std::string::npos) {
      result[name] = std::move(tensor);
      continue;
    }
    const size_t end = at + kPacked.size();
    for (size_t i = 0; i < 3; ++i)
      result[name.substr(0, end) + kProjections[i] + "." + name.substr(end)] = Third(tensor, i);
  }
  *tensors = std::move(result);
}

}  // namespace switchyard
