#include "collectives/hccl/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace hccl {
namespace {

using switchyard::Format;

struct Loaded {
  Library library;
  std::string problem;  // why it cannot be used; empty: it can

  explicit Loaded(const char* chosen) {
    const bool given = chosen != nullptr && *chosen != '\0';
    void* const hccl = Open(given ? chosen : "libhccl.so");
    void* const runtime = given ? hccl : Open("libascendcl.so");
    if (!problem.empty()) return;
#define HCCL_BIND(result, name, ...) Bind(hccl, #name, library.name, true);
    HCCL_FUNCTIONS(HCCL_BIND)
#undef HCCL_BIND
#define HCCL_BIND(result, name, ...) Bind(runtime, #name, library.name, true);
    HCCL_RUNTIME_FUNCTIONS(HCCL_BIND)
#undef HCCL_BIND
#define HCCL_BIND(result, name, ...) Bind(runtime, #name, library.name, false);
    HCCL_OPTIONAL_FUNCTIONS(HCCL_BIND)
#undef HCCL_BIND
    Dl_info found{};
    std::error_code error;
    if (!problem.empty() || dladdr(reinterpret_cast<const void*>(library.HcclAllReduce), &found) == 0) return;
    const auto path = std::filesystem::canonical(found.dli_fname, error);
    library.place = "HCCL at " + (error ? std::string(found.dli_fname) : path.string());
  }

  void* Open(const char* name) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr && problem.empty()) {
      const char* const reason = dlerror();
      problem = Format("%s; source the toolkit's set_env.sh, or name a library in SWITCHYARD_NPU_RUNTIME",
                       reason ? reason : name);
    }
    return handle;
  }

  template <typename Function>
  void Bind(void* handle, const char* name, Function& function, bool needed) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr && needed && problem.empty()) problem = Format("the library lacks %s", name);
  }
};

// What was chosen counts at the first call, which FindLibrary makes.
const Loaded& TheLoaded(const char* chosen = nullptr) {
  static const Loaded loaded(chosen);
  return loaded;
}

sy_status ClassOf(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS:
      return SY_OK;
    case HCCL_E_PARA:
    case HCCL_E_PTR:
      return SY_INVALID;
    case HCCL_E_MEMORY:
      return SY_OUT_OF_MEMORY;
    case HCCL_E_NOT_SUPPORT:
      return SY_UNSUPPORTED;
    case HCCL_E_TIMEOUT:
      return SY_TIMEOUT;
    case HCCL_E_REMOTE:
      return SY_ABORTED;
    default:
      return SY_INTERNAL;
  }
}

sy_status Report(sy_error* error, sy_status status, int code, const char* what, const char* text,
                 std::source_location where) {
  const char* const detail = TheLibrary().aclGetRecentErrMsg();
  switchyard::Refuse(error, status,
                     Format("%s: %s (%d)%s%s", what, text, code, detail && *detail ? "; " : "", detail ? detail : ""),
                     where);
  if (error != nullptr && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return status;
}

}  // namespace

const Library* FindLibrary(const sy_instance& instance, sy_error* error) {
  const Loaded& loaded = TheLoaded(instance.Setting("NPU_RUNTIME"));
  if (loaded.problem.empty()) return &loaded.library;
  switchyard::Refuse(error, SY_UNSUPPORTED, "no HCCL: " + loaded.problem);
  return nullptr;
}

const Library& TheLibrary() { return TheLoaded().library; }

sy_status CheckHccl(sy_error* error, HcclResult code, const char* what, std::source_location where) {
  if (code == HCCL_SUCCESS) return SY_OK;
  const char* const text = TheLibrary().HcclGetErrorString(code);
  return Report(error, ClassOf(code), code, what, text ? text : "failed", where);
}

sy_status CheckAcl(sy_error* error, int code, const char* what, std::source_location where) {
  constexpr int kMemoryAllocation = 207001, kDeviceOutOfMemory = 207018;  // aclError
  if (code == 0) return SY_OK;
  const bool exhausted = code == kMemoryAllocation || code == kDeviceOutOfMemory;
  return Report(error, exhausted ? SY_OUT_OF_MEMORY : SY_INTERNAL, code, what, "failed", where);
}

}  // namespace hccl
