#include "core/train/file_layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

namespace switchyard {
namespace {

// The number of an element, as a value that to_file carries along.
float Numbered(int64_t element) { return std::bit_cast<float>(static_cast<uint32_t>(element)); }

bool IsRunFrom(int64_t begin, const std::vector<float>& values) {
  for (const float value : values) {
    if (std::bit_cast<uint32_t>(value) != static_cast<uint32_t>(begin++)) return false;
  }
  return true;
}

}  // namespace

StatusOr<const FileLayout::Published*> FileLayout::Of(const std::string& parameter, const Shape& shape) {
  if (const auto found = published_.find(parameter); found != published_.end()) return &found->second;
  Published published;
  if (!to_file_) {
    published.tensors = {{parameter, shape, 0}};
    return &published_.emplace(parameter, std::move(published)).first->second;
  }
  const auto elements = static_cast<size_t>(Elements(shape));
  scratch_.resize(elements);
  for (size_t i = 0; i < elements; ++i) scratch_[i] = Numbered(static_cast<int64_t>(i));
  HostTensors whole;
  whole[parameter] = {shape, std::move(scratch_)};
  const HostTensors tensors = to_file_(std::move(whole));
  std::vector<bool> found(elements);
  size_t count = 0;
  for (const auto& [in_file, tensor] : tensors) {
    for (const float value : tensor.values) {
      const size_t element = std::bit_cast<uint32_t>(value);
      if (element >= elements || found[element])
        return Internal("{}, as {} in files, is not made of its own elements, each once", parameter, in_file);
      found[element] = true;
    }
    count += tensor.values.size();
    const int64_t begin = tensor.values.empty() ? 0 : std::bit_cast<uint32_t>(tensor.values[0]);
    published.moved |= !IsRunFrom(begin, tensor.values);
    published.tensors.push_back({in_file, tensor.shape, begin});
  }
  if (count != elements) return Internal("{}: files have {} of its {} elements", parameter, count, elements);
  int64_t begin = 0;  // as Move lays them
  for (Tensor& tensor : published.tensors) {
    if (published.moved) tensor.begin = begin;
    begin += Elements(tensor.shape);
  }
  return &published_.emplace(parameter, std::move(published)).first->second;
}

void FileLayout::Move(const std::string& parameter, const Shape& shape, float* values) {
  scratch_.assign(values, values + Elements(shape));
  HostTensors whole;
  whole[parameter] = {shape, std::move(scratch_)};
  for (auto& [in_file, tensor] : to_file_(std::move(whole))) {
    values = std::copy(tensor.values.begin(), tensor.values.end(), values);
    scratch_ = std::move(tensor.values);
  }
}

}  // namespace switchyard
