// device/1 and memory_ext/1.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

Validate::Checked::Checked(Validate& owner, const char* function, Kind kind)
    : owner_(owner), function_(function), lock_(owner.mutex_), number_(++owner.calls_) {
  if (kind == kStatus) problem_ = std::exchange(owner.pending_, "");
}

sy_status Validate::Checked::Refuse(sy_error* error) const {
  return switchyard::Refuse(
      error, SY_INVALID, Text("validate: ", owner_.plugin_name(), ": call ", number_, ", ", function_, ": ", problem_));
}

void Validate::Checked::Report() {
  const std::string text = Text("call ", number_, ", ", function_, ": ", problem_);
  if (owner_.pending_.empty()) owner_.pending_ = "an earlier call was wrong and could not say so: " + text;
  HostLog(3, Text("validate: ", owner_.plugin_name(), ": ", text));
}

void Validate::CheckPlace(Checked& check, const char* role, sy_device* device, const sy_place& place, uint64_t bytes) {
  if (place.buffer == nullptr) {
    check.Expect(place.host != nullptr || bytes == 0, role, " names neither a buffer nor a host address");
    return;
  }
  const auto* buffer = check.LiveOn(buffers_, place.buffer, device);
  if (buffer == nullptr) return;
  const uint64_t size = buffer->record.bytes;
  check.Expect(place.offset <= size && bytes <= size - place.offset, role, ": ", bytes, " bytes at offset ",
               place.offset, " do not lie inside ", size, " bytes of ", buffers_.Describe(place.buffer));
}

Objects<StreamRecord>::Entry* Validate::CheckStream(Checked& check, sy_device* device, sy_stream* stream) {
  return stream == nullptr ? nullptr : check.LiveOn(streams_, stream, device);
}

BufferUse Validate::UseOf(sy_buffer* buffer) {
  const auto* entry = buffers_.Find(buffer);
  return {buffer, entry == nullptr ? 0 : entry->id};
}

Submission Validate::Uses(Checked& check, Objects<StreamRecord>::Entry* stream, const char* function,
                          const std::vector<BufferUse>& buffers) {
  if (stream == nullptr) return {};
  if (stream->record.capturing) {
    stream->record.captured.insert(stream->record.captured.end(), buffers.begin(), buffers.end());
    return {};
  }
  const uint64_t line = stream->record.line, item = timelines_.Submit(line);
  for (const BufferUse& used : buffers) {
    auto* const buffer = buffers_.Find(used.buffer);
    if (buffer == nullptr || buffer->id != used.id) continue;
    std::vector<Use>& uses = buffer->record.uses;
    std::erase_if(uses, [&](const Use& use) { return use.line == line || timelines_.Finished(use.line, use.item); });
    uses.push_back({line, item, check.number(), function});
  }
  return {line, item, buffers};
}

sy_status Validate::Heed(sy_device* device, sy_status status, const Submission& work) {
  if (status == SY_OK || status == SY_IN_PROGRESS) return status;
  const std::lock_guard lock(mutex_);
  if (auto* const entry = devices_.Find(device); entry != nullptr && status == SY_DEVICE_LOST)
    entry->record.lost = true;
  for (const BufferUse& used : work.buffers) {
    auto* const buffer = buffers_.Find(used.buffer);
    if (buffer == nullptr || buffer->id != used.id) continue;
    for (Use& use : buffer->record.uses) {
      if (use.line == work.line && use.item == work.item) --use.item;  // what came before on that stream may use it
    }
  }
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

sy_status Validate::Around(Call<&sy_device_v1::open> call, int32_t index, const sy_open_options* options,
                           sy_device** device, sy_error* error) {
  Checked check(*this, "open");
  check.Expect(device != nullptr, "there is no place for the handle");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  info.alignment = 1;
  const sy_status known = Forward(Call<&sy_device_v1::query>(), index, &info, static_cast<sy_error*>(nullptr));
  const sy_status status = Forward(call, index, options, device, error);
  if (status != SY_OK) return status;
  check.Return();
  devices_.Add(*device, {known == SY_OK && info.alignment > 0 ? info.alignment : 1, false, false},
               check.Here(" of device ", index));
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v1::close> call, sy_device* device) {
  Checked check(*this, "close", kNoStatus);
  if (check.Live(devices_, device) != nullptr) {
    CheckNoneLeft(check, bindings_, device);
    CheckNoneLeft(check, graphs_, device);
    CheckNoneLeft(check, kernels_, device);
    CheckNoneLeft(check, buffers_, device);
    CheckNoneLeft(check, events_, device);
    CheckNoneLeft(check, streams_, device);
    CheckNoneLeft(check, host_memory_, device);
  }
  if (!check.good()) return check.Report();
  devices_.Remove(device, check.Here());
  check.Leave();
  Forward(call, device);
}

sy_status Validate::Around(Call<&sy_device_v1::alloc> call, sy_device* device, uint64_t bytes, sy_buffer** buffer,
                           sy_error* error) {
  Checked check(*this, "alloc");
  check.Live(devices_, device);
  check.Expect(bytes > 0, "expected at least 1 byte");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, bytes, buffer, error);
  if (status != SY_OK) return status;
  check.Return();
  buffers_.Add(*buffer, {device, bytes, {}}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v1::free> call, sy_device* device, sy_buffer* buffer) {
  Checked check(*this, "free", kNoStatus);
  const auto* owner = check.Live(devices_, device);
  if (buffer != nullptr) {
    const auto* entry = check.LiveOn(buffers_, buffer, device);
    if (entry != nullptr && !owner->record.lost) {
      for (const Use& use : entry->record.uses) {
        check.Expect(timelines_.Finished(use.line, use.item), buffers_.Describe(buffer), " is used by call ", use.call,
                     ", ", use.function, ", which nobody has waited for");
      }
    }
  }
  if (!check.good()) return check.Report();
  buffers_.Remove(buffer, check.Here());
  check.Leave();
  Forward(call, device, buffer);
}

sy_status Validate::Around(Call<&sy_device_v1::copy> call, sy_device* device, sy_stream* stream, sy_place destination,
                           sy_place source, uint64_t bytes, sy_error* error) {
  Checked check(*this, "copy");
  check.Live(devices_, device);
  check.Expect(destination.buffer != nullptr || source.buffer != nullptr,
               "expected device memory on one side at least, found host to host");
  CheckPlace(check, "destination", device, destination, bytes);
  CheckPlace(check, "source", device, source, bytes);
  auto* const on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  std::vector<BufferUse> used;
  for (const sy_place& place : {destination, source}) {
    if (place.buffer != nullptr) used.push_back(UseOf(place.buffer));
  }
  const Submission work = Uses(check, on, "copy", used);
  check.Leave();
  return Heed(device, Forward(call, device, stream, destination, source, bytes, error), work);
}

sy_status Validate::Around(Call<&sy_device_v1::fill> call, sy_device* device, sy_stream* stream, sy_place destination,
                           uint8_t value, uint64_t bytes, sy_error* error) {
  Checked check(*this, "fill");
  check.Live(devices_, device);
  check.Expect(destination.buffer != nullptr, "expected device memory");
  CheckPlace(check, "destination", device, destination, bytes);
  auto* const on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "fill", {UseOf(destination.buffer)});
  check.Leave();
  return Heed(device, Forward(call, device, stream, destination, value, bytes, error), work);
}

sy_status Validate::Around(Call<&sy_device_v1::synchronize> call, sy_device* device, sy_stream* stream,
                           sy_error* error) {
  Checked check(*this, "synchronize");
  check.Live(devices_, device);
  const auto* on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  std::vector<std::pair<uint64_t, uint64_t>> reached;  // line, item
  for (const auto& [handle, entry] : streams_.live()) {
    if (entry.record.device != device || (on != nullptr && handle != stream)) continue;
    check.Expect(!entry.record.capturing, streams_.Describe(handle), " is being captured");
    reached.emplace_back(entry.record.line, timelines_.submitted(entry.record.line));
  }
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, stream, error));
  if (status == SY_TIMEOUT) return status;
  check.Return();
  for (const auto& [line, item] : reached) timelines_.Complete(line, item);
  return status;
}

sy_status Validate::Around(Call<&sy_device_v1::stream_create> call, sy_device* device, const sy_stream_options* options,
                           sy_stream** stream, sy_error* error) {
  Checked check(*this, "stream_create");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, options, stream, error);
  if (status != SY_OK) return status;
  check.Return();
  streams_.Add(*stream, {device, timelines_.New(), false, {}}, check.Here());
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v1::stream_destroy> call, sy_device* device, sy_stream* stream) {
  Checked check(*this, "stream_destroy", kNoStatus);
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) check.Expect(!entry->record.capturing, streams_.Describe(stream), " is being captured");
  if (!check.good()) return check.Report();
  streams_.Remove(stream, check.Here());
  check.Leave();
  Forward(call, device, stream);
}

sy_status Validate::Around(Call<&sy_device_v1::event_create> call, sy_device* device, sy_event** event,
                           sy_error* error) {
  Checked check(*this, "event_create");
  check.Live(devices_, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, event, error);
  if (status != SY_OK) return status;
  check.Return();
  EventRecord record;
  record.device = device;
  events_.Add(*event, record, check.Here());
  return SY_OK;
}

void Validate::Around(Call<&sy_device_v1::event_destroy> call, sy_device* device, sy_event* event) {
  Checked check(*this, "event_destroy", kNoStatus);
  check.Live(devices_, device);
  check.LiveOn(events_, event, device);
  if (!check.good()) return check.Report();
  events_.Remove(event, check.Here());
  check.Leave();
  Forward(call, device, event);
}

sy_status Validate::Around(Call<&sy_device_v1::event_record> call, sy_device* device, sy_event* event,
                           sy_stream* stream, sy_error* error) {
  Checked check(*this, "event_record");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(events_, event, device);
  const auto* on = CheckStream(check, device, stream);
  if (!check.good()) return check.Refuse(error);
  entry->record.recorded = true;
  entry->record.on_line = on != nullptr && !on->record.capturing;
  if (entry->record.on_line) {
    entry->record.line = on->record.line;
    entry->record.item = timelines_.submitted(on->record.line);
  }
  check.Leave();
  return Heed(device, Forward(call, device, event, stream, error));
}

sy_status Validate::Around(Call<&sy_device_v1::event_query> call, sy_device* device, sy_event* event, sy_error* error) {
  Checked check(*this, "event_query");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(events_, event, device);
  if (!check.good()) return check.Refuse(error);
  const EventRecord at = entry->record;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_IN_PROGRESS || !at.on_line) return status;
  check.Return();
  timelines_.Complete(at.line, at.item);
  return status;
}

sy_status Validate::Around(Call<&sy_device_v1::event_synchronize> call, sy_device* device, sy_event* event,
                           sy_error* error) {
  Checked check(*this, "event_synchronize");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(events_, event, device);
  if (entry != nullptr) check.Expect(entry->record.recorded, events_.Describe(event), " was never recorded");
  if (!check.good()) return check.Refuse(error);
  const EventRecord at = entry->record;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, event, error));
  if (status == SY_TIMEOUT || !at.on_line) return status;
  check.Return();
  timelines_.Complete(at.line, at.item);
  return status;
}

sy_status Validate::Around(Call<&sy_device_v1::stream_wait> call, sy_device* device, sy_stream* stream, sy_event* event,
                           sy_error* error) {
  Checked check(*this, "stream_wait");
  check.Live(devices_, device);
  check.Expect(stream != nullptr, "expected a stream");
  const auto* on = CheckStream(check, device, stream);
  const auto* entry = check.LiveOn(events_, event, device);
  if (entry != nullptr) check.Expect(entry->record.recorded, events_.Describe(event), " was never recorded");
  if (!check.good()) return check.Refuse(error);
  if (entry->record.on_line && !on->record.capturing) {
    timelines_.Wait(on->record.line, entry->record.line, entry->record.item);
  }
  check.Leave();
  return Heed(device, Forward(call, device, stream, event, error));
}

sy_status Validate::Around(Call<&sy_memory_ext_v1::native_address> call, sy_device* device, sy_buffer* buffer,
                           void** address, int32_t* kind, sy_error* error) {
  Checked check(*this, "native_address");
  check.Live(devices_, device);
  check.LiveOn(buffers_, buffer, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, buffer, address, kind, error);
}

sy_status Validate::Around(Call<&sy_memory_ext_v1::import_memory> call, sy_device* device, void* address, int32_t kind,
                           uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  Checked check(*this, "import_memory");
  check.Live(devices_, device);
  check.Expect(address != nullptr && bytes > 0, "expected memory, found ", bytes, " bytes at ", address);
  check.Expect(kind >= 0 && kind < SY_MEMORY_KIND_COUNT, "expected a memory kind below ", int{SY_MEMORY_KIND_COUNT},
               ", found ", kind);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, address, kind, bytes, buffer, error);
  if (status != SY_OK) return status;
  check.Return();
  buffers_.Add(*buffer, {device, bytes, {}}, check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_memory_ext_v1::host_alloc> call, sy_device* device, uint64_t bytes, void** address,
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

void Validate::Around(Call<&sy_memory_ext_v1::host_free> call, sy_device* device, void* address) {
  Checked check(*this, "host_free", kNoStatus);
  check.Live(devices_, device);
  if (address != nullptr) check.LiveOn(host_memory_, address, device);
  if (!check.good()) return check.Report();
  host_memory_.Remove(address, check.Here());
  check.Leave();
  Forward(call, device, address);
}

sy_status Validate::Around(Call<&sy_memory_ext_v1::native_stream> call, sy_device* device, sy_stream* stream,
                           void** handle, sy_error* error) {
  Checked check(*this, "native_stream");
  check.Live(devices_, device);
  check.LiveOn(streams_, stream, device);
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  return Forward(call, device, stream, handle, error);
}

}  // namespace switchyard
