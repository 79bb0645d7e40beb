// semaphore/1: a count of 64 bits in device memory. Streams write it and wait for it with the runtime's operations on
// memory values; the host reads and writes it with copies of its own, which no stream holds up, and looks again and
// again while it waits. What is signalled on a stream that failed is never written. Thread-safe.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "backends/npu/device.h"
#include "core/abi/boundary.h"

struct sy_semaphore {
  void* count = nullptr;  // a device address
  std::mutex mutex;       // of a signal of the host, which reads before it writes
};

namespace switchyard {
namespace {

sy_status Read(const sy_device& device, const sy_semaphore& semaphore, uint64_t* value, sy_error* error) {
  return CheckAcl(
      error, device.acl->aclrtMemcpy(value, sizeof *value, semaphore.count, sizeof *value, ACL_MEMCPY_DEVICE_TO_HOST),
      "aclrtMemcpy");
}

sy_status Write(const sy_device& device, const sy_semaphore& semaphore, uint64_t value, sy_error* error) {
  return CheckAcl(
      error, device.acl->aclrtMemcpy(semaphore.count, sizeof value, &value, sizeof value, ACL_MEMCPY_HOST_TO_DEVICE),
      "aclrtMemcpy");
}

void Destroy(sy_device* device, sy_semaphore* semaphore) {
  if (semaphore != nullptr && device->Enter(nullptr) == SY_OK) device->acl->aclrtFree(semaphore->count);
  delete semaphore;
}

sy_status Create(sy_device* device, const sy_semaphore_options* options, sy_semaphore** result, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    const Runtime& acl = *device->acl;
    if (acl.aclrtValueWrite == nullptr || acl.aclrtValueWait == nullptr)
      return Refuse(error, SY_UNSUPPORTED, "semaphore: the NPU runtime has no aclrtValueWrite and aclrtValueWait");
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    auto semaphore = std::make_unique<sy_semaphore>();
    sy_status status =
        CheckAcl(error, acl.aclrtMalloc(&semaphore->count, sizeof(uint64_t), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    if (status != SY_OK) return status;
    if (status = Write(*device, *semaphore, 0, error); status != SY_OK) {
      acl.aclrtFree(semaphore->count);
      return status;
    }
    *result = semaphore.release();
    return SY_OK;
  });
}

sy_status Signal(sy_device* device, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    const std::lock_guard lock(semaphore->mutex);
    uint64_t count = 0;
    if (const sy_status status = Read(*device, *semaphore, &count, error); status != SY_OK) return status;
    if (count >= value)
      return Refuse(error, SY_INVALID, Text("semaphore: the count is ", count, " and cannot become ", value));
    return Write(*device, *semaphore, value, error);
  });
}

sy_status Query(sy_device* device, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  const sy_status status = device->Enter(error);
  return status == SY_OK ? Read(*device, *semaphore, value, error) : status;
}

sy_status Wait(sy_device* device, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    using Clock = std::chrono::steady_clock;
    constexpr uint64_t kLongest = uint64_t{1} << 40;  // milliseconds: what the clock can add to now
    constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(1000);
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    const auto end = Clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kLongest));
    for (auto nap = kShortestNap;; nap = std::min(2 * nap, kLongestNap)) {
      const bool last = Clock::now() >= end;
      uint64_t count = 0;
      if (const sy_status status = Read(*device, *semaphore, &count, error); status != SY_OK) return status;
      if (count >= value) return SY_OK;
      if (last) {
        return Refuse(error, SY_TIMEOUT,
                      Text("semaphore: the count is ", count, " after ", timeout_ms, " ms, expected ", value));
      }
      std::this_thread::sleep_for(nap);
    }
  });
}

sy_status StreamSignal(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  return CheckAcl(error, device->acl->aclrtValueWrite(semaphore->count, value, 0, stream->stream), "aclrtValueWrite");
}

sy_status StreamWait(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  return CheckAcl(error,
                  device->acl->aclrtValueWait(semaphore->count, value, ACL_STREAM_WAIT_VALUE_GEQ, stream->stream),
                  "aclrtValueWait");
}

}  // namespace

const sy_semaphore_v1 kNpuSemaphores = {.header = SY_HEADER(sy_semaphore_v1),
                                        .create = Create,
                                        .destroy = Destroy,
                                        .signal = Signal,
                                        .query = Query,
                                        .wait = Wait,
                                        .stream_signal = StreamSignal,
                                        .stream_wait = StreamWait};

}  // namespace switchyard
