// semaphore/1: the count is a word of pinned host memory that the device maps. Only the processor raises it, so that it
// never falls whatever streams and threads do at once: a stream by a host function, which runs when the work before it
// is done. Streams wait for it by the driver's stream memory operation, which needs no kernel and waits on the device
// itself. The driver's library is bound at run time as the others are, once per process. A stream that fails takes the
// device's context with it: streams that wait end with that, and the host's wait asks for it. Thread-safe.
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html
// https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__EXECUTION.html (cudaLaunchHostFunc)
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

#include "backends/cuda/device.h"
#include "backends/cuda/library.h"
#include "backends/cuda/stream.h"

struct sy_semaphore {
  // What a stream is to do with the count, until it has.
  struct Order {
    sy_semaphore* semaphore;
    uint64_t value;
    std::list<Order>::iterator self;
  };

  // With `mutex` held: raises the count to `value`, or leaves it where it is that far. What it was.
  uint64_t Raise(uint64_t value) {
    const uint64_t found = Count().load();
    if (found < value) {
      Count().store(value);
      raised.notify_all();
    }
    return found;
  }
  std::atomic_ref<uint64_t> Count() const { return std::atomic_ref<uint64_t>(*count); }

  uint64_t* count = nullptr;
  CUdeviceptr address = 0;  // of the count, for the device
  std::mutex mutex;
  std::condition_variable raised;
  std::list<Order> orders;  // guarded by mutex
};

namespace switchyard {
namespace {

#define SY_DRIVER_FUNCTIONS(X) \
  X(cuDeviceGet)               \
  X(cuDeviceGetAttribute)      \
  X(cuStreamWaitValue64)

struct DriverFunctions {
#define SY_DECLARE(name) std::remove_reference_t<decltype(::name)>* name = nullptr;
  SY_DRIVER_FUNCTIONS(SY_DECLARE)
#undef SY_DECLARE
  std::string reason;  // why they are not there; else empty
};

const DriverFunctions& Driver() {
  static const DriverFunctions functions = [] {
    DriverFunctions found;
    SharedLibrary library("libcuda.so.1");
#define SY_TEXT(name) #name  // after cuda.h has put the version into the name
#define SY_BIND(name) library.Bind(SY_TEXT(name), &found.name);
    SY_DRIVER_FUNCTIONS(SY_BIND)
#undef SY_BIND
#undef SY_TEXT
    found.reason = library.reason();
    return found;
  }();
  return functions;
}

// The driver's codes have the numbers and meanings of the runtime's.
#define SY_DRIVER(error, function, ...) SY_CUDA(error, static_cast<cudaError_t>(Driver().function(__VA_ARGS__)))

sy_status CheckDriver(const sy_device& device, sy_error* error) {
  if (!Driver().reason.empty())
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: no semaphores: %.300s", Driver().reason.c_str());
  CUdevice number = 0;
  int offered = 0;
  SY_DRIVER(error, cuDeviceGet, &number, device.index);
  SY_DRIVER(error, cuDeviceGetAttribute, &offered, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, number);
  if (offered) return SY_OK;
  return SY_FAIL(error, SY_UNSUPPORTED,
                 "cuda: no semaphores: the driver has no 64-bit stream memory operations for device %d", device.index);
}

void Destroy(sy_device* device, sy_semaphore* semaphore) {
  if (semaphore == nullptr) return;
  // Who saw the count may be here before the thread that raised it has let go.
  { const std::lock_guard last(semaphore->mutex); }
  if (semaphore->count != nullptr && Enter(device->index, nullptr) == SY_OK)
    LogFailure(*device, cudaFreeHost(semaphore->count), "cudaFreeHost");
  delete semaphore;
}

sy_status Create(sy_device* device, const sy_semaphore_options* options, sy_semaphore** semaphore, sy_error* error) {
  *semaphore = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  SY_TRY(Enter(device->index, error));
  SY_TRY(CheckDriver(*device, error));
  const auto destroy = [device](sy_semaphore* made) { Destroy(device, made); };
  std::unique_ptr<sy_semaphore, decltype(destroy)> made(new (std::nothrow) sy_semaphore, destroy);
  if (made == nullptr) return SY_FAIL(error, SY_OUT_OF_MEMORY, "cuda: no host memory for a semaphore");
  void *host = nullptr, *mapped = nullptr;
  SY_CUDA(error, cudaHostAlloc(&host, sizeof(uint64_t), cudaHostAllocPortable | cudaHostAllocMapped));
  made->count = new (host) uint64_t(0);
  SY_CUDA(error, cudaHostGetDevicePointer(&mapped, host, 0));
  made->address = reinterpret_cast<CUdeviceptr>(mapped);
  *semaphore = made.release();
  return SY_OK;
}

sy_status Signal(sy_device*, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  const std::lock_guard lock(semaphore->mutex);
  const uint64_t found = semaphore->Raise(value);
  if (found < value) return SY_OK;
  return SY_FAIL(error, SY_INVALID, "cuda: a semaphore at %llu cannot be raised to %llu",
                 static_cast<unsigned long long>(found), static_cast<unsigned long long>(value));
}

sy_status Query(sy_device* device, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  SY_TRY(FirstLoss(device->index, error));
  *value = semaphore->Count().load();
  return SY_OK;
}

// Any call tells of a lost device; this one does nothing else.
sy_status LookForLoss(sy_device* device, sy_error* error) {
  SY_TRY(Enter(device->index, error));
  const cudaError_t code = cudaStreamQuery(device->own.stream);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return SY_OK;
  }
  SY_CUDA(error, code);
  return SY_OK;
}

sy_status Wait(sy_device* device, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kBetweenLooks = std::chrono::milliseconds(5);
  constexpr uint64_t kLongest = uint64_t{1} << 40;  // milliseconds: what the clock can add to now
  const auto end = Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kLongest));
  for (;;) {
    {
      std::unique_lock lock(semaphore->mutex);
      const auto reached = [&] { return semaphore->Count().load() >= value; };
      if (semaphore->raised.wait_until(lock, std::min(end, Clock::now() + kBetweenLooks), reached)) return SY_OK;
    }
    SY_TRY(LookForLoss(device, error));
    if (Clock::now() >= end)
      return SY_FAIL(error, SY_TIMEOUT, "cuda: a semaphore stood at %llu after %llu ms, expected %llu",
                     static_cast<unsigned long long>(semaphore->Count().load()),
                     static_cast<unsigned long long>(timeout_ms), static_cast<unsigned long long>(value));
  }
}

// A replay would raise the count to what it is already.
sy_status CheckNotCaptured(const sy_stream* stream, sy_error* error) {
  if (stream == nullptr || stream->recording == nullptr) return SY_OK;
  return SY_FAIL(error, SY_UNSUPPORTED, "cuda: work on a semaphore cannot be captured");
}

// On a thread of the driver's, where nothing of CUDA may be called. Where the count is that far it stays.
void RaiseAsOrdered(void* data) {
  const auto order = *static_cast<sy_semaphore::Order*>(data);
  const std::lock_guard lock(order.semaphore->mutex);
  order.semaphore->orders.erase(order.self);
  order.semaphore->Raise(order.value);
}

sy_status SignalOn(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  SY_TRY(CheckNotCaptured(stream, error));
  SY_TRY(Enter(device->index, error));
  sy_semaphore::Order* order = nullptr;
  SY_TRY(Guarded(error, [&] {
    const std::lock_guard lock(semaphore->mutex);
    order = &semaphore->orders.emplace_front(semaphore, value);
    order->self = semaphore->orders.begin();
    return SY_OK;
  }));
  const cudaError_t code = cudaLaunchHostFunc(stream ? stream->stream : device->own.stream, RaiseAsOrdered, order);
  if (code != cudaSuccess) {
    const std::lock_guard lock(semaphore->mutex);
    semaphore->orders.erase(order->self);
  }
  SY_CUDA(error, code);
  return SY_OK;
}

sy_status WaitOn(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  SY_TRY(CheckNotCaptured(stream, error));
  SY_TRY(Enter(device->index, error));
  SY_DRIVER(error, cuStreamWaitValue64, stream ? stream->stream : device->own.stream, semaphore->address, value,
            CU_STREAM_WAIT_VALUE_GEQ);
  return SY_OK;
}

sy_status StreamSignal(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return OnStream(stream, SignalOn(device, stream, semaphore, value, error));
}

sy_status StreamWait(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return OnStream(stream, WaitOn(device, stream, semaphore, value, error));
}

}  // namespace

const sy_semaphore_v1 kCudaSemaphores = {.header = SY_HEADER(sy_semaphore_v1),
                                         .create = Create,
                                         .destroy = Destroy,
                                         .signal = Signal,
                                         .query = Query,
                                         .wait = Wait,
                                         .stream_signal = StreamSignal,
                                         .stream_wait = StreamWait};

}  // namespace switchyard
