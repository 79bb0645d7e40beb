/* The one symbol that a plugin exports, and how the host asks for its interfaces.
 *
 * Beside `switchyard_backend_NAME.so` lies its manifest `switchyard_backend_NAME.json`:
 *   {"name": "cpu", "kind": "backend", "abi": 2, "priority": 50, "library": "switchyard_backend_cpu.so", "summary": "oneDNN on x86 cores"}
 * kind is "backend", "collective" or "interposer"; priority orders --device=auto and --collective=auto (higher is tried first). A backend may name
 * the one whose kernels compute what is left to the host beside its device ("host": "reference"); else that is the cpu's. */
#ifndef SWITCHYARD_ABI_PLUGIN_H_
#define SWITCHYARD_ABI_PLUGIN_H_

#include "core/abi/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SY_PLUGIN_MAGIC 0x32595753u /* "SWY2" */

typedef struct sy_host { /* what the host gives to one instance; lives as long as the process */
  sy_header header;
  void* context;                                               /* first argument of its functions */
  void (*log)(void* context, int32_t level, const char* text); /* 0 debug, 1 info, 2 warning, 3 error; any thread */
  /* Value of SWITCHYARD_<name>, or NULL; valid until the process ends; any thread. */
  const char* (*setting)(void* context, const char* name);
} sy_host;

typedef struct sy_plugin { /* filled by the plugin */
  sy_header header;
  uint32_t magic;              /* SY_PLUGIN_MAGIC */
  const char* name;            /* as in the manifest; static, as every string here */
  const char* version;         /* of the plugin */
  const char* vendor;
  sy_instance* instance;       /* first argument of every function that has no narrower object; may be NULL */
  /* The interface "device/2", "kernel/2", "collective/2", "semaphore/1" …, or NULL where the plugin does not offer it. The struct starts with
   * sy_header and lives as long as the process. */
  const void* (*get_interface)(sy_instance* instance, const char* name);
} sy_plugin;

#if defined(_WIN32)
#define SY_EXPORT __declspec(dllexport)
#else
#define SY_EXPORT __attribute__((visibility("default")))
#endif

typedef sy_status (*sy_plugin_create_fn)(const sy_host* host, sy_plugin* plugin, sy_error* error);
/* Makes an instance that serves `host`. Must not touch hardware: count and open do. May be called again, with another host whose settings
 * differ: the instances are then independent. */
SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error);

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_PLUGIN_H_ */
