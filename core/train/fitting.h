// What of a run fits into the device's memory, found from the exact plans of what is tried: nothing is allocated. Local
// ranks that share a device share its memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "core/train/config.h"
#include "core/train/trainable_model.h"
#include "core/train/world.h"

namespace switchyard {

struct TrainingPlans;

// The bytes of --memory_limit, which CheckTrainConfig has let pass; kNoMemoryLimit where there is none.
uint64_t MemoryLimitOf(const TrainConfig& config);

// Two numbers of bytes in MB, each with as many digits as it takes to tell them apart: "4.9" and "5.1".
std::pair<std::string, std::string> MegabytesOf(double bytes, double others);

// Bytes of the device that this rank may fill: as it was found when the world was joined, or what --memory_limit allows
// where that is less. What the windows of collectives take (peer/1) is not taken off: plans come first.
double DeviceBytesOf(const World& world);

// Plans come first: where they and the windows are more than DeviceBytesOf on any rank, all ranks do without windows,
// and their collectives go through host memory. Before communicators of groups are made. Collective.
Status LeaveRoomForPlans(World& world, const TrainingPlans& plans);

// Of a run whose `plans` take more than --memory_limit allows: InvalidArgument that says what they take and for what,
// and which of the settings that save memory would do, as far as plans of them tell. updates: Timetable::updates.
// Local.
Status BeyondMemoryLimit(const TrainConfig& config, const TrainableModel& model, World& world,
                         const TrainingPlans& plans, int64_t updates, bool evaluation_only);

// Sizes of --bucket_mb that are tried where nothing else fits: buckets lie in memory while they are summed and
// gathered.
inline constexpr double kSmallerBucketsMb[] = {5, 0.5};

// What batches are multiples of: with --sp the ranks that share a model divide the samples, mixup and cutmix pair them.
int BatchUnit(const TrainConfig& config);

// The largest batch, BatchUnit times a power of two and where that can be at most `limit`, for which the plans of a run
// fit into every rank's device. samples: of the training data, on which the run's length depends; nullopt: of a run
// that only evaluates. ResourceExhausted where not even the smallest fits. Collective.
StatusOr<int> LargestBatch(const TrainConfig& config, const TrainableModel& model, World& world, int limit,
                           std::optional<int64_t> samples);

// A value of --recompute, and what each rank's plans take with it.
struct RecomputeChoice {
  std::string setting;  // "none", "every:K", "blocks"
  uint64_t bytes = 0;
  bool fits = false;
};

// The value that computes the fewest blocks again and takes at most `available` bytes on each rank of the deciding
// replica (plans.h); where none does, the one that takes the fewest on the rank that takes the most. mesh: of the run,
// whose ranks need not be there; updates: Timetable::updates. config.recompute is not looked at. Local.
StatusOr<RecomputeChoice> LeastRecompute(const TrainConfig& config, const TrainableModel& model, World& world,
                                         const Mesh& mesh, int64_t updates, double available);

// The least of 0, 1, … count − 1 that fits on every rank at once, the same on all; `count` where there is none. Whether
// one fits may differ from rank to rank, and a larger one need not fit where a smaller one does. Collective.
StatusOr<int> LeastThatFitsAll(World& world, int count, absl::FunctionRef<StatusOr<bool>(int)> fits);

// --recompute=auto: the least with which the plans fit on every rank, the same on all; available: on this one.
// ResourceExhausted where none does. Collective.
StatusOr<RecomputeChoice> LeastRecomputeOfAll(const TrainConfig& config, const TrainableModel& model, World& world,
                                              int64_t updates, double available);

}  // namespace switchyard
