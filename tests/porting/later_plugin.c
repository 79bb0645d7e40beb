/* The frozen plugin as a later version of the headers would make it: its structs and tables have one more field or
 * function, and the functions must not be called by a program that does not know them. */
#include "core/abi/plugin.h"

#define sy_plugin_create create_streams
#include "streams.c"
#undef sy_plugin_create

static void later(void) { abort(); }
static const void* (*streams_interface)(sy_instance* instance, const char* name);

static const void* larger_interface(sy_instance* instance, const char* name) {
  static sy_device_v2 device;
  static sy_kernel_v2 kernel;
  const void* table = streams_interface(instance, name);
  if (table == &device_interface) {
    device = device_interface;
    device.later = later;
    return &device;
  }
  if (table == &kernel_interface) {
    kernel = kernel_interface;
    kernel.later = later;
    return &kernel;
  }
  return table;
}

SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  sy_status status = create_streams(host, plugin, error);
  if (status != SY_OK) return status;
  plugin->name = "later_streams";
  streams_interface = plugin->get_interface;
  plugin->get_interface = larger_interface;
  return SY_OK;
}
