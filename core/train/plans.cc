#include "core/train/plans.h"

#include <algorithm>

#include "core/train/step.h"

namespace switchyard {

StatusOr<StepOptions> StepOptionsOf(const TrainConfig& config, const TrainableModel& model, int world,
                                    int64_t updates) {
  StepOptions o;
  o.batch = config.batch_size;
  o.height = o.width = model.image_size;
  o.channels = model.channels;
  o.label_smoothing = config.label_smoothing;
  o.precision = config.precision == "bf16" ? DType::kBF16 : DType::kF32;
  o.seed = config.seed;
  o.accumulation = config.accumulation;
  o.parallel.world = world;
  o.parallel.bucket_bytes = static_cast<uint64_t>(config.bucket_mb * 1e6);
  SY_ASSIGN_OR_RETURN(o.optimizer.kind, ParseOptimizer(config.optimizer));
  o.optimizer.weight_decay = config.weight_decay;
  o.optimizer.clip = config.clip;
  o.optimizer.momentum = config.momentum;
  o.optimizer.nesterov = config.nesterov;
  o.optimizer.beta1 = config.beta1;
  o.optimizer.beta2 = config.beta2;
  o.optimizer.eps = config.eps;
  o.table_length = std::max<int64_t>(1, updates);
  o.find_unused_parameters = config.find_unused_parameters;
  return o;
}

Status TrainingPlans::Compile(const TrainConfig& config, const TrainableModel& model, Device& device, Device* reference,
                              int world, int64_t updates, bool evaluation_only) {
  KernelOptions kernel_options;
  kernel_options.deterministic = config.deterministic;
  kernels = std::make_unique<KernelCache>(device, kernel_options);
  if (reference != nullptr) reference_kernels = std::make_unique<KernelCache>(*reference, kernel_options);
  layout = std::make_unique<Layout>(device.info().alignment, IoSlots(device));

  PlanOptions plan_options;
  plan_options.fuse = plan_options.capture = config.compile;
  plan_options.max_fallback = config.max_fallback;
  plan_options.world = world;
  for (const std::string& word : config.debug) {
    if (word == "sync") {
      plan_options.debug_sync = true;
    } else if (word == "nan") {
      plan_options.debug_nan = true;
    } else {
      return InvalidArgument("--debug: expected sync, nan or both, found {}", word);
    }
  }
  SY_ASSIGN_OR_RETURN(const StepOptions step, StepOptionsOf(config, model, world, updates));
  const auto compile = [&](const Graph& graph) {
    return Plan::Compile(graph, *kernels, reference_kernels.get(), *layout, plan_options);
  };
  try {
    if (evaluation_only) {
      SY_ASSIGN_OR_RETURN(evaluation, compile(BuildEvaluation(model.build, step)));
      return OkStatus();
    }
    if (config.accumulation > 1) {
      SY_ASSIGN_OR_RETURN(first, compile(BuildTrainingStep(model.build, step, MicroStep::kFirst)));
    }
    if (config.accumulation > 2) {
      SY_ASSIGN_OR_RETURN(middle, compile(BuildTrainingStep(model.build, step, MicroStep::kMiddle)));
    }
    const MicroStep last = config.accumulation > 1 ? MicroStep::kLast : MicroStep::kOnly;
    SY_ASSIGN_OR_RETURN(update, compile(BuildTrainingStep(model.build, step, last, &gradient_places)));
    SY_ASSIGN_OR_RETURN(evaluation, compile(BuildEvaluation(model.build, step)));
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be built: {}", model.name, error.what());
  }
  return OkStatus();
}

uint64_t TrainingPlans::PlannedBytes() const {
  uint64_t total = 0;
  for (int i = 0; i < kArenaCount; ++i) total += layout->bytes(static_cast<Arena>(i));
  return total;
}

PlanReport TrainingPlans::Report() const {
  PlanReport report = update->report();
  for (int i = 0; i < kArenaCount; ++i) report.arena_bytes[i] = layout->bytes(static_cast<Arena>(i));
  return report;
}

}  // namespace switchyard
