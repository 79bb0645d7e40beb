// HCCL and the vendor's runtime, found at run time: in the library that SWITCHYARD_NPU_RUNTIME names, else in
// libhccl.so and libascendcl.so. The plugin loads where they are missing and says so. Thread-safe: found once, constant
// afterwards.
#pragma once

#include <source_location>
#include <string>

#include "collectives/hccl/hccl_api.h"
#include "core/abi/boundary.h"

namespace hccl {

struct Library {
#define HCCL_POINTER(result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
  HCCL_FUNCTIONS(HCCL_POINTER)
  HCCL_RUNTIME_FUNCTIONS(HCCL_POINTER)
  HCCL_OPTIONAL_FUNCTIONS(HCCL_POINTER)
#undef HCCL_POINTER
  std::string place;  // HCCL answers no version: the file that was bound, whose folder tells it
};

// Looks at the first call, as the settings of that instance say: a process has one HCCL, whatever later instances ask
// for. nullptr where a library is missing or incomplete; `error` then says which.
const Library* FindLibrary(const sy_instance& instance, sy_error* error);
// After FindLibrary succeeded.
const Library& TheLibrary();

// SY_OK, or the status class of the code, with the code and the vendor's words. `what` is the call.
sy_status CheckHccl(sy_error* error, HcclResult code, const char* what,
                    std::source_location where = std::source_location::current());
sy_status CheckAcl(sy_error* error, int code, const char* what,
                   std::source_location where = std::source_location::current());

}  // namespace hccl
