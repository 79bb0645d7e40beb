// The vendor's runtime, found at run time: a table of the functions of acl.h and one of its operators. Looked for in
// SWITCHYARD_NPU_RUNTIME (the path of a library that exports all of them, itself or through what it needs), else in the
// vendor's libraries by their default names. Thread-safe: built once, constant afterwards.
#pragma once

#include <source_location>
#include <string>

#include "backends/npu/acl.h"
#include "core/abi/boundary.h"

namespace switchyard {

using RunFunction = aclnnStatus (*)(void* workspace, uint64_t workspace_size, aclOpExecutor*, aclrtStream);

// One two-phase operator. plan is aclnn<Name>GetWorkspaceSize, run is aclnn<Name>; both null where the runtime lacks
// it.
template <typename Plan>
struct Operator {
  const char* name;
  Plan plan;
  RunFunction run;
};

struct Runtime {
#define NPU_POINTER(result, name, ...) decltype(&::name) name = nullptr;
  NPU_RUNTIME_FUNCTIONS(NPU_POINTER)
  NPU_OPTIONAL_FUNCTIONS(NPU_POINTER)
#undef NPU_POINTER
  std::string libraries;  // "CANN 8.0.0, AscendCL 1.14.0", as sy_device_info has it
};

struct Operators {
#define NPU_POINTER(name, ...) \
  Operator<decltype(&::aclnn##name##GetWorkspaceSize)> name{"aclnn" #name, nullptr, nullptr};
  NPU_OPERATORS(NPU_POINTER)
#undef NPU_POINTER
};

// Loads and initialises the runtime at the first call, as the settings of that instance say: a process has one runtime,
// whatever later instances ask for, and keeps it until it ends. nullptr where it is absent or incomplete; `error` then
// says what was looked for.
const Runtime* FindRuntime(const sy_instance& instance, sy_error* error);
const Operators& AllOperators();  // after FindRuntime succeeded

// SY_OK, or the status class of an AscendCL code with the code in native_code and the runtime's own words.
sy_status CheckAcl(sy_error* error, aclError code, const char* call,
                   std::source_location where = std::source_location::current());

}  // namespace switchyard
