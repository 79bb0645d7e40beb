#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "core/graph/ops/collective.h"
#include "core/plan/bound.h"

namespace switchyard {
namespace {

// The bits of a floating number that are all set where it is inf or nan, and those of which nan has some.
struct FloatBits {
  uint64_t exponent, mantissa;
};
std::optional<FloatBits> FloatBitsOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return FloatBits{0x7FF0000000000000, 0x000FFFFFFFFFFFFF};
    case DType::kF32:
      return FloatBits{0x7F800000, 0x007FFFFF};
    case DType::kBF16:
      return FloatBits{0x7F80, 0x007F};
    case DType::kF16:
      return FloatBits{0x7C00, 0x03FF};
    default:
      return std::nullopt;
  }
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

uint64_t Instance::Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

Instance::Instance() : impl_(new Impl) {}
Instance::~Instance() = default;
void Instance::Record(bool on) { impl_->recording = on; }
const std::vector<Instance::Timing>& Instance::timings() const { return impl_->timings; }
double Instance::fallback_seconds() const { return impl_->fallback_seconds; }
int Instance::captured_launches() const {
  size_t count = 0;
  for (const CapturedSegment& segment : impl_->segments) count += segment.end - segment.begin;
  for (const BoundStep& step : impl_->steps) count += impl_->whole != nullptr && step.kind == Step::kLaunch;
  return static_cast<int>(count);
}

Status Instance::Run(const Stream& stream) {
  Impl& impl = *impl_;
  if (impl.whole != nullptr && !impl.recording) {
    // What a replay sends passes no call of the communicators, which would look.
    for (const auto& [communicator, bytes] : impl.sent_by_replay) SY_RETURN_IF_ERROR(communicator->health());
    const Device& device = *impl.plan->device;
    impl.KeepForReader(impl.steps);
    const sy_status status = device.capture()->launch(device.handle(), impl.whole, stream.handle(), &impl.error);
    if (status != SY_OK) return FromAbi(status, impl.error, "replaying the captured run");
    for (const auto& [communicator, bytes] : impl.sent_by_replay) communicator->CountSent(bytes);
    return OkStatus();
  }
  const Status status = impl.Submit(stream);
  impl.started = true;
  // After a failure the caller may free memory now that collectives still use.
  if (!status.ok()) Finish().IgnoreError();
  return status;
}

Status Instance::Impl::Submit(const Stream& compute) {
  performed = 0;
  // Calls of the run before that are made beside the streams wait for events that are recorded anew now.
  SY_RETURN_IF_ERROR(FinishStarted());
  SY_RETURN_IF_ERROR(FinishHostCalls());
  if (start_event >= 0) SY_RETURN_IF_ERROR(events[static_cast<size_t>(start_event)].Record(compute));
  SY_RETURN_IF_ERROR(debugged() ? RunDebugged(compute) : RunSteps(compute));
  return WaitFor(at_end, compute);
}

Status Instance::Finish() { return impl_->Finish(); }

Status Instance::Impl::Finish() {
  Status first = FinishStarted();
  first.Update(FinishHostCalls());
  return first;
}

Status Instance::Impl::FinishStarted() {
  Status first;
  if (!std::exchange(started, false)) return first;
  for (const BoundStep& step : steps) {
    if (step.way != BoundStep::Way::kStarted) continue;
    const Status status = CommunicatorOf(step).Finish(*step.call);
    if (first.ok() && !status.ok()) first = Failed(step.node, status);
  }
  return first;
}

Status Instance::Impl::FinishHostCalls() {
  Status first;
  if (host_thread == nullptr) return first;
  for (const BoundStep& step : steps) {
    if (step.way != BoundStep::Way::kOnHost) continue;
    const Status status = host_thread->Finish(*step.host_call);
    if (first.ok() && !status.ok()) first = Failed(step.node, status);
  }
  return first;
}

Status Instance::Impl::RunSteps(const Stream& compute) {
  size_t next = 0, next_group = 0;  // of segments and groups
  for (size_t i = 0; i < steps.size(); ++i) {
    const BoundStep& first = steps[i];
    if (next_group < groups.size() && groups[next_group].begin == i) {
      SY_RETURN_IF_ERROR(RunGroup(groups[next_group]));
      i = groups[next_group++].end - 1;
      continue;
    }
    if (next == segments.size() || segments[next].begin != i) {
      SY_RETURN_IF_ERROR(RunStep(first, compute));
      continue;
    }
    if (!first.waits.empty()) SY_RETURN_IF_ERROR(WaitFor(first.waits, compute));
    KeepForReader(std::span(steps).subspan(i, segments[next].end - i));
    const sy_status status =
        plan->device->capture()->launch(plan->device->handle(), segments[next].graph, compute.handle(), &error);
    if (status != SY_OK) return Failed(first.node, FromAbi(status, error, "replaying a captured segment"));
    i = segments[next++].end - 1;
    if (steps[i].event >= 0) SY_RETURN_IF_ERROR(events[static_cast<size_t>(steps[i].event)].Record(compute));
  }
  return OkStatus();
}

// Lets whoever reads the state beside this run keep what `writers` write.
void Instance::Impl::KeepForReader(std::span<const BoundStep> writers) {
  StateReading& reading = memory->state_reading();
  if (!reading.reads()) return;
  for (const BoundStep& step : writers) reading.AboutToWrite(step.writes_state_from, step.writes_state_until);
}

// What it waits for, the step and its event.
Status Instance::Impl::RunStep(const BoundStep& step, const Stream& compute) {
  KeepForReader({&step, 1});
  if (step.way == BoundStep::Way::kOnHost) {
    host_thread->Start(*step.host_call);
    return OkStatus();
  }
  const bool apart = step.way != BoundStep::Way::kInOrder;  // it waits when its turn comes
  const Stream& stream = StreamOf(step, compute);
  if (!apart && !step.waits.empty()) SY_RETURN_IF_ERROR(WaitFor(step.waits, stream));
  Status status;
  switch (step.kind) {
    case Step::kLaunch:
      if (const sy_status launched = step.kernel.Launch(stream.handle(), &error); launched != SY_OK)
        status = FromAbi(launched, error, "launch");
      break;
    case Step::kCopy:
      status = plan->device->Copy(stream, step.destination, step.source, step.bytes);
      break;
    case Step::kCollective:
      if (!step.call) break;
      if (step.way == BoundStep::Way::kStarted) return Start(step);
      if (step.way == BoundStep::Way::kDeferred)
        return ExchangeOf(plan->graph.node(step.node)) == Exchange::kSend ? PerformDeferred(step.deferred) : OkStatus();
      status = CommunicatorOf(step).Launch(*step.call, stream);
      break;
    case Step::kHost:
      break;
    case Step::kFallback:
      status = RunFallback(stagings[static_cast<size_t>(step.staging)], step.kernel, stream);
      break;
  }
  if (status.ok() && step.event >= 0) status = events[static_cast<size_t>(step.event)].Record(stream);
  return status.ok() ? status : Failed(step.node, status);
}

// What they wait for, all of them at once, and their events, which a group that is still open would be behind.
Status Instance::Impl::RunGroup(const CollectiveGroup& group) {
  KeepForReader(std::span(steps).subspan(group.begin, group.end - group.begin));
  for (size_t i = group.begin; i < group.end; ++i)
    SY_RETURN_IF_ERROR(WaitFor(steps[i].waits, CommunicationOf(steps[i])));
  if (const Status status = Communicator::LaunchTogether(group.calls); !status.ok())
    return Failed(steps[group.begin].node, status);
  for (size_t i = group.begin; i < group.end; ++i) {
    if (steps[i].event < 0) continue;
    const Status status = events[static_cast<size_t>(steps[i].event)].Record(CommunicationOf(steps[i]));
    if (!status.ok()) return Failed(steps[i].node, status);
  }
  return OkStatus();
}

// What stands on `stream` from now on begins behind step `earlier`.
Status Instance::Impl::WaitFor(int earlier, const Stream& stream) {
  if (earlier == kRunStart) return events[static_cast<size_t>(start_event)].Before(stream);
  const BoundStep& step = steps[static_cast<size_t>(earlier)];
  if (step.way == BoundStep::Way::kDeferred) return PerformDeferred(step.deferred);
  const Status status = step.way == BoundStep::Way::kStarted  ? CommunicatorOf(step).Before(*step.call, stream)
                        : step.way == BoundStep::Way::kOnHost ? host_thread->Before(*step.host_call, stream)
                                                              : events[static_cast<size_t>(step.event)].Before(stream);
  return status.ok() ? status : Failed(step.node, status);
}

Status Instance::Impl::WaitFor(const std::vector<int>& earlier, const Stream& stream) {
  for (const int step : earlier) SY_RETURN_IF_ERROR(WaitFor(step, stream));
  return OkStatus();
}

// The communicator's thread waits for one event, and for what runs beside the device (AwaitOthers).
Status Instance::Impl::Start(const BoundStep& collective) {
  const Stream& stream = CommunicationOf(collective);
  Event* ready = nullptr;
  for (const int earlier : collective.waits) {
    const int event = earlier == kRunStart ? start_event : steps[static_cast<size_t>(earlier)].event;
    if (event < 0) {
      const BoundStep& step = steps[static_cast<size_t>(earlier)];
      if (step.way == BoundStep::Way::kDeferred) SY_RETURN_IF_ERROR(PerformDeferred(step.deferred));
    } else if (ready == nullptr) {
      ready = &events[static_cast<size_t>(event)];
    } else {
      SY_RETURN_IF_ERROR(events[static_cast<size_t>(event)].Wait());
    }
  }
  const Status status = CommunicatorOf(collective).Start(*collective.call, ready, stream);
  return status.ok() ? status : Failed(collective.node, status);
}

// Until a step that runs beside the device has ended; its answer is left to whoever finishes it.
Status Instance::Impl::AwaitBeside(const BoundStep& step) {
  return step.way == BoundStep::Way::kOnHost ? host_thread->Await(*step.host_call)
                                             : CommunicatorOf(step).Await(*step.call);
}

// Up to and with this one.
Status Instance::Impl::PerformDeferred(int last) {
  while (performed <= static_cast<size_t>(last)) {
    const BoundStep& step = *deferred[performed++];
    for (const int earlier : step.waits) {
      const BoundStep* const other = earlier == kRunStart ? nullptr : &steps[static_cast<size_t>(earlier)];
      const bool beside = other != nullptr && other->RunsBeside();
      SY_RETURN_IF_ERROR(beside ? AwaitBeside(*other) : WaitFor(earlier, CommunicationOf(step)));
    }
    const Status status = CommunicatorOf(step).Launch(*step.call, CommunicationOf(step));
    if (!status.ok()) return Failed(step.node, status);
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

// What is under way beside the device or was put off ends here, so that its time is its own. Messages are left alone:
// what a peer sends may wait for what this rank sends later.
Status Instance::Impl::FinishApart(const BoundStep& step) {
  if (step.way == BoundStep::Way::kOnHost) {
    const Status status = host_thread->Finish(*step.host_call);
    return status.ok() ? status : Failed(step.node, status);
  }
  if (step.kind != Step::kCollective || !step.call) return OkStatus();
  if (IsMessage(plan->graph.node(step.node)) || step.way == BoundStep::Way::kInOrder) return OkStatus();
  if (step.way == BoundStep::Way::kDeferred) return PerformDeferred(step.deferred);
  const Status status = CommunicatorOf(step).Finish(*step.call);
  return status.ok() ? status : Failed(step.node, status);
}

Status Instance::Impl::RunDebugged(const Stream& compute) {
  timings.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    const BoundStep& step = steps[i];
    const uint64_t start = Now();
    Status status = RunStep(step, compute);
    if (status.ok()) status = FinishApart(step);
    if (!status.ok()) return status;
    status = plan->device->Synchronize(StreamOf(step, compute));
    timings.push_back({static_cast<int>(i), start, Now()});
    if (status.ok() && plan->options.debug_nan) status = LookForNonFinite(plan->schedule.steps[i]);
    if (!status.ok()) return Failed(step.node, status);
  }
  return OkStatus();
}

// Downloads what the step has just written and names the first element that is not finite.
Status Instance::Impl::LookForNonFinite(const Step& step) {
  if (step.kind != Step::kLaunch && step.kind != Step::kFallback && step.kind != Step::kHost) return OkStatus();
  const Node& node = plan->graph.node(step.node);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const TensorType& type = node.outputs[o];
    const std::optional<FloatBits> format = FloatBitsOf(type.dtype);
    if (!format) continue;
    std::vector<unsigned char> bytes(static_cast<size_t>(type.bytes()));
    const PlanPlace& place = step.outputs[o];
    if (step.kind == Step::kHost) {
      std::memcpy(bytes.data(), memory->host_address(place.arena) + place.offset, bytes.size());
    } else {
      SY_RETURN_IF_ERROR(plan->device->Download(bytes.data(), At(place), bytes.size()));
    }
    const auto size = static_cast<size_t>(SizeOf(type.dtype));
    for (int64_t i = 0; i < type.elements(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + size * static_cast<size_t>(i), size);
      if ((word & format->exponent) == format->exponent) {
        return FailedPrecondition("output {} {} holds {} at element {}: the first value that is not finite", o,
                                  ToString(type), (word & format->mantissa) != 0 ? "nan" : "inf", i);
      }
    }
  }
  return OkStatus();
}

}  // namespace switchyard
