// Events: marks in the work of streams, or sets of nodes of a capture
// (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__EVENT.html).
#include <algorithm>
#include <set>

#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/stream.h"

namespace cuda_double {
namespace {

std::set<CUevent_st*>& Events() {  // under Book()
  static auto& events = *new std::set<CUevent_st*>;
  return events;
}

// A stream that waits for an event of a capture takes part in it; what it waits for becomes what its next node depends
// on.
cudaError_t Join(CUstream_st* stream, const CUevent_st& event) {
  Capture& capture = *event.capture;
  if (capture.ended) return stream->capture ? Break(*stream->capture, cudaErrorCapturedEvent) : cudaErrorCapturedEvent;
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->is_default) return Break(capture, cudaErrorStreamCaptureImplicit);
  if (stream->capture && stream->capture != event.capture) {
    Break(*stream->capture, cudaErrorStreamCaptureMerge);
    return Break(capture, cudaErrorStreamCaptureMerge);
  }
  if (!stream->capture) {
    stream->capture = event.capture;
    stream->tail_nodes.clear();
    capture.streams.push_back(stream);
  }
  for (int node : event.nodes) {
    if (std::find(stream->tail_nodes.begin(), stream->tail_nodes.end(), node) == stream->tail_nodes.end()) {
      stream->tail_nodes.push_back(node);
    }
  }
  return cudaSuccess;
}

}  // namespace

bool Known(cudaEvent_t event) { return Events().count(event) != 0; }

}  // namespace cuda_double

using namespace cuda_double;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call([&] {
    if (event == nullptr || (flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}) != 0)
      return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    *event = new CUevent_st{CurrentDevice(), (flags & cudaEventDisableTiming) == 0, nullptr, nullptr, {}};
    Events().insert(*event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&] {
    std::lock_guard lock(Book());
    if (Events().erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  return Call([&] {
    if (flags != cudaEventRecordDefault && flags != cudaEventRecordExternal) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr || !Known(event) || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    if (flags == cudaEventRecordExternal) {  // for captures only
      if (!stream->capture) return cudaErrorInvalidValue;
      if (const cudaError_t error = Submit(stream, nullptr); error != cudaSuccess) return error;
      stream->capture->nodes.back().records = event;
      return cudaSuccess;
    }
    if (stream->capture) {
      if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
      event->mark = nullptr;
      event->capture = stream->capture;
      event->nodes = stream->tail_nodes;
      return cudaSuccess;
    }
    if (const cudaError_t error = Submit(stream, [] {}); error != cudaSuccess) return error;
    event->mark = stream->Tail();
    event->capture = nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return cudaEventRecordWithFlags(event, handle, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  return Call([&] {
    if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr || !Known(event)) return cudaErrorInvalidResourceHandle;
    if (flags == cudaEventWaitExternal) {  // for captures only
      if (!stream->capture) return cudaErrorInvalidValue;
      if (const cudaError_t error = Submit(stream, nullptr); error != cudaSuccess) return error;
      stream->capture->nodes.back().awaits = event;
      return cudaSuccess;
    }
    if (event->capture) return Join(stream, *event);
    if (!event->mark) return cudaSuccess;
    if (stream->capture) return Break(*stream->capture, cudaErrorStreamCaptureIsolation);
    return Submit(stream, [mark = event->mark] { mark->Wait(); });
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([&] {
    std::lock_guard lock(Book());
    if (!Known(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture)
      return event->capture->ended ? cudaErrorCapturedEvent : Break(*event->capture, cudaErrorCapturedEvent);
    if (event->mark && !event->mark->reached) return cudaErrorNotReady;
    return Lost();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&] {
    std::shared_ptr<Mark> mark;
    {
      std::lock_guard lock(Book());
      if (!Known(event)) return cudaErrorInvalidResourceHandle;
      if (event->capture)
        return event->capture->ended ? cudaErrorCapturedEvent : Break(*event->capture, cudaErrorCapturedEvent);
      mark = event->mark;
    }
    if (mark) mark->Wait();
    return Lost();
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return Call([&] {
    if (ms == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    if (!Known(start) || !Known(end) || !start->timing || !end->timing || !start->mark || !end->mark) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!start->mark->reached || !end->mark->reached) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->mark->when - start->mark->when).count();
    return cudaSuccess;
  });
}

}  // extern "C"
