// How the plugin says that something went wrong: a status and a text, copied into the caller's sy_error at the
// boundary.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "core/abi/base.h"

namespace switchyard {

// Fills `error`, which may be NULL or smaller than ours, and returns `status`.
__attribute__((format(printf, 5, 6))) inline sy_status Fail(sy_error* error, sy_status status, const char* file,
                                                            int line, const char* format, ...) {
  if (error == nullptr) return status;
  if (SY_HAS(sy_error, error, native_code)) error->native_code = 0;
  if (SY_HAS(sy_error, error, message)) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
  }
  if (SY_HAS(sy_error, error, location)) std::snprintf(error->location, sizeof error->location, "%s:%d", file, line);
  return status;
}

#define SY_FAIL(error, status, ...) ::switchyard::Fail(error, status, __FILE_NAME__, __LINE__, __VA_ARGS__)

}  // namespace switchyard
