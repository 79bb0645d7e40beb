#include "backends/null/semaphore.h"

#include <algorithm>
#include <chrono>

#include "backends/null/device.h"
#include "core/abi/boundary.h"

struct sy_semaphore {
  std::shared_ptr<switchyard::Semaphore> semaphore = std::make_shared<switchyard::Semaphore>();
};

namespace switchyard {

Outcome Semaphore::Raise(uint64_t value, const Outcome& before) {
  Outcome after = before;
  const std::lock_guard lock(mutex_);
  if (before.status == SY_OK && count_ >= value) {
    after.status = Refuse(&after.error, SY_INVALID, Text("a semaphore at ", count_, " cannot be raised to ", value));
  } else if (first_error_.status == SY_OK) {
    first_error_ = before;
  }
  count_ = std::max(count_, value);
  raised_.notify_all();
  return after;
}

Outcome Semaphore::Query(uint64_t* value) const {
  const std::lock_guard lock(mutex_);
  *value = count_;
  return first_error_;
}

Outcome Semaphore::Wait(uint64_t value) {
  std::unique_lock lock(mutex_);
  raised_.wait(lock, [&] { return count_ >= value; });
  return first_error_;
}

Outcome Semaphore::Wait(uint64_t value, uint64_t timeout_ms) {
  constexpr uint64_t kAlways = uint64_t{1} << 40;  // ms: longer than any process, and a number that the clock holds
  const auto most = std::chrono::milliseconds(std::min(timeout_ms, kAlways));
  std::unique_lock lock(mutex_);
  if (raised_.wait_for(lock, most, [&] { return count_ >= value; })) return first_error_;
  Outcome late;
  late.status = Refuse(&late.error, SY_TIMEOUT,
                       Text("a semaphore is at ", count_, " and not at ", value, " after ", timeout_ms, " ms"));
  return late;
}

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
  return Guarded(error, [&] { return semaphore->semaphore->Raise(value, {}).Tell(error); });
}

sy_status QueryCount(sy_device*, sy_semaphore* semaphore, uint64_t* value, sy_error* error) {
  return semaphore->semaphore->Query(value).Tell(error);
}

sy_status Await(sy_device*, sy_semaphore* semaphore, uint64_t value, uint64_t timeout_ms, sy_error* error) {
  return Guarded(error, [&] { return semaphore->semaphore->Wait(value, timeout_ms).Tell(error); });
}

sy_status Queue(Command::Kind kind, sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value,
                sy_error* error) {
  if (stream == nullptr) return Refuse(error, SY_INVALID, "semaphore: expected a stream");
  Command command{kind};
  command.semaphore = semaphore->semaphore;
  command.count = value;
  return Submit(device, stream, std::move(command), error);
}

sy_status SignalOnStream(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value,
                         sy_error* error) {
  return Queue(Command::Kind::kSignal, device, stream, semaphore, value, error);
}

sy_status AwaitOnStream(sy_device* device, sy_stream* stream, sy_semaphore* semaphore, uint64_t value,
                        sy_error* error) {
  return Queue(Command::Kind::kAwait, device, stream, semaphore, value, error);
}

}  // namespace

const sy_semaphore_v1 kNullSemaphores = {.header = SY_HEADER(sy_semaphore_v1),
                                         .create = Create,
                                         .destroy = Destroy,
                                         .signal = Signal,
                                         .query = QueryCount,
                                         .wait = Await,
                                         .stream_signal = SignalOnStream,
                                         .stream_wait = AwaitOnStream};

}  // namespace switchyard
