// device/2 and memory_ext/2.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

void Validate::CheckPlace(Checked& check, const char* role, sy_device* device, const sy_place& place, uint64_t bytes) {
  if (place.buffer == nullptr) {
    check.Expect(place.host != nullptr || bytes == 0, role, " names neither a buffer nor a host address");
    return;
  }
  const auto* buffer = check.LiveOn(buffers_, place.buffer, device);
  if (buffer == nullptr) return;
  if (buffer->record.imported) return;
  const uint64_t size = buffer->record.bytes;
  check.Expect(place.offset <= size && bytes <= size - place.offset, role, ": ", bytes, " bytes at offset ",
               place.offset, " do not lie inside ", size, " bytes of ", buffers_.Describe(place.buffer));
}

void Validate::CheckGranularity(Checked& check, const char* role, sy_device* device, const sy_place& place,
                                uint64_t bytes) {
  const auto* const owner = devices_.Find(device);
  if (owner == nullptr || place.buffer == nullptr) return;
  const uint64_t granularity = owner->record.copy_granularity;
  check.Expect(place.offset % granularity == 0 && bytes % granularity == 0, role, ": ", bytes, " bytes at offset ",
               place.offset, " are no multiples of the ", granularity, " bytes that the device copies");
}

Objects<StreamRecord>::Entry* Validate::CheckStream(Checked& check, sy_device* device, sy_stream* stream) {
  auto* const entry = stream == nullptr ? nullptr : check.LiveOn(streams_, stream, device);
  if (entry != nullptr) Take(check, entry->record.turn, streams_.Describe(stream), " is given work");
  return entry;
}

void Validate::Note(std::vector<Use>& uses, const Use& use) {
  std::erase_if(uses, [&](const Use& old) { return old.line == use.line || timelines_.Finished(old.line, old.item); });
  uses.push_back(use);
}

StreamRecord* Validate::BeganCapture(uint64_t capture) {
  for (auto& [handle, entry] : streams_.live()) {
    if (entry.record.begins_capture && entry.record.capture == capture) return &entry.record;
  }
  return nullptr;
}

Submission Validate::Uses(Checked& check, Objects<StreamRecord>::Entry* stream, const char* function, Names names,
                          const Named& self, std::vector<Use>* uses_of_self) {
  if (stream == nullptr) return {};
  if (stream->record.capture != 0) {
    if (auto* const first = BeganCapture(stream->record.capture); first != nullptr) {
      first->captured.insert(first->captured.end(), names->begin(), names->end());
      if (self.kind != Named::kNothing) first->captured.push_back(self);
    }
    return {.turn = stream->record.turn};
  }
  const uint64_t line = stream->record.line, item = timelines_.Submit(line);
  const bool is_replay =
      std::any_of(names->begin(), names->end(), [](const Named& one) { return one.kind == Named::kGraph; });
  for (const Named& named : *names) {
    if (std::vector<Use>* const uses = UsesOf(named)) Note(*uses, {line, item, check.number(), function, is_replay});
  }
  if (uses_of_self != nullptr) Note(*uses_of_self, {line, item, check.number(), function});
  return {line, item, std::move(names), self, stream->record.turn};
}

sy_status Validate::Heed(sy_device* device, sy_status status, const Submission& work) {
  if (status == SY_OK || status == SY_IN_PROGRESS) return status;
  const std::lock_guard lock(mutex_);
  if (auto* const entry = devices_.Find(device); entry != nullptr && status == SY_DEVICE_LOST)
    entry->record.lost = true;
  if (work.names == nullptr) return status;
  const auto take_back = [&](const Named& named) {
    std::vector<Use>* const uses = UsesOf(named);
    if (uses == nullptr) return;
    for (Use& use : *uses) {
      if (use.line == work.line && use.item == work.item) --use.item;  // what came before on that stream may use it
    }
  };
  for (const Named& named : *work.names) take_back(named);
  take_back(work.self);
  return status;
}

template <typename Record>
void Validate::CheckNoneLeft(Checked& check, Objects<Record>& objects, sy_device* device) {
  size_t left = 0;
  const void* one = nullptr;
  for (const auto& [handle, entry] : objects.live()) {
    if (entry.record.device != device) continue;
    ++left;
    one = handle;
  }
  check.Expect(left == 0, "expected everything of the device to be released before, found ", left, " left, among them ",
               objects.Describe(one));
}

sy_status Validate::Around(Call<&sy_device_v2::count> call, sy_instance* instance, int32_t* count, sy_error* error) {
  Checked check(*this, "count");
  check.Expect(count != nullptr, "there is no place for the count");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, count, error);
  if (status != SY_OK) return status;
  check.Return();
  check.Promised(*count >= 0, "it answered SY_OK and ", *count, " devices");
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_device_v2::query> call, sy_instance* instance, int32_t index, sy_device_info* given,
                           sy_error* error) {
  Checked check(*this, "query");
  check.Expect(given != nullptr, "there is no place for the answer");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, instance, index, given, error);
  if (status != SY_OK) return status;
  const sy_device_info info = ReadStruct(given);
  const auto is_power = [](uint64_t number) { return number != 0 && (number & (number - 1)) == 0; };
  check.Return();
  check.Promised(Ends(info.name) && Ends(info.memory_kind), "the name or the memory kind does not end");
  check.Promised(!SY_HAS(sy_device_info, given, alignment) || is_power(info.alignment), "an alignment of ",
                 info.alignment, " bytes is no power of two");
  check.Promised(info.copy_granularity == 0 || is_power(info.copy_granularity), "a copy granularity of ",
                 info.copy_granularity, " bytes is no power of two");
  check.Promised(info.address_kind <= SY_ADDRESS_OPAQUE, "there is no address kind ", info.address_kind);
  check.Promised(!SY_HAS(sy_device_info, given, alignment) || info.copy_granularity <= info.alignment,
                 "a copy granularity of ", info.copy_granularity, " bytes does not divide the alignment of ",
                 info.alignment);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_device_v2::open> call, sy_instance* instance, int32_t index,
                           const sy_open_options* options, sy_device** device, sy_error* error) {
  Checked check(*this, "open");
  check.Expect(device != nullptr, "there is no place for the handle");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  const sy_status known =
      Forward(Call<&sy_device_v2::query>(), instance, index, &info, static_cast<sy_error*>(nullptr));
  const sy_status status = Forward(call, instance, index, options, device, error);
  if (status != SY_OK) return status;
  check.Return();
  DeviceState record;
  if (known == SY_OK && info.alignment > 0) record.alignment = info.alignment;
  if (known == SY_OK) record.captures_streams = (info.flags & SY_DEVICE_CAPTURES_STREAMS) != 0;
  if (known == SY_OK && info.copy_granularity > 0) record.copy_granularity = info.copy_granularity;
  Make(*device, this);
  devices_.Add(*device, record, check.Here(" of device ", index));
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v2::close> call, sy_device* device) {
  Checked check(*this, "close", kNoStatus);
  if (const auto* entry = check.Live(devices_, device); entry != nullptr) {
    check.Expect(entry->record.communicators == 0, devices_.Describe(device), " is named by ",
                 entry->record.communicators, " communicators");
    CheckNoneLeft(check, bindings_, device);
    CheckNoneLeft(check, graphs_, device);
    CheckNoneLeft(check, kernels_, device);
    CheckNoneLeft(check, buffers_, device);
    CheckNoneLeft(check, events_, device);
    CheckNoneLeft(check, semaphores_, device);
    CheckNoneLeft(check, streams_, device);
    CheckNoneLeft(check, host_memory_, device);
  }
  if (!check.good()) return check.Report();
  devices_.Remove(device, check.Here());
  check.Leave();
  Forward(call, device);
}

sy_status Validate::Around(Call<&sy_device_v2::alloc> call, sy_device* device, uint64_t bytes,
                           const sy_alloc_options* options, sy_buffer** buffer, sy_error* error) {
  Checked check(*this, "alloc");
  check.Live(devices_, device);
  check.Expect(bytes > 0, "expected at least 1 byte");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, bytes, options, buffer, error);
  if (status != SY_OK) return status;
  check.Return();
  BufferRecord record;
  record.device = device;
  record.bytes = bytes;
  record.exportable = options != nullptr && ReadStruct(options).exportable != 0;
  buffers_.Add(*buffer, record, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v2::free> call, sy_device* device, sy_buffer* buffer) {
  Checked check(*this, "free", kNoStatus);
  check.Live(devices_, device);
  if (const auto* entry = buffer == nullptr ? nullptr : check.LiveOn(buffers_, buffer, device); entry != nullptr) {
    CheckIdle(check, buffers_, buffer);
    check.Expect(entry->record.bindings == 0, buffers_.Describe(buffer), " is named by ", entry->record.bindings,
                 " bindings");
  }
  if (!check.good()) return check.Report();
  buffers_.Remove(buffer, check.Here());
  check.Leave();
  Forward(call, device, buffer);
}

sy_status Validate::Around(Call<&sy_device_v2::copy> call, sy_device* device, sy_stream* stream, sy_place destination,
                           sy_place source, uint64_t bytes, const sy_copy_options* options, sy_error* error) {
  Checked check(*this, "copy");
  check.Live(devices_, device);
  check.Expect(destination.buffer != nullptr || source.buffer != nullptr,
               "expected device memory on one side at least, found host to host");
  CheckPlace(check, "destination", device, destination, bytes);
  CheckPlace(check, "source", device, source, bytes);
  CheckGranularity(check, "destination", device, destination, bytes);
  CheckGranularity(check, "source", device, source, bytes);
  check.Expect(destination.buffer == nullptr || !Overlap(destination, bytes, source, bytes),
               "destination and source overlap in ", buffers_.Describe(source.buffer));
  auto* const on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  std::vector<Named> used;
  for (const sy_place& place : {destination, source}) {
    if (place.buffer != nullptr) used.push_back(NameOf(buffers_, place.buffer));
  }
  const Submission work = Uses(check, on, "copy", Naming(std::move(used)));
  check.Leave();
  return Heed(device, Forward(call, device, stream, destination, source, bytes, options, error), work);
}

sy_status Validate::Around(Call<&sy_device_v2::fill> call, sy_device* device, sy_stream* stream, sy_place destination,
                           uint8_t value, uint64_t bytes, const sy_fill_options* options, sy_error* error) {
  Checked check(*this, "fill");
  check.Live(devices_, device);
  check.Expect(destination.buffer != nullptr, "expected device memory");
  CheckPlace(check, "destination", device, destination, bytes);
  CheckGranularity(check, "destination", device, destination, bytes);
  auto* const on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "fill", Naming({NameOf(buffers_, destination.buffer)}));
  check.Leave();
  return Heed(device, Forward(call, device, stream, destination, value, bytes, options, error), work);
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
  for (const auto& [handle, entry] : streams_.live()) {
    if (entry.record.device != device || (on != nullptr && handle != stream)) continue;
    if (entry.record.capture != 0) captured = handle;
    reached.emplace_back(entry.record.line, timelines_.submitted(entry.record.line));
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
    if (status == SY_INTERNAL || status == SY_DEVICE_LOST) timelines_.Fail(waited->record.line);
  }
  for (const auto& [line, item] : reached) timelines_.Complete(line, item);
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
  if (entry != nullptr) check.Expect(entry->record.capture == 0, streams_.Describe(stream), " is being captured");
  if (!check.good()) return check.Report();
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
  if (check.LiveOn(events_, event, device) != nullptr) CheckIdle(check, events_, event);
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
  const bool must_fail = MustFail(at);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_IN_PROGRESS || !at.on_line) return status;
  check.Return();
  CheckEvent(check, event, at, must_fail, status);
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
  const bool must_fail = MustFail(at);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_TIMEOUT || !at.on_line) return status;
  check.Return();
  CheckEvent(check, event, at, must_fail, status);
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
  if (entry != nullptr) check.Expect(entry->record.recorded, events_.Describe(event), " was never recorded");
  if (!check.good()) return check.Refuse(error);
  // A stream that waits for what a capture holds is drawn into it.
  const bool draws = on->record.capture == 0 && BeganCapture(entry->record.capture) != nullptr &&
                     devices_.Find(device)->record.captures_streams;
  if (draws) on->record.capture = entry->record.capture;
  const Submission work = Uses(check, on, "stream_wait", Naming({NameOf(events_, event)}));
  if (entry->record.on_line && work.names != nullptr) {
    timelines_.Order(work.line, work.item, entry->record.line, entry->record.item);
  }
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, stream, event, error), work);
  if (status != SY_OK && draws) {
    check.Return();
    if (auto* const now = streams_.Find(stream)) now->record.capture = 0;
  }
  return status;
}

sy_status Validate::Around(Call<&sy_memory_ext_v2::native_address> call, sy_device* device, sy_buffer* buffer,
                           void** address, sy_error* error) {
  Checked check(*this, "native_address");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(buffers_, buffer, device);
  if (entry != nullptr) {
    check.Expect(!entry->record.imported, buffers_.Describe(buffer), " was imported: it is for copy and fill only");
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, buffer, address, error);
}

sy_status Validate::Around(Call<&sy_memory_ext_v2::import_memory> call, sy_device* device, void* address,
                           const char* memory_kind, uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  Checked check(*this, "import_memory");
  check.Live(devices_, device);
  check.Expect(address != nullptr && bytes > 0, "expected memory, found ", bytes, " bytes at ", address);
  check.Expect(memory_kind != nullptr, "the memory has no kind");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, address, memory_kind, bytes, buffer, error);
  if (status != SY_OK) return status;
  check.Return();
  BufferRecord record;
  record.device = device;
  record.bytes = bytes;
  buffers_.Add(*buffer, record, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_memory_ext_v2::host_alloc> call, sy_device* device, uint64_t bytes, void** address,
                           sy_error* error) {
  Checked check(*this, "host_alloc");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, bytes, address, error);
  if (status != SY_OK) return status;
  check.Return();
  host_memory_.Add(*address, {device}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_memory_ext_v2::host_free> call, sy_device* device, void* address) {
  Checked check(*this, "host_free", kNoStatus);
  check.Live(devices_, device);
  if (address != nullptr) check.LiveOn(host_memory_, address, device);
  if (!check.good()) return check.Report();
  host_memory_.Remove(address, check.Here());
  check.Leave();
  Forward(call, device, address);
}

sy_status Validate::Around(Call<&sy_memory_ext_v2::native_stream> call, sy_device* device, sy_stream* stream,
                           void** handle, sy_error* error) {
  Checked check(*this, "native_stream");
  check.Live(devices_, device);
  check.LiveOn(streams_, stream, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, stream, handle, error);
}

}  // namespace switchyard
