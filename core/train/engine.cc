#include "core/train/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/parallel/pipeline.h"
#include "core/train/fitting.h"

namespace switchyard {

namespace {

HostPlacement HostPlacementOf(const TrainConfig& config) {
  HostPlacement on_host{.folder = config.offload_dir};
  if (config.offload == "all") on_host.ways_to_less.push_back("a smaller --offload_param_frac");
  const bool may_share = config.optimizer != "lamb" && config.optimizer != "lars";
  if (config.zero > 0) {
    on_host.ways_to_less.push_back("more ranks");
  } else if (may_share) {
    on_host.ways_to_less.push_back("--zero=1 over more ranks");
  }
  return on_host;
}

}  // namespace

Engine::~Engine() {
  for (Stream* const used : {&uploads_, &stream_}) {
    if (used->handle() != nullptr) (void)world_.Synchronize(*used);
  }
}

Status Engine::Compile(const TrainConfig& config, Program program) {
  batch_size_ = config.batch_size;
  pins_batches_ = config.pin_memory != "0";
  on_host_ = HostPlacementOf(config);
  return plans_.Compile(config, std::move(program), *world_.device, world_.reference.get(), world_.host.get());
}

// Activations and batches grow with the batch, everything else does not: what would fit follows from the plan.
Status Engine::WithLargestBatch(const Status& out_of_memory) const {
  const auto bytes = [&](int arena) { return static_cast<double>(layout().bytes(arena)); };
  const double fixed = bytes(kStateArena) + bytes(kGradientsArena) + bytes(kScratchArena) + bytes(kPersistentArena) +
                       bytes(kConstantsArena);
  const double per_image = (bytes(kActivationsArena) + bytes(kIoArena)) / batch_size_;
  const double available = DeviceBytesOf(world_);
  double images = (available - fixed) / per_image;
  // An arena is one allocation.
  const auto largest = static_cast<double>(world_.device->info().largest_allocation);
  const bool in_pieces = static_cast<double>(plans_.LargestPiece()) <= largest;
  for (const int arena : {kActivationsArena, kIoArena})
    images = std::min(images, largest / std::max(1.0, bytes(arena) / batch_size_));
  for (const int arena : {kStateArena, kGradientsArena, kScratchArena, kPersistentArena, kConstantsArena})
    if (bytes(arena) > largest) images = 0;
  const auto fits = static_cast<int64_t>(std::clamp(images, 0.0, 1e9));
  const std::string advice =
      fits >= 1 && fits < batch_size_ ? fmt::format("--batch_size={} would fit by these figures", fits)
      : !in_pieces ? "no smaller batch helps: divide what is too large with --zero=3, --tp, --pp or --offload=all, let "
                     "--recompute=blocks keep less, or choose a smaller model"
      : fits < 1   ? "not even one image fits: choose a smaller model"
                   : "free some memory";
  return Status(
      out_of_memory.code(),
      fmt::format("{}; the plan takes {:.1f} MB and {:.2f} MB for each image of a batch, the device has {:.1f} MB: {}",
                  Message(out_of_memory), fixed / 1e6, per_image / 1e6, available / 1e6, advice));
}

Status Engine::Allocate(const std::vector<SampleTensor>& inputs) {
  SY_ASSIGN_OR_RETURN(stream_, world_.device->NewStream());
  if (async()) {
    SY_ASSIGN_OR_RETURN(uploads_, world_.device->NewStream());
  }
  SY_ASSIGN_OR_RETURN(groups_, world_.CommunicatorsOf(plans_.program.groups));
  auto allocated = Memory::Allocate(*plans_.layout, *world_.device, groups_, world_.host_device(), on_host_);
  if (allocated.status().code() == absl::StatusCode::kResourceExhausted) return WithLargestBatch(allocated.status());
  SY_RETURN_IF_ERROR(allocated.status());
  memory_ = std::move(*allocated);
  slots_.resize(layout().arena(kIoArena).slots);
  for (int i = 0; i < slots(); ++i) {
    for (const auto& plan : plans_.plans) {
      SY_ASSIGN_OR_RETURN(auto instance, Instance::Bind(*plan, *memory_, groups_, i));
      slots_[i].instances.push_back(std::move(instance));
    }
  }
  const std::vector<Action>& schedule = plans_.program.schedule;
  const int together = schedule.empty() ? 1 : schedule[0].micro_batch + 1;
  for (int m = 0; m < together; ++m) {
    const auto find = [&](const std::string& name) { return layout().Find(MicroBatchInput(name, m)); };
    Place& place = places_.emplace_back();
    for (const SampleTensor& input : inputs) place.tensors.push_back(find(input.name));
    place.sample_ids = find("sample_ids");
    place.step = find("step");
  }
  const char* const names[] = {"output/loss", "output/lr", "output/grad_norm", "output/loss_scale_of_update",
                               "output/loss_scale_at_floor"};
  for (size_t i = 0; i < std::size(names); ++i) scalars_[i] = layout().Find(names[i]);
  in_update_.resize(batch_size_);
  for (const auto& [name, entry] : layout().entries()) {
    const Layout::Entry* const copy = layout().Find(AtBeginOfUpdate(name));
    if (copy == nullptr) continue;
    kept_.push_back({memory_->place(entry.arena, entry.offset, 0), memory_->place(copy->arena, copy->offset, 0),
                     entry.bytes, entry.offset + entry.bytes});
  }
  return OkStatus();
}

Status Engine::BeginUpdate() {
  for (const Kept& kept : kept_) SY_RETURN_IF_ERROR(world_.device->Copy(stream_, kept.copy, kept.state, kept.bytes));
  return OkStatus();
}

Status Engine::TakeBack() {
  for (const Kept& kept : kept_) {
    memory_->state_reading().AboutToWrite(kept.end - kept.bytes, kept.end);
    SY_RETURN_IF_ERROR(world_.device->Copy(stream_, kept.state, kept.copy, kept.bytes));
  }
  return OkStatus();
}

Status Engine::MakeReady(Slot& slot) {
  Device& device = *world_.device;
  if (slot.staging.bytes() == 0) {
    SY_ASSIGN_OR_RETURN(slot.staging, device.AllocateHost(layout().slot_bytes(kIoArena), pins_batches_));
    SY_ASSIGN_OR_RETURN(slot.uploaded, device.NewEvent());
    SY_ASSIGN_OR_RETURN(slot.finished, device.NewEvent());
    return OkStatus();
  }
  SY_ASSIGN_OR_RETURN(const bool done, slot.uploaded.Done());
  if (!done) SY_RETURN_IF_ERROR(world_.Wait(slot.uploaded));
  return slot.finished.Before(uploads_);
}

Status Engine::Upload(std::span<const void* const> tensors, const int32_t* sample_ids, int64_t data_step,
                      int micro_step, int64_t skip) {
  data_step_ = data_step;
  const size_t together = static_cast<size_t>(micro_step) % places_.size();
  const Place& place = places_[together];
  if (together == 0) slot_ = (slot_ + 1) % slots();
  Slot& to = slots_[slot_];
  if (async() && together == 0) SY_RETURN_IF_ERROR(MakeReady(to));
  const auto copy = [&](const Layout::Entry* entry, const void* data) -> Status {
    if (entry == nullptr) return OkStatus();
    if (async()) data = std::memcpy(to.staging.data() + entry->offset, data, entry->bytes);
    return world_.device->Copy(uploads_, memory_->place(entry->arena, entry->offset, slot_), HostPlace(data),
                               entry->bytes);
  };
  for (size_t i = 0; i < place.tensors.size(); ++i) {
    const Layout::Entry* const entry = place.tensors[i];
    if (entry == nullptr) continue;  // as what only the loss reads, where nothing is trained, or only another stage
    const auto* const first = static_cast<const std::byte*>(tensors[i]);
    SY_RETURN_IF_ERROR(copy(entry, first + static_cast<uint64_t>(skip) * entry->bytes));
  }
  const auto before = static_cast<int32_t>(micro_step * batch_size_ * world_.data_size());
  for (size_t i = 0; i < in_update_.size(); ++i) in_update_[i] = sample_ids[i] + before;
  SY_RETURN_IF_ERROR(copy(place.sample_ids, in_update_.data()));
  const int32_t step[2] = {static_cast<int32_t>(data_step), 0};
  SY_RETURN_IF_ERROR(copy(place.step, step));
  if (!async()) return OkStatus();
  SY_RETURN_IF_ERROR(to.uploaded.Record(uploads_));
  return to.uploaded.Before(stream_);
}

Status Engine::Run(Instance& instance) {
  SY_RETURN_IF_ERROR(instance.Run(stream_));
  return async() ? slots_[slot_].finished.Record(stream_) : OkStatus();
}

const Action* Engine::ActionAfter(int micro_step) const {
  for (const Action& action : plans_.program.schedule) {
    if (action.micro_batch == micro_step && action.RunsIn(data_step_)) return &action;
  }
  return nullptr;
}

int Engine::runs() const {
  const std::vector<Action>& schedule = plans_.program.schedule;
  return static_cast<int>(
      std::count_if(schedule.begin(), schedule.end(), [&](const Action& a) { return a.RunsIn(0); }));
}

Status Engine::RunMicroStep(int micro_step) {
  const Action* const action = ActionAfter(micro_step);
  if (action == nullptr) return Internal("no plan runs after micro-batch {}", micro_step);
  const auto plan = static_cast<size_t>(action->plan);
  Instance& instance = *slots_[slot_].instances[plan];
  SY_RETURN_IF_ERROR(Run(instance));
  if (profile_ != nullptr) profile_->Add(plans_.program.plans[plan].name, *plans_.plans[plan], instance.timings());
  return OkStatus();
}

void Engine::Record(Profile* profile) {
  profile_ = profile;
  for (const Slot& slot : slots_) {
    for (const auto& instance : slot.instances) instance->Record(profile != nullptr);
  }
}

Status Engine::RunEvaluation(bool averaged) { return Run(In(slots_[slot_], averaged ? "evaluate_ema" : "evaluate")); }

Status Engine::RefreshHalves() {
  if (!plans_.IndexOf("halves")) return OkStatus();
  SY_RETURN_IF_ERROR(In(slots_[slot_], "halves").Run(stream_));
  return Synchronize();
}

Status Engine::WaitForSlot(int slot) {
  if (!async()) return OkStatus();
  const Status waited = world_.Wait(slots_[slot].finished);
  const Status finished = Finish(slots_[slot]);
  return finished.ok() ? waited : finished;
}

Status Engine::Synchronize() {
  const Status waited = world_.Synchronize(stream_);
  for (Slot& slot : slots_) SY_RETURN_IF_ERROR(Finish(slot));
  return waited;
}

// The device has passed what it waited for; how it ended, only the calls tell.
Status Engine::Finish(Slot& slot) {
  for (const auto& instance : slot.instances) SY_RETURN_IF_ERROR(instance->Finish());
  return OkStatus();
}

StatusOr<float> Engine::Read(Scalar scalar) {
  SY_RETURN_IF_ERROR(Synchronize());
  return ReadIn(scalar, slot_);
}

StatusOr<float> Engine::ReadIn(Scalar scalar, int slot) const {
  const Layout::Entry* const output = scalars_[static_cast<int>(scalar)];
  float value = 0;
  SY_RETURN_IF_ERROR(
      world_.device->Download(&value, memory_->place(output->arena, output->offset, slot), sizeof value));
  return value;
}

}  // namespace switchyard
