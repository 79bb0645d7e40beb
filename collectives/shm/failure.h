// Filling an sy_error: the only way in which this plugin reports anything.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "core/abi/base.h"

namespace shm {

__attribute__((format(printf, 4, 5))) inline sy_status FailAt(const char* location, sy_error* error, sy_status status,
                                                              const char* format, ...) {
  if (error == nullptr) return status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  error->native_code = 0;
  snprintf(error->location, sizeof error->location, "%s", location);
  return status;
}

}  // namespace shm

#define SHM_TEXT_INNER(x) #x
#define SHM_TEXT(x) SHM_TEXT_INNER(x)
// return SHM_FAIL(error, SY_INVALID, "expected %d", 1);
#define SHM_FAIL(error, status, ...) ::shm::FailAt("collectives/shm:" SHM_TEXT(__LINE__), error, status, __VA_ARGS__)
