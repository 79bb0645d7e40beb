// semaphore/1 of a device without streams: the host alone raises counts.
#include "backends/cpu/device.h"
#include "core/abi/host_device.h"

struct sy_semaphore {
  switchyard::HostCount count;
};

namespace switchyard {
namespace {

sy_status Create(sy_device*, const sy_semaphore_options* options, sy_semaphore** semaphore, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    *semaphore = new sy_semaphore;
    return SY_OK;
  });
}

void Destroy(sy_device*, sy_semaphore* semaphore) { delete semaphore; }

sy_status Signal(sy_device*, sy_semaphore* semaphore, uint64_t value, sy_error* error) {
  return Guarded(error, [&] { return semaphore->count.Raise(value, error); });
}

sy_status QueryCount(sy_device*, sy_semaphore* semaphore, uint64_t* value, sy_error*) {
  *value = semaphore->count.Get();
  return SY_OK;
}

sy_status Await(sy_device*, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  return Guarded(error, [&] { return semaphore->count.Wait(value, timeout_ms, error); });
}

sy_status OnStream(sy_device*, sy_stream*, sy_semaphore*, uint64_t, sy_error* error) {
  return SY_FAIL(error, SY_UNSUPPORTED, "cpu: there are no streams that could raise a count or wait for one");
}

}  // namespace

const sy_semaphore_v1& SemaphoreInterface() {
  static constexpr sy_semaphore_v1 kInterface = {.header = SY_HEADER(sy_semaphore_v1),
                                                 .create = Create,
                                                 .destroy = Destroy,
                                                 .signal = Signal,
                                                 .query = QueryCount,
                                                 .wait = Await,
                                                 .stream_signal = OnStream,
                                                 .stream_wait = OnStream};
  return kInterface;
}

}  // namespace switchyard
