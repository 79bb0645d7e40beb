/* A kernel that does nothing, in a shared library of its own: what a plugin call costs and no more. */
#include "core/abi/kernel.h"
#include "core/abi/plugin.h"

SY_EXPORT sy_status switchyard_noop_launch(sy_bound* bound, sy_stream* stream, sy_error* error) {
  (void)bound;
  (void)stream;
  (void)error;
  return SY_OK;
}
