#include "tests/doubles/cuda_runtime/stream.h"

#include <algorithm>
#include <set>

#include "tests/doubles/cuda_runtime/error.h"
#include "tests/doubles/cuda_runtime/settings.h"

namespace cuda_double {
namespace {

std::set<CUstream_st*>& Streams() {  // under Book(); never destroyed: stream threads outlive static objects
  static auto& streams = *new std::set<CUstream_st*>;
  return streams;
}

CUstream_st* DefaultStream(int device) {
  for (CUstream_st* stream : Streams()) {
    if (stream->is_default && stream->device == device) return stream;
  }
  return *Streams().insert(new CUstream_st(device, 0, true, true)).first;
}

// The legacy default stream and the blocking streams of its device wait for each other
// (https://docs.nvidia.com/cuda/cuda-runtime-api/stream-sync-behavior.html).
void OrderWithLegacy(CUstream_st* stream) {
  if (!stream->blocking) return;
  for (CUstream_st* other : Streams()) {
    if (other == stream || other->device != stream->device || !other->blocking) continue;
    if (!stream->is_default && !other->is_default) continue;
    if (other->Tail()->reached) continue;
    stream->Put([mark = other->Tail()] { mark->Wait(); });
  }
}

}  // namespace

void Mark::Reach() {
  when = std::chrono::steady_clock::now();
  reached = true;
  reached.notify_all();
}

std::mutex& Book() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

CUstream_st* FindStream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return DefaultStream(CurrentDevice());
  return Streams().count(handle) ? handle : nullptr;
}

cudaError_t Break(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return error;
}

cudaError_t RefuseInCapture() {
  cudaError_t answer = cudaSuccess;
  for (CUstream_st* stream : Streams()) {
    if (!stream->capture || stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool ours = stream->capture->thread == std::this_thread::get_id();
    if (ours || stream->capture->mode == cudaStreamCaptureModeGlobal) {
      answer = Break(*stream->capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return answer;
}

cudaError_t RefuseInAnyCapture() {
  cudaError_t answer = cudaSuccess;
  for (CUstream_st* stream : Streams()) {
    if (stream->capture && stream->device == CurrentDevice())
      answer = Break(*stream->capture, cudaErrorStreamCaptureUnsupported);
  }
  return answer;
}

std::set<const void*>& Loaded() {
  static auto& functions = *new std::set<const void*>;
  return functions;
}

cudaError_t Submit(CUstream_st* stream, Work work, const void* function) {
  if (stream->capture) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    stream->capture->nodes.push_back({.work = std::move(work),
                                      .dependencies = stream->tail_nodes,
                                      .function = function,
                                      .priority = stream->priority});
    stream->tail_nodes = {static_cast<int>(stream->capture->nodes.size()) - 1};
    return cudaSuccess;
  }
  if (stream->is_default) {
    for (CUstream_st* other : Streams()) {
      if (other->blocking && other->device == stream->device && other->capture) {
        return Break(*other->capture, cudaErrorStreamCaptureImplicit);
      }
    }
  }
  OrderWithLegacy(stream);
  stream->Put(std::move(work));
  return cudaSuccess;
}

void WaitForDevice() {
  std::vector<std::shared_ptr<Mark>> tails;
  {
    std::lock_guard lock(Book());
    for (CUstream_st* stream : Streams()) {
      if (stream->device == CurrentDevice()) tails.push_back(stream->Tail());
    }
  }
  for (const auto& tail : tails) tail->Wait();
}

}  // namespace cuda_double

using namespace cuda_double;

CUstream_st::CUstream_st(int device, int priority, bool blocking, bool is_default)
    : device(device), priority(priority), blocking(blocking), is_default(is_default), tail_(std::make_shared<Mark>()) {
  tail_->Reach();
  thread_ = std::thread([this] { Run(); });
  if (is_default) thread_.detach();  // lives as long as the process
}

std::shared_ptr<Mark> CUstream_st::Put(Work work) {
  tail_ = std::make_shared<Mark>();
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), tail_});
  }
  wake_.notify_one();
  return tail_;
}

std::thread CUstream_st::Close() {
  // Notified under the lock: the thread deletes this object once it sees closed_.
  std::lock_guard lock(mutex_);
  closed_ = true;
  wake_.notify_one();
  return std::move(thread_);
}

void CUstream_st::Run() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) break;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    if (const int delay = GetSettings().delay_us) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    if (Strikes("lost")) Lose(cudaErrorIllegalAddress);
    if (Lost() == cudaSuccess) task.work();
    task.work = nullptr;  // what it owns is released before anyone sees that it is finished
    task.mark->Reach();
  }
  delete this;
}

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return Call([&] {
    if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    // Out of range is clamped (https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__STREAM.html).
    *stream = new CUstream_st(CurrentDevice(), std::clamp(priority, -5, 0), flags != cudaStreamNonBlocking, false);
    Streams().insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call([&] {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *priority = stream->priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return Call([&] {
    std::thread thread;
    bool idle = false;
    {
      std::lock_guard lock(Book());
      CUstream_st* stream = FindStream(handle);
      if (stream == nullptr || stream->is_default) return cudaErrorInvalidResourceHandle;
      if (stream->capture) return Break(*stream->capture, cudaErrorStreamCaptureUnsupported);
      Streams().erase(stream);
      idle = stream->Tail()->reached;
      thread = stream->Close();
    }
    // An idle stream is gone on return, with its thread; one that works on ends by itself.
    if (idle && thread.get_id() != std::this_thread::get_id()) {
      thread.join();
    } else {
      thread.detach();
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Call([&] {
    std::shared_ptr<Mark> tail;
    {
      std::lock_guard lock(Book());
      CUstream_st* stream = FindStream(handle);
      if (stream == nullptr) return cudaErrorInvalidResourceHandle;
      if (stream->capture) return Break(*stream->capture, cudaErrorStreamCaptureUnsupported);
      if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
      if (stream->is_default) OrderWithLegacy(stream);
      tail = stream->Tail();
    }
    tail->Wait();
    return Lost();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Call([&] {
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return Break(*stream->capture, cudaErrorStreamCaptureUnsupported);
    if (!stream->Tail()->reached) return cudaErrorNotReady;
    return Lost();
  });
}

cudaError_t cudaDeviceSynchronize() {
  return Call([&] {
    {
      std::lock_guard lock(Book());
      if (const cudaError_t error = RefuseInAnyCapture(); error != cudaSuccess) return error;
      if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) return error;
    }
    WaitForDevice();
    return Lost();
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return Call([&] {
    if (function == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(Book());
    CUstream_st* stream = FindStream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return Submit(stream, [function, data] { function(data); });
  });
}

}  // extern "C"
