// Devices: what there is, opening and closing. Asking needs no context: count and query leave no memory on a GPU.
#include "backends/cuda/device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "backends/cuda/blas.h"
#include "backends/cuda/cudnn.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/profiler.h"
#include "backends/cuda/stream.h"

sy_device::sy_device() = default;
sy_device::~sy_device() = default;

namespace switchyard {
namespace {

constexpr int kLeastCapability = 80;  // bf16 arithmetic, and what the kernels are compiled for

std::mutex opened_mutex;
std::vector<int32_t> opened;  // ordinals, once per open device; guarded by opened_mutex

sy_status Attribute(int32_t index, cudaDeviceAttr attribute, int* value, sy_error* error) {
  SY_CUDA(error, cudaDeviceGetAttribute(value, attribute, index));
  return SY_OK;
}

sy_status Capability(int32_t index, int* capability, sy_error* error) {
  int major = 0, minor = 0;
  SY_TRY(Attribute(index, cudaDevAttrComputeCapabilityMajor, &major, error));
  SY_TRY(Attribute(index, cudaDevAttrComputeCapabilityMinor, &minor, error));
  *capability = 10 * major + minor;
  return SY_OK;
}

// How many devices CUDA has; 0 with the reason in `error`.
int32_t DeviceCount(sy_error* error) {
  int count = 0, driver = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
  if (driver == 0 || code == cudaErrorStubLibrary) {
    SY_FAIL(error, SY_UNSUPPORTED, "no CUDA driver");
  } else if (code == cudaErrorInsufficientDriver) {
    SY_FAIL(error, SY_UNSUPPORTED, "the CUDA driver knows CUDA %d.%d, this plugin needs %d.%d: update the driver",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  } else if (code == cudaSuccess || code == cudaErrorNoDevice) {
    SY_FAIL(error, SY_UNSUPPORTED, "the CUDA driver has no device (is CUDA_VISIBLE_DEVICES set?)");
  } else {
    SY_FAIL(error, SY_UNSUPPORTED, "the CUDA driver refuses: %s: %s", cudaGetErrorName(code), cudaGetErrorString(code));
  }
  return 0;
}

sy_status Count(sy_instance*, int32_t* count, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    *count = 0;
    sy_error reason{SY_HEADER(sy_error)};
    const int32_t all = DeviceCount(&reason);
    if (all == 0) return Refuse(error, SY_UNSUPPORTED, reason.message);
    for (int32_t index = 0; index < all; ++index) {
      int capability = 0;
      if (Capability(index, &capability, nullptr) == SY_OK && capability >= kLeastCapability) *count = all;
    }
    if (*count > 0) return SY_OK;
    return SY_FAIL(error, SY_UNSUPPORTED, "none of %d CUDA devices has compute capability %d.%d", all,
                   kLeastCapability / 10, kLeastCapability % 10);
  });
}

sy_status CheckIndex(int32_t index, sy_error* error) {
  sy_error reason{SY_HEADER(sy_error)};
  const int32_t count = DeviceCount(&reason);
  if (index >= 0 && index < count) return SY_OK;
  return SY_FAIL(error, SY_INVALID, "cuda: device %d of %d%s%s", index, count, reason.message[0] ? ": " : "",
                 reason.message);
}

bool IsOpen(int32_t index) {
  const std::lock_guard lock(opened_mutex);
  return std::find(opened.begin(), opened.end(), index) != opened.end();
}

// "12.8" of 12080, as CUDA counts.
std::string CudaVersion(int version) { return Format("%d.%d", version / 1000, version % 1000 / 10); }

// What was bound, each in the version that it gives itself.
std::string BoundLibraries() {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess)
    cudaGetLastError();
  std::string text = "CUDA driver " + CudaVersion(driver) + ", runtime " + CudaVersion(runtime);
  const auto add = [&](const char* name, size_t version, size_t major) {  // of 120804, with major = 10000, "12.8.4"
    text += Format(", %s %zu.%zu.%zu", name, version / major, version % major / 100, version % 100);
  };
  if (BlasLibrary().reason.empty()) add("cuBLASLt", BlasLibrary().cublasLtGetVersion(), 10000);
  if (CudnnLibrary().reason.empty()) add("cuDNN", CudnnLibrary().cudnnGetVersion(), 10000);
  return text;
}

sy_status Query(sy_instance*, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  SY_TRY(CheckIndex(index, error));
  cudaDeviceProp properties{};
  SY_CUDA(error, cudaGetDeviceProperties(&properties, index));
  int mode = cudaComputeModeDefault;
  SY_TRY(Attribute(index, cudaDevAttrComputeMode, &mode, error));
  sy_device_info filled{};
  std::snprintf(filled.name, sizeof filled.name, "%.127s", properties.name);
  static_assert(sizeof filled.uuid == sizeof properties.uuid);
  std::memcpy(filled.uuid, &properties.uuid, sizeof filled.uuid);
  filled.memory_bytes = properties.totalGlobalMem;
  if (IsOpen(index)) {  // otherwise asking would create a context
    SY_TRY(Enter(index, error));
    size_t available = 0, total = 0;
    SY_CUDA(error, cudaMemGetInfo(&available, &total));
    filled.free_bytes = available;
  }
  filled.alignment = 256;
  filled.address_kind = SY_ADDRESS_OPAQUE;
  filled.flags = SY_DEVICE_ASYNC | SY_DEVICE_CAPTURES_STREAMS;
  if (mode == cudaComputeModeDefault) filled.flags |= SY_DEVICE_SHAREABLE;
  filled.dtypes = 1u << SY_F32 | 1u << SY_BF16 | 1u << SY_F16 | 1u << SY_I32;
  std::snprintf(filled.memory_kind, sizeof filled.memory_kind, "%s", kMemoryKind);
  static const auto& libraries = *new std::string(BoundLibraries());
  filled.libraries = libraries.c_str();
  FillStruct(info, filled);
  return SY_OK;
}

// Copies between two devices that this process has opened go directly where the hardware can; elsewhere CUDA copies
// through the host. So what hinders it, such as more peers than a device may have (eight, without NVSwitch), is told
// once and is no error, unless a device is lost.
sy_status EnablePeers(const sy_instance& instance, int32_t index, sy_error* error) {
  std::vector<int32_t> peers;
  {
    const std::lock_guard lock(opened_mutex);
    peers = opened;
  }
  sy_error reason{SY_HEADER(sy_error)};
  const auto enable = [&](int32_t from, int32_t to) -> sy_status {
    int possible = 0;
    SY_CUDA(&reason, cudaDeviceCanAccessPeer(&possible, from, to));
    if (!possible) return SY_OK;
    SY_TRY(Enter(from, &reason));
    const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
    if (code != cudaSuccess && code != cudaErrorPeerAccessAlreadyEnabled)
      return CudaFailed(&reason, code, "cudaDeviceEnablePeerAccess");
    cudaGetLastError();  // of what was enabled already
    return SY_OK;
  };
  for (const int32_t peer : peers) {
    if (peer == index) continue;
    for (const auto& [from, to] : {std::pair(index, peer), std::pair(peer, index)}) {
      if (enable(from, to) == SY_OK) continue;
      SY_TRY(FirstLoss(from, error));
      static std::atomic<bool> warned{false};
      if (!warned.exchange(true))
        instance.Log(2, Format("cuda: copies from device %d to device %d, and perhaps between others, go through the "
                               "host: %.300s",
                               from, to, reason.message));
    }
  }
  return SY_OK;
}

void Close(sy_device* device) {
  if (device == nullptr) return;
  const bool usable = Enter(device->index, nullptr) == SY_OK;
  device->cudnn.reset();  // its handle keeps the last stream that it was given
  for (const cudaStream_t stream : {device->own.stream, device->loading.stream})
    if (usable && stream != nullptr) LogFailure(*device, cudaStreamDestroy(stream), "cudaStreamDestroy");
  {
    const std::lock_guard lock(opened_mutex);
    const auto found = std::find(opened.begin(), opened.end(), device->index);
    if (found != opened.end()) opened.erase(found);
  }
  delete device;
}

sy_status OpenIndex(const sy_instance& instance, int32_t index, const sy_open_options& options, sy_device** device,
                    sy_error* error) {
  SY_TRY(CheckIndex(index, error));
  int capability = 0;
  SY_TRY(Capability(index, &capability, error));
  if (capability < kLeastCapability)
    return SY_FAIL(error, SY_UNSUPPORTED, "cuda: device %d has compute capability %d.%d, expected %d.%d or more", index,
                   capability / 10, capability % 10, kLeastCapability / 10, kLeastCapability % 10);
  SY_TRY(Enter(index, error));
  SY_CUDA(error, cudaSetDevice(index));  // makes the context now, also where the device was current
  std::unique_ptr<sy_device, void (*)(sy_device*)> made(new sy_device, Close);
  made->instance = &instance;
  made->index = index;
  {
    const std::lock_guard lock(opened_mutex);
    opened.push_back(index);
  }
  made->deterministic = options.deterministic;
  made->tf32 = instance.NumberSetting("CUDA_TF32", 0) == 1;
  SY_TRY(Attribute(index, cudaDevAttrMultiProcessorCount, &made->sm_count, error));
  SY_CUDA(error, cudaStreamCreateWithPriority(&made->own.stream, cudaStreamNonBlocking, 0));
  SY_CUDA(error, cudaStreamCreateWithPriority(&made->loading.stream, cudaStreamNonBlocking, 0));
  made->profiler = std::make_unique<Profiler>(*made);
  std::string reason;
  made->blas = Blas::Open(*made, &reason);
  if (made->blas == nullptr) made->missing = reason;
  made->cudnn = Cudnn::Open(*made, &reason);
  if (made->cudnn == nullptr) made->missing += (made->missing.empty() ? "" : "; ") + reason;
  if (!made->missing.empty()) instance.Log(2, "cuda: " + made->missing);
  SY_TRY(EnablePeers(instance, index, error));
  SY_TRY(Enter(index, error));
  *device = made.release();
  return SY_OK;
}

sy_status Open(sy_instance* instance, int32_t index, const sy_open_options* options, sy_device** device,
               sy_error* error) {
  *device = nullptr;
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  const sy_open_options given = options != nullptr ? ReadStruct(options) : sy_open_options{};
  return Guarded(error, [&] { return OpenIndex(*instance, index, given, device, error); });
}

sy_status Synchronize(sy_device* device, sy_stream* stream, const sy_synchronize_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  SY_TRY(Enter(device->index, error));
  if (stream != nullptr) {
    SY_CUDA(error, cudaStreamSynchronize(stream->stream));
  } else {
    return Guarded(error, [&] { return SynchronizeStreams(device, error); });
  }
  return SY_OK;
}

}  // namespace

void LogFailure(const sy_device& device, cudaError_t code, const char* call) {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  sy_error error{SY_HEADER(sy_error)};
  CudaFailed(&error, code, call);
  device.instance->Log(2, std::string("cuda: ") + error.message);
}

const sy_device_v2 kCudaDevice = {.header = SY_HEADER(sy_device_v2),
                                  .count = Count,
                                  .open = Open,
                                  .close = Close,
                                  .query = Query,
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
