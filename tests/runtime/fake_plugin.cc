// A small backend over malloc, built once whole and once for every way to be wrong: FAKE_<FAULT> is defined by the
// build.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "core/abi/device.h"
#include "core/abi/plugin.h"

struct sy_device {
  int index;
};
struct sy_buffer {
  char* bytes;
  uint64_t size;
};

namespace {

const sy_host* host = nullptr;
constexpr uint64_t kMemory = 1 << 20;
uint64_t used = 0;

sy_status Fail(sy_status status, sy_error* error, const char* text) {
  if (error != nullptr) {
    strncpy(error->message, text, sizeof error->message - 1);
    error->native_code = 77;
    strncpy(error->location, "fake.cc:1", sizeof error->location - 1);
  }
  return status;
}

sy_status Count(int32_t* count, sy_error* error) {
  const char* text = host->setting("FAKE_DEVICES");
  *count = text == nullptr ? 2 : atoi(text);
  return *count > 0 ? SY_OK : Fail(SY_OK, error, "the fake hardware is unplugged");
}
sy_status Open(int32_t index, const sy_open_options*, sy_device** device, sy_error*) {
  *device = new sy_device{index};
  return SY_OK;
}
void Close(sy_device* device) { delete device; }
sy_status Query(int32_t index, sy_device_info* info, sy_error* error) {
  if (index < 0 || index > 1) return Fail(SY_INVALID, error, "there are two devices");
  strcpy(info->name, "fake");
  info->uuid[15] = static_cast<uint8_t>(index);
  info->memory_bytes = kMemory;
  info->free_bytes = kMemory - used;
  info->alignment = 64;
  info->address_kind = SY_ADDRESS_HOST;
  info->dtypes = 1u << SY_F32;
  return SY_OK;
}
sy_status Alloc(sy_device*, uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  if (used + bytes > kMemory) return Fail(SY_OUT_OF_MEMORY, error, "the fake memory is full");
  used += bytes;
  *buffer = new sy_buffer{static_cast<char*>(malloc(bytes)), bytes};
  return SY_OK;
}
void Free(sy_device*, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  used -= buffer->size;
  free(buffer->bytes);
  delete buffer;
}
char* Address(sy_place place) {
  return place.buffer != nullptr ? place.buffer->bytes + place.offset : static_cast<char*>(place.host) + place.offset;
}
sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes, sy_error*) {
  memmove(Address(destination), Address(source), bytes);
  return SY_OK;
}
sy_status Synchronize(sy_device*, sy_stream*, sy_error*) { return SY_OK; }

sy_device_v1 device_interface = {SY_HEADER(sy_device_v1),
                                 Count,
                                 Open,
                                 Close,
                                 Query,
                                 Alloc,
                                 Free,
                                 Copy,
                                 Synchronize,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

const void* Interface(const char* name) {
#if defined(FAKE_CRASHES_IN_INTERFACE)
  abort();
#endif
#if defined(FAKE_THROWS_IN_INTERFACE)
  throw std::runtime_error("no interfaces today");
#endif
  return strcmp(name, "device/1") == 0 ? &device_interface : nullptr;
}

}  // namespace

#if defined(FAKE_CRASHES_IN_DLOPEN)
__attribute__((constructor)) static void CrashEarly() { raise(SIGSEGV); }
#endif

#if defined(FAKE_NO_SYMBOL)
#define sy_plugin_query another_function
#endif
extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  host = given;
#if defined(FAKE_REFUSES)
  return Fail(SY_UNSUPPORTED, error, "this fake needs a licence");
#elif defined(FAKE_THROWS)
  throw std::runtime_error("no plugin today");
#elif defined(FAKE_ABORTS)
  abort();
#elif defined(FAKE_CRASHES)
  raise(SIGSEGV);
#elif defined(FAKE_HANGS)
  for (;;) pause();
#elif defined(FAKE_EXITS)
  exit(0);
#endif
  (void)error;
  plugin->header = SY_HEADER(sy_plugin);
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "fake";
  plugin->version = "1.2";
  plugin->vendor = "tests";
  plugin->interface = Interface;
#if defined(FAKE_WRONG_MAGIC)
  plugin->magic = 0x12345678;
#elif defined(FAKE_WRONG_VERSION)
  plugin->header.major = 9;
#elif defined(FAKE_WRONG_SIZE)
  plugin->header.size = 8;
#elif defined(FAKE_NO_NAME)
  plugin->name = nullptr;
#elif defined(FAKE_MISSING_FUNCTION)
  device_interface.alloc = nullptr;
#elif defined(FAKE_INTERFACE_WRONG_VERSION)
  device_interface.header.major = 2;
#elif defined(FAKE_INTERFACE_TOO_SMALL)
  device_interface.header.size = 16;
#elif defined(FAKE_OLDER)
  device_interface.header.size = offsetof(sy_device_v1, stream_create);
  device_interface.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, sy_error*) -> sy_status { abort(); };
#elif defined(FAKE_NEWER)
  static struct {
    sy_device_v1 known;
    void (*later)();
  } larger;
  larger.known = device_interface;
  larger.known.header.size = sizeof larger;
  larger.known.header.minor = 7;
  plugin->interface = [](const char* name) -> const void* { return strcmp(name, "device/1") == 0 ? &larger : nullptr; };
#elif defined(FAKE_NO_INTERFACE)
  plugin->interface = [](const char*) -> const void* { return nullptr; };
#endif
  return SY_OK;
}
