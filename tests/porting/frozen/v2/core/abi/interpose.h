/* interpose/2: a plugin around a plugin. An interposer sees every call between the engine and the plugin that it wraps, and may check,
 * record, delay, change or refuse it. Its manifest says kind "interposer"; it needs neither device/2 nor collective/2 of its own.
 *
 *   --interpose=validate,trace,fault:alloc@17      names, each with its argument after the first colon; the first is the outermost
 */
#ifndef SWITCHYARD_ABI_INTERPOSE_H_
#define SWITCHYARD_ABI_INTERPOSE_H_

#include "core/abi/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_interpose_v2 {
  sy_header header;
  /* Fills `outer` with a plugin of the same name that forwards to `inner`, which lives as long as the process. `argument` is what followed the
   * colon, "" where there was none. May be called for any number of plugins, one inside another; each call makes an instance of its own (outer->instance).
   * SY_INVALID where the argument makes no sense, with the grammar in the message. */
  sy_status (*wrap)(sy_instance* instance, const sy_plugin* inner, const char* argument, sy_plugin* outer, sy_error* error);
} sy_interpose_v2;

#ifdef __cplusplus
}
#endif
#endif /* SWITCHYARD_ABI_INTERPOSE_H_ */
