// semaphore/1: handles of timelines (timeline.h).
#include <memory>

#include "backends/npu/device.h"
#include "backends/npu/timeline.h"
#include "core/abi/boundary.h"

struct sy_semaphore {
  std::shared_ptr<switchyard::Timeline> timeline;
};

namespace switchyard {
namespace {

void Destroy(sy_device*, sy_semaphore* semaphore) { delete semaphore; }

sy_status Create(sy_device* device, const sy_semaphore_options* options, sy_semaphore** result, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    if (device->acl->aclrtValueWait == nullptr)
      return Refuse(error, SY_UNSUPPORTED, "semaphore: the NPU runtime has no aclrtValueWait");
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    auto semaphore = std::make_unique<sy_semaphore>(std::make_shared<Timeline>(*device));
    if (const sy_status status = semaphore->timeline->Prepare(error); status != SY_OK) return status;
    *result = semaphore.release();
    return SY_OK;
  });
}

sy_status Signal(sy_device* device, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    device->signals->Look();
    return semaphore->timeline->Raise(value, error);
  });
}

sy_status Query(sy_device* device, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    device->signals->Look();
    return semaphore->timeline->Query(value, error);
  });
}

sy_status Wait(sy_device* device, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    device->signals->Look();
    return semaphore->timeline->Wait(value, timeout_ms, error);
  });
}

sy_status StreamSignal(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    return device->signals->Add(*stream, semaphore->timeline, value, error);
  });
}

sy_status StreamWait(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    return semaphore->timeline->HoldUp(*stream, value, error);
  });
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
