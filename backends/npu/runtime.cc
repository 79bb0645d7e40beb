#include "backends/npu/runtime.h"

#include <dlfcn.h>

#include <string>
#include <vector>

namespace switchyard {

namespace {

// Where the documented symbols live: the runtime, tensors and executors, the operators. Later toolkits split the
// operators.
constexpr const char* kLibraries[] = {"libascendcl.so", "libnnopbase.so", "libopapi.so", "libopapi_math.so",
                                      "libopapi_nn.so"};

struct Loaded {
  Runtime runtime;
  Operators operators;
  bool usable = false;
  std::string problem;  // why not
  std::vector<void*> handles;

  explicit Loaded(const char* path) {
    if (!(path != nullptr && *path != '\0' ? Open(path) : OpenDefaults()) || !Resolve()) return;
    // Another part of the process may have been first.
    const aclError code = runtime.aclInit(nullptr);
    usable = code == ACL_SUCCESS || code == ACL_ERROR_REPEAT_INITIALIZE;
    if (usable) runtime.libraries = Versions();
    if (!usable) problem = Text("aclInit answers ", code, ": is the driver loaded? (npu-smi info)");
  }

  // In what version the toolkit and its interface are, where the runtime tells; else where the runtime lies.
  std::string Versions() const {
    std::string text;
    aclCANNPackageVersion package{};
    if (runtime.aclsysGetCANNVersion != nullptr &&
        runtime.aclsysGetCANNVersion(ACL_PKG_NAME_CANN, &package) == ACL_SUCCESS)
      text = Format("CANN %.127s", package.version);
    int32_t major = 0, minor = 0, patch = 0;
    if (runtime.aclrtGetVersion != nullptr && runtime.aclrtGetVersion(&major, &minor, &patch) == ACL_SUCCESS)
      text += Format("%sAscendCL %d.%d.%d", text.empty() ? "" : ", ", major, minor, patch);
    Dl_info place{};
    if (text.empty() && dladdr(reinterpret_cast<const void*>(runtime.aclInit), &place) != 0) text = place.dli_fname;
    return text;
  }

  bool Open(const char* name) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      problem = Text("no NPU runtime: ", dlerror());
      return false;
    }
    handles.push_back(handle);
    return true;
  }

  bool OpenDefaults() {
    if (!Open(kLibraries[0])) {
      problem += "; source the toolkit's set_env.sh, or name a library in SWITCHYARD_NPU_RUNTIME";
      return false;
    }
    for (size_t i = 1; i < std::size(kLibraries); ++i) {
      if (void* handle = dlopen(kLibraries[i], RTLD_NOW | RTLD_LOCAL)) handles.push_back(handle);
    }
    return true;
  }

  void* Symbol(const char* name) const {
    for (void* handle : handles) {
      if (void* address = dlsym(handle, name)) return address;
    }
    return nullptr;
  }

  template <typename Function>
  void Require(Function& pointer, const char* name) {
    pointer = reinterpret_cast<Function>(Symbol(name));
    if (pointer == nullptr && problem.empty()) problem = Text("the NPU runtime has no symbol ", name);
  }

  // Functions are needed, operators are optional: what needs a missing one is unsupported.
  bool Resolve() {
#define NPU_RESOLVE(result, name, ...) Require(runtime.name, #name);
    NPU_RUNTIME_FUNCTIONS(NPU_RESOLVE)
#undef NPU_RESOLVE
#define NPU_RESOLVE(result, name, ...) runtime.name = reinterpret_cast<decltype(runtime.name)>(Symbol(#name));
    NPU_OPTIONAL_FUNCTIONS(NPU_RESOLVE)
#undef NPU_RESOLVE
#define NPU_RESOLVE(name, ...)                                                                                     \
  operators.name.plan = reinterpret_cast<decltype(operators.name.plan)>(Symbol("aclnn" #name "GetWorkspaceSize")); \
  operators.name.run = reinterpret_cast<RunFunction>(Symbol("aclnn" #name));
    NPU_OPERATORS(NPU_RESOLVE)
#undef NPU_RESOLVE
    return problem.empty();
  }
};

// Never destroyed: the runtime's own threads outlive our statics.
// The path of a library counts at the first call, which FindRuntime makes.
const Loaded& TheRuntime(const char* path = nullptr) {
  static const Loaded& loaded = *new Loaded(path);
  return loaded;
}

sy_status ClassOf(aclError code) {
  switch (code) {
    case ACL_SUCCESS:
      return SY_OK;
    case ACL_ERROR_RT_MEMORY_ALLOCATION:
    case ACL_ERROR_RT_RESOURCE_ALLOC_FAIL:
    case ACL_ERROR_RT_DEVICE_OOM:
      return SY_OUT_OF_MEMORY;
    case ACL_ERROR_RT_PARAM_INVALID:
    case ACL_ERROR_RT_INVALID_DEVICEID:
      return SY_INVALID;
    case ACL_ERROR_RT_NO_DEVICE:
    case ACL_ERROR_RT_LOST_HEARTBEAT:
    case ACL_ERROR_RT_DEVICE_TASK_ABORT:
      return SY_DEVICE_LOST;
    case ACL_ERROR_RT_WAIT_TIMEOUT:
      return SY_TIMEOUT;
    case ACL_ERROR_RT_FEATURE_NOT_SUPPORT:
      return SY_UNSUPPORTED;
    default:
      return SY_INTERNAL;
  }
}

}  // namespace

const Runtime* FindRuntime(const sy_instance& instance, sy_error* error) {
  const Loaded& loaded = TheRuntime(instance.Setting("NPU_RUNTIME"));
  if (loaded.usable) return &loaded.runtime;
  Refuse(error, SY_UNSUPPORTED, loaded.problem);
  return nullptr;
}

const Operators& AllOperators() { return TheRuntime().operators; }

sy_status CheckAcl(sy_error* error, aclError code, const char* call, std::source_location where) {
  if (code == ACL_SUCCESS) return SY_OK;
  const char* words = TheRuntime().runtime.aclGetRecentErrMsg();
  const sy_status status =
      Refuse(error, ClassOf(code),
             Text(call, " failed with AscendCL error ", code, words ? ": " : "", words ? words : ""), where);
  if (error != nullptr && SY_HAS(sy_error, error, native_code)) error->native_code = code;
  return status;
}

}  // namespace switchyard
