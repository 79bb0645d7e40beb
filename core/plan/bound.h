// A plan bound to memory: what Instance holds. binding.cc makes it, instance.cc runs it. Internal to core/plan.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/compiled.h"
#include "core/plan/host_thread.h"

namespace switchyard {

// A step with its buffers fixed.
struct BoundStep {
  Step::Kind kind;
  int node;
  // As in the schedule, but where this rank is alone in the group of a collective: what is left of that, if anything,
  // is done on the compute stream.
  int stream;
  std::vector<int> waits;
  int event = -1;  // into Impl::events: recorded behind the step, where the device makes somebody wait for it
  uint64_t writes_state_from = 0, writes_state_until = 0;  // what it writes of the state arena lies between them
  BoundKernel kernel;
  sy_place source{}, destination{};
  uint64_t bytes = 0;
  std::shared_ptr<Communicator::DeviceCall> call;
  // How a collective runs. Where its plugin completes on streams: in order on its group's stream. Started: on the
  // communicator's thread, where it would hold up the host. Else deferred to where somebody waits for it, as ranks that
  // compute on a host's cores gain nothing earlier, but for messages that are sent: a peer waits for them. What is
  // deferred keeps its order. On the host: on the thread of the instance, by `host_call`.
  enum class Way { kInOrder, kStarted, kDeferred, kOnHost } way = Way::kInOrder;
  HostThread::Call* host_call = nullptr;
  int group = 0;
  int deferred = -1;  // index into Impl::deferred
  int staging = -1;
  bool RunsBeside() const { return way == Way::kStarted || way == Way::kOnHost; }  // the device, on a thread
};

// A node that runs on the reference plugin: host buffers beside device places.
struct Staging {
  std::vector<Buffer> inputs, outputs;
  std::vector<void*> input_address, output_address;
  std::vector<sy_place> input_place, output_place;
  std::vector<uint64_t> input_bytes, output_bytes;
  Buffer workspace, persistent, constants;
};

// Collectives that are begun together: steps [begin, end).
struct CollectiveGroup {
  size_t begin = 0, end = 0;
  std::vector<Communicator::Grouped> calls;
};

// A run of launches that the device replays with one call: steps [begin, end).
struct CapturedSegment {
  size_t begin = 0, end = 0;
  sy_graph* graph = nullptr;
};

struct Instance::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    Finish().IgnoreError();
    for (const CapturedSegment& segment : segments)
      plan->device->capture()->release(plan->device->handle(), segment.graph);
    if (whole != nullptr) plan->device->capture()->release(plan->device->handle(), whole);
  }

  const Plan::Impl* plan = nullptr;
  Memory* memory = nullptr;
  GroupCommunicators communicators{nullptr};
  int io_slot = 0;
  std::vector<BoundStep> steps;
  std::vector<int> at_end;    // as in the schedule
  sy_graph* whole = nullptr;  // a run with all its streams, where device and collectives can record that
  std::vector<std::pair<Communicator*, int64_t>> sent_by_replay;  // bytes that each replay of it sends
  std::vector<CapturedSegment>
      segments;                         // else: in order; none where the device cannot capture or the plan is debugged
  std::vector<CollectiveGroup> groups;  // in order; each of at least two steps
  std::vector<Staging> stagings;
  std::vector<Event> events;
  int start_event = -1;               // recorded when a run begins, where somebody waits for that
  std::vector<Stream> communication;  // by group; of those that communicate
  Stream stores, fetches;             // where there are some
  std::vector<const BoundStep*> deferred;
  size_t performed = 0;  // of `deferred`, in this run
  sy_error error = EmptyError();
  bool recording = false;
  std::vector<Timing> timings;
  double fallback_seconds = 0;

  bool started = false;  // since the last Finish: calls may be under way
  std::deque<HostThread::Call> host_calls;
  std::unique_ptr<HostThread> host_thread;  // null: nothing runs on the host
  Status Finish();

  bool debugged() const { return recording || plan->options.debug_sync || plan->options.debug_nan; }
  sy_place At(const PlanPlace& place) const { return memory->place(place.arena, place.offset, io_slot); }
  Communicator& CommunicatorOf(const BoundStep& step) const { return *communicators[static_cast<size_t>(step.group)]; }
  const Stream& CommunicationOf(const BoundStep& step) const { return communication[static_cast<size_t>(step.group)]; }
  const Stream& StreamOf(const BoundStep& step, const Stream& compute) const {
    switch (step.stream) {
      case kComputeStream:
      case kHostStream:
        return compute;
      case kStoreStream:
        return stores;
      case kFetchStream:
        return fetches;
      default:
        return CommunicationOf(step);
    }
  }
  Status Failed(int id, const Status& status) const {
    const Node& node = plan->graph.node(id);
    return Annotate(
        status, fmt::format("{} ({}, built at {}:{})", node.name, node.op, node.where.file_name(), node.where.line()));
  }

  // Binding
  StatusOr<BoundStep> BindStep(const Step& step);
  std::pair<std::vector<sy_place>, std::vector<sy_place>> PlacesOf(const Step& step) const;  // inputs, outputs
  Status BindKernel(const Step& step, BoundStep& bound);
  Status BindCollective(const Step& step, BoundStep& bound);
  Status BindFallback(const Step& step, BoundStep& bound);
  Status BindOnHost(const Step& step, BoundStep& bound);
  void DecideHowCollectivesRun();
  Status MakeStreams();
  Status MakeEvents();
  Status MakeHostThread();
  void AwaitOthers();
  bool BeginsWith(const CollectiveGroup& group, size_t step) const;
  void FindGroups();
  bool RecordsWhole() const;
  Status CaptureWhole();
  Status Capture();

  // Running
  Status Submit(const Stream& compute);
  Status RunSteps(const Stream& compute);
  Status FinishStarted();  // collectives since the last Finish
  Status FinishHostCalls();
  Status FinishApart(const BoundStep& step);
  Status RunDebugged(const Stream& compute);
  void KeepForReader(std::span<const BoundStep> writers);
  Status RunStep(const BoundStep& step, const Stream& compute);
  Status RunGroup(const CollectiveGroup& group);
  Status WaitFor(int earlier, const Stream& stream);
  Status WaitFor(const std::vector<int>& earlier, const Stream& stream);
  Status Start(const BoundStep& collective);
  Status AwaitBeside(const BoundStep& step);
  Status PerformDeferred(int last);
  Status RunFallback(Staging& staging, const BoundKernel& kernel, const Stream& stream);
  Status LookForNonFinite(const Step& step);
};

}  // namespace switchyard
