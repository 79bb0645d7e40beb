#include "backends/opencl/semaphore.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>

#include "backends/opencl/device.h"

namespace switchyard {

struct Semaphore::State {
  struct Marker {  // of a stream that signals
    EventHandle event;
    uint64_t value;
    std::shared_ptr<Fate> stream;
  };
  using Gates = std::multimap<uint64_t, EventHandle>;  // user events, by the value that they wait for

  // Takes in what streams have done. Under the mutex, as all of these.
  void Look();
  bool failed() const { return fate->Known(nullptr) != SY_OK; }
  // Those that need to be shut no longer. Allocates nothing.
  Gates TakeOpened();

  std::mutex mutex;
  std::condition_variable changed;
  uint64_t count = 0;
  std::vector<Marker> markers;  // not seen to have ended
  Gates gates;
  const std::shared_ptr<Fate> fate = std::make_shared<Fate>();  // the first failure of a stream that was to signal
};

void Semaphore::State::Look() {
  const size_t before = markers.size();
  std::erase_if(markers, [&](const Marker& marker) {
    cl_int ended = CL_QUEUED;
    const cl_int asked =
        clGetEventInfo(marker.event.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof ended, &ended, nullptr);
    if (asked == CL_SUCCESS && ended > CL_COMPLETE) return false;
    sy_error cause{SY_HEADER(sy_error)};
    sy_status status = marker.stream->Tell(&cause);
    if (status == SY_OK && (asked != CL_SUCCESS || ended < 0))
      status = marker.stream->Ended(asked != CL_SUCCESS ? asked : ended, &cause);
    if (status == SY_OK) {
      count = std::max(count, marker.value);
    } else {
      fate->Fail(status, cause);
    }
    return true;
  });
  if (markers.size() != before) changed.notify_all();
}

Semaphore::State::Gates Semaphore::State::TakeOpened() {
  const bool all = failed();
  Gates opened;
  while (!gates.empty() && (all || gates.begin()->first <= count)) opened.insert(gates.extract(gates.begin()));
  return opened;
}

// The state, locked and up to date. Gates that it opens are opened when it goes, without the lock: a driver may run the
// work behind a gate, and its callbacks, inside the call.
class Semaphore::View {
 public:
  explicit View(State& state) : lock(state.mutex), state_(state) { state.Look(); }
  View(const View&) = delete;
  ~View() {
    const State::Gates opened = state_.TakeOpened();
    lock.unlock();
    // Where it fails there is nobody to tell. A gate that will never be reached opens, too: the stream behind it asks
    // for the failure when it is asked for its own.
    for (const auto& [value, gate] : opened) static_cast<void>(clSetUserEventStatus(gate.get(), CL_COMPLETE));
  }
  std::unique_lock<std::mutex> lock;

 private:
  State& state_;
};

Semaphore::Semaphore() : state_(std::make_shared<State>()) {}

sy_status Semaphore::Signal(uint64_t value, sy_error* error) {
  const View view(*state_);
  if (state_->count >= value)
    return Refuse(error, SY_INVALID, Text("semaphore: the count is ", state_->count, " and cannot become ", value));
  state_->count = value;
  state_->changed.notify_all();
  return SY_OK;
}

sy_status Semaphore::Query(uint64_t* value, sy_error* error) {
  const View view(*state_);
  *value = state_->count;
  return state_->fate->Known(error);
}

sy_status Semaphore::Wait(uint64_t value, uint64_t timeout_ms, sy_error* error) {
  constexpr uint64_t kLongest = uint64_t{1} << 40;  // milliseconds: what the clock can add to now
  View view(*state_);
  const auto over = [&] {
    state_->Look();
    return state_->count >= value || state_->failed();
  };
  const bool in_time =
      state_->changed.wait_for(view.lock, std::chrono::milliseconds(std::min(timeout_ms, kLongest)), over);
  if (state_->count >= value) return SY_OK;
  if (in_time) return state_->fate->Known(error);
  return Refuse(error, SY_TIMEOUT,
                Text("semaphore: the count is ", state_->count, " after ", timeout_ms, " ms, expected ", value));
}

void CL_CALLBACK Semaphore::OnEnded(cl_event, cl_int, void* kept) {
  const std::unique_ptr<std::shared_ptr<State>> state(static_cast<std::shared_ptr<State>*>(kept));
  const View view(**state);
}

sy_status Semaphore::SignalAfter(Stream& stream, uint64_t value, sy_error* error) {
  {
    const View view(*state_);
    if (state_->count >= value)
      return Refuse(error, SY_INVALID, Text("semaphore: the count is ", state_->count, " and cannot become ", value));
  }
  auto kept = std::make_unique<std::shared_ptr<State>>(state_);
  cl_event marker = nullptr;
  cl_int code = clEnqueueMarkerWithWaitList(stream.queue(), 0, nullptr, &marker);
  if (code != CL_SUCCESS) return stream.Queued(code, "clEnqueueMarkerWithWaitList", error);
  EventHandle owner(marker);
  if (code = clRetainEvent(marker); code != CL_SUCCESS) return stream.Queued(code, "clRetainEvent", error);
  const EventHandle own(marker);
  {
    const View view(*state_);
    state_->markers.push_back({std::move(owner), value, stream.fate()});
  }
  code = clSetEventCallback(marker, CL_COMPLETE, OnEnded, kept.get());
  if (code != CL_SUCCESS) return stream.Queued(code, "clSetEventCallback", error);
  static_cast<void>(kept.release());
  // Nobody else may ever flush the queue on behalf of those that wait.
  return stream.Queued(clFlush(stream.queue()), "clFlush", error);
}

sy_status Semaphore::Before(cl_context context, Stream& stream, uint64_t value, sy_error* error) {
  {
    const View view(*state_);
    if (state_->count >= value) return SY_OK;
  }
  cl_int code;
  EventHandle gate(clCreateUserEvent(context, &code));
  if (code != CL_SUCCESS) return Failed(error, code, "clCreateUserEvent");
  const cl_event event = gate.get();
  State::Gates made;  // so that nothing can fail once the stream waits
  made.emplace(value, std::move(gate));
  if (const sy_status status = stream.WaitFor(event, state_->fate, error); status != SY_OK) return status;
  const View view(*state_);
  state_->gates.merge(made);
  return SY_OK;
}

namespace {

sy_status Create(sy_device*, const sy_semaphore_options* options, sy_semaphore** semaphore, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    *semaphore = new sy_semaphore;
    return SY_OK;
  });
}

void Destroy(sy_device*, sy_semaphore* semaphore) { delete semaphore; }

sy_status Signal(sy_device*, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&] { return semaphore->semaphore.Signal(value, error); });
}

sy_status Query(sy_device*, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  return Guarded(error, [&] { return semaphore->semaphore.Query(value, error); });
}

sy_status Wait(sy_device*, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  return Guarded(error, [&] { return semaphore->semaphore.Wait(value, timeout_ms, error); });
}

// The stream that a call names, which has not failed; SY_INVALID without one.
sy_status CheckStream(sy_stream* stream, sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
  return stream->stream->fate()->Known(error);
}

sy_status StreamSignal(sy_device*, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&] {
    const sy_status status = CheckStream(stream, error);
    return status == SY_OK ? semaphore->semaphore.SignalAfter(*stream->stream, value, error) : status;
  });
}

sy_status StreamWait(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&] {
    const sy_status status = CheckStream(stream, error);
    return status == SY_OK ? semaphore->semaphore.Before(device->context.get(), *stream->stream, value, error) : status;
  });
}

}  // namespace

const sy_semaphore_v1 kOpenClSemaphores = {.header = SY_HEADER(sy_semaphore_v1),
                                           .create = Create,
                                           .destroy = Destroy,
                                           .signal = Signal,
                                           .query = Query,
                                           .wait = Wait,
                                           .stream_signal = StreamSignal,
                                           .stream_wait = StreamWait};

}  // namespace switchyard
