#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/plan/bound.h"

namespace switchyard {
namespace {

constexpr size_t kShortestSegment = 2;

Collective::Kind KindOf(Exchange exchange) {
  switch (exchange) {
    case Exchange::kAllReduce:
      return Collective::kAllReduce;
    case Exchange::kReduceScatter:
      return Collective::kReduceScatter;
    case Exchange::kAllGather:
      return Collective::kAllGather;
    case Exchange::kBroadcast:
      return Collective::kBroadcast;
    case Exchange::kAllToAll:
      return Collective::kAllToAll;
    case Exchange::kSend:
      return Collective::kSend;
    case Exchange::kReceive:
      return Collective::kReceive;
  }
  return Collective::kAllReduce;
}

}  // namespace

StatusOr<std::unique_ptr<Instance>> Instance::Bind(const Plan& plan, Memory& memory,
                                                   const GroupCommunicators& communicators, int io_slot) {
  std::unique_ptr<Instance> instance(new Instance);
  Impl& impl = *instance->impl_;
  impl.plan = plan.impl_.get();
  impl.memory = &memory;
  impl.communicators = communicators;
  impl.io_slot = io_slot;
  const StepSchedule& schedule = plan.schedule();
  for (const Step& step : schedule.steps) {
    auto bound = impl.BindStep(step);
    if (!bound.ok()) return impl.Failed(step.node, bound.status());
    impl.steps.push_back(std::move(*bound));
  }
  impl.at_end = schedule.at_end;
  impl.DecideHowCollectivesRun();
  SY_RETURN_IF_ERROR(impl.MakeStreams());
  SY_RETURN_IF_ERROR(impl.MakeEvents());
  SY_RETURN_IF_ERROR(impl.MakeHostThread());
  impl.AwaitOthers();
  if (!impl.debugged()) impl.FindGroups();
  if (plan.impl_->device->capture() != nullptr && plan.impl_->options.capture && !impl.debugged()) {
    if (impl.RecordsWhole()) SY_RETURN_IF_ERROR(impl.CaptureWhole());
    if (impl.whole == nullptr) SY_RETURN_IF_ERROR(impl.Capture());
  }
  return instance;
}

StatusOr<BoundStep> Instance::Impl::BindStep(const Step& step) {
  BoundStep bound;
  bound.kind = step.kind;
  bound.node = step.node;
  bound.stream = step.stream;
  bound.waits = step.waits;
  for (const PlanPlace& place : step.outputs) {
    if (place.arena != kStateArena) continue;
    const bool first = bound.writes_state_until == 0;
    bound.writes_state_from = first ? place.offset : std::min(bound.writes_state_from, place.offset);
    bound.writes_state_until = std::max(bound.writes_state_until, place.offset + place.bytes);
  }
  switch (step.kind) {
    case Step::kHost:
      SY_RETURN_IF_ERROR(BindOnHost(step, bound));
      break;
    case Step::kCopy:
      if (step.stream == kHostStream) {
        SY_RETURN_IF_ERROR(BindOnHost(step, bound));
        break;
      }
      bound.source = memory->copy_place(step.inputs[0].arena, step.inputs[0].offset, io_slot);
      bound.destination = memory->copy_place(step.outputs[0].arena, step.outputs[0].offset, io_slot);
      bound.bytes = step.inputs[0].bytes;
      break;
    case Step::kCollective:
      SY_RETURN_IF_ERROR(BindCollective(step, bound));
      break;
    case Step::kLaunch:
      SY_RETURN_IF_ERROR(BindKernel(step, bound));
      break;
    case Step::kFallback:
      SY_RETURN_IF_ERROR(BindFallback(step, bound));
      break;
  }
  return bound;
}

Status Instance::Impl::BindOnHost(const Step& step, BoundStep& bound) {
  bound.way = BoundStep::Way::kOnHost;
  HostThread::Call& call = host_calls.emplace_back();
  bound.host_call = &call;
  if (step.kind == Step::kCopy) {
    const PlanPlace &from = step.inputs[0], &to = step.outputs[0];
    std::byte* const destination = memory->host_address(to.arena) + to.offset;
    const std::byte* const source = memory->host_address(from.arena) + from.offset;
    call.body = [=, bytes = from.bytes] {
      std::memmove(destination, source, bytes);
      return OkStatus();
    };
    return OkStatus();
  }
  const auto [inputs, outputs] = PlacesOf(step);
  sy_binding binding{};
  binding.header = SY_HEADER(sy_binding);
  binding.inputs = inputs.data();
  binding.outputs = outputs.data();
  if (step.kernel->info().workspace_bytes > 0) binding.workspace = memory->buffer(kHostScratchArena).at(0);
  SY_ASSIGN_OR_RETURN(BoundKernel kernel, plan->host->Bind(*step.kernel, binding));
  call.body = [kernel = std::make_shared<BoundKernel>(std::move(kernel))] {
    sy_error failure = EmptyError();
    return FromAbi(kernel->Launch(nullptr, &failure), failure, "launch on the host");
  };
  return OkStatus();
}

std::pair<std::vector<sy_place>, std::vector<sy_place>> Instance::Impl::PlacesOf(const Step& step) const {
  std::vector<sy_place> inputs, outputs;
  for (const PlanPlace& place : step.inputs) inputs.push_back(At(place));
  for (const PlanPlace& place : step.outputs) outputs.push_back(At(place));
  return {std::move(inputs), std::move(outputs)};
}

Status Instance::Impl::BindKernel(const Step& step, BoundStep& bound) {
  const auto [inputs, outputs] = PlacesOf(step);
  sy_binding binding{};
  binding.header = SY_HEADER(sy_binding);
  binding.inputs = inputs.data();
  binding.outputs = outputs.data();
  if (step.kernel->info().workspace_bytes > 0) binding.workspace = memory->buffer(kScratchArena).at(0);
  if (step.persistent.bytes > 0) binding.persistent = At(step.persistent);
  if (step.residual.bytes > 0) binding.residual = At(step.residual);
  if (step.constants.bytes > 0) {
    binding.constants = At(step.constants);
    if (memory->TakesConstantsOf(step.kernel)) {
      SY_ASSIGN_OR_RETURN(const Stream stream, plan->device->NewStream());
      SY_RETURN_IF_ERROR(plan->device->WriteConstants(*step.kernel, stream, binding.constants));
      if (plan->device->async()) SY_RETURN_IF_ERROR(plan->device->Synchronize(stream));
    }
  }
  SY_ASSIGN_OR_RETURN(bound.kernel, plan->device->Bind(*step.kernel, binding));
  return OkStatus();
}

Status Instance::Impl::BindFallback(const Step& step, BoundStep& bound) {
  Staging staging;
  Device& reference = *plan->reference;
  const Node& node = plan->graph.node(step.node);
  std::vector<sy_place> inputs, outputs;
  const auto add = [&](const TensorType& type, const PlanPlace& place, std::vector<Buffer>& buffers,
                       std::vector<void*>& addresses, std::vector<sy_place>& places, std::vector<uint64_t>& sizes,
                       std::vector<sy_place>& bindings) -> Status {
    const uint64_t bytes = static_cast<uint64_t>(type.bytes());
    SY_ASSIGN_OR_RETURN(Buffer buffer, reference.Allocate(std::max<uint64_t>(bytes, 1)));
    SY_ASSIGN_OR_RETURN(void* const address, reference.AddressOf(buffer));
    bindings.push_back(buffer.at(0));
    addresses.push_back(address);
    places.push_back(At(place));
    sizes.push_back(bytes);
    buffers.push_back(std::move(buffer));
    return OkStatus();
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    SY_RETURN_IF_ERROR(add(plan->graph.type(node.inputs[i]), step.inputs[i], staging.inputs, staging.input_address,
                           staging.input_place, staging.input_bytes, inputs));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    SY_RETURN_IF_ERROR(add(node.outputs[o], step.outputs[o], staging.outputs, staging.output_address,
                           staging.output_place, staging.output_bytes, outputs));
  }
  sy_binding binding{};
  binding.header = SY_HEADER(sy_binding);
  binding.inputs = inputs.data();
  binding.outputs = outputs.data();
  const Kernel::Info& info = step.kernel->info();
  if (info.workspace_bytes > 0) {
    SY_ASSIGN_OR_RETURN(staging.workspace, reference.Allocate(info.workspace_bytes));
    binding.workspace = staging.workspace.at(0);
  }
  if (info.persistent_bytes > 0) {
    SY_ASSIGN_OR_RETURN(staging.persistent, reference.Allocate(info.persistent_bytes));
    SY_RETURN_IF_ERROR(reference.Fill(Stream(), staging.persistent.at(0), 0, info.persistent_bytes));
    binding.persistent = staging.persistent.at(0);
  }
  if (info.constant_bytes > 0) {
    SY_ASSIGN_OR_RETURN(staging.constants, reference.Allocate(info.constant_bytes));
    binding.constants = staging.constants.at(0);
    SY_RETURN_IF_ERROR(reference.WriteConstants(*step.kernel, Stream(), binding.constants));
  }
  SY_ASSIGN_OR_RETURN(bound.kernel, reference.Bind(*step.kernel, binding));
  bound.staging = static_cast<int>(stagings.size());
  stagings.push_back(std::move(staging));
  return OkStatus();
}

Status Instance::Impl::BindCollective(const Step& step, BoundStep& bound) {
  const Node& node = plan->graph.node(step.node);
  const auto& a = node.attributes.as<sy_collective_attributes>();
  bound.group = a.group;
  if (a.group < 0 || static_cast<size_t>(a.group) >= communicators.size())
    return InvalidArgument("there is no group {}; the plan was bound with {}", a.group, communicators.size());
  Communicator* const communicator = communicators[static_cast<size_t>(a.group)];
  if (communicator == nullptr || communicator->size() == 1) {
    if (step.inputs.size() != step.outputs.size()) return InvalidArgument("a rank that is alone has no peer");
    bound.stream = kComputeStream;
    // What a rank sends to itself; in place it lies there already.
    bound.source = At(step.inputs[0]);
    bound.destination = At(step.outputs[0]);
    if (bound.source.offset != bound.destination.offset || bound.source.buffer != bound.destination.buffer)
      bound.kind = Step::kCopy;
    bound.bytes = step.inputs[0].bytes;
    return OkStatus();
  }
  const TensorType& sent = node.inputs.empty() ? node.outputs[0] : plan->graph.type(node.inputs[0]);
  const int64_t ranks = communicator->size();
  Collective what;
  what.kind = KindOf(*ExchangeOf(node));
  what.dtype = static_cast<sy_dtype>(sent.dtype);
  what.reduction = a.reduction;
  what.peer = a.root;
  what.count = static_cast<uint64_t>(sent.elements());
  if (what.kind == Collective::kReduceScatter || what.kind == Collective::kAllToAll) {
    if (sent.elements() % ranks != 0)
      return InvalidArgument("{} elements are not divided by the {} ranks of group {}", sent.elements(), ranks,
                             a.group);
    what.count /= static_cast<uint64_t>(ranks);
  }
  const int64_t received = node.outputs.empty() ? 0 : node.outputs[0].elements();
  if ((what.kind == Collective::kReduceScatter && received * ranks != sent.elements()) ||
      (what.kind == Collective::kAllGather && received != sent.elements() * ranks)) {
    return InvalidArgument("{} gives {} from {}, which does not fit the {} ranks of group {}", node.op,
                           ToString(node.outputs[0]), ToString(sent), ranks, a.group);
  }
  if (a.root < 0 || a.root >= ranks)
    return InvalidArgument("rank {} of group {}, which has {}", a.root, a.group, ranks);
  const auto device_place = [&](const std::vector<PlanPlace>& places) -> Communicator::DevicePlace {
    if (places.empty()) return {};
    return {&memory->buffer(places[0].arena), At(places[0]).offset};
  };
  SY_ASSIGN_OR_RETURN(bound.call,
                      communicator->Prepare(node.name, what, device_place(step.inputs), device_place(step.outputs)));
  return OkStatus();
}

// Calls of one communicator are all started or all made by the thread that runs the plan.
void Instance::Impl::DecideHowCollectivesRun() {
  const bool may_start = plan->options.overlap && !debugged();
  const auto on_stream = [&](const BoundStep& step) { return CommunicatorOf(step).info().completes_on_stream; };
  std::set<const Communicator*> in_turn;  // two groups may have one communicator
  for (const BoundStep& step : steps) {
    if (step.call && (!may_start || !CommunicatorOf(step).BetterStarted(*step.call)))
      in_turn.insert(&CommunicatorOf(step));
  }
  for (BoundStep& step : steps) {
    if (!step.call || on_stream(step) || debugged()) continue;
    step.way = in_turn.contains(&CommunicatorOf(step)) ? BoundStep::Way::kDeferred : BoundStep::Way::kStarted;
    if (step.way != BoundStep::Way::kDeferred) continue;
    step.deferred = static_cast<int>(deferred.size());
    deferred.push_back(&step);
  }
}

Status Instance::Impl::MakeStreams() {
  communication.resize(communicators.size());
  std::set<int> made;
  for (const BoundStep& step : steps) {
    if (step.stream == kComputeStream || step.stream == kHostStream || !made.insert(step.stream).second) continue;
    if (step.stream < kFirstCommunicationStream) {
      Stream& copies = step.stream == kStoreStream ? stores : fetches;
      SY_ASSIGN_OR_RETURN(copies, plan->device->NewStream());
      continue;
    }
    SY_ASSIGN_OR_RETURN(communication[static_cast<size_t>(step.group)], plan->device->NewStream(1));
  }
  return OkStatus();
}

// One for each step that a stream waits for on the device. The host itself waits for what was started or deferred.
Status Instance::Impl::MakeEvents() {
  const auto need = [&](int* event) -> Status {
    if (*event >= 0) return OkStatus();
    *event = static_cast<int>(events.size());
    SY_ASSIGN_OR_RETURN(Event made, plan->device->NewEvent());
    events.push_back(std::move(made));
    return OkStatus();
  };
  const auto keep_other_streams = [&](std::vector<int>& waits, int stream) -> Status {
    std::erase_if(waits, [&](int earlier) {
      return (earlier == kRunStart ? kComputeStream : steps[static_cast<size_t>(earlier)].stream) == stream;
    });
    for (const int earlier : waits) {
      if (earlier == kRunStart) {
        SY_RETURN_IF_ERROR(need(&start_event));
      } else if (BoundStep& step = steps[static_cast<size_t>(earlier)]; step.way == BoundStep::Way::kInOrder) {
        SY_RETURN_IF_ERROR(need(&step.event));
      }
    }
    return OkStatus();
  };
  for (BoundStep& step : steps) SY_RETURN_IF_ERROR(keep_other_streams(step.waits, step.stream));
  return keep_other_streams(at_end, kComputeStream);
}

// What a call waits for are copies of the device, and the beginning of the run.
Status Instance::Impl::MakeHostThread() {
  if (host_calls.empty()) return OkStatus();
  SY_ASSIGN_OR_RETURN(host_thread, HostThread::Make(*plan->device));
  for (BoundStep& step : steps) {
    if (step.way != BoundStep::Way::kOnHost) continue;
    for (const int earlier : step.waits) {
      const int event = earlier == kRunStart ? start_event : steps[static_cast<size_t>(earlier)].event;
      if (event < 0) return Failed(step.node, Internal("what runs on the host waits for a collective"));
      step.host_call->after.push_back(&events[static_cast<size_t>(event)]);
    }
  }
  return OkStatus();
}

// A stream that waited for them would hold up the calls that its communicator has started before, and these may be what
// they wait for.
void Instance::Impl::AwaitOthers() {
  for (BoundStep& step : steps) {
    if (!step.call || step.way != BoundStep::Way::kStarted) continue;
    for (const int earlier : step.waits) {
      if (earlier == kRunStart || !steps[static_cast<size_t>(earlier)].RunsBeside()) continue;
      Communicator::BeginsBehind(*step.call,
                                 [this, &other = steps[static_cast<size_t>(earlier)]] { return AwaitBeside(other); });
    }
  }
}

// May `step` join? It waits for nothing that they do not wait for, and needs nothing of theirs, so that nobody is held
// up for the company.
bool Instance::Impl::BeginsWith(const CollectiveGroup& group, size_t step) const {
  const auto stream_of = [&](int earlier) {
    return earlier == kRunStart ? kComputeStream : steps[static_cast<size_t>(earlier)].stream;
  };
  const auto overlap = [](const std::vector<PlanPlace>& some, const std::vector<PlanPlace>& others) {
    for (const PlanPlace& a : some) {
      for (const PlanPlace& b : others) {
        if (a.arena == b.arena && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) return true;
      }
    }
    return false;
  };
  for (const int wait : steps[step].waits) {
    if (wait >= static_cast<int>(group.begin)) return false;
    bool waited_for = false;
    for (size_t i = group.begin; i < step; ++i) {
      for (const int theirs : steps[i].waits)
        waited_for = waited_for || (theirs >= wait && stream_of(theirs) == stream_of(wait));
    }
    if (!waited_for) return false;
  }
  const Step& own = plan->schedule.steps[step];
  for (size_t i = group.begin; i < step; ++i) {
    const Step& other = plan->schedule.steps[i];
    if (overlap(other.outputs, own.inputs) || overlap(other.outputs, own.outputs) || overlap(other.inputs, own.outputs))
      return false;
    const std::vector<int>& control = plan->graph.node(own.node).control;
    if (std::find(control.begin(), control.end(), other.node) != control.end()) return false;
    if (!CommunicatorOf(steps[i]).SharesPlugin(CommunicatorOf(steps[step]))) return false;
  }
  return true;
}

// The longest runs of collectives that begin at the same point of the schedule, where the plugin offers groups.
void Instance::Impl::FindGroups() {
  const auto allowed = [&](const BoundStep& step) {
    return step.call && step.way == BoundStep::Way::kInOrder && CommunicatorOf(step).GoesInGroups(*step.call);
  };
  for (size_t begin = 0; begin < steps.size(); ++begin) {
    if (!allowed(steps[begin])) continue;
    CollectiveGroup group{begin, begin + 1, {}};
    while (group.end < steps.size() && allowed(steps[group.end]) && BeginsWith(group, group.end)) ++group.end;
    if (group.end - group.begin < 2) continue;
    for (size_t i = group.begin; i < group.end; ++i)
      group.calls.push_back({&CommunicatorOf(steps[i]), steps[i].call.get(), &CommunicationOf(steps[i])});
    begin = group.end - 1;
    groups.push_back(std::move(group));
  }
}

// Can all that a run submits be recorded, on all its streams?
bool Instance::Impl::RecordsWhole() const {
  const Device& device = *plan->device;
  const uint64_t line = device.info().copy_granularity;
  const bool several_streams = start_event >= 0 || plan->schedule.streams() > 1;
  if (several_streams && (device.info().flags & SY_DEVICE_CAPTURES_STREAMS) == 0) return false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const BoundStep& step = steps[i];
    if (step.way == BoundStep::Way::kOnHost) return false;
    const bool records =
        step.kind == Step::kLaunch ? plan->schedule.steps[i].kernel->info().capturable
        : step.kind == Step::kCopy
            // Device::Copy waits for the device where lines are touched in part.
            ? step.bytes % line == 0 && step.source.offset % line == 0 && step.destination.offset % line == 0
            : step.kind == Step::kCollective ? !step.call || (step.way == BoundStep::Way::kInOrder &&
                                                              CommunicatorOf(step).MayBeCaptured(*step.call))
                                             : false;
    if (!records) return false;
  }
  return steps.size() >= kShortestSegment;
}

// Submits a run to a stream that is being captured; its waits draw the streams of the groups in. What the device then
// refuses leaves no graph, and runs are submitted as ever.
Status Instance::Impl::CaptureWhole() {
  const sy_capture_v2& capture = *plan->device->capture();
  SY_ASSIGN_OR_RETURN(const Stream stream, plan->device->NewStream());
  for (const BoundStep& step : steps) {
    if (!step.call) continue;
    Communicator* const communicator = &CommunicatorOf(step);
    const auto same = [&](const auto& known) { return known.first == communicator; };
    if (std::none_of(sent_by_replay.begin(), sent_by_replay.end(), same))
      sent_by_replay.emplace_back(communicator, -static_cast<int64_t>(communicator->bytes_sent()));
  }
  sy_status status = capture.begin(plan->device->handle(), stream.handle(), nullptr, &error);
  if (status != SY_OK) return FromAbi(status, error, "beginning a capture");
  const Status submitted = Submit(stream);
  sy_error refused = EmptyError();
  status = capture.end(plan->device->handle(), stream.handle(), &whole, &refused);
  for (auto& [communicator, bytes] : sent_by_replay) {
    bytes += static_cast<int64_t>(communicator->bytes_sent());
    communicator->CountSent(-bytes);
  }
  if (status != SY_OK) whole = nullptr;
  if (submitted.code() == absl::StatusCode::kUnimplemented || (submitted.ok() && status == SY_UNSUPPORTED))
    return OkStatus();
  return submitted.ok() && status != SY_OK ? FromAbi(status, refused, "capturing a run") : submitted;
}

// Where a run is not recorded as a whole. Segments are the longest runs of launches whose kernels all allow it and
// between which nobody waits for anybody; what lies between them (copies, collectives, staged nodes) is submitted one
// by one.
Status Instance::Impl::Capture() {
  const sy_capture_v2& capture = *plan->device->capture();
  SY_ASSIGN_OR_RETURN(const Stream stream, plan->device->NewStream());
  const auto allowed = [&](size_t i) {
    const Step& step = plan->schedule.steps[i];
    return step.kind == Step::kLaunch && step.kernel->info().capturable;
  };
  for (size_t begin = 0; begin < steps.size(); ++begin) {
    size_t end = begin;
    while (end < steps.size() && allowed(end) && (end == begin || steps[end].waits.empty())) {
      if (steps[end++].event >= 0) break;
    }
    if (end - begin >= kShortestSegment) {
      sy_status status = capture.begin(plan->device->handle(), stream.handle(), nullptr, &error);
      if (status != SY_OK) return FromAbi(status, error, "beginning a capture");
      for (size_t i = begin; i < end && status == SY_OK; ++i) status = steps[i].kernel.Launch(stream.handle(), &error);
      CapturedSegment segment{begin, end, nullptr};
      const sy_status ended =
          capture.end(plan->device->handle(), stream.handle(), &segment.graph, status == SY_OK ? &error : nullptr);
      if (segment.graph != nullptr) segments.push_back(segment);
      if (status != SY_OK || ended != SY_OK)
        return FromAbi(status != SY_OK ? status : ended, error, "capturing a segment");
    }
    if (end > begin) begin = end - 1;
  }
  return OkStatus();
}

}  // namespace switchyard
