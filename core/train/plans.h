// The plans of a run on one rank, and the memory that they take: what Trainer allocates and runs, and what `explain`
// shows. Both come from here, so that they cannot differ. Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "core/parallel/program.h"
#include "core/plan/kernels.h"
#include "core/plan/plan.h"
#include "core/train/trainer.h"

namespace switchyard {

// The program of a run with these settings on rank `rank` of a mesh. `updates`: of the whole run, the length of the
// table of learning rates; `static_loss_scale`: DeviceInfo's of the device that computes. A model that cannot be built
// is InvalidArgument and names the source line.
StatusOr<Program> ProgramOf(const TrainConfig& config, const Task& task, const Mesh& mesh, int rank, int64_t updates,
                            double static_loss_scale, bool evaluation_only = false);

// A program's plans over one state, on one device.
struct TrainingPlans {
  std::unique_ptr<KernelCache> kernels, reference_kernels;
  std::unique_ptr<Layout> layout;
  Program program;
  std::vector<std::unique_ptr<Plan>> plans;  // as program.plans
  bool copies_state = false;                 // on the device, where a checkpoint is saved: see state_copy.h

  // Nothing is allocated, and the other ranks need not be there. reference: null where there is none.
  Status Compile(const TrainConfig& config, Program program, Device& device, Device* reference);
  // What the ranks that share a model with `rank` allocate and run, in their order, without their data. updates: of the
  // whole run (Timetable::updates). Memory of a collective is as large on all of them.
  static StatusOr<std::vector<TrainingPlans>> OfReplica(const TrainConfig& config, const TrainableModel& model,
                                                        const Mesh& mesh, int rank, int64_t updates, Device& device,
                                                        Device* reference, bool evaluation_only = false);
  // Those of `rank` alone.
  Status CompileRun(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh, int rank, int64_t updates,
                    Device& device, Device* reference, bool evaluation_only = false);
  int IndexOf(const std::string& plan) const;  // -1: there is none
  bool EvaluatesTogether() const;              // "evaluate" holds collectives: no rank runs it by itself
  const Plan& Main() const;                    // "update"; without one "evaluate"
  uint64_t PlannedBytes() const;
  PlanReport Report() const;  // of Main(), with the memory of all plans and of a checkpoint's copy
};

}  // namespace switchyard
