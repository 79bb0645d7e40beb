#include "core/parallel/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace switchyard {
namespace {

// Of the ranks of a data group, those on the node of `rank` and those at its place of theirs.
std::pair<Group, Group> NodeGroups(const std::vector<int>& ranks, const std::vector<int>& nodes, int rank) {
  const auto node_of = [&](int other) { return nodes[static_cast<size_t>(other)]; };
  std::map<int, std::vector<int>> by_node, by_place;
  for (const int other : ranks) {
    std::vector<int>& local = by_node[node_of(other)];
    by_place[static_cast<int>(local.size())].push_back(other);
    local.push_back(other);
  }
  const std::vector<int>& local = by_node.at(node_of(rank));
  const auto place = static_cast<int>(std::find(local.begin(), local.end(), rank) - local.begin());
  return {{"node", local, true}, {"across", by_place.at(place), true}};
}

}  // namespace

StatusOr<Mesh> MeshOf(int ranks, int pipeline, int tensor) {
  const int sharing = pipeline * tensor;
  if (pipeline < 1 || tensor < 1 || ranks % sharing != 0) {
    const std::string settings = pipeline == 1 ? fmt::format("--tp={}", tensor)
                                 : tensor == 1 ? fmt::format("--pp={}", pipeline)
                                               : fmt::format("--pp={} x --tp={}", pipeline, tensor);
    return InvalidArgument("{0}: expected a number that divides the {1} rank{2}; a model takes {3} ranks", settings,
                           ranks, ranks == 1 ? "" : "s", sharing);
  }
  return Mesh{.data = ranks / sharing, .pipeline = pipeline, .tensor = tensor};
}

Status CheckDataRanks(const Mesh& mesh, std::optional<int> data) {
  if (!data || *data == mesh.data) return OkStatus();
  std::string axes = fmt::format("--dp={}", *data);
  if (mesh.pipeline > 1) axes += fmt::format(" x --pp={}", mesh.pipeline);
  if (mesh.tensor > 1) axes += fmt::format(" x --tp={}", mesh.tensor);
  const int wanted = *data * mesh.model_ranks();
  return InvalidArgument(
      "{0}: expected {1} rank{2}, found {3}; start as many (switchyard launch --nproc_per_node={1}, --mode=dp "
      "--devices={1}, explain --world={1}), or leave --dp out",
      axes, wanted, wanted == 1 ? "" : "s", mesh.size());
}

StatusOr<std::vector<Group>> GroupsOf(const Mesh& mesh, int rank) {
  if (mesh.data < 1 || mesh.pipeline < 1 || mesh.tensor < 1) {
    return InvalidArgument("a mesh of {} x {} x {} ranks (data, pipeline, tensor): expected at least 1 along each axis",
                           mesh.data, mesh.pipeline, mesh.tensor);
  }
  if (rank < 0 || rank >= mesh.size()) return InvalidArgument("rank {} of a mesh of {} ranks", rank, mesh.size());
  std::vector<Group> groups = {{"world", std::vector<int>(static_cast<size_t>(mesh.size()))}};
  std::iota(groups[0].ranks.begin(), groups[0].ranks.end(), 0);
  struct Axis {
    const char* name;
    int ranks, stride;
  };
  for (const Axis& axis : {Axis{"data", mesh.data, mesh.pipeline * mesh.tensor},
                           Axis{"pipeline", mesh.pipeline, mesh.tensor}, Axis{"tensor", mesh.tensor, 1}}) {
    Group group{axis.name, {}};
    const int first = rank - rank / axis.stride % axis.ranks * axis.stride;
    for (int i = 0; i < axis.ranks; ++i) group.ranks.push_back(first + i * axis.stride);
    groups.push_back(std::move(group));
  }
  if (mesh.nodes.empty()) return groups;
  if (mesh.nodes.size() != static_cast<size_t>(mesh.size()))
    return InvalidArgument("the nodes of {} ranks are known, and the mesh has {}", mesh.nodes.size(), mesh.size());
  auto [node, across] = NodeGroups(groups[kDataGroup].ranks, mesh.nodes, rank);
  groups.push_back(std::move(node));
  groups.push_back(std::move(across));
  return groups;
}

}  // namespace switchyard
