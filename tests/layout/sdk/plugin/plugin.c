/* The smallest plugin that loads: it answers the one question that every plugin is asked, and offers no interface. */
#include "core/abi/plugin.h"

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

static const void* no_interface(const char* name) {
  (void)name;
  return NULL;
}

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  (void)host;
  (void)error;
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "smallest";
  plugin->version = "1";
  plugin->vendor = "nobody";
  plugin->interface = no_interface;
  return SY_OK;
}
