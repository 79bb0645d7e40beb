#include "backends/cuda/stream.h"

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

using Mark = std::shared_ptr<CUevent_st>;

bool IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

// An event behind the work that the stream has now.
sy_status MarkEnd(sy_device* device, cudaStream_t stream, Mark* mark, sy_error* error) {
  cudaEvent_t made = nullptr;
  SY_CUDA(error, cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *mark = Mark(made, [device](cudaEvent_t event) {
    if (Enter(device->index, nullptr) == SY_OK) LogFailure(*device, cudaEventDestroy(event), "cudaEventDestroy");
  });
  SY_CUDA(error, cudaEventRecord(made, stream));
  return SY_OK;
}

// Of a stream that is about to be destroyed and is not captured. What it has not done yet still runs to its end.
sy_status KeepEnding(sy_device* device, cudaStream_t stream, sy_error* error) {
  auto& endings = device->streams.endings;
  const std::lock_guard lock(device->streams.mutex);
  std::erase_if(endings, [](const Mark& ending) { return cudaEventQuery(ending.get()) == cudaSuccess; });
  const bool works = cudaStreamQuery(stream) == cudaErrorNotReady;
  cudaGetLastError();  // of what is not ready
  if (!works) return SY_OK;
  Mark ending;
  SY_TRY(MarkEnd(device, stream, &ending, error));
  endings.push_back(std::move(ending));
  return SY_OK;
}

}  // namespace

// One by one, and not by cudaDeviceSynchronize: CUDA refuses that while any stream of the context is captured, whatever
// the mode, and breaks the capture, which may be one of another rank in this process. Streams may be made, used and
// destroyed meanwhile. https://docs.nvidia.com/cuda/cuda-c-programming-guide/ ("Prohibited and Unhandled Operations")
sy_status SynchronizeStreams(sy_device* device, sy_error* error) {
  std::vector<Mark> marks;
  {
    const std::lock_guard lock(device->streams.mutex);
    marks = device->streams.endings;
    std::vector<const sy_stream*> streams = device->streams.open;
    streams.push_back(&device->own);
    for (const sy_stream* const stream : streams) {
      if (IsCaptured(stream->stream))
        return SY_FAIL(error, SY_UNSUPPORTED, "cuda: a wait for the device while one of its streams is captured");
      SY_TRY(MarkEnd(device, stream->stream, &marks.emplace_back(), error));
    }
  }
  for (const Mark& mark : marks) SY_CUDA(error, cudaEventSynchronize(mark.get()));
  return SY_OK;
}

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error) {
  *stream = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  SY_TRY(Enter(device->index, error));
  const bool high = options != nullptr && ReadStruct(options).priority > 0;
  int least = 0, greatest = 0;  // numerically, greatest ≤ least
  SY_CUDA(error, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  std::unique_ptr<sy_stream> made(new (std::nothrow) sy_stream);
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a stream");
  return Guarded(error, [&]() -> sy_status {
    const std::lock_guard lock(device->streams.mutex);
    device->streams.open.reserve(device->streams.open.size() + 1);
    SY_CUDA(error, cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, high ? greatest : least));
    device->streams.open.push_back(made.get());
    *stream = made.release();
    return SY_OK;
  });
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
  {
    const std::lock_guard lock(device->streams.mutex);
    std::erase(device->streams.open, stream);
  }
  if (Enter(device->index, nullptr) == SY_OK) {
    sy_error error{SY_HEADER(sy_error)};
    const auto keep = [&] { return KeepEnding(device, stream->stream, &error); };
    if (!IsCaptured(stream->stream) && Guarded(&error, keep) != SY_OK)
      device->instance->Log(2, std::string("cuda: ") + error.message);
    LogFailure(*device, cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
  }
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
