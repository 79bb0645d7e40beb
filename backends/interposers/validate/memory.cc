// Memory, copies and fills; memory_ext/2 and peer/1.
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

const void* Validate::HostMemoryAt(const sy_place& place) {
  const auto* const at = static_cast<const char*>(place.host);
  for (const auto& [start, entry] : host_memory_.live()) {
    const auto* const first = static_cast<const char*>(start);
    if (place.buffer == nullptr && at >= first && at < first + entry.record.bytes) return start;
  }
  return nullptr;
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
    check.Alone(buffers_, buffer);
    check.Expect(entry->record.importers == 0, buffers_.Describe(buffer), " is imported by ", entry->record.importers,
                 " buffers that were not freed");
    CheckIdle(check, buffers_, buffer);
    check.Expect(entry->record.bindings == 0, buffers_.Describe(buffer), " is named by ", entry->record.bindings,
                 " bindings");
  }
  if (!check.good()) return check.Report();
  if (auto* const made = buffer == nullptr ? nullptr : buffers_.Find(buffer); made != nullptr) {
    auto* const exported = buffers_.Find(made->record.of);
    if (exported != nullptr && exported->id == made->record.of_id) --exported->record.importers;
  }
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
    if (const void* const memory = HostMemoryAt(place); memory != nullptr) used.push_back(NameOf(host_memory_, memory));
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
  HostMemory record;
  record.device = device;
  record.bytes = bytes;
  host_memory_.Add(*address, std::move(record), check.Here(" of ", bytes, " bytes"));
  return SY_OK;
}

void Validate::Around(Call<&sy_memory_ext_v2::host_free> call, sy_device* device, void* address) {
  Checked check(*this, "host_free", kNoStatus);
  check.Live(devices_, device);
  if (check.LiveOn(host_memory_, address, device) != nullptr) CheckIdle(check, host_memory_, address);
  if (!check.good()) return check.Report();
  host_memory_.Remove(address, check.Here());
  check.Leave();
  Forward(call, device, address);
}

sy_status Validate::Around(Call<&sy_peer_v1::export_memory> call, sy_device* device, sy_buffer* buffer,
                           void* description, uint32_t capacity, uint32_t* bytes, sy_error* error) {
  Checked check(*this, "export_memory");
  check.Live(devices_, device);
  const auto* entry = check.LiveOn(buffers_, buffer, device);
  if (entry != nullptr) {
    check.Expect(entry->record.exportable, buffers_.Describe(buffer),
                 " was not allocated with sy_alloc_options.exportable");
  }
  check.Expect(description != nullptr && bytes != nullptr, "an argument is NULL");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, buffer, description, capacity, bytes, error));
  if (status != SY_OK) return status;
  check.Return();
  check.Promised(*bytes > 0 && *bytes <= capacity, "it answered a description of ", *bytes, " bytes where there are ",
                 capacity);
  auto* const now = buffers_.Find(buffer);
  if (now != nullptr && *bytes <= capacity)
    now->record.description.assign(static_cast<const char*>(description), *bytes);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_peer_v1::import_memory> call, sy_device* device, const void* description,
                           uint32_t bytes, sy_buffer** buffer, sy_error* error) {
  Checked check(*this, "import_memory");
  check.Live(devices_, device);
  check.Expect(description != nullptr && bytes > 0 && bytes <= SY_MEMORY_DESCRIPTION_BYTES,
               "expected a description of 1 to ", int{SY_MEMORY_DESCRIPTION_BYTES}, " bytes, found ", bytes, " at ",
               description);
  check.Expect(buffer != nullptr, "there is no place for the handle");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Heed(device, Forward(call, device, description, bytes, buffer, error));
  if (status != SY_OK) return status;
  check.Return();
  BufferRecord record;
  record.device = device;
  record.imported = true;
  const std::string_view given(static_cast<const char*>(description), bytes);
  for (auto& [handle, exported] : buffers_.live()) {
    if (exported.record.description != given) continue;
    record.of = handle;
    record.of_id = exported.id;
    ++exported.record.importers;
    break;
  }
  buffers_.Add(*buffer, record, check.Here(" of another's memory"));
  return SY_OK;
}

}  // namespace switchyard
