// The faults of peer/1, around the null plugin.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/conformance/faulty_plugin.h"

namespace {

const sy_peer_v1* base_peers = nullptr;
const sy_device_v2* device_below = nullptr;

std::mutex imports_mutex;
std::map<sy_buffer*, int64_t> imports;  // and the processes of their owners
sy_buffer* last_exported = nullptr;
std::string last_description;

sy_status ExportMemory(sy_device* device, sy_buffer* buffer, void* description, uint32_t capacity, uint32_t* bytes,
                       sy_error* error) {
  char room[SY_MEMORY_DESCRIPTION_BYTES];
  const bool blind = Fault("describes_in_too_little_room");
  const sy_status status = base_peers->export_memory(
      device, buffer, room, blind ? sizeof room : std::min<uint32_t>(capacity, sizeof room), bytes, error);
  if (status != SY_OK) return status;
  const std::lock_guard lock(imports_mutex);
  last_exported = buffer;
  last_description.assign(room, *bytes);
  memcpy(description, room, std::min(*bytes, capacity));
  return SY_OK;
}

sy_status ImportMemory(sy_device* device, const void* description, uint32_t bytes, sy_buffer** buffer,
                       sy_error* error) {
  if (Fault("imports_something_else")) return device_below->alloc(device, 16 << 20, nullptr, buffer, error);
  const std::lock_guard lock(imports_mutex);
  const bool gullible = Fault("takes_any_description");
  sy_status status = base_peers->import_memory(device, description, bytes, buffer, gullible ? nullptr : error);
  if (gullible && status != SY_OK) {
    status = base_peers->import_memory(device, last_description.data(), static_cast<uint32_t>(last_description.size()),
                                       buffer, error);
  }
  if (status != SY_OK) return status;
  if (Fault("keeps_imports")) (void)dup(0);
  int64_t process = 0;
  memcpy(&process, static_cast<const char*>(description) + 8, sizeof process);  // as the null plugin describes memory
  imports[*buffer] = process;
  return SY_OK;
}

}  // namespace

const sy_peer_v1* FaultyPeers(const sy_peer_v1* base, const sy_device_v2* device) {
  static const sy_peer_v1 faulty = {SY_HEADER(sy_peer_v1), ExportMemory, ImportMemory};
  base_peers = base;
  device_below = device;
  return base == nullptr ? nullptr : &faulty;
}

void BeforeUse(const sy_place& place) {
  if (!Fault("needs_its_owner_alive")) return;
  const std::lock_guard lock(imports_mutex);
  const auto found = imports.find(place.buffer);
  if (found != imports.end() && kill(static_cast<pid_t>(found->second), 0) != 0) raise(SIGSEGV);
}

void BeforeFree(sy_device* device, sy_buffer* buffer) {
  const std::lock_guard lock(imports_mutex);
  const bool imported = imports.erase(buffer) > 0;
  if (imported && Fault("frees_the_owners_memory")) device_below->free(device, last_exported);
}
