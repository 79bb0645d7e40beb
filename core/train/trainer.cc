#include "core/train/trainer.h"

#include <algorithm>
#include <cstring>

#include "core/base/logging.h"
#include "core/nn/initialize.h"
#include "core/optim/schedule.h"
#include "core/train/trainer_impl.h"
#include "zlib.h"

namespace switchyard {
namespace {

StatusOr<std::vector<float>> Numbers(const std::string& flag, const std::vector<std::string>& words) {
  std::vector<float> numbers;
  for (const std::string& word : words) {
    char* end = nullptr;
    numbers.push_back(std::strtof(word.c_str(), &end));
    if (word.empty() || *end != '\0')
      return InvalidArgument("--{}: expected numbers separated by commas, found {}", flag, word);
  }
  return numbers;
}

StatusOr<std::vector<float>> RateTable(const TrainConfig& c, int64_t updates, int64_t updates_per_epoch, int world) {
  ScheduleOptions o;
  SY_ASSIGN_OR_RETURN(o.kind, ParseSchedule(c.schedule));
  o.lr = c.lr;
  o.warmup_lr = c.warmup_lr;
  o.min_lr = c.min_lr;
  o.gamma = c.gamma;
  SY_ASSIGN_OR_RETURN(o.warmup, ParseWarmup(c.warmup.empty() ? "0" : c.warmup, updates, updates_per_epoch));
  SY_ASSIGN_OR_RETURN(const std::vector<float> milestones, Numbers("milestones", c.milestones));
  for (const float milestone : milestones) o.milestones.push_back(static_cast<int64_t>(milestone));
  if (c.step_size > 0) o.step_size = c.step_size;
  if (o.kind == Schedule::kStep && c.step_size <= 0)
    return InvalidArgument("--schedule=step needs --step_size, the number of updates between two falls");
  if (c.per_epoch) o.interval = updates_per_epoch;
  SY_ASSIGN_OR_RETURN(const RateScaling scaling, ParseRateScaling(c.scale_lr));
  o = ScaleRates(o, scaling, int64_t{c.batch_size} * world * c.accumulation, c.base_batch_size, c.scale_lr_factor);
  return LearningRateTable(o, updates);
}

StatusOr<Transform> MakeTransform(const TrainConfig& c, const EvaluationTransform& evaluation, const Dataset& data,
                                  bool train) {
  TransformOptions o;
  o.evaluation = evaluation;
  o.train = train;
  o.augmentation = data.augmentation();
  if (!c.augmentation.empty()) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(c.augmentation));
  }
  o.brightness = o.contrast = o.saturation = c.color_jitter;
  o.seed = c.seed;
  return Transform::Create(o);
}

}  // namespace

StatusOr<EvaluationTransform> EvaluationOf(const TrainConfig& c, const TrainableModel& model, float crop_ratio) {
  EvaluationTransform e =
      model.evaluation.value_or(EvaluationTransform{.image_size = model.image_size,
                                                    .channels = model.channels,
                                                    .resize = ResizeForCrop(model.image_size, crop_ratio)});
  if (c.crop_ratio > 0) e.resize = ResizeForCrop(e.image_size, c.crop_ratio);
  if (!c.interpolation.empty()) {
    SY_ASSIGN_OR_RETURN(e.interpolation, ParseInterpolation(c.interpolation));
  }
  if (!c.mean.empty()) {
    SY_ASSIGN_OR_RETURN(e.mean, Numbers("mean", c.mean));
  }
  if (!c.std.empty()) {
    SY_ASSIGN_OR_RETURN(e.std, Numbers("std", c.std));
  }
  if (e.image_size != model.image_size || e.channels != model.channels) {
    return InvalidArgument("the evaluation transform makes images of {0} x {0} x {1}, but {2} takes {3} x {3} x {4}",
                           e.image_size, e.channels, model.name, model.image_size, model.channels);
  }
  SY_RETURN_IF_ERROR(Check(e));
  return e;
}

StatusOr<std::unique_ptr<Loader>> MakeLoader(const TrainConfig& c, const EvaluationTransform& evaluation,
                                             const Dataset& data, const World& world, bool train) {
  SY_ASSIGN_OR_RETURN(const Transform transform, MakeTransform(c, evaluation, data, train));
  LoaderOptions o;
  o.batch_size = c.batch_size;
  o.train = train;
  o.rank = world.rank();
  o.world = world.size();
  o.seed = c.seed;
  o.workers = c.workers;
  o.prefetch = c.prefetch;
  o.max_bad_samples = c.max_bad_samples;
  return Loader::Create(data, transform, o);
}

Trainer::Trainer() = default;
Trainer::~Trainer() = default;
const PlanReport& Trainer::report() const { return (impl_->update ? impl_->update : impl_->evaluation)->report(); }
int64_t Trainer::updates_per_epoch() const { return impl_->updates_per_epoch; }
const std::vector<Instance::Timing>& Trainer::timings() const { return impl_->slots[impl_->slot].update->timings(); }
const std::string& Trainer::run_folder() const { return impl_->run_folder; }
uint64_t Trainer::allocated_bytes() const { return impl_->memory->allocated_bytes(); }
uint64_t Trainer::planned_bytes() const { return impl_->PlannedBytes(); }

uint64_t Trainer::Impl::PlannedBytes() const {
  uint64_t total = 0;
  for (int i = 0; i < kArenaCount; ++i) total += layout->bytes(static_cast<Arena>(i));
  return total;
}

StepOptions Trainer::Impl::MakeStepOptions() const {
  StepOptions o;
  o.batch = config.batch_size;
  o.height = o.width = model.image_size;
  o.channels = model.channels;
  o.label_smoothing = config.label_smoothing;
  o.precision = config.precision == "bf16" ? DType::kBF16 : DType::kF32;
  o.seed = config.seed;
  o.accumulation = config.accumulation;
  o.parallel.world = world_size();
  o.parallel.bucket_bytes = static_cast<uint64_t>(config.bucket_mb * 1e6);
  o.optimizer.weight_decay = config.weight_decay;
  o.optimizer.clip = config.clip;
  o.optimizer.momentum = config.momentum;
  o.optimizer.nesterov = config.nesterov;
  o.optimizer.beta1 = config.beta1;
  o.optimizer.beta2 = config.beta2;
  o.optimizer.eps = config.eps;
  o.table_length = std::max<int64_t>(1, static_cast<int64_t>(lr_table.size()));
  o.find_unused_parameters = config.find_unused_parameters;
  return o;
}

// Activations and batches grow with the batch, everything else does not: what would fit follows from the plan.
Status Trainer::Impl::WithLargestBatch(const Status& out_of_memory) const {
  const DeviceInfo& device = world.device->info();
  const auto bytes = [&](Arena arena) { return static_cast<double>(layout->bytes(arena)); };
  const double fixed = bytes(Arena::kState) + bytes(Arena::kGradients) + bytes(Arena::kScratch);
  const double per_image = (bytes(Arena::kActivations) + bytes(Arena::kIo)) / config.batch_size;
  const double available = static_cast<double>(device.free_bytes > 0 ? device.free_bytes : device.memory_bytes);
  const auto fits = static_cast<int64_t>(std::max(0.0, (available - fixed) / per_image));
  const std::string advice = fits >= 1 && fits < config.batch_size ? fmt::format("--batch_size={} would fit", fits)
                             : fits < 1                            ? "not even one image fits: choose a smaller model"
                                                                   : "free some memory";
  return Status(
      out_of_memory.code(),
      fmt::format("{}; the plan takes {:.1f} MB and {:.2f} MB for each image of a batch, the device has {:.1f} MB: {}",
                  Message(out_of_memory), fixed / 1e6, per_image / 1e6, available / 1e6, advice));
}

Status Trainer::Impl::CompilePlans() {
  KernelOptions kernel_options;
  kernel_options.deterministic = config.deterministic;
  kernels = std::make_unique<KernelCache>(*world.device, kernel_options);
  if (world.reference) reference_kernels = std::make_unique<KernelCache>(*world.reference, kernel_options);
  layout = std::make_unique<Layout>(world.device->info().alignment, IoSlots(*world.device));

  PlanOptions plan_options;
  plan_options.fuse = plan_options.capture = config.compile;
  plan_options.max_fallback = config.max_fallback;
  plan_options.world = world_size();
  for (const std::string& word : config.debug) {
    if (word == "sync") {
      plan_options.debug_sync = true;
    } else if (word == "nan") {
      plan_options.debug_nan = true;
    } else {
      return InvalidArgument("--debug: expected sync, nan or both, found {}", word);
    }
  }
  StepOptions step = MakeStepOptions();
  SY_ASSIGN_OR_RETURN(step.optimizer.kind, ParseOptimizer(config.optimizer));
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
      if (config.accumulation > 2) {
        SY_ASSIGN_OR_RETURN(middle, compile(BuildTrainingStep(model.build, step, MicroStep::kMiddle)));
      }
      SY_ASSIGN_OR_RETURN(update, compile(BuildTrainingStep(model.build, step, MicroStep::kLast)));
    } else {
      SY_ASSIGN_OR_RETURN(update, compile(BuildTrainingStep(model.build, step, MicroStep::kOnly)));
    }
    SY_ASSIGN_OR_RETURN(evaluation, compile(BuildEvaluation(model.build, step)));
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be built: {}", model.name, error.what());
  }
  return OkStatus();
}

Status Trainer::Impl::AllocateMemory() {
  SY_ASSIGN_OR_RETURN(stream, world.device->NewStream());
  if (world.device->async()) {
    SY_ASSIGN_OR_RETURN(uploads, world.device->NewStream());
  }
  auto allocated = Memory::Allocate(*layout, *world.device, world.communicator.get());
  if (allocated.status().code() == absl::StatusCode::kResourceExhausted) return WithLargestBatch(allocated.status());
  SY_RETURN_IF_ERROR(allocated.status());
  memory = std::move(*allocated);
  slots.resize(layout->io_slots());
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto bind = [&](const std::unique_ptr<Plan>& plan, std::unique_ptr<Instance>& instance) -> Status {
      if (!plan) return OkStatus();
      SY_ASSIGN_OR_RETURN(instance, Instance::Bind(*plan, *memory, world.communicator.get(), static_cast<int>(i)));
      return OkStatus();
    };
    SY_RETURN_IF_ERROR(bind(first, slots[i].first));
    SY_RETURN_IF_ERROR(bind(middle, slots[i].middle));
    SY_RETURN_IF_ERROR(bind(update, slots[i].update));
    SY_RETURN_IF_ERROR(bind(evaluation, slots[i].evaluation));
  }

  places = {
      layout->Find("images"),      layout->Find("labels"),    layout->Find("sample_ids"),      layout->Find("step"),
      layout->Find("output/loss"), layout->Find("output/lr"), layout->Find("output/grad_norm")};
  own_samples.resize(config.batch_size);
  for (int i = 0; i < config.batch_size; ++i) own_samples[i] = i * world_size() + rank();
  return OkStatus();
}

// Every rank must have the same parameters as rank 0. All ranks come to the same verdict, so that none goes on alone;
// it names the first difference.
Status Trainer::Impl::VerifyParameters() {
  if (world_size() == 1) return OkStatus();
  std::string list;
  for (const auto& [name, entry] : layout->entries()) {
    if (entry.role == Role::kParameter) list += fmt::format("{} {}\n", name, ToString(entry.type));
  }
  std::string theirs = list;
  SY_RETURN_IF_ERROR(BroadcastText(theirs, 0));
  int32_t first = theirs == list ? world_size() : rank();
  SY_RETURN_IF_ERROR(world.communicator->AllReduce("parameters/compare", &first, &first, 1, SY_I32, SY_MIN));
  if (first == world_size()) return OkStatus();
  std::string difference;
  if (rank() == first) {
    size_t line = 0;
    const auto at = [&line](const std::string& text) {
      return line < text.size() ? text.substr(line, text.find('\n', line) - line) : "none";
    };
    while (line < list.size() && line < theirs.size() && at(list) == at(theirs)) line = list.find('\n', line) + 1;
    difference = fmt::format("\"{}\" there, \"{}\" on rank 0", at(list), at(theirs));
  }
  SY_RETURN_IF_ERROR(BroadcastText(difference, first));
  return FailedPrecondition(
      "rank {} has other parameters than rank 0; the first difference: {}; start all ranks with the same model", first,
      difference);
}

Status Trainer::Impl::BroadcastText(std::string& text, int root) {
  uint64_t length = text.size();
  SY_RETURN_IF_ERROR(world.communicator->Broadcast("text/length", &length, sizeof length, SY_U8, root));
  text.resize(length);
  return world.communicator->Broadcast("text", text.data(), length, SY_U8, root);
}

Status Trainer::Impl::BroadcastState(std::map<std::string, std::vector<char>>& values) {
  if (world_size() == 1) return OkStatus();
  for (auto& [name, bytes] : values)
    SY_RETURN_IF_ERROR(
        world.communicator->Broadcast(("broadcast/" + name).c_str(), bytes.data(), bytes.size(), SY_U8, 0));
  return OkStatus();
}

Status Trainer::Impl::InitializeState() {
  std::map<std::string, std::vector<char>> values;
  for (const auto& [name, entry] : layout->entries()) {
    if (entry.role != Role::kParameter) continue;
    const std::vector<float> initial = nn::InitialValues(name, entry.type, entry.initializer, config.seed);
    std::vector<char>& bytes = values[name];
    bytes.resize(entry.bytes);
    std::memcpy(bytes.data(), initial.data(), bytes.size());
  }
  SY_RETURN_IF_ERROR(BroadcastState(values));
  for (const auto& [name, bytes] : values) SY_RETURN_IF_ERROR(memory->Upload(name, bytes.data(), bytes.size()));
  // Moments, counters and accumulators start at zero, as Memory::Allocate left them.
  return memory->Upload("lr_table", lr_table.data(), lr_table.size() * sizeof(float));
}

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainConfig& config, const TrainableModel& model,
                                                   const Dataset& train, const Dataset& validation, World& world) {
  SY_RETURN_IF_ERROR(CheckTrainConfig(config));
  if (config.batch_size < 1) return InvalidArgument("--batch_size: expected at least 1, found {}", config.batch_size);
  std::unique_ptr<Trainer> trainer(new Trainer);
  trainer->impl_ = std::make_unique<Impl>(world);
  Impl& impl = *trainer->impl_;
  impl.config = config;
  impl.model = model;
  impl.train_data = &train;
  impl.validation_data = &validation;
  SY_ASSIGN_OR_RETURN(const EvaluationTransform transform, EvaluationOf(config, model, train.crop_ratio()));
  impl.model.evaluation = transform;
  SY_ASSIGN_OR_RETURN(impl.loader, MakeLoader(config, transform, train, world, true));
  impl.updates_per_epoch = impl.loader->batches_per_epoch() / config.accumulation;
  if (impl.updates_per_epoch == 0) {
    return InvalidArgument(
        "{} training samples are fewer than one update takes ({} = batch_size {} x {} ranks x accumulation {}); lower "
        "--batch_size",
        train.size(), impl.samples_per_update(), config.batch_size, world.size(), config.accumulation);
  }
  impl.total_updates = config.steps > 0 ? config.steps : impl.updates_per_epoch * config.epochs;
  SY_ASSIGN_OR_RETURN(impl.lr_table, RateTable(config, impl.total_updates, impl.updates_per_epoch, world.size()));
  SY_RETURN_IF_ERROR(impl.CompilePlans());
  SY_RETURN_IF_ERROR(impl.VerifyParameters());
  SY_RETURN_IF_ERROR(impl.AllocateMemory());
  SY_RETURN_IF_ERROR(impl.InitializeState());
  return trainer;
}

StatusOr<std::unique_ptr<Trainer>> Trainer::CreateForEvaluation(const TrainConfig& config, const TrainableModel& model,
                                                                World& world) {
  SY_RETURN_IF_ERROR(CheckTrainConfig(config));
  if (config.batch_size < 1) return InvalidArgument("--batch_size: expected at least 1, found {}", config.batch_size);
  std::unique_ptr<Trainer> trainer(new Trainer);
  trainer->impl_ = std::make_unique<Impl>(world);
  Impl& impl = *trainer->impl_;
  impl.config = config;
  impl.model = model;
  impl.evaluation_only = true;
  SY_RETURN_IF_ERROR(impl.CompilePlans());
  SY_RETURN_IF_ERROR(impl.VerifyParameters());
  SY_RETURN_IF_ERROR(impl.AllocateMemory());
  return trainer;
}

StatusOr<int> Trainer::LargestBatch(const TrainConfig& config, const TrainableModel& model, World& world, int limit,
                                    bool evaluation_only) {
  const DeviceInfo& device = world.device->info();
  const double sharing =
      (device.flags & SY_DEVICE_CPU_CORES) != 0 ? world.processes.local_world : world.choice.ranks_per_device;
  const double available =
      static_cast<double>(device.free_bytes > 0 ? device.free_bytes : device.memory_bytes) / sharing;
  int32_t fits = 0;
  double needed = 0;
  for (int batch = 1; batch <= limit; batch *= 2) {
    Impl impl(world);
    impl.config = config;
    impl.config.batch_size = batch;
    impl.model = model;
    impl.evaluation_only = evaluation_only;
    SY_RETURN_IF_ERROR(impl.CompilePlans());
    needed = static_cast<double>(impl.PlannedBytes());
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

Status Trainer::Impl::UploadBatch(const float* images, const int32_t* labels, const int32_t* sample_ids,
                                  int micro_step) {
  Device& device = *world.device;
  const int32_t step[2] = {static_cast<int32_t>(data_step), micro_step};
  const std::pair<const Layout::Entry*, const void*> inputs[] = {
      {places.images, images}, {places.labels, labels}, {places.sample_ids, sample_ids}, {places.step, step}};
  slot = (slot + 1) % static_cast<int>(slots.size());
  Slot& to = slots[slot];
  if (device.async()) {
    if (to.staging.bytes() == 0) {
      SY_ASSIGN_OR_RETURN(to.staging, device.AllocateHost(layout->io_slot_bytes()));
      SY_ASSIGN_OR_RETURN(to.uploaded, device.NewEvent());
      SY_ASSIGN_OR_RETURN(to.finished, device.NewEvent());
    } else {
      SY_ASSIGN_OR_RETURN(const bool done, to.uploaded.Done());
      if (!done) SY_RETURN_IF_ERROR(world.Wait(to.uploaded));
      SY_RETURN_IF_ERROR(to.finished.Before(uploads));
    }
  }
  for (const auto& [entry, data] : inputs) {
    if (entry == nullptr || data == nullptr) continue;  // the model draws no random numbers
    const void* source = data;
    if (device.async()) source = std::memcpy(to.staging.data() + entry->offset, data, entry->bytes);
    SY_RETURN_IF_ERROR(
        device.Copy(uploads, memory->place(entry->arena, entry->offset, slot), HostPlace(source), entry->bytes));
  }
  if (!device.async()) return OkStatus();
  SY_RETURN_IF_ERROR(to.uploaded.Record(uploads));
  return to.uploaded.Before(stream);
}

Status Trainer::Impl::Run(Instance& instance) {
  SY_RETURN_IF_ERROR(instance.Run(stream));
  return world.device->async() ? slots[slot].finished.Record(stream) : OkStatus();
}

Status Trainer::Impl::RunMicroStep(int micro_step) {
  Slot& here = slots[slot];
  if (micro_step == config.accumulation - 1) return Run(*here.update);
  return Run(micro_step == 0 ? *here.first : *here.middle);
}

StatusOr<float> Trainer::Impl::Scalar(const Layout::Entry* output) {
  float value = 0;
  SY_RETURN_IF_ERROR(world.Synchronize(stream));
  SY_RETURN_IF_ERROR(world.device->Download(&value, memory->place(output->arena, output->offset, slot), sizeof value));
  return value;
}

StatusOr<Trainer::StepResult> Trainer::Step(const float* images, const int32_t* labels) {
  Impl& impl = *impl_;
  const int64_t batch = impl.config.batch_size,
                image = int64_t{impl.model.image_size} * impl.model.image_size * impl.model.channels;
  StepResult result;
  for (int a = 0; a < impl.config.accumulation; ++a) {
    SY_RETURN_IF_ERROR(impl.UploadBatch(images + a * batch * image, labels + a * batch, impl.own_samples.data(), a));
    SY_RETURN_IF_ERROR(impl.RunMicroStep(a));
    SY_ASSIGN_OR_RETURN(const float loss, impl.Scalar(impl.places.loss));
    result.loss += loss / impl.config.accumulation;
  }
  SY_ASSIGN_OR_RETURN(result.lr, impl.Scalar(impl.places.lr));
  SY_ASSIGN_OR_RETURN(result.grad_norm, impl.Scalar(impl.places.grad_norm));
  ++impl.data_step;
  return result;
}

StatusOr<HostTensors> Trainer::Parameters() const { return impl_->DownloadParameters(); }
Status Trainer::SetParameters(const HostTensors& values) { return impl_->UploadParameters(values, false); }
Status Trainer::LoadWeights(const std::string& path) { return impl_->Load(path, true); }
Status Trainer::Resume(const std::string& path) { return impl_->Load(path, false); }

}  // namespace switchyard
