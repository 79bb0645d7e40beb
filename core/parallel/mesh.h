// How the ranks of a run are arranged. A rank has a coordinate along each axis, data outermost and tensor innermost, so
// that the ranks of one tensor-parallel group are neighbours:
//
//   rank = (data · pipeline_size + pipeline) · tensor_size + tensor
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct Mesh {
  int data = 1, pipeline = 1, tensor = 1;  // ranks along each axis
  std::vector<int> nodes = {};             // by rank, the node that it is on; none: nobody knows
  int size() const { return data * pipeline * tensor; }
  int model_ranks() const { return pipeline * tensor; }             // that share each model
  int DataRankOf(int rank) const { return rank / model_ranks(); }   // its coordinate along the data axis
  int StageOf(int rank) const { return rank / tensor % pipeline; }  // along the pipeline axis
};

// What a run asks for: so many ranks, of which `pipeline` × `tensor` neighbours share each model; the rest is data
// parallel. InvalidArgument where `ranks` is no multiple of that.
StatusOr<Mesh> MeshOf(int ranks, int pipeline, int tensor);

// InvalidArgument where a run asks for `data` coordinates along the data axis and the mesh has others.
Status CheckDataRanks(const Mesh& mesh, std::optional<int> data);

// Ranks that communicate, in the order of their ranks in the group. A collective node names its group by index.
struct Group {
  std::string name;
  std::vector<int> ranks;
  bool uneven = false;  // groups of this index may have other sizes for other ranks, also one where this has several
};

// What a collective node's `group` means.
enum GroupIndex {
  kWorldGroup = 0,
  kDataGroup = 1,
  kPipelineGroup = 2,
  kTensorGroup = 3,
  kNodeGroup = 4,    // with Mesh::nodes: the ranks of the data group on this rank's node
  kAcrossGroup = 5,  // with Mesh::nodes: those of the data group at the same place of their nodes
};

// The groups that `rank` belongs to, by GroupIndex: all ranks, those that differ from it along one axis only, and those
// that nodes make. Errors: an axis without ranks, a rank outside the mesh, nodes of another number of ranks.
StatusOr<std::vector<Group>> GroupsOf(const Mesh& mesh, int rank);

}  // namespace switchyard
