// The plans of a run on one rank, and the memory that they take: what Trainer allocates and runs, and what `explain`
// shows. Both come from here, so that they cannot differ. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/parallel/program.h"
#include "core/plan/kernels.h"
#include "core/plan/plan.h"
#include "core/train/trainer.h"
#include "core/train/world.h"

namespace switchyard {

// What of a device a program depends on.
struct DeviceTraits {
  std::optional<double> static_loss_scale;  // DeviceInfo's
  bool own_memory = true;                   // beside the host's: else nothing is offloaded
  static DeviceTraits Of(const DeviceInfo& info) {
    return {info.static_loss_scale, info.address_kind != SY_ADDRESS_HOST};
  }
};

// Has --hierarchical_allreduce anything to do: are the ranks that sum gradients on several nodes, on some with others?
bool NodesDivideData(const TrainConfig& config, const Mesh& mesh);

// The program of a run with these settings on rank `rank` of a mesh. `updates`: of the whole run, the length of the
// table of learning rates. A model that cannot be built is InvalidArgument and names the source line.
StatusOr<Program> ProgramOf(const TrainConfig& config, const Task& task, const Mesh& mesh, int rank, int64_t updates,
                            const DeviceTraits& device, bool evaluation_only = false);

// The plans of the ranks that share a model, in their order.
struct TrainingPlans;
using Replica = std::vector<std::shared_ptr<const TrainingPlans>>;

// The name in the layout of the copy of a state as it was when the update began. There is one for each state that
// micro-steps before an update's last one change.
std::string AtBeginOfUpdate(const std::string& name);

// How many replicas a search plans of each mesh that it tries, for TrainingPlans::DecidingReplica: those of all ranks
// where these are few, so that they do not take most of its time where they are many.
inline int FewReplicas(const Mesh& mesh) { return std::max(2, 16 / mesh.model_ranks()); }

// Of --tp: what more ranks than it has parts cannot divide, so that each computes it whole, a sentence for each number
// of parts.
std::vector<std::string> InTooFewParts(const Program& program);

// A program's plans over one state, on one device.
struct TrainingPlans {
  std::unique_ptr<KernelCache> kernels, reference_kernels, host_kernels;
  std::unique_ptr<Layout> layout;
  Program program;
  std::vector<std::unique_ptr<Plan>> plans;  // as program.plans
  bool copies_state = false;                 // on the device, where a checkpoint is saved: see state_copy.h
  bool state_in_file = false;                // what of it lies on the host: --offload_dir
  bool statistics_of_each_rank = false;      // --broadcast_buffers=0
  bool gathers_checkpoints = false;          // on rank 0: --sharded_checkpoints=0

  // Nothing is allocated, and the other ranks need not be there. reference: null where there is none. host: whose
  // kernels run on the host; null: the reference's.
  Status Compile(const TrainConfig& config, Program program, Device& device, Device* reference, Device* host = nullptr);
  // What the ranks that share a model with `rank` allocate and run, in their order, without their data, on devices as
  // that of `here`. updates: of the whole run (Timetable::updates). Ranks that divide a stage evenly have the plans of
  // the first of them, whose sizes are theirs.
  static StatusOr<Replica> OfReplica(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh, int rank,
                                     int64_t updates, World& here);
  // Of the replicas the one with the rank that takes the most memory, which says whether all fit into `available` bytes
  // of each device. Where ranks share the update (--zero) each has other pieces, and so a plan of its own: `replicas`
  // of them are planned, the first and the last among them, or all if there are no more (Deciding::of_all). If there
  // are more and parameters are whole, one is planned: the others differ from it by a kilobyte or two. Where a
  // hundredth of `available` more or less would decide, up to 64 are planned.
  static constexpr int kMostReplicas = 16;
  struct Deciding;
  static StatusOr<Deciding> DecidingReplica(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh,
                                            int64_t updates, World& here, double available, int replicas);
  // Those of `rank` alone, to know their sizes: nobody runs them, so nothing is measured for --kernel_opt. A
  // measured kernel takes no more workspace than these on cpu; on cuda it may.
  Status CompileRun(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh, int rank, int64_t updates,
                    Device& device, Device* reference, bool evaluation_only = false, Device* host = nullptr);
  std::optional<size_t> IndexOf(const std::string& plan) const;
  bool EvaluatesTogether() const;     // "evaluate" holds collectives: no rank runs it by itself
  const Plan& Main() const;           // that which ends most updates; without one "evaluate"
  uint64_t PlannedBytes() const;      // of the device and of collectives
  uint64_t PlannedHostBytes() const;  // of the host beside it
  uint64_t PlannedFileBytes() const;  // of those, in a file: --offload_dir
  uint64_t LargestPiece() const;      // of PlannedBytes, the most that lies in one allocation
  uint64_t WindowBytes() const;       // of the device, for collectives (peer/1), where that fits beside PlannedBytes
  double UpdateFlops() const;         // of all plans that an update of this rank runs
  PlanReport Report() const;          // of Main(), with the memory of all plans and of a checkpoint's copy

 private:
  void KeepStateOfUpdates();  // gives it places
};
struct TrainingPlans::Deciding {
  Replica replica;
  int rank = 0;     // the first of it
  size_t most = 0;  // which of it takes the most
  bool of_all = true;  // all were planned, or are alike
  const TrainingPlans& Most() const { return *replica[most]; }
};

}  // namespace switchyard
