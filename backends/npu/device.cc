#include "backends/npu/device.h"

#include <cstdio>
#include <memory>

#include "backends/npu/timeline.h"
#include "core/abi/boundary.h"

namespace switchyard {
namespace {

constexpr double kStaticLossScale = 1024;  // of fp16 training, which has no dynamic scaling here

// How many devices there are; an error where there is a runtime but no driver.
sy_status CountOf(const Runtime& acl, uint32_t* count, sy_error* error) {
  *count = 0;
  const aclError code = acl.aclrtGetDeviceCount(count);
  if (code == ACL_ERROR_RT_NO_DEVICE) return SY_OK;
  return CheckAcl(error, code, "aclrtGetDeviceCount");
}

// A runtime without a driver is no device, too.
sy_status CountDevices(sy_instance* instance, int32_t* count, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    *count = 0;
    const Runtime* acl = FindRuntime(*instance, error);
    uint32_t found = 0;
    if (acl == nullptr || CountOf(*acl, &found, error) != SY_OK) return SY_UNSUPPORTED;
    if (found == 0)
      return Refuse(error, SY_UNSUPPORTED, "the NPU runtime finds no device: npu-smi info should list one");
    *count = static_cast<int32_t>(found);
    return SY_OK;
  });
}

sy_status CheckIndex(const Runtime& acl, int32_t index, sy_error* error) {
  uint32_t count = 0;
  if (const sy_status status = CountOf(acl, &count, error); status != SY_OK) return status;
  if (index >= 0 && static_cast<uint32_t>(index) < count) return SY_OK;
  return SY_FAIL(error, SY_INVALID, "no NPU %d: there are %u", index, count);
}

sy_status OpenDevice(sy_instance* instance, int32_t index, const sy_open_options* given, sy_device** result,
                     sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
    const Runtime* acl = FindRuntime(*instance, error);
    if (acl == nullptr) return SY_INVALID;
    if (const sy_status status = CheckIndex(*acl, index, error); status != SY_OK) return status;
    auto device = std::make_unique<sy_device>();
    device->acl = acl;
    device->index = index;
    device->deterministic = given != nullptr && ReadStruct(given).deterministic != 0;
    if (const sy_status status = CheckAcl(error, acl->aclrtSetDevice(index), "aclrtSetDevice"); status != SY_OK)
      return status;
    sy_status status = CheckAcl(error, acl->aclrtGetCurrentContext(&device->context), "aclrtGetCurrentContext");
    if (status == SY_OK) {
      status = CheckAcl(error, acl->aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, device->deterministic ? 1 : 0),
                        "aclrtCtxSetSysParamOpt");
    }
    if (status == SY_OK) {
      *result = device.release();
    } else {
      acl->aclrtResetDevice(index);
    }
    return status;
  });
}

void CloseDevice(sy_device* device) {
  if (device->Enter(nullptr) == SY_OK) {
    device->signals.reset();
    for (const auto& [bytes, address] : device->constants) device->acl->aclrtFree(address);
    device->acl->aclrtResetDevice(device->index);  // aclrtSetDevice of open is counted, and so is this
  }
  delete device;
}

// Memory of the device, which the runtime tells only about the current one.
sy_status Memory(const Runtime& acl, int32_t index, size_t* free, size_t* total, sy_error* error) {
  if (const sy_status status = CheckAcl(error, acl.aclrtSetDevice(index), "aclrtSetDevice"); status != SY_OK)
    return status;
  aclError code = acl.aclrtGetMemInfo(ACL_HBM_MEM, free, total);
  if (code != ACL_SUCCESS || *total == 0) code = acl.aclrtGetMemInfo(ACL_DDR_MEM, free, total);  // without HBM
  const sy_status status = CheckAcl(error, code, "aclrtGetMemInfo");
  acl.aclrtResetDevice(index);
  return status;
}

sy_status QueryDevice(sy_instance* instance, int32_t index, sy_device_info* info, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    const Runtime* acl = FindRuntime(*instance, error);
    if (acl == nullptr) return SY_INVALID;
    if (const sy_status status = CheckIndex(*acl, index, error); status != SY_OK) return status;
    size_t free = 0, total = 0;
    if (const sy_status status = Memory(*acl, index, &free, &total, error); status != SY_OK) return status;
    const char* soc = acl->aclrtGetSocName();
    sy_device_info filled{};
    std::snprintf(filled.name, sizeof filled.name, "%s %d", soc ? soc : "NPU", index);
    int32_t physical = index;  // differs where ASCEND_RT_VISIBLE_DEVICES shows this process a part of the devices
    if (acl->aclrtGetPhyDevIdByUserDevId != nullptr) acl->aclrtGetPhyDevIdByUserDevId(index, &physical);
    std::snprintf(reinterpret_cast<char*>(filled.uuid), sizeof filled.uuid, "npu %d", physical);
    filled.memory_bytes = total;
    filled.free_bytes = free;
    filled.alignment = kAlignment;
    filled.address_kind = SY_ADDRESS_OPAQUE;
    filled.flags = SY_DEVICE_ASYNC | SY_DEVICE_ADJACENT_IDS;
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16, SY_I32, SY_U8}) filled.dtypes |= uint64_t{1} << dtype;
    std::snprintf(filled.memory_kind, sizeof filled.memory_kind, "%s", kMemoryKind);
    filled.static_loss_scale = kStaticLossScale;
    if (!acl->libraries.empty()) filled.libraries = acl->libraries.c_str();
    FillStruct(info, filled);
    return SY_OK;
  });
}

}  // namespace

const sy_device_v2 kNpuDevice = {.header = SY_HEADER(sy_device_v2),
                                 .count = CountDevices,
                                 .open = OpenDevice,
                                 .close = CloseDevice,
                                 .query = QueryDevice,
                                 .alloc = Allocate,
                                 .free = Free,
                                 .copy = Copy,
                                 .synchronize = Synchronize,
                                 .stream_create = CreateStream,
                                 .stream_destroy = DestroyStream,
                                 .event_create = CreateEvent,
                                 .event_destroy = DestroyEvent,
                                 .event_record = RecordEvent,
                                 .event_query = QueryEvent,
                                 .event_synchronize = SynchronizeEvent,
                                 .stream_wait = WaitForEvent,
                                 .fill = Fill};

}  // namespace switchyard

sy_device::sy_device() : signals(std::make_unique<switchyard::Signals>(*this)) {}
sy_device::~sy_device() = default;

sy_status sy_device::Enter(sy_error* error) const {
  return switchyard::CheckAcl(error, acl->aclrtSetCurrentContext(context), "aclrtSetCurrentContext");
}

sy_status sy_device::Constant(const std::string& bytes, void** address, sy_error* error) {
  using switchyard::CheckAcl;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = constants.emplace(bytes, nullptr);
  if (fresh) {
    void* made = nullptr;
    sy_status status = CheckAcl(error, acl->aclrtMalloc(&made, bytes.size(), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
    if (status == SY_OK) {
      status =
          CheckAcl(error, acl->aclrtMemcpy(made, bytes.size(), bytes.data(), bytes.size(), ACL_MEMCPY_HOST_TO_DEVICE),
                   "aclrtMemcpy");
      if (status != SY_OK) acl->aclrtFree(made);
    }
    if (status != SY_OK) {
      constants.erase(found);
      return status;
    }
    found->second = made;
  }
  *address = found->second;
  return SY_OK;
}
