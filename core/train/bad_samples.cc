#include "core/train/bad_samples.h"

#include <string>

#include "core/base/json.h"

namespace switchyard {

StatusOr<nlohmann::json> GatherBadSamples(World& world, const std::set<int64_t>& own) {
  auto count = static_cast<int32_t>(own.size());
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("bad_samples", &count, &count, 1, SY_I32, SY_SUM));
  nlohmann::json lists = nlohmann::json::array();
  for (int r = 0; count > 0 && r < world.size(); r += world.mesh.model_ranks()) {
    std::string text = nlohmann::json(own).dump();
    if (world.communicator) SY_RETURN_IF_ERROR(world.BroadcastText(text, r));
    lists.push_back(nlohmann::json::parse(text));
  }
  return lists;
}

StatusOr<std::set<int64_t>> ShareOfBadSamples(const nlohmann::json& lists, int rank, int world) {
  std::set<int64_t> share;
  if (lists.is_null()) return share;
  const auto refused = [&] {
    return InvalidArgument("bad_samples: expected a list of indices for each rank, found {}", Excerpt(lists));
  };
  if (!lists.is_array()) return refused();
  for (size_t r = 0; r < lists.size(); ++r) {
    if (!lists[r].is_array()) return refused();
    for (const nlohmann::json& index : lists[r]) {
      if (!index.is_number_unsigned()) return refused();
      if (r % static_cast<size_t>(world) == static_cast<size_t>(rank)) share.insert(index.get<int64_t>());
    }
  }
  return share;
}

}  // namespace switchyard
