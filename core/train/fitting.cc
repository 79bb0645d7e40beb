#include "core/train/fitting.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/parallel/recompute.h"
#include "core/train/plans.h"
#include "core/train/timetable.h"

namespace switchyard {
namespace {

constexpr char kRefusedElsewhere[] = "another rank's plan was refused; what that rank says tells why";

// What to try, from no block computed again to all of them: for each number of blocks the finest spacing that gives it.
std::vector<std::optional<int>> RecomputeSteps(int blocks) {
  std::vector<std::optional<int>> steps = {std::nullopt};
  for (int every = blocks; every >= 1; --every) {
    const auto chosen = [&](int k) { return (blocks + k - 1) / k; };
    if (every == 1 || chosen(every - 1) != chosen(every)) steps.push_back(every);
  }
  return steps;
}

int BlocksOf(const Program& program) {
  int blocks = 0;
  const NamedGraph* const update = program.Find("update");
  if (update == nullptr) return 0;  // of an evaluation, which keeps nothing for a backward pass
  for (const Node& node : update->graph.nodes()) blocks = std::max(blocks, node.block + 1);
  return blocks;
}

// What plans take.
struct Sizes {
  int blocks = 0;  // of the model, those of them that are in these plans
  uint64_t bytes = 0, largest_piece = 0;
};
Sizes SizesOf(const TrainingPlans& plans) {
  return {BlocksOf(plans.program), plans.PlannedBytes(), plans.LargestPiece()};
}

// What plans take with each step; those of a step are compiled once, when they are asked for.
class RecomputePlans {
 public:
  using Planner = std::function<StatusOr<Sizes>(const TrainConfig&)>;
  RecomputePlans(TrainConfig config, double available, const World& world, Planner planner)
      : config_(std::move(config)),
        available_(available),
        largest_allocation_(world.device->info().largest_allocation),
        planner_(std::move(planner)) {}

  StatusOr<int> Blocks() {
    SY_RETURN_IF_ERROR(Try(0).status());
    return sizes_.at(0).blocks;
  }
  // The steps of a model of so many blocks, where the plans may have fewer. Before, there is only step 0.
  int StepsOfBlocks(int blocks) {
    steps_ = RecomputeSteps(blocks);
    return static_cast<int>(steps_.size());
  }
  StatusOr<RecomputeChoice> Try(int step) {
    config_.recompute = RecomputeText(steps_[static_cast<size_t>(step)]);
    auto at = sizes_.find(step);
    if (at == sizes_.end()) {
      SY_ASSIGN_OR_RETURN(const Sizes planned, planner_(config_));
      at = sizes_.emplace(step, planned).first;
    }
    const Sizes& sizes = at->second;
    return RecomputeChoice{
        config_.recompute, sizes.bytes,
        static_cast<double>(sizes.bytes) <= available_ && sizes.largest_piece <= largest_allocation_};
  }
  // The first step that fits; where none does, the one that takes the fewest bytes.
  StatusOr<RecomputeChoice> Least() {
    RecomputeChoice least;
    for (int step = 0; step < static_cast<int>(steps_.size()) && !least.fits; ++step) {
      SY_ASSIGN_OR_RETURN(RecomputeChoice choice, Try(step));
      if (choice.fits || least.setting.empty() || choice.bytes < least.bytes) least = std::move(choice);
    }
    return least;
  }

 private:
  TrainConfig config_;
  const double available_;
  const uint64_t largest_allocation_;
  const Planner planner_;
  std::vector<std::optional<int>> steps_ = {std::nullopt};
  std::map<int, Sizes> sizes_;  // by step
};

std::string RoomText(const World& world, double available) {
  const DeviceInfo& device = world.device->info();
  std::string text =
      fmt::format("device {} of {} has {:.1f} MB for this rank{}", device.index, device.plugin, available / 1e6,
                  world.device->memory_limit() == kNoMemoryLimit ? "" : " within --memory_limit");
  if (device.largest_allocation < device.memory_bytes)
    text += fmt::format(", at most {:.1f} MB of it in one allocation",
                        static_cast<double>(device.largest_allocation) / 1e6);
  return text;
}

// A change of a run that may take less memory.
struct Way {
  TrainConfig config;
  Mesh mesh;
  std::string flags;   // what the user would give
  uint64_t bytes = 0;  // of the device, once it was planned
};

std::string FlagsOfChange(const TrainConfig& from, const TrainConfig& to) {
  std::string flags;
  const auto add = [&](const char* name, const auto& before, const auto& after) {
    if (before != after) flags += fmt::format("{}--{}={}", flags.empty() ? "" : " ", name, after);
  };
  add("batch_size", from.batch_size, to.batch_size);
  add("accumulation", from.accumulation, to.accumulation);
  add("recompute", from.recompute, to.recompute);
  add("zero", from.zero, to.zero);
  add("offload", from.offload, to.offload);
  add("bucket_mb", from.bucket_mb.value_or(0), to.bucket_mb.value_or(0));
  return flags;
}

// What to try, in groups of one kind of saving: of each the last takes the least, and what costs least comes first.
// Updates keep their samples, but for the last groups, of twice the ranks.
std::vector<std::vector<Way>> WaysToSave(const TrainConfig& config, const World& world, int blocks,
                                         bool evaluation_only) {
  std::vector<std::vector<Way>> ways;
  const auto add = [&](const TrainConfig& c, Mesh mesh) {
    std::string flags = FlagsOfChange(config, c);
    if (mesh.size() > world.size()) flags += fmt::format("{}{} ranks", flags.empty() ? "" : " on ", mesh.size());
    if (!flags.empty()) ways.back().push_back({c, std::move(mesh), std::move(flags)});
  };
  TrainConfig least = config;
  ways.emplace_back();
  for (int parts = 2; parts <= config.batch_size; ++parts) {
    if (config.batch_size % parts != 0 || config.batch_size / parts % BatchUnit(config) != 0) continue;
    least.batch_size = config.batch_size / parts;
    least.accumulation = evaluation_only ? 1 : config.accumulation * parts;
    add(least, world.mesh);
  }
  if (evaluation_only) return ways;
  TrainConfig c = config;
  ways.emplace_back();
  for (const std::optional<int> every : RecomputeSteps(blocks)) {
    if (!every || (config.recompute != "none" && *every > 1)) continue;
    c.recompute = least.recompute = RecomputeText(every);
    add(c, world.mesh);
  }
  const auto share = [&](Mesh mesh) {
    c = config;
    ways.emplace_back();
    const bool more = mesh.size() > world.size();
    for (c.zero = std::max(1, config.zero + (more ? 0 : 1)); c.zero <= 3; ++c.zero) add(c, mesh);
  };
  const bool offloads = DeviceTraits::Of(world.device->info()).own_memory && config.offload != "all";
  if (world.mesh.data > 1) share(world.mesh);
  if (offloads) {
    c = config;
    ways.emplace_back();
    for (const char* offload : {"optimizer", "all"}) {
      c.offload = least.offload = offload;
      if (c.offload != config.offload) add(c, world.mesh);
    }
  }
  // Some features are refused beside sharing, or beside some of its stages.
  const auto with_each_stage = [&](TrainConfig way, const Mesh& mesh) {
    ways.emplace_back();
    for (way.zero = config.zero; way.zero <= (mesh.data > 1 ? 3 : config.zero); ++way.zero) add(way, mesh);
  };
  const auto share_and_offload = [&](const Mesh& mesh) {
    c = config;
    c.offload = "all";
    with_each_stage(c, mesh);
  };
  if (offloads && world.mesh.data > 1) share_and_offload(world.mesh);
  with_each_stage(least, world.mesh);
  for (const double bucket_mb : kSmallerBucketsMb) {
    if (config.bucket_mb) break;
    least.bucket_mb = bucket_mb;
    with_each_stage(least, world.mesh);
  }
  Mesh twice = world.mesh;
  twice.data *= 2;
  twice.nodes.clear();
  share(twice);
  if (offloads) share_and_offload(twice);
  return ways;
}

// Plans ways to save memory until one fits.
class SavingPlans {
 public:
  SavingPlans(const TrainableModel& model, World& world, int64_t updates, bool evaluation_only)
      : model_(model), world_(world), updates_(updates), evaluation_only_(evaluation_only) {}

  void Try(std::vector<std::vector<Way>> groups) {
    for (std::vector<Way>& group : groups) {
      if (group.empty()) continue;
      const Answer of_last = PlanOf(group.back());
      if (of_last == Answer::kTooLarge) continue;
      for (Way& way : group) {
        if ((&way == &group.back() ? of_last : PlanOf(way)) != Answer::kFits) continue;
        found = way;
        return;
      }
    }
  }
  std::optional<Way> found, smallest;  // smallest: of those that do not fit on the ranks that are there

 private:
  enum class Answer { kFits, kTooLarge, kRefused };  // refused: there is no such plan
  Answer PlanOf(Way& way) {
    const bool here = way.mesh.size() == world_.size();
    way.bytes = 0;
    // Stages hold different blocks, and of a stage's ranks the first or the last takes the most: each must fit.
    const int first = way.mesh.DataRankOf(world_.rank() % way.mesh.size()) * way.mesh.model_ranks();
    for (int place = 0; place < way.mesh.model_ranks(); ++place) {
      const int within = place % way.mesh.tensor, rank = first + place;
      if (within != 0 && within != way.mesh.tensor - 1) continue;
      TrainingPlans plans;
      const Status planned = plans.CompileRun(way.config, model_, way.mesh, rank, updates_, *world_.device,
                                              world_.reference.get(), evaluation_only_, world_.host.get());
      if (!planned.ok()) return Answer::kRefused;
      way.bytes = std::max(way.bytes, plans.PlannedBytes() + world_.device->held_bytes());
    }
    if (way.bytes <= world_.device->memory_limit()) return Answer::kFits;
    if (here && (!smallest || way.bytes < smallest->bytes)) smallest = way;
    return Answer::kTooLarge;
  }

  const TrainableModel& model_;
  World& world_;
  const int64_t updates_;
  const bool evaluation_only_;
};

}  // namespace

uint64_t MemoryLimitOf(const TrainConfig& config) {
  if (!config.memory_limit) return kNoMemoryLimit;
  const double bytes = ParseBytes(*config.memory_limit).value();
  return bytes < static_cast<double>(kNoMemoryLimit) ? static_cast<uint64_t>(bytes) : kNoMemoryLimit;
}

std::pair<std::string, std::string> MegabytesOf(double bytes, double others) {
  std::pair<std::string, std::string> texts;
  for (int digits = 1; digits <= 6; ++digits) {  // bytes, at last
    texts = {fmt::format("{:.{}f}", bytes / 1e6, digits), fmt::format("{:.{}f}", others / 1e6, digits)};
    if (bytes == others || texts.first != texts.second) break;
  }
  return texts;
}

double DeviceBytesOf(const World& world) {
  const DeviceInfo& device = world.device->info();
  const double sharing =
      (device.flags & SY_DEVICE_CPU_CORES) != 0 ? world.processes.local_world : world.choice.ranks_per_device;
  const double share = static_cast<double>(device.free_bytes > 0 ? device.free_bytes : device.memory_bytes) / sharing;
  return std::min(share, static_cast<double>(world.device->memory_limit()));
}

Status LeaveRoomForPlans(World& world, const TrainingPlans& plans) {
  if (!world.communicator) return OkStatus();
  const auto windows = static_cast<int64_t>(plans.WindowBytes()), planned = static_cast<int64_t>(plans.PlannedBytes());
  const double available = DeviceBytesOf(world);
  const auto is_too_much = [&](int64_t bytes) { return static_cast<int64_t>(static_cast<double>(bytes) > available); };
  int64_t most[] = {is_too_much(planned + windows), is_too_much(planned), planned + windows};
  SY_RETURN_IF_ERROR(world.communicator->AllReduce("room_for_plans", most, most, std::size(most), SY_I64, SY_MAX));
  const auto [lacks_room, fits_nowhere, needed] = most;
  if (lacks_room == 0) return OkStatus();
  const bool reaches = world.communicator->info().Reaches(world.device->info().memory_kind);
  if (world.rank() == 0 && fits_nowhere == 0 && windows > 0 && !reaches && world.processes.nodes == 1)
    LogInfo(
        "collectives go through host memory: with their windows on the device (peer/1), {:.1f} MB, a rank would need "
        "up to {:.1f} MB, which is more than one has",
        static_cast<double>(windows) / 1e6, static_cast<double>(needed) / 1e6);
  world.communicator->LeavePeerMemory();
  return OkStatus();
}

Status BeyondMemoryLimit(const TrainConfig& config, const TrainableModel& model, World& world,
                         const TrainingPlans& plans, int64_t updates, bool evaluation_only) {
  const uint64_t held = world.device->held_bytes();
  std::string uses;
  for (const ArenaBytes& use : MemoryByUse(*plans.layout))
    uses += fmt::format("{}{} {:.1f}", uses.empty() ? "" : ", ", use.arena, static_cast<double>(use.bytes) / 1e6);
  if (held > 0) uses += fmt::format(", held by others {:.1f}", static_cast<double>(held) / 1e6);
  const std::string limit = config.memory_limit.value_or("");
  const auto [needed, allowed] =
      MegabytesOf(static_cast<double>(plans.PlannedBytes() + held), static_cast<double>(world.device->memory_limit()));
  const std::string refusal =
      fmt::format("--memory_limit={}: {} of {} needs {} MB of device memory ({}), and {} MB are allowed", limit,
                  evaluation_only ? "an evaluation" : "a training", model.name, needed, uses, allowed);
  SavingPlans saving(model, world, updates, evaluation_only);
  saving.Try(WaysToSave(config, world, BlocksOf(plans.program), evaluation_only));
  if (saving.found)
    return InvalidArgument("{}; {} would fit, with {:.1f} MB", refusal, saving.found->flags,
                           static_cast<double>(saving.found->bytes) / 1e6);
  std::string advice = "choose a smaller model";
  if (!evaluation_only)
    advice +=
        ", or let `switchyard explain --search --world=N --memory_limit=" + limit + "` say how many ranks share it";
  if (!saving.smallest) return InvalidArgument("{}; there is no setting left that takes less: {}", refusal, advice);
  return InvalidArgument("{}; none of the settings that take less would fit, the smallest, {}, with {:.1f} MB: {}",
                         refusal, saving.smallest->flags, static_cast<double>(saving.smallest->bytes) / 1e6, advice);
}

int BatchUnit(const TrainConfig& config) {
  return std::lcm(config.sp ? config.tp : 1, config.mixup > 0 || config.cutmix > 0 ? 2 : 1);
}

StatusOr<int> LargestBatch(const TrainConfig& config, const TrainableModel& model, World& world, int limit,
                           std::optional<int64_t> samples) {
  const double available = DeviceBytesOf(world);
  const int unit = BatchUnit(config);
  int32_t fits = 0;
  double needed = 0;
  int least = unit;
  Status refused;  // perhaps of this rank alone: stages of a pipeline have plans of their own
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
    const Status compiled = plans.CompileRun(c, model, world.mesh, world.rank(), updates, *world.device,
                                             world.reference.get(), !samples, world.host.get());
    if (!compiled.ok() && batch == 1 && limit > 1) {  // batch norms may want more than one image
      least = 2;
      continue;
    }
    if (refused = compiled; !refused.ok()) break;
    needed = static_cast<double>(plans.PlannedBytes());
    if (needed > available || plans.LargestPiece() > world.device->info().largest_allocation) break;
    fits = batch;
  }
  if (!refused.ok()) fits = -1;
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("largest_batch", &fits, &fits, 1, SY_I32, SY_MIN));
  SY_RETURN_IF_ERROR(refused);
  if (fits < 0) return FailedPrecondition("{}", kRefusedElsewhere);
  if (fits == 0) {
    return ResourceExhausted("--batch_size=auto: the plan of {} takes {:.1f} MB for {}, {}; choose a smaller model",
                             model.name, needed / 1e6, least == 1 ? "a single image" : fmt::format("{} images", least),
                             RoomText(world, available));
  }
  return fits;
}

StatusOr<int> LeastThatFitsAll(World& world, int count, absl::FunctionRef<StatusOr<bool>(int)> fits) {
  for (int32_t agreed = 0;;) {
    int32_t own = agreed;
    Status refused;
    for (; own < count; ++own) {
      const StatusOr<bool> here = fits(own);
      refused = here.status();
      if (!here.ok() || *here) break;
    }
    const int32_t asked = agreed;
    agreed = refused.ok() ? own : count + 1;
    if (world.communicator)
      SY_RETURN_IF_ERROR(world.communicator->AllReduce("least_of_all", &agreed, &agreed, 1, SY_I32, SY_MAX));
    SY_RETURN_IF_ERROR(refused);
    if (agreed > count) return FailedPrecondition("{}", kRefusedElsewhere);
    if (agreed == asked || agreed == count) return agreed;  // all ranks were asked for it, and it fits on all
  }
}

StatusOr<RecomputeChoice> LeastRecompute(const TrainConfig& config, const TrainableModel& model, World& world,
                                         const Mesh& mesh, int64_t updates, double available) {
  RecomputePlans plans(config, available, world, [&](const TrainConfig& c) -> StatusOr<Sizes> {
    SY_ASSIGN_OR_RETURN(const auto deciding,
                        TrainingPlans::DecidingReplica(c, model, mesh, updates, world, available, FewReplicas(mesh)));
    Sizes most;
    for (const auto& of_rank : deciding.replica) {
      const Sizes sizes = SizesOf(*of_rank);
      most.blocks = std::max(most.blocks, sizes.blocks);
      most.bytes = std::max(most.bytes, sizes.bytes);
      most.largest_piece = std::max(most.largest_piece, sizes.largest_piece);
    }
    return most;
  });
  SY_ASSIGN_OR_RETURN(const int blocks, plans.Blocks());
  plans.StepsOfBlocks(blocks);
  return plans.Least();
}

StatusOr<RecomputeChoice> LeastRecomputeOfAll(const TrainConfig& config, const TrainableModel& model, World& world,
                                              int64_t updates, double available) {
  RecomputePlans plans(config, available, world, [&](const TrainConfig& c) -> StatusOr<Sizes> {
    TrainingPlans own;
    SY_RETURN_IF_ERROR(own.CompileRun(c, model, world.mesh, world.rank(), updates, *world.device, world.reference.get(),
                                      false, world.host.get()));
    return SizesOf(own);
  });
  // A stage knows the blocks up to its last one, and may be refused alone.
  constexpr int32_t kRefused = std::numeric_limits<int32_t>::max();
  const StatusOr<int> own = plans.Blocks();
  int32_t blocks = own.ok() ? *own : kRefused;
  if (world.communicator)
    SY_RETURN_IF_ERROR(world.communicator->AllReduce("blocks_of_all", &blocks, &blocks, 1, SY_I32, SY_MAX));
  SY_RETURN_IF_ERROR(own.status());
  if (blocks == kRefused) return FailedPrecondition("{}", kRefusedElsewhere);
  const int steps = plans.StepsOfBlocks(blocks);
  SY_ASSIGN_OR_RETURN(const int step, LeastThatFitsAll(world, steps, [&](int at) -> StatusOr<bool> {
                        SY_ASSIGN_OR_RETURN(const RecomputeChoice choice, plans.Try(at));
                        return choice.fits;
                      }));
  if (step < steps) return plans.Try(step);
  SY_ASSIGN_OR_RETURN(const RecomputeChoice least, plans.Least());
  return ResourceExhausted(
      "--recompute=auto: the plan of {} takes {:.1f} MB {}with --recompute={}, {}{}; lower --batch_size={}, or choose "
      "a smaller model",
      model.name, static_cast<double>(least.bytes) / 1e6, least.fits ? "" : "even ", least.setting,
      RoomText(world, available), least.fits ? ", but no setting fits on all ranks" : "", config.batch_size);
}

}  // namespace switchyard
