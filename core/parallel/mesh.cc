#include "core/parallel/mesh.h"

#include <numeric>

namespace switchyard {

StatusOr<Mesh> MeshOf(int ranks, int tensor) {
  if (tensor < 1 || ranks % tensor != 0) {
    return InvalidArgument("--tp={0}: expected a number that divides the {1} rank{2}; start a multiple of {0} ranks",
                           tensor, ranks, ranks == 1 ? "" : "s");
  }
  return Mesh{.data = ranks / tensor, .tensor = tensor};
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
  return groups;
}

}  // namespace switchyard
