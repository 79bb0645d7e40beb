// The plans of a run on one rank, and the memory that they take: what Trainer allocates and runs, and what `explain`
// shows. Both come from here, so that they cannot differ. Not thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "core/plan/kernels.h"
#include "core/plan/plan.h"
#include "core/train/trainer.h"

namespace switchyard {

// The settings as the step's builder takes them. `updates`: of the whole run, the length of the table of learning
// rates.
StatusOr<StepOptions> StepOptionsOf(const TrainConfig& config, const TrainableModel& model, int world, int64_t updates);

// Plans over one state. `update` is the step that ends a round: the only one (A = 1) or the last.
struct TrainingPlans {
  std::unique_ptr<KernelCache> kernels, reference_kernels;
  std::unique_ptr<Layout> layout;
  std::unique_ptr<Plan> first, middle, update, evaluation;
  std::vector<GradientPlace> gradient_places;  // after `update`

  // For one rank of `world`, which need not be there; nothing is allocated. reference: null where there is none. A
  // model that cannot be built is InvalidArgument and names the source line.
  // evaluation_only: no other plan is made, and no optimizer state.
  Status Compile(const TrainConfig& config, const TrainableModel& model, Device& device, Device* reference, int world,
                 int64_t updates, bool evaluation_only = false);
  uint64_t PlannedBytes() const;
  PlanReport Report() const;  // of `update`, with the memory of all plans
};

}  // namespace switchyard
