// Streams and events.
#include "backends/interposers/validate/validate.h"

namespace switchyard {

Objects<StreamRecord>::Entry* Validate::CheckStream(Checked& check, sy_device* device, sy_stream* stream) {
  auto* const entry = stream == nullptr ? nullptr : check.LiveOn(streams_, stream, device);
  if (entry != nullptr) CheckTurn(check, entry->record.turn, streams_.Describe(stream), " is given work");
  return entry;
}

sy_status Validate::Around(Call<&sy_device_v2::synchronize> call, sy_device* device, sy_stream* stream,
                           const sy_synchronize_options* options, sy_error* error) {
  Checked check(*this, "synchronize");
  check.Live(devices_, device);
  const auto* on = stream == nullptr ? nullptr : check.LiveOn(streams_, stream, device);
  if (!check.good()) return check.Refuse(error);
  std::vector<std::pair<uint64_t, uint64_t>> reached;  // line, item
  const void* captured = nullptr;                      // a stream whose work cannot be waited for
  const bool had_failed = on != nullptr && timelines_.HasFailed(on->record.line);
  const bool cannot_fail = on != nullptr && timelines_.CannotFail(on->record.line);
  for (const auto& [handle, entry] : streams_.live()) {
    if (entry.record.device != device || (on != nullptr && handle != stream)) continue;
    if (entry.record.capture != 0) captured = handle;
    reached.emplace_back(entry.record.line, timelines_.submitted(entry.record.line));
  }
  if (on == nullptr) {  // what a destroyed stream has queued runs to its end, and belongs to the device
    for (const uint64_t line : devices_.Find(device)->record.destroyed)
      reached.emplace_back(line, timelines_.submitted(line));
  }
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, stream, options, error));
  if (status == SY_TIMEOUT) return status;
  check.Return();
  check.Promised(captured == nullptr || status != SY_OK, "it answered SY_OK though ", streams_.Describe(captured),
                 " is being captured: expected SY_UNSUPPORTED");
  if (captured != nullptr) return status;
  if (auto* const waited = stream == nullptr ? nullptr : streams_.Find(stream); waited != nullptr) {
    check.Promised(!had_failed || status != SY_OK, "it answered SY_OK though ", streams_.Describe(stream),
                   " has failed before: expected its first error again");
    CheckFailure(check, waited->record.line, cannot_fail, status);
  }
  for (const auto& [line, item] : reached) {
    timelines_.Complete(line, item);
    if (status == SY_OK) timelines_.SeeHealthy(line, item);
  }
  return status;
}

sy_status Validate::Around(Call<&sy_device_v2::stream_create> call, sy_device* device, const sy_stream_options* options,
                           sy_stream** stream, sy_error* error) {
  Checked check(*this, "stream_create");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, options, stream, error);
  if (status != SY_OK) return status;
  check.Return();
  StreamRecord record;
  record.device = device;
  record.line = timelines_.New();
  streams_.Add(*stream, std::move(record), check.Here());
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v2::stream_destroy> call, sy_device* device, sy_stream* stream) {
  Checked check(*this, "stream_destroy", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) {
    check.Alone(streams_, stream);
    check.Expect(entry->record.capture == 0, streams_.Describe(stream), " is being captured");
  }
  if (!check.good()) return check.Report();
  auto& destroyed = devices_.Find(device)->record.destroyed;
  destroyed.push_back(entry->record.line);
  std::erase_if(destroyed, [&](uint64_t line) { return timelines_.Finished(line, timelines_.submitted(line)); });
  streams_.Remove(stream, check.Here());
  check.Leave();
  Forward(call, device, stream);
}

sy_status Validate::Around(Call<&sy_device_v2::event_create> call, sy_device* device, const sy_event_options* options,
                           sy_event** event, sy_error* error) {
  Checked check(*this, "event_create");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, options, event, error);
  if (status != SY_OK) return status;
  check.Return();
  EventRecord record;
  record.device = device;
  events_.Add(*event, record, check.Here());
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v2::event_destroy> call, sy_device* device, sy_event* event) {
  Checked check(*this, "event_destroy", kNoStatus);
  check.Live(devices_, device);
  if (check.LiveOn(events_, event, device) != nullptr) {
    check.Alone(events_, event);
    CheckIdle(check, events_, event);
  }
  if (!check.good()) return check.Report();
  events_.Remove(event, check.Here());
  check.Leave();
  Forward(call, device, event);
}

sy_status Validate::Around(Call<&sy_device_v2::event_record> call, sy_device* device, sy_event* event,
                           sy_stream* stream, sy_error* error) {
  Checked check(*this, "event_record");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(events_, event, device);
  auto* const on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  const Recording before = entry->record;
  entry->record.recorded = true;
  entry->record.failed = false;
  entry->record.capture = on == nullptr ? 0 : on->record.capture;
  entry->record.on_line = on != nullptr && entry->record.capture == 0;
  entry->record.replayed = false;
  const Submission work = Uses(check, on, "event_record", Naming({NameOf(events_, event)}));
  entry->record.line = work.line;
  entry->record.item = work.item;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, stream, error), work);
  if (status == SY_OK) return status;
  check.Return();
  if (auto* const now = events_.Find(event)) static_cast<Recording&>(now->record) = before;
  return status;
}

sy_status Validate::Around(Call<&sy_device_v2::event_query> call, sy_device* device, sy_event* event, sy_error* error) {
  Checked check(*this, "event_query");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(events_, event, device);
  if (!check.good()) return check.Refuse(error);
  const Recording at = entry->record;
  const bool must_fail = MustFail(at), cannot_fail = at.on_line && timelines_.CannotFail(at.line);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_IN_PROGRESS || !(at.on_line || at.replayed)) return status;
  check.Return();
  if (at.on_line) CheckEvent(check, event, at, must_fail, cannot_fail, status);
  timelines_.Complete(at.line, at.item);
  return status;
}

sy_status Validate::Around(Call<&sy_device_v2::event_synchronize> call, sy_device* device, sy_event* event,
                           sy_error* error) {
  Checked check(*this, "event_synchronize");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(events_, event, device);
  if (entry != nullptr) check.Expect(entry->record.recorded, events_.Describe(event), " was never recorded");
  if (!check.good()) return check.Refuse(error);
  const Recording at = entry->record;
  const bool must_fail = MustFail(at), cannot_fail = at.on_line && timelines_.CannotFail(at.line);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_TIMEOUT || !(at.on_line || at.replayed)) return status;
  check.Return();
  if (at.on_line) CheckEvent(check, event, at, must_fail, cannot_fail, status);
  timelines_.Complete(at.line, at.item);
  return status;
}

sy_status Validate::Around(Call<&sy_device_v2::stream_wait> call, sy_device* device, sy_stream* stream, sy_event* event,
                           sy_error* error) {
  Checked check(*this, "stream_wait");
  check.Live(devices_, device);
  check.Expect(stream != nullptr, "expected a stream");
  auto* const on = CheckStream(check, device, stream);
  const auto* entry = check.LiveOn(events_, event, device);
  if (!check.good()) return check.Refuse(error);
  // A stream that waits for what a capture holds is drawn into it.
  const bool draws = on->record.capture == 0 && BeganCapture(entry->record.capture) != nullptr &&
                     devices_.Find(device)->record.captures_streams;
  if (draws) {
    on->record.capture = entry->record.capture;
    on->record.capture_line = timelines_.New();
    BeganCapture(on->record.capture)->captured.lines.push_back(on->record.capture_line);
  }
  const bool is_edge = on->record.capture != 0 && on->record.capture == entry->record.capture;
  const bool orders = on->record.capture == 0 && (entry->record.on_line || entry->record.replayed);
  const Submission work = Uses(check, on, "stream_wait", Naming({NameOf(events_, event)}));
  if (is_edge || orders) timelines_.Order(work.line, work.item, entry->record.line, entry->record.item);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, stream, event, error), work);
  if (status != SY_OK && draws) {
    check.Return();
    if (auto* const now = streams_.Find(stream)) now->record.capture = 0;
  }
  return status;
}

sy_status Validate::Around(Call<&sy_memory_ext_v2::native_stream> call, sy_device* device, sy_stream* stream,
                           void** handle, sy_error* error) {
  Checked check(*this, "native_stream");
  check.Live(devices_, device);
  const auto* const entry = check.LiveOn(streams_, stream, device);
  if (!check.good()) return check.Refuse(error);
  timelines_.Share(entry->record.line);
  check.Leave();
  return Forward(call, device, stream, handle, error);
}

// After a stream has answered `status`, itself or by an event; `cannot_fail`: before the call it could not.
void Validate::CheckFailure(Checked& check, uint64_t line, bool cannot_fail, sy_status status) {
  if (status != SY_INTERNAL && status != SY_DEVICE_LOST) return;
  check.Promised(status == SY_DEVICE_LOST || !cannot_fail || !timelines_.CannotFail(line), "it answered ", status,
                 " for a stream on which nothing was queued since all of it had finished without an error: a stream "
                 "fails only by its own work, or by what it waited for");
  timelines_.Fail(line);
}

// After an event has answered `status`; `failed`: it had to be an error.
void Validate::CheckEvent(Checked& check, sy_event* event, const Recording& at, bool failed, bool cannot_fail,
                          sy_status status) {
  check.Promised(!failed || status != SY_OK, "it answered SY_OK though ", events_.Describe(event),
                 at.failed ? " has answered an error before" : " was recorded on a stream that had failed",
                 ": expected the stream's first error again");
  if (status == SY_OK) timelines_.SeeHealthy(at.line, at.item);
  if (status != SY_INTERNAL && status != SY_DEVICE_LOST) return;
  CheckFailure(check, at.line, cannot_fail, status);
  auto* const now = events_.Find(event);
  if (now != nullptr && now->record.line == at.line && now->record.item == at.item) now->record.failed = true;
}

}  // namespace switchyard
