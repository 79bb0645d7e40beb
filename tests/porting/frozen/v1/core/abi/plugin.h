/* The one symbol that a plugin exports, and how the host asks for its interfaces.
 *
 * Beside `switchyard_backend_NAME.so` lies its manifest `switchyard_backend_NAME.json`:
 *   {"name": "cpu", "kind": "backend", "abi": 1, "priority": 50, "library": "switchyard_backend_cpu.so", "summary": "oneDNN on x86 cores"}
 * kind is "backend" or "collective"; priority orders --device=auto and --collective=auto (higher is tried first). */
#ifndef SWITCHYARD_ABI_PLUGIN_H_
#define SWITCHYARD_ABI_PLUGIN_H_

#include "core/abi/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SY_PLUGIN_MAGIC 0x31595753u /* "SWY1" */

typedef struct sy_host { /* what the host gives a plugin; lives as long as the process */
  sy_header header;
  void (*log)(int32_t level, const char* text); /* 0 debug, 1 info, 2 warning, 3 error; any thread */
  const char* (*setting)(const char* name);     /* value of SWITCHYARD_<name>, or NULL; valid until the process ends */
} sy_host;

typedef struct sy_plugin { /* filled by the plugin */
  sy_header header;
  uint32_t magic;              /* SY_PLUGIN_MAGIC */
  const char* name;            /* as in the manifest; static, as every string here */
  const char* version;         /* of the plugin */
  const char* vendor;
  /* The interface "device/1", "kernel/1", "collective/1", "memory_ext/1" …, or NULL. The struct is static and starts with sy_header. */
  const void* (*interface)(const char* name);
} sy_plugin;

#if defined(_WIN32)
#define SY_EXPORT __declspec(dllexport)
#else
#define SY_EXPORT __attribute__((visibility("default")))
#endif

typedef sy_status (*sy_plugin_query_fn)(const sy_host* host, sy_plugin* plugin, sy_error* error);
/* Must not touch hardware: count and open do. */
SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error);

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_PLUGIN_H_ */
