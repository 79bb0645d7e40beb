#include "core/train/each_rank.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/parallel/power_sgd.h"
#include "core/train/parameters.h"

namespace switchyard {
namespace {

bool IsOfEachRank(const Engine& engine, bool of_model, const Layout::Entry& entry) {
  return entry.of_rank || (of_model && entry.of_model && engine.world().data_size() > 1);
}

// The mean of `rows` rows of as many values.
std::vector<float> MeanOf(const float* values, int64_t rows, int64_t elements) {
  std::vector<float> mean(static_cast<size_t>(elements));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < elements; ++i) mean[i] += values[row * elements + i] / static_cast<float>(rows);
  }
  return mean;
}

}  // namespace

bool KeepsEachRank(const Engine& engine, bool of_model) {
  const auto& entries = engine.layout().entries();
  return std::any_of(entries.begin(), entries.end(),
                     [&](const auto& entry) { return IsOfEachRank(engine, of_model, entry.second); });
}

StatusOr<HostTensors> GatherEachRank(Engine& engine, bool of_model) {
  HostTensors gathered;
  const World& world = engine.world();
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!IsOfEachRank(engine, of_model, entry)) continue;
    HostTensor all{entry.whole_shape(), {}};
    std::vector<float> own(static_cast<size_t>(Elements(all.shape)));
    SY_RETURN_IF_ERROR(DownloadWhole(engine, name, own.data()));
    all.shape.insert(all.shape.begin(), world.data_size());
    if (world.data_size() > 1) {
      Communicator& ranks = *engine.groups()[kDataGroup];
      all.values.resize(static_cast<size_t>(Elements(all.shape)));
      SY_RETURN_IF_ERROR(
          ranks.AllGather((kEachRank + name).c_str(), own.data(), all.values.data(), own.size(), SY_F32));
    } else {
      all.values = std::move(own);
    }
    if (world.rank() == 0) gathered[name] = std::move(all);
  }
  return gathered;
}

Status RestoreEachRank(Engine& engine, const NamedTensor& tensor, bool of_model, const std::string& folder) {
  const std::string name = tensor.name.substr(sizeof kEachRank - 1);
  const Layout::Entry* const entry = engine.layout().Find(name);
  if (entry == nullptr && IsPowerSgdState(name)) return OkStatus();
  if (entry == nullptr || !(entry->of_model || entry->of_rank))
    return DataLoss("{}: {} is no state that ranks have for themselves", folder, tensor.name);
  if (entry->of_model && !of_model) return OkStatus();
  const Shape shape = entry->whole_shape();
  std::vector<int64_t> expected(shape.begin(), shape.end());
  expected.insert(expected.begin(), tensor.shape.empty() ? 0 : tensor.shape[0]);
  if (tensor.dtype != "F32" || tensor.shape != expected)
    return DataLoss("{}: {}: expected F32 {} of each rank, found {} {}", folder, tensor.name, ToString(shape),
                    tensor.dtype, ToString(Shape(tensor.shape.begin(), tensor.shape.end())));
  const auto* const values = static_cast<const float*>(tensor.data);
  const int64_t ranks = tensor.shape[0], elements = Elements(shape);
  if (ranks == engine.world().data_size())
    return UploadWhole(engine, name, values + engine.world().data_rank() * elements);
  return entry->of_rank ? UploadWhole(engine, name, MeanOf(values, ranks, elements).data()) : OkStatus();
}

}  // namespace switchyard
