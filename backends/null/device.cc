#include "backends/null/device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "core/abi/boundary.h"

namespace switchyard {

namespace {

constexpr int32_t kMostDevices = 64;
std::array<std::atomic<uint64_t>, kMostDevices> allocated;  // bytes, per device

int32_t DeviceCount(const sy_instance& instance) {
  return static_cast<int32_t>(std::min<int64_t>(instance.NumberSetting("NULL_DEVICES", 2, 0), kMostDevices));
}
uint64_t MemoryBytes(const sy_instance& instance) {
  return static_cast<uint64_t>(instance.NumberSetting("NULL_MEMORY", int64_t{2} << 30, 0));
}
// A power of two, and no more than the alignment.
uint64_t LineBytes(const sy_instance& instance) {
  const auto asked = static_cast<uint64_t>(instance.NumberSetting("NULL_LINE_BYTES", 1));
  return std::bit_floor(std::min(asked, DeviceMemory::kAlignment));
}

bool Exists(const sy_instance& instance, int32_t index, sy_error* error) {
  const int32_t count = DeviceCount(instance);
  if (index >= 0 && index < count) return true;
  Refuse(error, SY_INVALID, Text("no device ", index, ": there are ", count));
  return false;
}

sy_status CountDevices(sy_instance* instance, int32_t* count, sy_error*) {
  *count = DeviceCount(*instance);
  return SY_OK;
}

sy_status OpenDevice(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
                     sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  return Guarded(error, [&] {
    *device = new sy_device(*instance, index);
    return SY_OK;
  });
}

void CloseDevice(sy_device* device) { delete device; }

sy_status QueryDevice(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  if (!Exists(*instance, index, error)) return SY_INVALID;
  sy_device_info filled{};
  std::snprintf(filled.name, sizeof filled.name, "null device %d", index);
  std::memcpy(filled.uuid, "null", 4);
  std::memcpy(filled.uuid + 4, &index, sizeof index);
  filled.memory_bytes = MemoryBytes(*instance);
  filled.free_bytes = filled.memory_bytes - std::min(filled.memory_bytes, allocated[static_cast<size_t>(index)].load());
  filled.alignment = DeviceMemory::kAlignment;
  filled.copy_granularity = static_cast<uint32_t>(LineBytes(*instance));
  filled.address_kind = SY_ADDRESS_OPAQUE;
  filled.flags = SY_DEVICE_ASYNC | SY_DEVICE_SHAREABLE | SY_DEVICE_CAPTURES_STREAMS;
  filled.dtypes = 1u << SY_F32 | 1u << SY_BF16 | 1u << SY_F16 | 1u << SY_I32 | 1u << SY_I64 | 1u << SY_U8;
  // It binds nothing, and says what a test wants it to say.
  filled.libraries = instance->Setting("NULL_LIBRARIES");
  FillStruct(info, filled);
  return SY_OK;
}

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                   sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  const bool exportable = options && SY_HAS(sy_alloc_options, options, exportable) && options->exportable;
  return Guarded(error, [&] { return device->memory.Allocate(bytes, exportable, buffer, error); });
}

void Free(sy_device* device, sy_buffer* buffer) { device->memory.Free(buffer); }

// Whether a copy or fill of `bytes` at `place` is one of whole lines and lies inside its buffer.
bool Reachable(sy_device* device, const sy_place& place, uint64_t bytes, sy_error* error) {
  if (place.buffer && (place.offset % device->line_bytes != 0 || bytes % device->line_bytes != 0)) {
    Refuse(error, SY_INVALID,
           Text(bytes, " bytes at offset ", place.offset, " are not whole lines of ", device->line_bytes));
    return false;
  }
  return device->memory.Resolve(place, bytes, error) != nullptr;
}

sy_status Copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer && !source.buffer) return Refuse(error, SY_INVALID, "copy: one side must be device memory");
  if (bytes == 0) return SY_OK;
  if (!Reachable(device, destination, bytes, error) || !Reachable(device, source, bytes, error)) return SY_INVALID;
  Command command{Command::Kind::kCopy};
  command.destination = destination;
  command.source = source;
  command.bytes = bytes;
  return Submit(device, stream, std::move(command), error);
}

sy_status Fill(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer) return Refuse(error, SY_INVALID, "fill: expected device memory");
  if (bytes == 0) return SY_OK;
  if (!Reachable(device, destination, bytes, error)) return SY_INVALID;
  Command command{Command::Kind::kFill};
  command.destination = destination;
  command.value = value;
  command.bytes = bytes;
  return Submit(device, stream, std::move(command), error);
}

sy_status Synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    if (stream) return stream->stream->Synchronize(error);
    std::vector<std::shared_ptr<Stream>> streams;
    {
      const std::lock_guard lock(device->mutex);
      for (const auto& weak : device->streams) {
        if (auto strong = weak.lock()) streams.push_back(std::move(strong));
      }
    }
    sy_status first = SY_OK;
    for (const auto& each : streams) {
      const sy_status status = each->Drain(first == SY_OK ? error : nullptr);
      if (first == SY_OK) first = status;
    }
    return first;
  });
}

void AddStream(sy_device* device, sy_stream* stream) {
  stream->stream = std::make_shared<Stream>(device, stream);
  const std::lock_guard lock(device->mutex);
  std::erase_if(device->streams, [](const auto& weak) { return weak.expired(); });
  device->streams.push_back(stream->stream);
}

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    auto made = std::make_unique<sy_stream>();
    AddStream(device, made.get());
    *stream = made.release();
    return SY_OK;
  });
}

void DestroyStream(sy_device*, sy_stream* stream) { delete stream; }

sy_status CreateEvent(sy_device*, const sy_event_options* options, sy_event** event, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    *event = new sy_event;
    return SY_OK;
  });
}

void DestroyEvent(sy_device*, sy_event* event) { delete event; }

sy_status RecordEvent(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  Command command{Command::Kind::kRecord};
  command.event = event->event;
  return Submit(device, stream, std::move(command), error);
}

sy_status QueryEvent(sy_device*, sy_event* event, sy_error* error) { return event->event->Query().Tell(error); }

sy_status SynchronizeEvent(sy_device*, sy_event* event, sy_error* error) { return event->event->Wait().Tell(error); }

sy_status WaitForEvent(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  Command command{Command::Kind::kWait};
  command.event = event->event;
  command.point = event->event->latest();
  return Submit(device, stream, std::move(command), error);
}

}  // namespace

sy_status Submit(sy_device* device, sy_stream* stream, Command command, sy_error* error) {
  return Guarded(error, [&] {
    Stream& chosen = stream ? *stream->stream : *device->own.stream;
    const sy_status status = chosen.Enqueue(std::move(command), error);
    return stream || status != SY_OK ? status : chosen.Drain(error);
  });
}

const sy_device_v2 kNullDevice = {.header = SY_HEADER(sy_device_v2),
                                  .count = CountDevices,
                                  .open = OpenDevice,
                                  .close = CloseDevice,
                                  .query = QueryDevice,
                                  .alloc = Allocate,
                                  .free = Free,
                                  .copy = Copy,
                                  .synchronize = Synchronize,
                                  .stream_create = CreateStream,
                                  .stream_destroy = DestroyStream,
                                  .event_create = CreateEvent,
                                  .event_destroy = DestroyEvent,
                                  .event_record = RecordEvent,
                                  .event_query = QueryEvent,
                                  .event_synchronize = SynchronizeEvent,
                                  .stream_wait = WaitForEvent,
                                  .fill = Fill};

}  // namespace switchyard

sy_device::sy_device(const sy_instance& instance, int32_t given)
    : index(given),
      delay(instance.NumberSetting("NULL_DELAY_US", 20, 0)),
      copy_mb_s(instance.NumberSetting("NULL_COPY_MB_S", 0, 0)),
      fail_at(instance.NumberSetting("NULL_FAIL_AT", 0, 0)),
      line_bytes(switchyard::LineBytes(instance)),
      last_branch_first(instance.NumberSetting("NULL_GRAPH_LAST", 0, 0) != 0),
      memory(switchyard::MemoryBytes(instance), switchyard::allocated[static_cast<size_t>(given)]) {
  switchyard::AddStream(this, &own);
}
