// Streams and events. The runtime reports a failed task to whoever waits next; the first failure is kept with the
// stream. Events report what the runtime says of the tasks that they captured, and what those waited for in vain.
#include <algorithm>
#include <memory>

#include "backends/npu/device.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

// Waits for `stream` and keeps what went wrong.
sy_status Wait(const sy_device* device, sy_stream* stream, sy_error* error) {
  sy_error fresh{SY_HEADER(sy_error)};
  const uint64_t last = stream->failure->LastPlace();
  const sy_status status =
      CheckAcl(&fresh, device->acl->aclrtSynchronizeStream(stream->stream), "aclrtSynchronizeStream");
  stream->failure->Keep(status, fresh);
  if (status == SY_OK) stream->failure->TellEnded(last, nullptr);
  return stream->failure->Tell(error);
}

}  // namespace

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** result, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    auto stream = std::make_shared<sy_stream>(*device);
    // The runtime's priority is reserved and has no effect yet, says its documentation.
    const sy_status status = CheckAcl(
        error,
        device->acl->aclrtCreateStreamWithConfig(&stream->stream, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC),
        "aclrtCreateStreamWithConfig");
    if (status != SY_OK) return status;
    const std::lock_guard lock(device->mutex);
    *result = stream.get();
    device->streams.push_back(std::move(stream));
    return SY_OK;
  });
}

void DestroyStream(sy_device* device, sy_stream* stream) {
  std::shared_ptr<sy_stream> last;  // goes without the lock, since it waits
  const std::lock_guard lock(device->mutex);
  const auto found = std::find_if(device->streams.begin(), device->streams.end(),
                                  [&](const auto& each) { return each.get() == stream; });
  if (found == device->streams.end()) return;
  last = std::move(*found);
  device->streams.erase(found);
}

sy_status Synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    if (stream != nullptr) return Wait(device, stream, error);
    std::vector<std::shared_ptr<sy_stream>> streams;
    {
      const std::lock_guard lock(device->mutex);
      streams = device->streams;
    }
    sy_status first = SY_OK;
    for (const auto& each : streams) {
      const sy_status status = Wait(device, each.get(), first == SY_OK ? error : nullptr);
      if (first == SY_OK) first = status;
    }
    const aclError code = device->acl->aclrtSynchronizeDevice();  // streams that are not ours
    return first == SY_OK ? CheckAcl(error, code, "aclrtSynchronizeDevice") : first;
  });
}

sy_status CreateEvent(sy_device* device, const sy_event_options* options, sy_event** result, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    auto event = std::make_unique<sy_event>();
    const sy_status status = CheckAcl(
        error,
        device->acl->aclrtCreateEventExWithFlag(&event->event, ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS),
        "aclrtCreateEventExWithFlag");
    if (status == SY_OK) *result = event.release();
    return status;
  });
}

void DestroyEvent(sy_device* device, sy_event* event) {
  if (event == nullptr) return;
  if (device->Enter(nullptr) == SY_OK) device->acl->aclrtDestroyEvent(event->event);
  delete event;
}

sy_status RecordEvent(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (stream == nullptr) return Refuse(error, SY_INVALID, "event_record: expected a stream");
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    const sy_status status =
        CheckAcl(error, device->acl->aclrtRecordEvent(event->event, stream->stream), "aclrtRecordEvent");
    if (status == SY_OK)
      event->record = std::make_shared<const sy_event::Record>(stream->failure, stream->failure->NextPlace());
    return status;
  });
}

sy_status QueryEvent(sy_device* device, sy_event* event, sy_error* error) {
  const auto record = event->record.load();
  if (record == nullptr) return SY_OK;
  if (const sy_status entered = device->Enter(error); entered != SY_OK) return entered;
  aclrtEventRecordedStatus state = ACL_EVENT_RECORDED_STATUS_NOT_READY;
  const sy_status status =
      CheckAcl(error, device->acl->aclrtQueryEventStatus(event->event, &state), "aclrtQueryEventStatus");
  if (status != SY_OK) return status;
  if (state != ACL_EVENT_RECORDED_STATUS_COMPLETE) return SY_IN_PROGRESS;
  return record->stream->TellEnded(record->place, error);
}

sy_status SynchronizeEvent(sy_device* device, sy_event* event, sy_error* error) {
  const auto record = event->record.load();
  if (record == nullptr) return SY_OK;
  if (const sy_status status = device->Enter(error); status != SY_OK) return status;
  const sy_status status = CheckAcl(error, device->acl->aclrtSynchronizeEvent(event->event), "aclrtSynchronizeEvent");
  return status == SY_OK ? record->stream->TellEnded(record->place, error) : status;
}

sy_status WaitForEvent(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (stream == nullptr) return Refuse(error, SY_INVALID, "stream_wait: expected a stream");
    const auto record = event->record.load();
    if (record == nullptr) return SY_OK;
    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    const sy_status status =
        CheckAcl(error, device->acl->aclrtStreamWaitEvent(stream->stream, event->event), "aclrtStreamWaitEvent");
    if (status == SY_OK && record->stream != stream->failure)
      record->stream->LetFollow(record->place, stream->failure, stream->failure->NextPlace());
    return status;
  });
}

}  // namespace switchyard

sy_stream::~sy_stream() {
  if (stream == nullptr || device.Enter(nullptr) != SY_OK) return;
  device.acl->aclrtSynchronizeStream(stream);  // its documentation asks for it
  if (bounce != nullptr) device.acl->aclrtFree(bounce);
  device.acl->aclrtDestroyStream(stream);
}
