#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/plan/steps.h"

namespace switchyard {
namespace {

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// A step with its buffers fixed.
struct BoundStep {
  Step::Kind kind;
  int node;
  BoundKernel kernel;
  sy_place source{}, destination{};
  uint64_t bytes = 0;
  std::shared_ptr<Communicator::DeviceCall> call;
  int event = -1;        // index into events: kReady and kJoin
  int ready = -1;        // kCollective and kJoin: the event of the collective's kReady
  int group = 0;         // kCollective and kJoin: whose communicator and stream it uses
  int deferred = -1;     // kCollective and kJoin: index into Impl::deferred of a call that its join performs
  bool started = false;  // kCollective and kJoin: on the communicator's thread
  int staging = -1;
};

// A node that runs on the reference plugin: host buffers beside device places.
struct Staging {
  std::vector<Buffer> inputs, outputs;
  std::vector<void*> input_address, output_address;
  std::vector<sy_place> input_place, output_place;
  std::vector<uint64_t> input_bytes, output_bytes;
  Buffer workspace, persistent;
};

}  // namespace

// A run of launches that the device replays with one call: steps [begin, end).
struct CapturedSegment {
  size_t begin = 0, end = 0;
  sy_graph* graph = nullptr;
};
constexpr size_t kShortestSegment = 2;

struct Instance::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    for (const CapturedSegment& segment : segments) plan->device->capture()->release(segment.graph);
  }

  const Plan::Impl* plan = nullptr;
  Memory* memory = nullptr;
  GroupCommunicators communicators{nullptr};
  int io_slot = 0;
  // How a collective runs. Where its plugin completes on streams: in order on its group's stream. Started: on the
  // communicator's thread, where it would hold up the host. Else deferred to where its result is needed, as ranks that
  // compute on a host's cores gain nothing earlier, but for messages that are sent: a peer waits for them. What is
  // deferred keeps its order.
  std::vector<BoundStep*> deferred;
  size_t performed = 0;  // of `deferred`, in this run
  std::vector<BoundStep> steps;
  std::vector<CapturedSegment> segments;  // in order; empty where the device cannot capture or the plan is debugged
  std::vector<Staging> stagings;
  std::vector<Event> events;
  std::vector<Stream> communication;  // by group
  sy_error error = EmptyError();
  std::vector<Timing> timings;
  double fallback_seconds = 0;

  sy_place At(const PlanPlace& place) const { return memory->place(place.arena, place.offset, io_slot); }

  Status Failed(int id, const Status& status) const {
    const Node& node = plan->graph.node(id);
    return Annotate(
        status, fmt::format("{} ({}, built at {}:{})", node.name, node.op, node.where.file_name(), node.where.line()));
  }

  BoundStep* CollectiveOf(int node) {
    for (BoundStep& step : steps) {
      if (step.kind == Step::kCollective && step.node == node) return &step;
    }
    return nullptr;
  }
  bool OnStream(int group) const {
    const Communicator* const communicator = communicators[static_cast<size_t>(group)];
    return communicator != nullptr && communicator->info().completion == SY_COMPLETES_ON_STREAM;
  }
  Communicator& CommunicatorOf(const BoundStep& step) const { return *communicators[static_cast<size_t>(step.group)]; }
  const Stream& StreamOf(const BoundStep& step) const { return communication[static_cast<size_t>(step.group)]; }
  void DecideHowCollectivesRun();
  Status PerformDeferred(int last);
  Status RunSteps(const Stream& stream);
  StatusOr<BoundStep> BindStep(const Step& step, std::vector<int>& event_of);
  Status BindCollective(const Step& step, BoundStep& bound);
  Status BindFallback(const Step& step, BoundStep& bound);
  Status RunFallback(Staging& staging, const BoundKernel& kernel, const Stream& stream);
  Status LaunchCollective(const BoundStep& step);
  Status RunStep(BoundStep& step, const Stream& stream);
  Status LookForNonFinite(int id);
  Status Capture();
};

Instance::Instance() : impl_(new Impl) {}
Instance::~Instance() = default;
const std::vector<Instance::Timing>& Instance::timings() const { return impl_->timings; }
double Instance::fallback_seconds() const { return impl_->fallback_seconds; }

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
    SY_ASSIGN_OR_RETURN(const Device::NativeAddress address, reference.AddressOf(buffer));
    bindings.push_back(buffer.at(0));
    addresses.push_back(address.address);
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
    // What a rank sends to itself; in place it lies there already.
    bound.source = At(step.inputs[0]);
    bound.destination = At(step.outputs[0]);
    if (bound.source.offset != bound.destination.offset || bound.source.buffer != bound.destination.buffer)
      bound.kind = Step::kCopy;
    return OkStatus();
  }
  static const std::map<std::string, Collective::Kind> kinds = {
      {"all_reduce", Collective::kAllReduce}, {"reduce_scatter", Collective::kReduceScatter},
      {"all_gather", Collective::kAllGather}, {"broadcast", Collective::kBroadcast},
      {"all_to_all", Collective::kAllToAll},  {"send", Collective::kSend},
      {"receive", Collective::kReceive}};
  const TensorType& sent = node.inputs.empty() ? node.outputs[0] : plan->graph.type(node.inputs[0]);
  const int64_t ranks = communicator->size();
  Collective what;
  what.kind = kinds.at(node.op);
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

StatusOr<BoundStep> Instance::Impl::BindStep(const Step& step, std::vector<int>& event_of) {
  BoundStep bound;
  bound.kind = step.kind;
  bound.node = step.node;
  bound.bytes = step.bytes;
  switch (step.kind) {
    case Step::kCopy:
      bound.source = At(step.inputs[0]);
      bound.destination = At(step.outputs[0]);
      break;
    case Step::kReady:
    case Step::kJoin: {
      SY_ASSIGN_OR_RETURN(Event event, plan->device->NewEvent());
      bound.event = static_cast<int>(events.size());
      events.push_back(std::move(event));
      if (step.kind == Step::kReady) event_of[step.node] = bound.event;
      if (const BoundStep* const collective = step.kind == Step::kJoin ? CollectiveOf(step.node) : nullptr) {
        bound.call = collective->call;
        bound.group = collective->group;
        bound.ready = event_of[step.node];
      }
      break;
    }
    case Step::kCollective: {
      SY_RETURN_IF_ERROR(BindCollective(step, bound));
      bound.ready = event_of[step.node];
      break;
    }
    case Step::kLaunch: {
      std::vector<sy_place> inputs, outputs;
      for (const PlanPlace& place : step.inputs) inputs.push_back(At(place));
      for (const PlanPlace& place : step.outputs) outputs.push_back(At(place));
      sy_binding binding{};
      binding.header = SY_HEADER(sy_binding);
      binding.inputs = inputs.data();
      binding.outputs = outputs.data();
      if (step.kernel->info().workspace_bytes > 0) binding.workspace = memory->buffer(Arena::kScratch).at(0);
      if (const uint64_t bytes = step.kernel->info().persistent_bytes; bytes > 0) {
        const uint64_t before = memory->layout().Align(bytes) * static_cast<uint64_t>(io_slot);
        binding.persistent = At({step.persistent.arena, step.persistent.offset + before});
      }
      if (step.has_residual) binding.residual = At(step.residual);
      SY_ASSIGN_OR_RETURN(bound.kernel, plan->device->Bind(*step.kernel, binding));
      break;
    }
    case Step::kFallback:
      SY_RETURN_IF_ERROR(BindFallback(step, bound));
      break;
  }
  return bound;
}

// Calls of one communicator are all started or all made by the thread that runs the plan.
void Instance::Impl::DecideHowCollectivesRun() {
  const PlanOptions& options = plan->options;
  const bool may_start = options.overlap && !options.debug_sync && !options.debug_nan;
  std::set<const Communicator*> in_turn;  // two groups may have one communicator
  for (const BoundStep& step : steps) {
    if (step.call && (!may_start || !CommunicatorOf(step).BetterStarted(*step.call)))
      in_turn.insert(&CommunicatorOf(step));
  }
  for (BoundStep& step : steps) {
    if (!step.call || OnStream(step.group)) continue;
    step.started = !in_turn.contains(&CommunicatorOf(step));
    if (step.started) continue;
    if (step.kind == Step::kCollective) {
      step.deferred = static_cast<int>(deferred.size());
      deferred.push_back(&step);
    } else {
      step.deferred = CollectiveOf(step.node)->deferred;
    }
  }
}

StatusOr<std::unique_ptr<Instance>> Instance::Bind(const Plan& plan, Memory& memory,
                                                   const GroupCommunicators& communicators, int io_slot) {
  std::unique_ptr<Instance> instance(new Instance);
  Impl& impl = *instance->impl_;
  impl.plan = plan.impl_.get();
  impl.memory = &memory;
  impl.communicators = communicators;
  impl.io_slot = io_slot;
  for (size_t group = 0; group < communicators.size(); ++group) {
    SY_ASSIGN_OR_RETURN(Stream stream, plan.impl_->device->NewStream(1));
    impl.communication.push_back(std::move(stream));
  }
  std::vector<int> event_of(plan.impl_->graph.size(), -1);
  for (const Step& step : plan.impl_->steps) {
    auto bound = impl.BindStep(step, event_of);
    if (!bound.ok()) return impl.Failed(step.node, bound.status());
    impl.steps.push_back(std::move(*bound));
  }
  const PlanOptions& options = plan.impl_->options;
  impl.DecideHowCollectivesRun();
  if (plan.impl_->device->capture() != nullptr && options.capture && !options.debug_sync && !options.debug_nan)
    SY_RETURN_IF_ERROR(impl.Capture());
  return instance;
}

int Instance::captured_launches() const {
  size_t count = 0;
  for (const CapturedSegment& segment : impl_->segments) count += segment.end - segment.begin;
  return static_cast<int>(count);
}

// Segments are the longest runs of launches whose kernels all allow it; what lies between (copies, collectives, staged
// nodes) is submitted one by one.
Status Instance::Impl::Capture() {
  const sy_capture_v1& capture = *plan->device->capture();
  SY_ASSIGN_OR_RETURN(const Stream stream, plan->device->NewStream());
  const auto allowed = [&](size_t i) {
    return plan->steps[i].kind == Step::kLaunch && plan->steps[i].kernel->info().capturable;
  };
  for (size_t begin = 0; begin < steps.size(); ++begin) {
    size_t end = begin;
    while (end < steps.size() && allowed(end)) ++end;
    if (end - begin >= kShortestSegment) {
      sy_status status = capture.begin(plan->device->handle(), stream.handle(), &error);
      if (status != SY_OK) return FromAbi(status, error, "beginning a capture");
      for (size_t i = begin; i < end && status == SY_OK; ++i) status = steps[i].kernel.Launch(stream.handle(), &error);
      CapturedSegment segment{begin, end, nullptr};
      const sy_status ended =
          capture.end(plan->device->handle(), stream.handle(), &segment.graph, status == SY_OK ? &error : nullptr);
      if (segment.graph != nullptr) segments.push_back(segment);
      if (status != SY_OK || ended != SY_OK)
        return FromAbi(status != SY_OK ? status : ended, error, "capturing a segment");
    }
    begin = std::max(begin, end);
  }
  return OkStatus();
}

Status Instance::Impl::RunFallback(Staging& s, const BoundKernel& kernel, const Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  Device& device = *plan->device;
  for (size_t i = 0; i < s.inputs.size(); ++i)
    SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(s.input_address[i]), s.input_place[i], s.input_bytes[i]));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  const sy_status status = kernel.Launch(nullptr, &error);
  if (status != SY_OK) return FromAbi(status, error, "reference plugin");
  for (size_t o = 0; o < s.outputs.size(); ++o)
    SY_RETURN_IF_ERROR(device.Copy(stream, s.output_place[o], HostPlace(s.output_address[o]), s.output_bytes[o]));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  fallback_seconds += Seconds(start);
  return OkStatus();
}

Status Instance::Impl::LaunchCollective(const BoundStep& step) {
  SY_RETURN_IF_ERROR(events[step.ready].Before(StreamOf(step)));
  return CommunicatorOf(step).Launch(*step.call, StreamOf(step));
}

// Up to and with this one.
Status Instance::Impl::PerformDeferred(int last) {
  while (performed <= static_cast<size_t>(last)) SY_RETURN_IF_ERROR(LaunchCollective(*deferred[performed++]));
  return OkStatus();
}

Status Instance::Impl::RunStep(BoundStep& step, const Stream& stream) {
  switch (step.kind) {
    case Step::kLaunch: {
      const sy_status status = step.kernel.Launch(stream.handle(), &error);
      return status == SY_OK ? OkStatus() : FromAbi(status, error, "launch");
    }
    case Step::kCopy:
      return plan->device->Copy(stream, step.destination, step.source, step.bytes);
    case Step::kReady:
      return events[step.event].Record(stream);
    case Step::kCollective:
      if (!step.call) return OkStatus();
      if (step.started) {
        CommunicatorOf(step).Start(*step.call, events[step.ready], StreamOf(step));
        return OkStatus();
      }
      if (step.deferred < 0) return LaunchCollective(step);
      return plan->graph.node(step.node).op == "send" ? PerformDeferred(step.deferred) : OkStatus();
    case Step::kJoin:
      if (!step.call) return OkStatus();
      if (step.started) return CommunicatorOf(step).Finish(*step.call);
      if (step.deferred >= 0) SY_RETURN_IF_ERROR(PerformDeferred(step.deferred));
      SY_RETURN_IF_ERROR(events[step.event].Record(StreamOf(step)));
      return events[step.event].Before(stream);
    case Step::kFallback:
      return RunFallback(stagings[step.staging], step.kernel, stream);
  }
  return OkStatus();
}

// Without debugging.
Status Instance::Impl::RunSteps(const Stream& stream) {
  size_t next = 0;  // segment
  for (size_t i = 0; i < steps.size();) {
    if (next < segments.size() && segments[next].begin == i) {
      const sy_status status = plan->device->capture()->launch(segments[next].graph, stream.handle(), &error);
      if (status != SY_OK) return Failed(steps[i].node, FromAbi(status, error, "replaying a captured segment"));
      i = segments[next++].end;
      continue;
    }
    const Status status = RunStep(steps[i], stream);
    if (!status.ok()) return Failed(steps[i].node, status);
    ++i;
  }
  return OkStatus();
}

Status Instance::Run(const Stream& stream) {
  Impl& impl = *impl_;
  const PlanOptions& options = impl.plan->options;
  impl.performed = 0;
  if (!options.debug_sync && !options.debug_nan) {
    Status status = impl.RunSteps(stream);
    if (status.ok()) return status;
    // The caller may free memory now that collectives still use.
    for (const BoundStep& step : impl.steps) {
      if (step.started) impl.CommunicatorOf(step).Finish(*step.call).IgnoreError();
    }
    return status;
  }
  impl.timings.clear();
  for (BoundStep& step : impl.steps) {
    const auto start = std::chrono::steady_clock::now();
    Status status = impl.RunStep(step, stream);
    if (status.ok()) status = impl.plan->device->Synchronize(stream);
    const Node& node = impl.plan->graph.node(step.node);
    impl.timings.push_back({node.name, step.kind == Step::kCopy ? "copy" : node.op, Seconds(start)});
    if (status.ok() && options.debug_nan) status = impl.LookForNonFinite(static_cast<int>(&step - impl.steps.data()));
    if (!status.ok()) return impl.Failed(step.node, status);
  }
  return OkStatus();
}

// Downloads what the step has just written and names the first element that is not finite.
Status Instance::Impl::LookForNonFinite(int index) {
  const Step& step = plan->steps[index];
  if (step.kind != Step::kLaunch && step.kind != Step::kFallback) return OkStatus();
  const Node& node = plan->graph.node(step.node);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const TensorType& type = node.outputs[o];
    if (type.dtype != DType::kF32 && type.dtype != DType::kBF16) continue;
    std::vector<unsigned char> bytes(static_cast<size_t>(type.bytes()));
    SY_RETURN_IF_ERROR(plan->device->Download(bytes.data(), At(step.outputs[o]), bytes.size()));
    for (int64_t i = 0; i < type.elements(); ++i) {
      uint32_t word = 0;
      if (type.dtype == DType::kF32) {
        std::memcpy(&word, bytes.data() + 4 * i, 4);
      } else {
        uint16_t half = 0;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        word = static_cast<uint32_t>(half) << 16;
      }
      if ((word & 0x7F800000u) == 0x7F800000u) {
        return FailedPrecondition("output {} {} holds {} at element {}: the first value that is not finite", o,
                                  ToString(type), (word & 0x7FFFFFu) != 0 ? "nan" : "inf", i);
      }
    }
  }
  return OkStatus();
}

}  // namespace switchyard
