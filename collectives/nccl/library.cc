#include "collectives/nccl/library.h"

#include <dlfcn.h>

#include <string>

namespace nccl {
namespace {

using switchyard::Format;

constexpr int kOldest = NCCL_VERSION(2, 19, 0);  // non-blocking communicators with split, and ncclMemAlloc

struct Loaded {
  Library library;
  std::string problem;  // why it cannot be used; empty: it can

  explicit Loaded(const sy_instance& instance) {
    void* const cuda = Open(Format("libcudart.so.%d", CUDART_VERSION / 1000), "install the CUDA runtime");
    const char* const chosen = instance.Setting("NCCL_LIBRARY");
    void* const nccl = Open(chosen ? chosen : Format("libnccl.so.%d", NCCL_MAJOR), "install NCCL");
    if (!problem.empty()) return;
#define NCCL_PLUGIN_BIND(name) Bind(nccl, #name, library.name, true);
    NCCL_PLUGIN_NCCL_FUNCTIONS(NCCL_PLUGIN_BIND)
#undef NCCL_PLUGIN_BIND
#define NCCL_PLUGIN_BIND(name) Bind(nccl, #name, library.name, false);
    NCCL_PLUGIN_OPTIONAL_FUNCTIONS(NCCL_PLUGIN_BIND)
#undef NCCL_PLUGIN_BIND
#define NCCL_PLUGIN_BIND(name) Bind(cuda, #name, library.name, true);
    NCCL_PLUGIN_CUDA_FUNCTIONS(NCCL_PLUGIN_BIND)
#undef NCCL_PLUGIN_BIND
    Bind(cuda, "cudaMalloc", library.cudaMalloc, true);
    int version = 0;
    if (problem.empty() && library.ncclGetVersion(&version) != ncclSuccess) problem = "ncclGetVersion failed";
    library.version = Format("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    if (problem.empty() && version < kOldest) problem = library.version + " is too old; expected 2.19 or later";
  }

  void* Open(const std::string& name, const char* remedy) {
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr && problem.empty()) {
      const char* const reason = dlerror();
      problem = Format("%s; %s, or add its folder to LD_LIBRARY_PATH", reason ? reason : name.c_str(), remedy);
    }
    return handle;
  }

  template <typename Function>
  void Bind(void* handle, const char* name, Function& function, bool needed) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr && needed && problem.empty()) problem = Format("the library lacks %s", name);
  }
};

// The first call of the process is FindLibrary's, and says whose settings are read.
const Loaded& TheLoaded(const sy_instance* first = nullptr) {
  static const Loaded loaded(*first);
  return loaded;
}

sy_status ClassOf(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
    case ncclInProgress:
      return SY_OK;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return SY_INVALID;
    case ncclRemoteError:  // "A network error or a remote process exiting prematurely"
      return SY_ABORTED;
    default:
      return SY_INTERNAL;
  }
}

}  // namespace

const Library* FindLibrary(const sy_instance& instance, sy_error* error) {
  const Loaded& loaded = TheLoaded(&instance);
  if (loaded.problem.empty()) return &loaded.library;
  switchyard::Refuse(error, SY_UNSUPPORTED, "no NCCL: " + loaded.problem);
  return nullptr;
}

const Library& TheLibrary() { return TheLoaded().library; }

sy_status CheckNccl(sy_error* error, ncclResult_t code, const char* what, ncclComm_t comm, std::source_location where) {
  const sy_status status = ClassOf(code);
  if (status == SY_OK) return SY_OK;
  const Library& library = TheLibrary();
  const char* const detail = library.ncclGetLastError(comm);
  switchyard::Refuse(
      error, status,
      Format("%s: %s%s%s", what, library.ncclGetErrorString(code), detail && *detail ? "; " : "", detail ? detail : ""),
      where);
  if (error != nullptr && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return status;
}

sy_status CheckCuda(sy_error* error, cudaError_t code, const char* what, std::source_location where) {
  if (code == cudaSuccess) return SY_OK;
  const sy_status status = code == cudaErrorMemoryAllocation ? SY_OUT_OF_MEMORY : SY_INTERNAL;
  switchyard::Refuse(error, status, Format("%s: %s", what, TheLibrary().cudaGetErrorString(code)), where);
  if (error != nullptr && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return status;
}

}  // namespace nccl
