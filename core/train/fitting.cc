#include "core/train/fitting.h"

#include <algorithm>
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

struct Tried {
  RecomputeChoice choice;
  int step = 0;  // index into RecomputeSteps
};

// As LeastRecompute, of steps from `first` on.
StatusOr<Tried> TryRecompute(TrainConfig config, const TrainableModel& model, World& world, int ranks, int64_t updates,
                             double available, int first) {
  Tried best;
  std::vector<int> steps = {0};
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    config.recompute = RecomputeText(steps[static_cast<size_t>(i)]);
    TrainingPlans plans;
    SY_RETURN_IF_ERROR(plans.CompileRun(config, model, ranks, updates, *world.device, world.reference.get()));
    if (i == 0) steps = RecomputeSteps(BlocksOf(plans.program));
    if (i < first) continue;
    const uint64_t bytes = plans.PlannedBytes();
    const bool fits = static_cast<double>(bytes) <= available;
    if (fits || best.choice.setting.empty() || bytes < best.choice.bytes) best = {{config.recompute, bytes, fits}, i};
    if (fits) break;
  }
  return best;
}

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

StatusOr<int> LargestBatch(const TrainConfig& config, const TrainableModel& model, World& world, int limit,
                           std::optional<int64_t> samples) {
  const DeviceInfo& device = world.device->info();
  const double available = DeviceBytesOf(world);
  int32_t fits = 0;
  double needed = 0;
  for (int batch = 1; batch <= limit; batch *= 2) {
    TrainConfig c = config;
    c.batch_size = batch;
    int64_t updates = 1;
    if (samples) {
      const auto table = Timetable::Of(c, *samples, world.size());
      if (!table.ok() && fits > 0) break;  // a run of so few updates cannot be
      SY_RETURN_IF_ERROR(table.status());
      updates = table->updates;
    }
    TrainingPlans plans;
    SY_RETURN_IF_ERROR(
        plans.CompileRun(c, model, world.size(), updates, *world.device, world.reference.get(), !samples));
    needed = static_cast<double>(plans.PlannedBytes());
    if (needed > available) break;
    fits = batch;
  }
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("largest_batch", &fits, &fits, 1, SY_I32, SY_MIN));
  if (fits == 0) {
    return ResourceExhausted(
        "--batch_size=auto: the plan of {} takes {:.1f} MB for a single image, device {} of {} has {:.1f} MB for this "
        "rank; choose a smaller model",
        model.name, needed / 1e6, device.index, device.plugin, available / 1e6);
  }
  return fits;
}

StatusOr<RecomputeChoice> LeastRecompute(const TrainConfig& config, const TrainableModel& model, World& world,
                                         int ranks, int64_t updates, double available) {
  SY_ASSIGN_OR_RETURN(Tried tried, TryRecompute(config, model, world, ranks, updates, available, 0));
  return std::move(tried.choice);
}

StatusOr<RecomputeChoice> LeastRecomputeOfAll(const TrainConfig& config, const TrainableModel& model, World& world,
                                              int64_t updates, double available) {
  SY_ASSIGN_OR_RETURN(Tried tried, TryRecompute(config, model, world, world.size(), updates, available, 0));
  // Ranks may have unequal devices: all do what the one with the least memory needs.
  int32_t verdict[2] = {tried.step, tried.choice.fits ? 0 : 1};
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("recompute", verdict, verdict, 2, SY_I32, SY_MAX));
  if (verdict[0] != tried.step) {
    SY_ASSIGN_OR_RETURN(tried, TryRecompute(config, model, world, world.size(), updates, available, verdict[0]));
  }
  if (verdict[1] == 0) return std::move(tried.choice);
  const DeviceInfo& device = world.device->info();
  return ResourceExhausted(
      "--recompute=auto: the plan of {} takes {:.1f} MB even with --recompute={}, device {} of {} has {:.1f} MB for "
      "this rank{}; lower --batch_size={}, or choose a smaller model",
      model.name, static_cast<double>(tried.choice.bytes) / 1e6, tried.choice.setting, device.index, device.plugin,
      available / 1e6, tried.choice.fits ? ", another rank has less" : "", config.batch_size);
}

}  // namespace switchyard
