#include "core/train/each_rank.h"

#include <utility>
#include <vector>

#include "core/train/parameters.h"

namespace switchyard {

StatusOr<HostTensors> GatherEachRank(Engine& engine) {
  HostTensors gathered;
  const World& world = engine.world();
  Communicator& ranks = *engine.groups()[kDataGroup];
  for (const auto& [name, entry] : engine.layout().entries()) {
    if (!entry.of_model) continue;
    HostTensor all{entry.whole_shape(), {}};
    std::vector<float> own(static_cast<size_t>(Elements(all.shape)));
    SY_RETURN_IF_ERROR(DownloadWhole(engine, name, own.data()));
    all.shape.insert(all.shape.begin(), world.data_size());
    all.values.resize(static_cast<size_t>(Elements(all.shape)));
    SY_RETURN_IF_ERROR(ranks.AllGather((kEachRank + name).c_str(), own.data(), all.values.data(), own.size(), SY_F32));
    if (world.rank() == 0) gathered[name] = std::move(all);
  }
  return gathered;
}

Status RestoreEachRank(Engine& engine, const NamedTensor& tensor, const std::string& folder) {
  const std::string name = tensor.name.substr(sizeof kEachRank - 1);
  const Layout::Entry* const entry = engine.layout().Find(name);
  if (entry == nullptr || !entry->of_model) return DataLoss("{}: {} is no state of the model", folder, tensor.name);
  const Shape shape = entry->whole_shape();
  std::vector<int64_t> expected(shape.begin(), shape.end());
  expected.insert(expected.begin(), tensor.shape.empty() ? 0 : tensor.shape[0]);
  if (tensor.dtype != "F32" || tensor.shape != expected)
    return DataLoss("{}: {}: expected F32 {} of each rank, found {} {}", folder, tensor.name, ToString(shape),
                    tensor.dtype, ToString(Shape(tensor.shape.begin(), tensor.shape.end())));
  if (tensor.shape[0] != engine.world().data_size()) return OkStatus();
  const auto* const values = static_cast<const float*>(tensor.data);
  return UploadWhole(engine, name, values + engine.world().data_rank() * Elements(shape));
}

}  // namespace switchyard
