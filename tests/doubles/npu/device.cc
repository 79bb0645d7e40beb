// Devices, contexts and error texts.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tests/doubles/npu/simulator.h"

namespace simulator {
namespace {

constexpr int kMostDevices = 8;
// One context for each device, as aclrtSetDevice makes them; a handle is the address of its entry.
std::array<int, kMostDevices> contexts = {0, 1, 2, 3, 4, 5, 6, 7};
std::array<std::array<std::atomic<bool>, kMostDevices>, kMostDevices> may_reach{};
std::array<std::atomic<int>, kMostDevices> references{};  // aclrtSetDevice adds one, aclrtResetDevice takes one
thread_local int* current = nullptr;
thread_local std::string recent, told;

int DeviceCount() {
  return static_cast<int>(
      std::clamp<int64_t>(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_DEVICES", kMostDevices), 0, kMostDevices));
}

aclError CheckDevice(int32_t device) {
  if (device >= 0 && device < DeviceCount()) return ACL_SUCCESS;
  return Fail(ACL_ERROR_RT_INVALID_DEVICEID, "no device " + std::to_string(device));
}

}  // namespace

aclError Fail(aclError code, const std::string& text) {
  recent = text;
  return code;
}

int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 10);
}

int CurrentDevice() { return current == nullptr || references[static_cast<size_t>(*current)] == 0 ? -1 : *current; }

bool MayReach(int device, int other) { return may_reach[static_cast<size_t>(device)][static_cast<size_t>(other)]; }

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclError aclInit(const char*) {
  static bool initialised = false;
  if (initialised) return Fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
  initialised = true;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = static_cast<uint32_t>(DeviceCount());
  return *count == 0 ? Fail(ACL_ERROR_RT_NO_DEVICE, "no device") : ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtSetDevice(int32_t device) {
  if (const aclError code = CheckDevice(device); code != ACL_SUCCESS) return code;
  ++references[static_cast<size_t>(device)];
  current = &contexts[static_cast<size_t>(device)];
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtResetDevice(int32_t device) {
  if (const aclError code = CheckDevice(device); code != ACL_SUCCESS) return code;
  if (--references[static_cast<size_t>(device)] >= 0) return ACL_SUCCESS;
  ++references[static_cast<size_t>(device)];
  return Fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtResetDevice of a device that was not set");
}

NPU_EXPORT aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  *major = 1;
  *minor = static_cast<int32_t>(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_MINOR_VERSION", 0));
  *patch = 0;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  const char* const told = std::getenv("SWITCHYARD_NPU_SIMULATOR_CANN");
  if (told == nullptr) return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no toolkit is installed");
  *version = {};
  std::snprintf(version->version, sizeof version->version, "%s", told);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtGetPhyDevIdByUserDevId(const int32_t userDevId, int32_t* const phyDevId) {
  *phyDevId = userDevId;
  return CheckDevice(userDevId);
}

NPU_EXPORT aclError aclrtDeviceCanAccessPeer(int32_t* possible, int32_t device, int32_t other) {
  *possible = device != other;
  const aclError code = CheckDevice(device);
  return code != ACL_SUCCESS ? code : CheckDevice(other);
}

NPU_EXPORT aclError aclrtDeviceEnablePeerAccess(int32_t other, uint32_t flags) {
  const int device = CurrentDevice();
  if (device < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
  if (flags != 0 || other == device) return Fail(ACL_ERROR_RT_PARAM_INVALID, "another device and flags of 0");
  if (const aclError code = CheckDevice(other); code != ACL_SUCCESS) return code;
  may_reach[static_cast<size_t>(device)][static_cast<size_t>(other)] = true;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t) {
  if (CurrentDevice() < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
  return option == ACL_OPT_DETERMINISTIC ? ACL_SUCCESS : Fail(ACL_ERROR_RT_PARAM_INVALID, "unknown option");
}

NPU_EXPORT aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (CurrentDevice() < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context");
  *context = current;
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtSetCurrentContext(aclrtContext context) {
  if (context == nullptr) return Fail(ACL_ERROR_RT_PARAM_INVALID, "the context is null");
  current = static_cast<int*>(context);
  return CurrentDevice() >= 0 ? ACL_SUCCESS : Fail(ACL_ERROR_RT_CONTEXT_NULL, "the device of the context was reset");
}

NPU_EXPORT const char* aclrtGetSocName() { return "NPU simulator"; }

// Told once, as documented.
NPU_EXPORT const char* aclGetRecentErrMsg() {
  if (recent.empty()) return nullptr;
  told = std::move(recent);
  recent.clear();
  return told.c_str();
}
