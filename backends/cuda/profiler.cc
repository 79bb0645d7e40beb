#include "backends/cuda/profiler.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace switchyard {
namespace {

constexpr double kMoveReferenceAfterMs = 1000;

uint64_t HostClock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

Profiler::~Profiler() {
  for (const Pending& pending : pending_) idle_.insert(idle_.end(), {pending.begin, pending.end});
  if (reference_ != nullptr) idle_.push_back(reference_);
  if (idle_.empty() || Enter(device_.index, nullptr) != SY_OK) return;
  for (const cudaEvent_t event : idle_) LogFailure(device_, cudaEventDestroy(event), "cudaEventDestroy");
}

const char* Profiler::Keep(const char* tag) {
  const std::lock_guard lock(mutex_);
  return tags_.insert(tag).first->c_str();
}

cudaEvent_t Profiler::Mark(cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capturing) != cudaSuccess || capturing != cudaStreamCaptureStatusNone)
    return nullptr;
  cudaEvent_t event = nullptr;
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDefault) != cudaSuccess) {
    return nullptr;
  }
  if (cudaEventRecord(event, stream) == cudaSuccess) return event;
  idle_.push_back(event);
  return nullptr;
}

void Profiler::Add(const Pending& pending) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(pending);
}

void Profiler::Recycle(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(event);
}

sy_status Profiler::Start(sy_error* error) {
  SY_TRY(Enter(device_.index, error));
  const std::lock_guard lock(mutex_);
  if (reference_ == nullptr) {
    SY_CUDA(error, cudaEventCreateWithFlags(&reference_, cudaEventDefault));
    SY_CUDA(error, cudaEventRecord(reference_, device_.own.stream));
    SY_CUDA(error, cudaEventSynchronize(reference_));
    host_minus_device_ns_ = HostClock();
  }
  running_ = true;
  return SY_OK;
}

sy_status Profiler::Drain(sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns,
                          sy_error* error) {
  *count = 0;
  SY_TRY(Enter(device_.index, error));
  const std::lock_guard lock(mutex_);
  *host_minus_device_ns = host_minus_device_ns_;
  const auto take = [&](const Pending& pending) -> sy_status {
    const cudaError_t finished = cudaEventQuery(pending.end);
    if (finished == cudaErrorNotReady) {
      cudaGetLastError();
      return SY_IN_PROGRESS;
    }
    SY_CUDA(error, finished);
    float since_reference = 0, duration = 0;  // ms
    SY_CUDA(error, cudaEventElapsedTime(&since_reference, reference_, pending.begin));
    SY_CUDA(error, cudaEventElapsedTime(&duration, pending.begin, pending.end));
    const double start = std::max(0.0, reference_ns_ + since_reference * 1e6);
    spans[(*count)++] = {pending.tag, pending.stream, static_cast<uint64_t>(start),
                         static_cast<uint64_t>(start + duration * 1e6)};
    idle_.push_back(pending.end);
    idle_.push_back(pending.begin);
    if (since_reference > kMoveReferenceAfterMs) {
      std::swap(idle_.back(), reference_);
      reference_ns_ = start;
    }
    return SY_OK;
  };
  sy_status failure = SY_OK;
  std::erase_if(pending_, [&](const Pending& pending) {
    if (failure != SY_OK || *count == capacity) return false;
    const sy_status status = take(pending);
    if (status != SY_OK && status != SY_IN_PROGRESS) failure = status;
    return status == SY_OK;
  });
  return failure;
}

Span::~Span() {
  if (pending_.begin == nullptr) return;
  try {
    pending_.end = profiler_.Mark(target_);
    if (pending_.end == nullptr) {
      profiler_.Recycle(pending_.begin);
    } else {
      profiler_.Add(pending_);
    }
  } catch (const std::bad_alloc&) {  // a span is lost, no launch is
  }
}

namespace {

sy_status Start(sy_device* device, sy_error* error) { return device->profiler->Start(error); }

sy_status Drain(sy_device* device, sy_span* spans, uint32_t capacity, uint32_t* count, uint64_t* host_minus_device_ns,
                sy_error* error) {
  return Guarded(error, [&] { return device->profiler->Drain(spans, capacity, count, host_minus_device_ns, error); });
}

sy_status Stop(sy_device* device, sy_error*) {
  device->profiler->Stop();
  return SY_OK;
}

}  // namespace

const sy_profiler_v2 kCudaProfiler = {
    .header = SY_HEADER(sy_profiler_v2), .start = Start, .drain = Drain, .stop = Stop};

}  // namespace switchyard
