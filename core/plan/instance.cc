#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

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
  Communicator* communicator = nullptr;
  int io_slot = 0;
  // How a collective runs. On a stream of the device: in order there. Started: on the communicator's thread, where it
  // would hold up the host. Else where its result is needed: ranks that compute on a host's cores gain nothing earlier.
  bool collectives_on_stream = false;
  std::vector<BoundStep> steps;
  std::vector<CapturedSegment> segments;  // in order; empty where the device cannot capture or the plan is debugged
  std::vector<Staging> stagings;
  std::vector<Event> events;
  Stream communication;
  sy_error error = EmptyError();
  std::vector<Timing> timings;
  double fallback_seconds = 0;

  sy_place At(const PlanPlace& place) const { return memory->place(place.arena, place.offset, io_slot); }

  Status Failed(int id, const Status& status) const {
    const Node& node = plan->graph.node(id);
    return Annotate(
        status, fmt::format("{} ({}, built at {}:{})", node.name, node.op, node.where.file_name(), node.where.line()));
  }

  std::shared_ptr<Communicator::DeviceCall> CallOf(int collective) const {
    for (const BoundStep& step : steps) {
      if (step.kind == Step::kCollective && step.node == collective) return step.call;
    }
    return nullptr;
  }
  Status RunSteps(const Stream& stream);
  StatusOr<BoundStep> BindStep(const Step& step, std::vector<int>& event_of);
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
      if (step.kind == Step::kJoin) {
        bound.call = CallOf(step.node);
        bound.ready = event_of[step.node];
      }
      break;
    }
    case Step::kCollective: {
      if (communicator == nullptr || communicator->size() == 1) break;
      const Node& node = plan->graph.node(step.node);
      const auto& a = node.attributes.as<sy_collective_attributes>();
      const Buffer& buffer = memory->buffer(step.outputs[0].arena);
      const uint64_t offset = At(step.outputs[0]).offset;
      const auto count = static_cast<uint64_t>(node.outputs[0].elements());
      const auto dtype = static_cast<sy_dtype>(node.outputs[0].dtype);
      if (node.op == "all_reduce") {
        SY_ASSIGN_OR_RETURN(bound.call,
                            communicator->PrepareAllReduce(node.name, buffer, offset, count, dtype, a.reduction));
      } else if (node.op == "broadcast") {
        SY_ASSIGN_OR_RETURN(bound.call,
                            communicator->PrepareBroadcast(node.name, buffer, offset, count, dtype, a.root));
      } else {
        return Unimplemented("collective {} in a plan", node.op);
      }
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

StatusOr<std::unique_ptr<Instance>> Instance::Bind(const Plan& plan, Memory& memory, Communicator* communicator,
                                                   int io_slot) {
  std::unique_ptr<Instance> instance(new Instance);
  Impl& impl = *instance->impl_;
  impl.plan = plan.impl_.get();
  impl.memory = &memory;
  impl.communicator = communicator;
  impl.io_slot = io_slot;
  SY_ASSIGN_OR_RETURN(impl.communication, plan.impl_->device->NewStream(1));
  std::vector<int> event_of(plan.impl_->graph.size(), -1);
  for (const Step& step : plan.impl_->steps) {
    auto bound = impl.BindStep(step, event_of);
    if (!bound.ok()) return impl.Failed(step.node, bound.status());
    impl.steps.push_back(std::move(*bound));
  }
  const PlanOptions& options = plan.impl_->options;
  if (communicator != nullptr && communicator->info().completion == SY_COMPLETES_ON_STREAM) {
    impl.collectives_on_stream = true;
  } else if (options.overlap && !options.debug_sync && !options.debug_nan) {
    for (BoundStep& step : impl.steps) step.started = step.call && communicator->BetterStarted(*step.call);
  }
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
  SY_RETURN_IF_ERROR(events[step.ready].Before(communication));
  return communicator->Launch(*step.call, communication);
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
      if (collectives_on_stream) return LaunchCollective(step);
      if (step.started) communicator->Start(*step.call, events[step.ready], communication);
      return OkStatus();
    case Step::kJoin:
      if (!step.call) return OkStatus();
      if (step.started) return communicator->Finish(*step.call);
      if (!collectives_on_stream) SY_RETURN_IF_ERROR(LaunchCollective(step));
      SY_RETURN_IF_ERROR(events[step.event].Record(communication));
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
  if (!options.debug_sync && !options.debug_nan) {
    Status status = impl.RunSteps(stream);
    if (status.ok()) return status;
    // The caller may free memory now that collectives still use.
    for (const BoundStep& step : impl.steps) {
      if (step.started) impl.communicator->Finish(*step.call).IgnoreError();
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
