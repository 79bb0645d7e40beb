#include "core/train/trainer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/base/logging.h"
#include "core/base/parallel.h"
#include "core/nn/initialize.h"
#include "core/train/recipe.h"
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

StatusOr<Transform> MakeTransform(const TrainConfig& c, const EvaluationTransform& evaluation, const Dataset& data,
                                  bool train) {
  TransformOptions o;
  o.evaluation = evaluation;
  o.train = train;
  o.augmentation = data.augmentation();
  if (c.augmentation) {
    SY_ASSIGN_OR_RETURN(o.augmentation, ParseAugmentation(*c.augmentation));
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
  if (c.crop_ratio) e.resize = ResizeForCrop(e.image_size, *c.crop_ratio);
  if (c.interpolation) {
    SY_ASSIGN_OR_RETURN(e.interpolation, ParseInterpolation(*c.interpolation));
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
const ScheduleOptions& Trainer::schedule() const { return impl_->schedule; }
const PlanReport& Trainer::report() const { return impl_->Main().report(); }
int64_t Trainer::updates_per_epoch() const { return impl_->updates_per_epoch; }
const std::vector<Instance::Timing>& Trainer::timings() const {
  return impl_->In(impl_->slots[impl_->slot], "update").timings();
}
const std::string& Trainer::run_folder() const { return impl_->run_folder; }
uint64_t Trainer::allocated_bytes() const { return impl_->memory->allocated_bytes(); }
uint64_t Trainer::planned_bytes() const { return impl_->PlannedBytes(); }

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
    for (const auto& plan : plans) {
      SY_ASSIGN_OR_RETURN(auto instance, Instance::Bind(*plan, *memory, world.communicator.get(), static_cast<int>(i)));
      slots[i].instances.push_back(std::move(instance));
    }
  }

  places = {
      layout->Find("images"),      layout->Find("labels"),    layout->Find("sample_ids"),      layout->Find("step"),
      layout->Find("output/loss"), layout->Find("output/lr"), layout->Find("output/grad_norm")};
  in_update.resize(config.batch_size);
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

Status Trainer::Impl::InitializeState() {
  struct Parameter {
    const std::string* name;
    const Layout::Entry* entry;
    std::vector<float> values;
  };
  std::vector<Parameter> parameters;
  for (const auto& [name, entry] : layout->entries()) {
    if (entry.role == Role::kParameter) parameters.push_back({&name, &entry, {}});
  }
  const auto upload = [&](Parameter& p) {
    const std::vector<float> values = std::move(p.values);
    return memory->Upload(*p.name, values.data(), p.entry->bytes);
  };
  // Each rank draws every so many-th tensor, for all and from the seed of rank 0; one that is alone lets each go as
  // soon as it is drawn.
  const int world_ranks = world_size();
  uint64_t seed = config.seed;
  if (world_ranks > 1) SY_RETURN_IF_ERROR(world.communicator->Broadcast("seed", &seed, sizeof seed, SY_U8, 0));
  std::mutex mutex;
  Status status;
  ParallelFor(world.host_threads, static_cast<int64_t>(parameters.size()), [&](int64_t i) {
    Parameter& p = parameters[i];
    if (i % world_ranks != rank()) return;
    p.values = nn::InitialValues(*p.name, p.entry->type, p.entry->initializer, seed);
    if (world_ranks > 1) return;
    const std::lock_guard lock(mutex);
    status.Update(upload(p));
  });
  SY_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < parameters.size() && world_ranks > 1; ++i) {
    Parameter& p = parameters[i];
    p.values.resize(p.entry->bytes / sizeof(float));
    SY_RETURN_IF_ERROR(world.communicator->Broadcast(("broadcast/" + *p.name).c_str(), p.values.data(), p.entry->bytes,
                                                     SY_U8, static_cast<int>(i) % world_ranks));
    SY_RETURN_IF_ERROR(upload(p));
  }
  // Moments, counters and accumulators start at zero, as Memory::Allocate left them.
  return memory->Upload("lr_table", lr_table.data(), lr_table.size() * sizeof(float));
}

// Epochs decide the run's length, and its schedule follows them. After a changed global batch `data_step` updates lie
// behind where this batch would have made another number of them: the rest of the table moves there. What is told in
// updates does not move: milestones and steps, and a warm-up that is over.
void Trainer::Impl::FollowEpochs() {
  const int64_t behind = epoch * updates_per_epoch + batch / config.accumulation;
  total_updates = data_step + std::max<int64_t>(0, total_updates - behind);
  if (behind == data_step || lr_table.empty()) return;
  if (schedule.kind == Schedule::kMultistep || schedule.kind == Schedule::kStep) {
    lr_table = LearningRateTable(schedule, total_updates);  // of which a run of this batch alone makes fewer, or more
    return;
  }
  std::vector<float> moved(static_cast<size_t>(total_updates));
  const auto last = static_cast<int64_t>(lr_table.size()) - 1;
  const int64_t warm = std::min(schedule.warmup, data_step);
  for (int64_t i = 0; i < total_updates; ++i)
    moved[i] = lr_table[std::clamp<int64_t>(std::max(i - data_step + behind, warm), 0, last)];
  lr_table = std::move(moved);
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
  // Of whole updates without padding, so that it is the same on any number of ranks.
  impl.updates_per_epoch = train.size() / impl.samples_per_update();
  if (impl.updates_per_epoch == 0) {
    return InvalidArgument(
        "{} training samples are fewer than one update takes ({} = batch_size {} x {} ranks x accumulation {}); lower "
        "--batch_size",
        train.size(), impl.samples_per_update(), config.batch_size, world.size(), config.accumulation);
  }
  impl.config.global_batch_size = static_cast<int>(impl.samples_per_update());
  const int64_t length = config.steps.value_or(impl.updates_per_epoch * config.epochs);
  SY_ASSIGN_OR_RETURN(impl.schedule, ScheduleOptionsOf(config, length, impl.updates_per_epoch, world.size()));
  impl.lr_table = LearningRateTable(impl.schedule, length);
  impl.total_updates = length;
  if (config.resume) {
    SY_RETURN_IF_ERROR(impl.OpenResumed());
    if (!config.steps) impl.FollowEpochs();
  }
  SY_ASSIGN_OR_RETURN(Program program,
                      ProgramOf(config, model, world.size(), world.rank(), static_cast<int64_t>(impl.lr_table.size())));
  SY_RETURN_IF_ERROR(impl.Compile(config, std::move(program), *world.device, world.reference.get()));
  SY_RETURN_IF_ERROR(impl.VerifyParameters());
  SY_RETURN_IF_ERROR(impl.AllocateMemory());
  SY_RETURN_IF_ERROR(impl.InitializeState());
  if (impl.resumed) SY_RETURN_IF_ERROR(impl.RestoreState());
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
  SY_ASSIGN_OR_RETURN(Program program, ProgramOf(config, model, world.size(), world.rank(), 1, true));
  SY_RETURN_IF_ERROR(impl.Compile(config, std::move(program), *world.device, world.reference.get()));
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
    TrainConfig c = config;
    c.batch_size = batch;
    TrainingPlans plans;
    SY_ASSIGN_OR_RETURN(Program program,
                        ProgramOf(c, model, world.size(), world.rank(), c.steps.value_or(1), evaluation_only));
    SY_RETURN_IF_ERROR(plans.Compile(c, std::move(program), *world.device, world.reference.get()));
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

Status Trainer::Impl::UploadBatch(const float* images, const int32_t* labels, const int32_t* sample_ids,
                                  int micro_step) {
  Device& device = *world.device;
  // Random numbers depend on the sample's place in the update, not on how the update is divided into micro-steps.
  const int32_t step[2] = {static_cast<int32_t>(data_step), 0};
  const auto before = static_cast<int32_t>(micro_step * config.batch_size * world_size());
  for (size_t i = 0; i < in_update.size(); ++i) in_update[i] = sample_ids[i] + before;
  const std::pair<const Layout::Entry*, const void*> inputs[] = {
      {places.images, images}, {places.labels, labels}, {places.sample_ids, in_update.data()}, {places.step, step}};
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
  const Action& action = program.schedule[static_cast<size_t>(micro_step)];
  return Run(*slots[slot].instances[static_cast<size_t>(action.plan)]);
}

StatusOr<float> Trainer::Impl::Scalar(const Layout::Entry* output) {
  SY_RETURN_IF_ERROR(world.Synchronize(stream));
  return ScalarIn(output, slot);
}

StatusOr<float> Trainer::Impl::ScalarIn(const Layout::Entry* output, int in_slot) {
  float value = 0;
  const sy_place place = memory->place(output->arena, output->offset, in_slot);
  SY_RETURN_IF_ERROR(world.device->Download(&value, place, sizeof value));
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
Status Trainer::LoadWeights(const std::string& path, bool reset_head) { return impl_->LoadWeights(path, reset_head); }

}  // namespace switchyard
