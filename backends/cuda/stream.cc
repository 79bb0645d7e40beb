#include "backends/cuda/stream.h"

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace switchyard {

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error) {
  *stream = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  SY_TRY(Enter(device->index, error));
  const bool high = options != nullptr && ReadStruct(options).priority > 0;
  int least = 0, greatest = 0;  // numerically, greatest ≤ least
  SY_CUDA(error, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  std::unique_ptr<sy_stream> made(new (std::nothrow) sy_stream);
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a stream");
  SY_CUDA(error, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, high ? greatest : least));
  *stream = made.release();
  return SY_OK;
}

void DestroyStream(sy_device* device, sy_stream* stream) {
  if (stream == nullptr) return;
  if (const auto recording = std::move(stream->recording)) {
    recording->spoiled = true;
    const bool began = recording->streams.front() == stream;  // with it the capture is over, for CUDA as well
    std::erase(recording->streams, stream);
    if (began) {
      for (sy_stream* const joined : recording->streams) joined->recording = nullptr;
    }
  }
  if (Enter(device->index, nullptr) == SY_OK)
    LogFailure(*device, cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
  delete stream;
}

sy_status CreateEvent(sy_device* device, const sy_event_options* options, sy_event** event, sy_error* error) {
  *event = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  SY_TRY(Enter(device->index, error));
  std::unique_ptr<sy_event> made(new (std::nothrow) sy_event);
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for an event");
  SY_CUDA(error, cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming));
  *event = made.release();
  return SY_OK;
}

void DestroyEvent(sy_device* device, sy_event* event) {
  if (event == nullptr) return;
  const bool usable = Enter(device->index, nullptr) == SY_OK;
  for (const cudaEvent_t made : {event->event, event->place})
    if (usable && made != nullptr) LogFailure(*device, cudaEventDestroy(made), "cudaEventDestroy");
  delete event;
}

namespace {

// In a capture the record becomes a node, which every replay runs: what waits for the event after a replay waits for
// that one. Behind it lies the place for the streams of the capture: what waits for it has then waited for the node,
// too, without which end would find the node unjoined.
sy_status RecordOn(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  const std::lock_guard lock(event->mutex);
  event->recording.reset();
  if (stream == nullptr || stream->recording == nullptr) {
    SY_CUDA(error, cudaEventRecord(event->event, stream ? stream->stream : device->own.stream));
    return SY_OK;
  }
  if (event->place == nullptr) SY_CUDA(error, cudaEventCreateWithFlags(&event->place, cudaEventDisableTiming));
  SY_CUDA(error, cudaEventRecordWithFlags(event->event, stream->stream, cudaEventRecordExternal));
  SY_CUDA(error, cudaEventRecord(event->place, stream->stream));
  event->recording = stream->recording;
  return SY_OK;
}

// An event of a capture that goes on draws the stream into it.
sy_status WaitOn(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  const std::lock_guard lock(event->mutex);
  const std::shared_ptr<Recording> recording = event->recording.lock();
  if (stream != nullptr && stream->recording != nullptr && stream->recording != recording)
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: a wait for what the capture does not hold cannot be captured");
  if (recording == nullptr) {
    SY_CUDA(error, cudaStreamWaitEvent(stream ? stream->stream : device->own.stream, event->event, 0));
    return SY_OK;
  }
  if (stream == nullptr) {
    recording->spoiled = true;
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: only a stream can be drawn into a capture");
  }
  if (stream->recording == nullptr) {
    recording->streams.push_back(stream);
    stream->recording = recording;
  }
  SY_CUDA(error, cudaStreamWaitEvent(stream->stream, event->place, 0));
  return SY_OK;
}

}  // namespace

sy_status RecordEvent(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  return OnStream(stream, RecordOn(device, event, stream, error));
}

sy_status QueryEvent(sy_device* device, sy_event* event, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  const cudaError_t code = cudaEventQuery(event->event);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return SY_IN_PROGRESS;
  }
  SY_CUDA(error, code);
  return SY_OK;
}

sy_status SynchronizeEvent(sy_device* device, sy_event* event, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  SY_CUDA(error, cudaEventSynchronize(event->event));
  return SY_OK;
}

sy_status WaitForEvent(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  return OnStream(stream, Guarded(error, [&] { return WaitOn(device, stream, event, error); }));
}

}  // namespace switchyard
