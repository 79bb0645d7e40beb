// A run's tensors as a checkpoint holds them, and back to the device. Weights (parameters, and state of the model
// itself) have the names and the layout in which they are published (TrainableModel::to_file). State that belongs to a
// weight and has its shape, called
// `<what>/<parameter>` in the graph (moment1, moment2), is called `<what>/<name of the weight>` in the file and has the
// weight's layout there, also where one parameter is several weights (qkv). Other state keeps its name and its bytes.
// State that ranks have for themselves (each_rank.h) is `each_rank/<name in the graph>` (ranks, …), of every rank of
// rank 0's data group, in their order; where it is that of the model itself (--broadcast_buffers=0), the weights have
// rank 0's.
// Where ranks have parts of what a checkpoint holds, each writes the pieces that it owns (shards.h), as they lie in its
// memory, under the names of the graph, and the weights are brought into their published layout from those files, one
// by one; or all is gathered on rank 0 and written as from one rank.
// Local; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/train/checkpoint.h"
#include "core/train/engine.h"
#include "core/train/file_layout.h"
#include "core/train/shards.h"
#include "core/train/state_copy.h"

namespace switchyard {

struct Snapshot {
  std::vector<NamedTensor> weights, state;
  std::shared_ptr<const void> storage;  // of what is not in the copy
};

// Tensors of which a rank holds a part, whole: by name, row-major.
using WholeTensors = std::map<std::string, std::vector<std::byte>>;
// What a checkpoint takes from several ranks. On rank 0; elsewhere there is nothing in it.
struct Gathered {
  WholeTensors parts;
  HostTensors each_rank;  // (ranks, …): what ranks have for themselves
};
// each_rank: state of the model itself differs between the ranks of a data group. It waits for the steps begun so far
// where there is something to gather. Collective where ranks share tensors or keep their own.
StatusOr<Gathered> GatherTensors(Engine& engine, bool each_rank);
// How much that is on rank 0, whose layout it is given; 0: no rank has a part of anything.
uint64_t GatheredBytes(const Layout& layout, bool each_rank, int data_ranks);

// From a copy that is begun, for which it waits; may run beside the steps, in a thread of its own. The tensors are read
// from the copy as they are written; where files have another order of elements, they come into it in the copy's
// memory. The snapshot keeps `gathered`. file_layout: of the model,
// the same for all checkpoints of a run.
// FailedPrecondition, from here or as tensors are read, where a parameter holds values that are not finite; data_step:
// after which update, for that message.
StatusOr<Snapshot> TakeSnapshot(StateCopy& copy, Gathered gathered, const Layout& layout, FileLayout& file_layout,
                                int64_t data_step);

// Do ranks have parts of the weights? The same on all.
bool WeightsAreDivided(const Layout& layout);
// What `rank` owns of the state, and of the weights where ranks have parts of those; all ranks together own everything
// at least once. Errors and memory as those of TakeSnapshot; without `copy`, which may be null, the pieces have no
// values.
StatusOr<std::vector<TensorPiece>> TakePieces(StateCopy* copy, const Layout& layout, const Mesh& mesh, int rank,
                                              bool each_rank, int64_t data_step);
// The weights alone, which lie whole on this rank, as TakeSnapshot; after TakePieces.
StatusOr<std::vector<NamedTensor>> TakeWeights(StateCopy& copy, const Layout& layout, FileLayout& file_layout,
                                               int64_t data_step);
// Writes the file of weights that TakeSnapshot would have given, from the pieces of all ranks. Host memory holds some
// weights at a time.
StatusOr<TensorFileSummary> JoinWeights(const Folder& folder, const std::string& name, const SavedTensors& saved,
                                        const Layout& layout, FileLayout& file_layout);

// InvalidArgument where the weights or the state are not those of the engine's plans; then the device may hold a part.
// FailedPrecondition where ranks have loaded different checkpoints.
// path: as the user named the checkpoint, for the message. each_rank: as for GatherTensors; each rank takes its own up
// again where the checkpoint has as many as there are ranks now, else all take that of rank 0. Of pieces each rank
// reads those that hold something of what it has. Collective.
Status RestoreSnapshot(Engine& engine, const TrainableModel& model, const LoadedCheckpoint& checkpoint,
                       const std::string& path, bool each_rank);

}  // namespace switchyard
