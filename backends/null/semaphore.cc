#include "backends/null/semaphore.h"

#include "backends/null/device.h"
#include "core/abi/boundary.h"

struct sy_semaphore {
  std::shared_ptr<switchyard::Semaphore> semaphore = std::make_shared<switchyard::Semaphore>();
};

namespace switchyard {

Outcome Semaphore::Raise(uint64_t value, const Outcome& before) {
  Outcome after = before;
  const std::lock_guard lock(mutex_);
  if (before.status != SY_OK && first_error_.status == SY_OK) first_error_ = before;  // before anybody is woken
  const sy_status raised = count_.Raise(value, before.status == SY_OK ? &after.error : nullptr);
  if (before.status == SY_OK) after.status = raised;
  return after;
}

Outcome Semaphore::FirstError() const {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

Outcome Semaphore::Query(uint64_t* value) const {
  *value = count_.Get();
  return FirstError();
}

Outcome Semaphore::Wait(uint64_t value) {
  count_.Wait(value);
  return FirstError();
}

Outcome Semaphore::Wait(uint64_t value, uint64_t timeout_ms) {
  Outcome late;
  late.status = count_.Wait(value, timeout_ms, &late.error);
  return late.status == SY_OK ? FirstError() : late;
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
