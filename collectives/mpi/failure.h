// Filling an sy_error: the only way in which this plugin reports anything.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "core/abi/base.h"

namespace mpi {

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

// SY_OK, or SY_INTERNAL with MPI's own text for `code`.
sy_status FromMpi(const char* location, sy_error* error, int code, const char* what);

}  // namespace mpi

#define SY_MPI_TEXT_INNER(x) #x
#define SY_MPI_TEXT(x) SY_MPI_TEXT_INNER(x)
// return SY_MPI_FAIL(error, SY_INVALID, "expected %d", 1);
#define SY_MPI_FAIL(error, status, ...) \
  ::mpi::FailAt("collectives/mpi:" SY_MPI_TEXT(__LINE__), error, status, __VA_ARGS__)
// return SY_MPI_CHECK(error, MPI_Iallreduce(...), "all_reduce"): the code and text of MPI where it failed.
#define SY_MPI_CHECK(error, call, what) ::mpi::FromMpi("collectives/mpi:" SY_MPI_TEXT(__LINE__), error, call, what)
