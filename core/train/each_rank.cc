#include "core/train/each_rank.h"

#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/parallel/power_sgd.h"
#include "core/train/parameters.h"

namespace switchyard {
namespace {

// The mean of `rows` rows of as many values.
std::vector<float> MeanOf(const float* values, int64_t rows, int64_t elements) {
  std::vector<float> mean(static_cast<size_t>(elements));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < elements; ++i) mean[i] += values[row * elements + i] / static_cast<float>(rows);
  }
  return mean;
}

}  // namespace

bool IsOfEachRank(const Layout::Entry& entry, bool of_model, int data_ranks) {
  return entry.of_rank || (of_model && entry.of_model && data_ranks > 1);
}

uint64_t BytesOfEachRank(const Layout& layout, bool of_model, int data_ranks) {
  uint64_t total = 0;
  for (const auto& [name, entry] : layout.entries()) {
    if (IsOfEachRank(entry, of_model, data_ranks))
      total += static_cast<uint64_t>(Elements(entry.whole_shape()) * data_ranks) * sizeof(float);
  }
  return total;
}

StatusOr<HostTensors> GatherEachRank(Engine& engine, bool of_model) {
  HostTensors gathered;
  const World& world = engine.world();
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!IsOfEachRank(entry, of_model, world.data_size())) continue;
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

Status RestoreEachRank(Engine& engine, const SavedTensors& state, bool of_model, const std::string& folder) {
  const World& world = engine.world();
  std::vector<float> values;  // of one tensor
  int64_t statistics_of = 0;  // ranks that saved their own state of the model
  bool loses_errors = false;
  for (const TensorFile::Entry& saved : state.entries()) {
    if (!saved.name.starts_with(kEachRank)) continue;
    const std::string name = saved.name.substr(sizeof kEachRank - 1);
    const Layout::Entry* const entry = engine.layout().Find(name);
    if (entry == nullptr && IsPowerSgdState(name)) {
      loses_errors = true;
      continue;
    }
    if (entry == nullptr || !(entry->of_model || entry->of_rank))
      return DataLoss("{}: {} is no state that ranks have for themselves", folder, saved.name);
    if (entry->of_model && !of_model) continue;
    const Shape shape = entry->whole_shape();
    const int64_t ranks = saved.shape.empty() ? 0 : saved.shape[0], elements = Elements(shape);
    std::vector<int64_t> expected(shape.begin(), shape.end());
    expected.insert(expected.begin(), ranks);
    if (saved.dtype != "F32" || saved.shape != expected)
      return DataLoss("{}: {}: expected F32 {} of each rank, found {} {}", folder, saved.name, ToString(shape),
                      saved.dtype, ToString(Shape(saved.shape.begin(), saved.shape.end())));
    if (entry->of_model) statistics_of = ranks;
    const bool own = ranks == world.data_size();
    if (!own && entry->of_model) continue;
    if (own) {
      const Part row{{expected.begin(), expected.end()}, {0, 1, ranks, 1}, world.data_rank(), world.data_rank() + 1};
      values.resize(static_cast<size_t>(elements));
      SY_RETURN_IF_ERROR(state.Read(saved, row, values.data()));
      SY_RETURN_IF_ERROR(UploadWhole(engine, name, values.data()));
    } else {
      values.resize(static_cast<size_t>(ranks * elements));
      SY_RETURN_IF_ERROR(state.Read(saved, values.data()));
      SY_RETURN_IF_ERROR(UploadWhole(engine, name, MeanOf(values.data(), ranks, elements).data()));
    }
  }
  if (world.rank() != 0) return OkStatus();
  if (statistics_of != 0 && statistics_of != world.data_size())
    LogWarning("{} has running statistics of {} ranks, this run has {}: all begin with those of rank 0", folder,
               statistics_of, world.data_size());
  if (loses_errors)
    LogWarning("{}: what --powersgd_compression left out of gradients that this run sends whole is lost", folder);
  return OkStatus();
}

}  // namespace switchyard
