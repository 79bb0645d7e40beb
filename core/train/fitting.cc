#include "core/train/fitting.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/parallel/recompute.h"
#include "core/train/plans.h"
#include "core/train/timetable.h"

namespace switchyard {
namespace {

// What to try, from the fewest blocks computed again to all of them: for each number of blocks the finest spacing that
// gives it.
std::vector<int> RecomputeSteps(int blocks) {
  std::vector<int> steps = {0};
  for (int every = blocks; every >= 1; --every) {
    const auto chosen = [&](int k) { return (blocks + k - 1) / k; };
    if (every == 1 || chosen(every - 1) != chosen(every)) steps.push_back(every);
  }
  return steps;
}

int BlocksOf(const Program& program) {
  int blocks = 0;
  for (const Node& node : program.Find("update")->graph.nodes()) blocks = std::max(blocks, node.block + 1);
  return blocks;
}

// What a rank's plans take with each step; a plan is compiled once, when it is asked for.
class RecomputePlans {
 public:
  RecomputePlans(TrainConfig config, const TrainableModel& model, World& world, const Mesh& mesh, int64_t updates,
                 double available)
      : config_(std::move(config)),
        model_(model),
        world_(world),
        mesh_(mesh),
        updates_(updates),
        available_(available) {}

  // The first plan, of no recomputation, says which steps there are.
  StatusOr<int> Steps() {
    SY_RETURN_IF_ERROR(Try(0).status());
    return static_cast<int>(steps_.size());
  }
  StatusOr<RecomputeChoice> Try(int step) {
    const auto at = static_cast<size_t>(step);
    config_.recompute = RecomputeText(steps_[at]);
    if (!bytes_.contains(step)) {
      TrainingPlans plans;
      SY_RETURN_IF_ERROR(plans.CompileRun(config_, model_, mesh_, world_.rank(), updates_, *world_.device,
                                          world_.reference.get(), false, world_.host.get()));
      if (step == 0) steps_ = RecomputeSteps(BlocksOf(plans.program));
      bytes_[step] = plans.PlannedBytes();
    }
    return RecomputeChoice{config_.recompute, bytes_[step], static_cast<double>(bytes_[step]) <= available_};
  }
  // The first that fits; where none does, the one that takes the fewest bytes.
  StatusOr<RecomputeChoice> Least() {
    RecomputeChoice least;
    SY_ASSIGN_OR_RETURN(const int steps, Steps());
    for (int step = 0; step < steps && !least.fits; ++step) {
      SY_ASSIGN_OR_RETURN(RecomputeChoice choice, Try(step));
      if (choice.fits || least.setting.empty() || choice.bytes < least.bytes) least = std::move(choice);
    }
    return least;
  }

 private:
  TrainConfig config_;
  const TrainableModel& model_;
  World& world_;
  const Mesh mesh_;
  const int64_t updates_;
  const double available_;
  std::vector<int> steps_ = {0};
  std::map<int, uint64_t> bytes_;  // by step
};

}  // namespace

double DeviceBytesOf(const World& world) {
  const DeviceInfo& device = world.device->info();
  const double sharing =
      (device.flags & SY_DEVICE_CPU_CORES) != 0 ? world.processes.local_world : world.choice.ranks_per_device;
  // The communicator's windows came after the device was asked what is free.
  const uint64_t windows = world.communicator ? world.communicator->peer_memory_bytes() : 0;
  return static_cast<double>(device.free_bytes > 0 ? device.free_bytes : device.memory_bytes) / sharing -
         static_cast<double>(windows);
}

int BatchUnit(const TrainConfig& config) { return config.sp ? config.tp : 1; }

StatusOr<int> LargestBatch(const TrainConfig& config, const TrainableModel& model, World& world, int limit,
                           std::optional<int64_t> samples) {
  const DeviceInfo& device = world.device->info();
  const double available = DeviceBytesOf(world);
  const int unit = BatchUnit(config);
  int32_t fits = 0;
  double needed = 0;
  for (int batch = unit; batch <= std::max(limit, unit); batch *= 2) {
    TrainConfig c = config;
    c.batch_size = batch;
    int64_t updates = 1;
    if (samples) {
      const auto table = Timetable::Of(c, *samples, world.data_size());
      if (!table.ok() && fits > 0) break;  // a run of so few updates cannot be
      SY_RETURN_IF_ERROR(table.status());
      updates = table->updates;
    }
    TrainingPlans plans;
    SY_RETURN_IF_ERROR(plans.CompileRun(c, model, world.mesh, world.rank(), updates, *world.device,
                                        world.reference.get(), !samples, world.host.get()));
    needed = static_cast<double>(plans.PlannedBytes());
    if (needed > available) break;
    fits = batch;
  }
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("largest_batch", &fits, &fits, 1, SY_I32, SY_MIN));
  if (fits == 0) {
    return ResourceExhausted(
        "--batch_size=auto: the plan of {} takes {:.1f} MB for {}, device {} of {} has {:.1f} MB for this rank; choose "
        "a smaller model",
        model.name, needed / 1e6, unit == 1 ? "a single image" : fmt::format("{} images", unit), device.index,
        device.plugin, available / 1e6);
  }
  return fits;
}

StatusOr<int> LeastThatFitsAll(World& world, int count, absl::FunctionRef<StatusOr<bool>(int)> fits) {
  for (int32_t agreed = 0;;) {
    int32_t own = agreed;
    for (; own < count; ++own) {
      SY_ASSIGN_OR_RETURN(const bool here, fits(own));
      if (here) break;
    }
    const int32_t asked = agreed;
    agreed = own;
    if (world.communicator)
      SY_RETURN_IF_ERROR(world.communicator->AllReduce("least_of_all", &agreed, &agreed, 1, SY_I32, SY_MAX));
    if (agreed == asked || agreed == count) return agreed;  // all ranks were asked for it, and it fits on all
  }
}

StatusOr<RecomputeChoice> LeastRecompute(const TrainConfig& config, const TrainableModel& model, World& world,
                                         const Mesh& mesh, int64_t updates, double available) {
  return RecomputePlans(config, model, world, mesh, updates, available).Least();
}

StatusOr<RecomputeChoice> LeastRecomputeOfAll(const TrainConfig& config, const TrainableModel& model, World& world,
                                              int64_t updates, double available) {
  RecomputePlans plans(config, model, world, world.mesh, updates, available);
  SY_ASSIGN_OR_RETURN(const int steps, plans.Steps());
  SY_ASSIGN_OR_RETURN(const int step, LeastThatFitsAll(world, steps, [&](int at) -> StatusOr<bool> {
                        SY_ASSIGN_OR_RETURN(const RecomputeChoice choice, plans.Try(at));
                        return choice.fits;
                      }));
  if (step < steps) return plans.Try(step);
  SY_ASSIGN_OR_RETURN(const RecomputeChoice least, plans.Least());
  const DeviceInfo& device = world.device->info();
  return ResourceExhausted(
      "--recompute=auto: the plan of {} takes {:.1f} MB {}with --recompute={}, device {} of {} has {:.1f} MB for this "
      "rank{}; lower --batch_size={}, or choose a smaller model",
      model.name, static_cast<double>(least.bytes) / 1e6, least.fits ? "" : "even ", least.setting, device.index,
      device.plugin, available / 1e6, least.fits ? ", but no setting fits on all ranks" : "", config.batch_size);
}

}  // namespace switchyard
