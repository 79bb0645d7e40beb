#include "backends/opencl/device.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace switchyard {

namespace {

constexpr size_t kMostDevices = 256;
std::array<std::atomic<uint64_t>, kMostDevices> allocated;  // bytes, per device of this process

std::atomic<uint64_t>& Allocated(int32_t index) { return allocated[static_cast<size_t>(index) % kMostDevices]; }

// CPUs get vectors in single work-items, all else groups of work-items; SWITCHYARD_OPENCL_KERNELS says otherwise.
sy_status ChooseShape(sy_device* device, sy_error* error) {
  const char* chosen = device->instance->Setting("OPENCL_KERNELS");
  const std::string shape = chosen && *chosen ? chosen : device->traits.computes_on_host ? "vectors" : "groups";
  if (shape == "vectors") {
    device->width = device->traits.vector_width;
  } else if (shape == "groups") {
    device->lanes = static_cast<uint32_t>(std::bit_floor(std::min<uint64_t>(device->traits.max_work_group, 256)));
    if (device->lanes < 64) {
      return SY_FAIL(error, SY_UNSUPPORTED, "%s: work-groups hold %u work-items, at least 64 are needed",
                     device->traits.name.c_str(), device->lanes);
    }
  } else {
    return SY_FAIL(error, SY_INVALID, "SWITCHYARD_OPENCL_KERNELS: expected vectors or groups, found %s", shape.c_str());
  }
  return SY_OK;
}

// A sub-device of `threads` compute units, where that is fewer than the device has and it can be split.
sy_status Split(sy_device* device, int32_t threads, sy_error* error) {
  const Traits& traits = device->traits;
  if (threads <= 0 || !traits.computes_on_host || !traits.splits_by_counts ||
      static_cast<uint32_t>(threads) >= traits.compute_units) {
    return SY_OK;
  }
  const cl_device_partition_property counts[] = {CL_DEVICE_PARTITION_BY_COUNTS, threads,
                                                 CL_DEVICE_PARTITION_BY_COUNTS_LIST_END, 0};
  cl_device_id part = nullptr;
  cl_uint made = 0;
  SY_CL(error, clCreateSubDevices, device->id, counts, 1, &part, &made);
  if (made == 0) return SY_FAIL(error, SY_INTERNAL, "clCreateSubDevices made no device of %d compute units", threads);
  device->part = DeviceHandle(part);
  device->id = part;
  device->traits.compute_units = static_cast<uint32_t>(threads);
  return SY_OK;
}

sy_status CountDevices(sy_instance*, int32_t* count, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    const Catalog& catalog = Devices();
    *count = static_cast<int32_t>(catalog.entries.size());
    if (catalog.entries.empty()) return Refuse(error, SY_UNSUPPORTED, catalog.why_none);
    return SY_OK;
  });
}

sy_status Open(const sy_instance& instance, int32_t index, const sy_open_options* given, sy_device** result,
               sy_error* error) {
  if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
  if (const sy_status status = CheckIndex(index, error); status != SY_OK) return status;
  const sy_open_options options = given ? ReadStruct(given) : sy_open_options{};
  const CatalogEntry& entry = Devices().entries[static_cast<size_t>(index)];
  auto device = std::make_unique<sy_device>();
  device->instance = &instance;
  device->id = entry.device;
  device->index = index;
  sy_status status = ReadTraits(entry, &device->traits, error);
  if (status == SY_OK) status = ChooseShape(device.get(), error);
  if (status == SY_OK) status = Split(device.get(), options.threads, error);
  if (status != SY_OK) return status;
  cl_int code;
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(entry.platform), 0};
  device->context = ContextHandle(clCreateContext(properties, 1, &device->id, nullptr, nullptr, &code));
  if (code != CL_SUCCESS) return Failed(error, code, "clCreateContext");
  if (status = Stream::Make(device->context.get(), device->id, &device->own, error); status != SY_OK) return status;
  device->programs.Open(device->context.get(), device->id,
                        BinaryFolder(instance.Setting("OPENCL_CACHE"), device->traits.keeps_kernels),
                        device->traits.name + ", " + device->traits.version,
                        Format("-DLANES=%u -DWIDTH=%u", device->lanes, device->width));
  *result = device.release();
  return SY_OK;
}

sy_status OpenDevice(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
                     sy_error* error) {
  return Guarded(error, [&] { return Open(*instance, index, options, device, error); });
}

void CloseDevice(sy_device* device) { delete device; }

sy_status QueryDevice(sy_instance*, int32_t index, sy_device_info* info, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    if (const sy_status status = CheckIndex(index, error); status != SY_OK) return status;
    Traits traits;
    if (const sy_status status = ReadTraits(Devices().entries[static_cast<size_t>(index)], &traits, error);
        status != SY_OK) {
      return status;
    }
    sy_device_info filled{};
    std::snprintf(filled.name, sizeof filled.name, "%s", traits.name.c_str());
    FillUuid(index, traits, filled.uuid);
    filled.memory_bytes = traits.memory_bytes;
    filled.free_bytes = traits.memory_bytes - std::min(traits.memory_bytes, Allocated(index).load());
    filled.largest_allocation = traits.largest_allocation;
    filled.alignment = traits.alignment;
    filled.address_kind = SY_ADDRESS_OPAQUE;
    filled.flags = SY_DEVICE_ASYNC;
    if (traits.computes_on_host) filled.flags |= SY_DEVICE_SHAREABLE | SY_DEVICE_CPU_CORES;
    filled.dtypes = uint64_t{1} << SY_F32 | uint64_t{1} << SY_BF16 | uint64_t{1} << SY_F16 | uint64_t{1} << SY_I32 |
                    uint64_t{1} << SY_I64 | uint64_t{1} << SY_U8;
    const std::string& libraries = Devices().entries[static_cast<size_t>(index)].libraries;
    if (!libraries.empty()) filled.libraries = libraries.c_str();
    FillStruct(info, filled);
    return SY_OK;
  });
}

// A buffer is made real at once (drivers allocate at the first use), so that it is here that memory runs out.
sy_status MakeReal(sy_device* device, cl_mem memory, sy_error* error) {
  const std::lock_guard lock(device->own_mutex);
  SY_CL(error, clEnqueueMigrateMemObjects, device->own->queue(), 1, &memory, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0,
        nullptr, nullptr);
  SY_CL(error, clFinish, device->own->queue());
  return SY_OK;
}

sy_status Allocate(sy_device* device, uint64_t bytes, const sy_alloc_options* given, sy_buffer** buffer,
                   sy_error* error) {
  if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
  if (given != nullptr && ReadStruct(given).exportable)
    return Refuse(error, SY_UNSUPPORTED, "alloc: OpenCL 1.2 has no memory that other devices or processes can reach");
  if (bytes == 0) return Refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  return Guarded(error, [&]() -> sy_status {
    const Traits& traits = device->traits;
    std::atomic<uint64_t>& used = Allocated(device->index);
    const uint64_t before = used.fetch_add(bytes);
    struct Reservation {  // given back unless a buffer takes it over
      std::atomic<uint64_t>& used;
      uint64_t bytes;
      ~Reservation() { used.fetch_sub(bytes); }
    } reserved{used, bytes};
    if (bytes > traits.largest_allocation || before > traits.memory_bytes || bytes > traits.memory_bytes - before) {
      return Refuse(error, SY_OUT_OF_MEMORY,
                    Text("alloc of ", bytes, " bytes: ", before, " of ", traits.memory_bytes,
                         " are in use, and one allocation holds at most ", traits.largest_allocation));
    }
    cl_int code;
    MemoryHandle memory(clCreateBuffer(device->context.get(), CL_MEM_READ_WRITE, bytes, nullptr, &code));
    if (code != CL_SUCCESS) return Failed(error, code, "clCreateBuffer");
    if (const sy_status status = MakeReal(device, memory.get(), error); status != SY_OK) return status;
    *buffer = new sy_buffer{std::move(memory), bytes};
    reserved.bytes = 0;
    return SY_OK;
  });
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  Allocated(device->index).fetch_sub(buffer->bytes);
  delete buffer;
}

sy_status Copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer && !source.buffer) return Refuse(error, SY_INVALID, "copy: one side must be device memory");
  if (bytes == 0) return SY_OK;
  for (const sy_place& place : {destination, source}) {
    if (!place.buffer && !place.host)
      return Refuse(error, SY_INVALID, "copy: a place names neither buffer nor host address");
    if (!place.buffer) continue;
    if (const sy_status status = CheckPlace(place, bytes, "copy", error); status != SY_OK) return status;
  }
  return OnStream(device, stream, error, [&](Stream& on) {
    if (!source.buffer) {
      return on.Queued(clEnqueueWriteBuffer(on.queue(), destination.buffer->memory.get(), CL_FALSE, destination.offset,
                                            bytes, source.host, 0, nullptr, nullptr),
                       "clEnqueueWriteBuffer", error);
    }
    if (!destination.buffer) {
      return on.Queued(clEnqueueReadBuffer(on.queue(), source.buffer->memory.get(), CL_FALSE, source.offset, bytes,
                                           destination.host, 0, nullptr, nullptr),
                       "clEnqueueReadBuffer", error);
    }
    return on.Queued(clEnqueueCopyBuffer(on.queue(), source.buffer->memory.get(), destination.buffer->memory.get(),
                                         source.offset, destination.offset, bytes, 0, nullptr, nullptr),
                     "clEnqueueCopyBuffer", error);
  });
}

sy_status Fill(sy_device* device, sy_stream* stream, sy_place destination, uint8_t value, uint64_t bytes,
               const sy_fill_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (!destination.buffer) return Refuse(error, SY_INVALID, "fill: expected device memory");
  if (bytes == 0) return SY_OK;
  if (const sy_status status = CheckPlace(destination, bytes, "fill", error); status != SY_OK) return status;
  // The widest pattern that the range is a multiple of: drivers write one pattern at a time.
  uint8_t pattern[16];
  std::fill(std::begin(pattern), std::end(pattern), value);
  size_t width = sizeof pattern;
  while (destination.offset % width != 0 || bytes % width != 0) width /= 2;
  return OnStream(device, stream, error, [&](Stream& on) {
    return on.Queued(clEnqueueFillBuffer(on.queue(), destination.buffer->memory.get(), pattern, width,
                                         destination.offset, bytes, 0, nullptr, nullptr),
                     "clEnqueueFillBuffer", error);
  });
}

sy_status Synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    if (stream) return stream->stream->Drain(error);
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

sy_status CreateStream(sy_device* device, const sy_stream_options* options, sy_stream** stream, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {  // OpenCL 1.2 has no priorities
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    auto made = std::make_unique<sy_stream>();
    const sy_status status = Stream::Make(device->context.get(), device->id, &made->stream, error);
    if (status != SY_OK) return status;
    const std::lock_guard lock(device->mutex);
    std::erase_if(device->streams, [](const auto& weak) { return weak.expired(); });
    device->streams.push_back(made->stream);
    *stream = made.release();
    return SY_OK;
  });
}

void DestroyStream(sy_device*, sy_stream* stream) {
  if (stream) stream->stream->Drain(nullptr);
  delete stream;
}

sy_status CreateEvent(sy_device*, const sy_event_options* options, sy_event** event, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
    *event = new sy_event;
    return SY_OK;
  });
}

void DestroyEvent(sy_device*, sy_event* event) { delete event; }

sy_status RecordEvent(sy_device* device, sy_event* event, sy_stream* stream, sy_error* error) {
  Stream& on = stream ? *stream->stream : *device->own;
  return Guarded(error, [&] { return event->event.Record(on, error); });
}

sy_status QueryEvent(sy_device*, sy_event* event, sy_error* error) {
  return Guarded(error, [&] { return event->event.Query(error); });
}

sy_status SynchronizeEvent(sy_device*, sy_event* event, sy_error* error) {
  return Guarded(error, [&] { return event->event.Wait(error); });
}

sy_status WaitForEvent(sy_device* device, sy_stream* stream, sy_event* event, sy_error* error) {
  Stream& on = stream ? *stream->stream : *device->own;
  return Guarded(error, [&] { return event->event.Before(on, error); });
}

}  // namespace

sy_status CheckPlace(const sy_place& place, uint64_t bytes, const char* what, sy_error* error) {
  if (!place.buffer) return SY_FAIL(error, SY_INVALID, "%s: expected device memory, found a host address", what);
  if (place.offset <= place.buffer->bytes && bytes <= place.buffer->bytes - place.offset) return SY_OK;
  return Refuse(error, SY_INVALID,
                Text(what, ": ", bytes, " bytes at offset ", place.offset, " do not lie inside a buffer of ",
                     place.buffer->bytes));
}

const sy_device_v2 kOpenClDevice = {.header = SY_HEADER(sy_device_v2),
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
