#include "core/train/trainer.h"

#include <utility>

#include "core/base/logging.h"
#include "core/train/agreement.h"
#include "core/train/evaluation.h"
#include "core/train/fitting.h"
#include "core/train/given_steps.h"
#include "core/train/loaders.h"
#include "core/train/loop.h"
#include "core/train/mixed_precision.h"
#include "core/train/parameters.h"
#include "core/train/weight_files.h"

namespace switchyard {

// What a Trainer is made of: each part does its own.
struct Trainer::Impl {
  Impl(const TrainConfig& c, const TrainableModel& m, World& world) : config(c), model(m), engine(world) {}

  // Only of a run that trains.
  struct Training {
    const Dataset* train = nullptr;
    const Dataset* validation = nullptr;
    std::unique_ptr<Loader> loader;
    Timetable timetable;
    RunPosition position;
    std::unique_ptr<Keeping> keeping;
    std::unique_ptr<GradientWatch> gradients;
  };

  TrainConfig config;
  TrainableModel model;
  std::unique_ptr<Task> task;
  Engine engine;
  Training training;
  std::optional<GivenSteps> given;  // steps of Step and Begin

  Status MakeTask();
  Status PrepareTraining(const Dataset& train, const Dataset& validation);
  Status PrepareEngine(int64_t updates, bool evaluation_only);
  Status WithRecompute(const Status& out_of_memory, int64_t updates);
  StatusOr<std::unique_ptr<Loader>> EvaluationLoader(const Dataset& dataset) const;
};

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

const Task& Trainer::task() const { return *impl_->task; }
const ScheduleOptions& Trainer::schedule() const { return impl_->training.timetable.schedule; }
const PlanReport& Trainer::report() const { return impl_->engine.plans().Main().report(); }
double Trainer::update_flops() const { return impl_->engine.plans().UpdateFlops(); }
int64_t Trainer::updates_per_epoch() const { return impl_->training.timetable.updates_per_epoch; }
std::string Trainer::run_folder() const {
  return impl_->training.keeping ? impl_->training.keeping->run_folder() : std::string();
}
uint64_t Trainer::allocated_bytes() const { return impl_->engine.memory().allocated_bytes(); }
uint64_t Trainer::planned_bytes() const { return impl_->engine.plans().PlannedBytes(); }
uint64_t Trainer::planned_host_bytes() const { return impl_->engine.plans().PlannedHostBytes(); }
uint64_t Trainer::host_allocated_bytes() const { return impl_->engine.memory().host_allocated_bytes(); }

Status Trainer::Impl::MakeTask() {
  SY_ASSIGN_OR_RETURN(task, TaskOf(config, model, engine.world().device.get()));
  return OkStatus();
}

Status Trainer::Impl::PrepareTraining(const Dataset& train, const Dataset& validation) {
  World& world = engine.world();
  training.train = &train;
  training.validation = &validation;
  SY_RETURN_IF_ERROR(MakeTask());
  SY_ASSIGN_OR_RETURN(auto samples, task->Samples(train, true));
  const int64_t size = samples->size();
  SY_ASSIGN_OR_RETURN(training.loader, MakeLoader(config, std::move(samples), world, true));
  config.global_batch_size = static_cast<int>(SamplesPerUpdate(config, world.data_size()));
  training.keeping = std::make_unique<Keeping>(engine, config, model, *task, train);
  RunPosition& at = training.position;
  if (config.resume) {
    SY_ASSIGN_OR_RETURN(at, training.keeping->Open());
    training.loader->RestoreBadSamples(at.bad_samples);
  }
  SY_ASSIGN_OR_RETURN(training.timetable, Timetable::Of(config, size, world.data_size(), at));
  at.course = training.timetable.course;
  training.gradients = std::make_unique<GradientWatch>(engine, config, at.skipped);
  return OkStatus();
}

Status Trainer::Impl::PrepareEngine(int64_t updates, bool evaluation_only) {
  World& world = engine.world();
  SY_ASSIGN_OR_RETURN(Program program, ProgramOf(config, *task, world.mesh, world.rank(), updates,
                                                 DeviceTraits::Of(world.device->info()), evaluation_only));
  SY_RETURN_IF_ERROR(engine.Compile(config, std::move(program)));
  if (world.rank() == 0) {
    for (const std::string& sentence : InTooFewParts(engine.plans().program)) LogWarning("{}", sentence);
  }
  SY_RETURN_IF_ERROR(VerifyParameters(engine));
  SY_RETURN_IF_ERROR(LeaveRoomForPlans(world, engine.plans()));
  given.emplace(engine, config, task->tensors(), training.position.data_step);
  const Status allocated = engine.Allocate(task->tensors());
  if (allocated.code() != absl::StatusCode::kResourceExhausted) return allocated;
  if (world.device->held_bytes() + engine.plans().PlannedBytes() > world.device->memory_limit())
    return BeyondMemoryLimit(config, model, world, engine.plans(), updates, evaluation_only);
  return evaluation_only ? allocated : WithRecompute(allocated, updates);
}

// What recomputation would save, said beside what a smaller batch would.
Status Trainer::Impl::WithRecompute(const Status& out_of_memory, int64_t updates) {
  World& world = engine.world();
  const double available = DeviceBytesOf(world);
  const auto least = LeastRecompute(config, model, world, world.mesh, updates, available);
  if (!least.ok() || least->setting == "none" || least->bytes >= engine.plans().PlannedBytes()) return out_of_memory;
  return Status(
      out_of_memory.code(),
      fmt::format("{}; --recompute={} takes {:.1f} MB instead of {:.1f} MB{}", Message(out_of_memory), least->setting,
                  static_cast<double>(least->bytes) / 1e6, static_cast<double>(engine.plans().PlannedBytes()) / 1e6,
                  least->fits ? ", which would fit" : ", which is still too much"));
}

StatusOr<std::unique_ptr<Trainer>> Trainer::Make(const TrainConfig& config, const TrainableModel& model, World& world) {
  TrainConfig resolved = config;
  ResolveMixedPrecision(world.device->info().static_loss_scale, &resolved);
  SY_RETURN_IF_ERROR(CheckTrainConfig(resolved));
  if (config.batch_size < 1) return InvalidArgument("--batch_size: expected at least 1, found {}", config.batch_size);
  SY_RETURN_IF_ERROR(VerifySettings(resolved, world));
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(resolved, model, world)));
}

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainConfig& config, const TrainableModel& model,
                                                   const Dataset& train, const Dataset& validation, World& world) {
  SY_ASSIGN_OR_RETURN(auto trainer, Make(config, model, world));
  SY_RETURN_IF_ERROR(VerifyData({{"training", &train}, {"validation", &validation}}, world));
  Impl& impl = *trainer->impl_;
  SY_RETURN_IF_ERROR(impl.PrepareTraining(train, validation));
  const std::vector<float>& rates = impl.training.timetable.rates;
  SY_RETURN_IF_ERROR(impl.PrepareEngine(static_cast<int64_t>(rates.size()), false));
  SY_RETURN_IF_ERROR(InitializeParameters(impl.engine, config.seed));
  // Moments, counters and accumulators start at zero, as the memory is.
  SY_RETURN_IF_ERROR(InitializeStates(impl.engine));
  SY_RETURN_IF_ERROR(impl.engine.memory().Upload("lr_table", rates.data(), rates.size() * sizeof(float)));
  if (config.resume) SY_RETURN_IF_ERROR(impl.training.keeping->Restore());
  return trainer;
}

StatusOr<std::unique_ptr<Trainer>> Trainer::CreateForEvaluation(const TrainConfig& config, const TrainableModel& model,
                                                                World& world) {
  SY_ASSIGN_OR_RETURN(auto trainer, Make(config, model, world));
  SY_RETURN_IF_ERROR(trainer->impl_->MakeTask());
  SY_RETURN_IF_ERROR(trainer->impl_->PrepareEngine(1, true));
  return trainer;
}

StatusOr<TrainingResult> Trainer::Train(const std::function<Status(const std::string& run_folder)>& began) {
  Impl& impl = *impl_;
  Impl::Training& t = impl.training;
  TrainingLoop loop({impl.config, t.timetable, *impl.task, impl.engine, *t.loader, *t.keeping, *t.gradients, t.position,
                     [&](const StopAsked& stops) { return Evaluate(*t.validation, stops); },
                     [&](int count) { return Examples(*t.validation, t.validation->class_names(), count); },
                     fmt::format("{} on {}", impl.model.name, impl.config.dataset), began});
  return loop.Run();
}

StatusOr<std::unique_ptr<Loader>> Trainer::Impl::EvaluationLoader(const Dataset& dataset) const {
  SY_ASSIGN_OR_RETURN(auto samples, task->Samples(dataset, false));
  return MakeLoader(config, std::move(samples), engine.world(), false);
}

StatusOr<EvaluationResult> Trainer::Evaluate(const Dataset& dataset, const StopAsked& stops) {
  SY_ASSIGN_OR_RETURN(const auto loader, impl_->EvaluationLoader(dataset));
  SY_ASSIGN_OR_RETURN(EvaluationResult result, EvaluateSamples(impl_->engine, *impl_->task, *loader, false, stops));
  if (!impl_->engine.HasAverages()) return result;
  SY_ASSIGN_OR_RETURN(const auto again, impl_->EvaluationLoader(dataset));
  SY_ASSIGN_OR_RETURN(EvaluationResult averaged, EvaluateSamples(impl_->engine, *impl_->task, *again, true, stops));
  result.ema = std::move(averaged.metrics);
  return result;
}

StatusOr<std::vector<Example>> Trainer::Examples(const Dataset& dataset, const std::vector<std::string>& names,
                                                 int count) {
  SY_ASSIGN_OR_RETURN(const auto samples, impl_->task->Samples(dataset, false));
  return ExamplesOf(impl_->engine, *impl_->task, *samples, names, count);
}

Status Trainer::Predict(const Dataset& dataset, ReadPrediction read) {
  SY_ASSIGN_OR_RETURN(const auto loader, impl_->EvaluationLoader(dataset));
  return PredictSamples(impl_->engine, *impl_->task, *loader, read);
}

StatusOr<Trainer::StepResult> Trainer::Step(std::span<const std::span<const std::byte>> tensors) {
  Engine& engine = impl_->engine;
  StepResult result;
  SY_RETURN_IF_ERROR(impl_->given->Run(tensors, [&]() -> Status {
    SY_ASSIGN_OR_RETURN(const float loss, engine.Read(Engine::Scalar::kLoss));
    result.loss += loss / engine.runs();
    return OkStatus();
  }));
  SY_ASSIGN_OR_RETURN(result.lr, engine.Read(Engine::Scalar::kLearningRate));
  SY_ASSIGN_OR_RETURN(result.grad_norm, engine.Read(Engine::Scalar::kGradNorm));
  if (engine.Has(Engine::Scalar::kLossScale)) {
    SY_ASSIGN_OR_RETURN(result.loss_scale, engine.Read(Engine::Scalar::kLossScale));
  }
  return result;
}

Status Trainer::Begin(std::span<const std::span<const std::byte>> tensors) { return impl_->given->Begin(tensors); }
Status Trainer::Wait() { return impl_->engine.Synchronize(); }

void Trainer::Record(Profile* profile) {
  impl_->given->Record(profile);
  impl_->engine.Record(profile);
}

Status Trainer::LoadWeights(const std::string& path, bool reset_head, bool averaged) {
  const TrainableModel& model = impl_->model;
  SY_ASSIGN_OR_RETURN(const WeightSource source, WeightSource::Open(path));
  SY_ASSIGN_OR_RETURN(HostTensors weights,
                      averaged ? source.ReadAverages(model.from_file, model.to_file) : source.Read());
  if (model.import_weights) {
    SY_ASSIGN_OR_RETURN(weights, model.import_weights(std::move(weights), reset_head));
  }
  SY_RETURN_IF_ERROR(VerifyReadWeights(impl_->engine, weights, path));
  return UploadParameters(impl_->engine, model.name, weights, reset_head);
}

StatusOr<HostTensors> Trainer::Parameters() const { return DownloadParameters(impl_->engine); }
Status Trainer::SetParameters(const HostTensors& values) {
  return UploadParameters(impl_->engine, impl_->model.name, values, false);
}

}  // namespace switchyard
