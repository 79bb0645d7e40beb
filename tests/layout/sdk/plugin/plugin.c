/* The smallest plugin that loads: it answers the one question that every plugin is asked, and offers no interface. */
#include "core/abi/plugin.h"

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"

static const void* no_interface(sy_instance* instance, const char* name) {
  (void)instance;
  (void)name;
  return NULL;
}

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  (void)host;
  (void)error;
  plugin->instance = NULL;
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "smallest";
  plugin->version = "1";
  plugin->vendor = "nobody";
  plugin->get_interface = no_interface;
  return SY_OK;
}
