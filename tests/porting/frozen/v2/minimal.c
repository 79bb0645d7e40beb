/* frozen_minimal: a device backend of eight functions. The device here is host memory; your driver's calls take its place.
 * It has no kernels, so every op runs on the reference plugin, through copies: correct, slow, and a place to start. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/abi/device.h"
#include "core/abi/plugin.h"

enum { DEVICES = 1, ALIGNMENT = 256 };
static const uint64_t MEMORY = (uint64_t)1 << 32; /* bytes of each device */
static _Atomic uint64_t in_use[DEVICES];          /* alloc and free may be called from any thread */

struct sy_device {
  int32_t index;
};
struct sy_buffer {
  char* address;
  uint64_t bytes;
};

/* Every refusal says what was expected and what was found. The caller may pass no sy_error at all. */
static sy_status refuse(sy_error* error, sy_status status, const char* format, ...) {
  if (error == NULL || !SY_HAS(sy_error, error, message)) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  return status;
}

/* Every struct of the caller may carry extensions; one that is required must be understood. We know none. */
static sy_status understand(const void* given, sy_error* error) {
  const sy_extension* unknown = sy_required_extension(given);
  return unknown == NULL ? SY_OK : refuse(error, SY_UNSUPPORTED, "the extension %s is unknown", unknown->name);
}

static sy_status count_devices(sy_instance* instance, int32_t* count, sy_error* error) {
  *count = DEVICES; /* where the driver or the hardware is missing: SY_UNSUPPORTED, and the reason in error->message */
  return SY_OK;
}

static sy_status query_device(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  if (understand(info, error) != SY_OK) return SY_UNSUPPORTED;
  if (index < 0 || index >= DEVICES) return refuse(error, SY_INVALID, "no device %d of %d", (int)index, DEVICES);
  sy_device_info filled = {0};
  snprintf(filled.name, sizeof filled.name, "frozen_minimal device %d", (int)index);
  memcpy(filled.uuid, "frozen_minimal", sizeof "frozen_minimal" < 12 ? sizeof "frozen_minimal" : 12);
  memcpy(filled.uuid + 12, &index, sizeof index); /* the same for the same device in every process */
  filled.memory_bytes = MEMORY;
  filled.free_bytes = MEMORY - in_use[index];
  filled.alignment = ALIGNMENT;
  filled.address_kind = SY_ADDRESS_OPAQUE; /* the engine never reads or writes our memory itself */
  filled.flags = SY_DEVICE_SHAREABLE;      /* several processes may drive it at once */
  filled.dtypes = 0;                       /* those that it has kernels for; copies know only bytes */
  /* The caller's struct may be smaller or larger than ours: fill what fits behind its header. */
  size_t bytes = info->header.size < sizeof filled ? info->header.size : sizeof filled;
  if (bytes > sizeof(sy_header))
    memcpy((char*)info + sizeof(sy_header), (char*)&filled + sizeof(sy_header), bytes - sizeof(sy_header));
  return SY_OK;
}

static sy_status open_device(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
                             sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (index < 0 || index >= DEVICES) return refuse(error, SY_INVALID, "no device %d of %d", (int)index, DEVICES);
  *device = malloc(sizeof **device);
  if (*device == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  (*device)->index = index;
  return SY_OK;
}

static void close_device(sy_device* device) { free(device); }

static void free_buffer(sy_device* device, sy_buffer* buffer) {
  if (buffer == NULL) return;
  in_use[device->index] -= buffer->bytes;
  free(buffer->address);
  free(buffer);
}

static sy_status alloc_buffer(sy_device* device, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer,
                              sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (bytes == 0) return refuse(error, SY_INVALID, "alloc: expected at least 1 byte");
  sy_buffer* made = calloc(1, sizeof *made);
  if (made == NULL) return refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  uint64_t before = atomic_fetch_add(&in_use[device->index], bytes);
  made->bytes = bytes;
  if (before <= MEMORY && bytes <= MEMORY - before)
    made->address = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  if (made->address == NULL) { /* the device goes on working after it */
    free_buffer(device, made);
    return refuse(error, SY_OUT_OF_MEMORY, "alloc of %llu bytes: %llu of %llu are in use", (unsigned long long)bytes,
                  (unsigned long long)before, (unsigned long long)MEMORY);
  }
  *buffer = made;
  return SY_OK;
}

/* The address of `bytes` at a place, in host or device memory, or NULL. */
static char* resolve(sy_place place, uint64_t bytes) {
  if (place.buffer == NULL) return place.host;
  if (place.offset > place.buffer->bytes || bytes > place.buffer->bytes - place.offset) return NULL;
  return place.buffer->address + place.offset;
}

/* `stream` is always NULL: we have no streams, so each call has finished when it returns. */
static sy_status copy(sy_device* device, sy_stream* stream, sy_place destination, sy_place source, uint64_t bytes,
                      const sy_copy_options* options, sy_error* error) {
  if (understand(options, error) != SY_OK) return SY_UNSUPPORTED;
  if (destination.buffer == NULL && source.buffer == NULL) return refuse(error, SY_INVALID, "copy: host to host");
  if (bytes == 0) return SY_OK;
  char* to = resolve(destination, bytes);
  const char* from = resolve(source, bytes);
  if (to == NULL || from == NULL) {
    return refuse(error, SY_INVALID, "copy: %llu bytes do not lie inside the %s", (unsigned long long)bytes,
                  to == NULL ? "destination" : "source");
  }
  memmove(to, from, bytes);
  return SY_OK;
}

static sy_status synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options,
                             sy_error* error) {
  return understand(options, error);
}

static const sy_device_v2 device_interface = { /* the functions that are not named are NULL: not offered */
    .header = SY_HEADER(sy_device_v2), .count = count_devices, .open = open_device, .close = close_device,
    .query = query_device, .alloc = alloc_buffer, .free = free_buffer, .copy = copy, .synchronize = synchronize};

static const void* get_interface(sy_instance* instance, const char* name) {
  return strcmp(name, "device/2") == 0 ? &device_interface : NULL; /* "kernel/2" comes next */
}

SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  if (understand(host, error) != SY_OK || understand(plugin, error) != SY_OK) return SY_UNSUPPORTED;
  if (!SY_HAS(sy_plugin, plugin, get_interface)) return refuse(error, SY_INVALID, "sy_plugin is too small");
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "frozen_minimal";
  plugin->version = "0.1.0";
  plugin->vendor = "you";
  plugin->instance = NULL; /* what comes first in each call: a struct of yours, to keep `host` and its settings in */
  plugin->get_interface = get_interface;
  return SY_OK;
}
