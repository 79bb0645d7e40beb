// A device of host memory whose only kernels are those of an op that Switchyard has never heard of
// (sdk/squareplus.h): forward and backward. Every other op runs on the reference plugin. At the end of the process it
// says how often each was launched.
#include "core/abi/device.h"

#include <atomic>
#include <cmath>
#include <cstdio>

#include "core/abi/op_request.h"
#include "core/abi/plugin.h"
#include "squareplus.h"

using namespace switchyard;

struct sy_device {};
struct sy_buffer {
  char* address;
  uint64_t bytes;
};
struct sy_kernel {
  bool backward;
  int64_t elements;
  float b;
};
struct sy_bound {
  sy_kernel kernel;
  const float *x, *dy;
  float* out;
};

namespace {

constexpr uint64_t kMemory = uint64_t{1} << 30, kAlignment = 64;
std::atomic<int> launches[2];

struct AtExit {
  ~AtExit() {
    if (launches[0] + launches[1] > 0)
      std::printf("example plugin: %d launches of example_squareplus, %d of its gradient\n", launches[0].load(),
                  launches[1].load());
  }
} at_exit;

sy_status Count(sy_instance*, int32_t* count, sy_error*) {
  *count = 1;
  return SY_OK;
}

sy_status Query(sy_instance*, int32_t index, sy_device_info* info, sy_error* error) {
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  if (index != 0) return SY_FAIL(error, SY_INVALID, "no device %d of 1", index);
  sy_device_info filled{};
  std::snprintf(filled.name, sizeof filled.name, "example device");
  std::memcpy(filled.uuid, "example device", 14);
  filled.memory_bytes = filled.free_bytes = kMemory;
  filled.alignment = kAlignment;
  filled.address_kind = SY_ADDRESS_OPAQUE;
  filled.flags = SY_DEVICE_SHAREABLE;
  filled.dtypes = 1u << SY_F32;
  FillStruct(info, filled);
  return SY_OK;
}

sy_status Open(sy_instance*, int32_t index, const sy_open_options* options, sy_device** device, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (index != 0) return SY_FAIL(error, SY_INVALID, "no device %d of 1", index);
  return Guarded(error, [&] {
    *device = new sy_device;
    return SY_OK;
  });
}
void Close(sy_device* device) { delete device; }

sy_status Allocate(sy_device*, uint64_t bytes, const sy_alloc_options* options, sy_buffer** buffer, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  if (bytes == 0) return SY_FAIL(error, SY_INVALID, "alloc: expected at least 1 byte");
  void* memory = nullptr;
  if (bytes > kMemory || posix_memalign(&memory, kAlignment, bytes) != 0)
    return SY_FAIL(error, SY_OUT_OF_MEMORY, "alloc of %llu bytes", static_cast<unsigned long long>(bytes));
  return Guarded(error, [&] {
    *buffer = new sy_buffer{static_cast<char*>(memory), bytes};
    return SY_OK;
  });
}
void Free(sy_device*, sy_buffer* buffer) {
  if (buffer != nullptr) std::free(buffer->address);
  delete buffer;
}

// nullptr where `bytes` do not lie inside the buffer.
char* Resolve(const sy_place& place, uint64_t bytes) {
  if (place.buffer == nullptr) return static_cast<char*>(place.host);
  const bool inside = place.offset <= place.buffer->bytes && bytes <= place.buffer->bytes - place.offset;
  return inside ? place.buffer->address + place.offset : nullptr;
}

sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes,
               const sy_copy_options* options, sy_error* error) {
  if (!KnowsExtensions(options, error)) return SY_UNSUPPORTED;
  char *to = Resolve(destination, bytes), *from = Resolve(source, bytes);
  if (to == nullptr || from == nullptr) return SY_FAIL(error, SY_INVALID, "copy: a side does not lie in its buffer");
  std::memmove(to, from, bytes);
  return SY_OK;
}
sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options* options, sy_error* error) {
  return KnowsExtensions(options, error) ? SY_OK : SY_UNSUPPORTED;
}

sy_status Prepare(sy_device*, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    const sy_prepare_request request = ReadStruct(given);
    const bool backward = std::strcmp(request.op, "example_squareplus_backward") == 0;
    if (!backward && std::strcmp(request.op, "example_squareplus") != 0)
      return SY_FAIL(error, SY_UNSUPPORTED, "%s: no kernel for it", request.op);
    OpRequest r;
    const char* op = backward ? "example_squareplus_backward" : "example_squareplus";
    if (const sy_status status = ReadOpRequest(request, op, sizeof(example_squareplus_attributes), &r, error);
        status != SY_OK)
      return status;
    if (r.determinism > SY_DETERMINISM_EXACT)
      return SY_FAIL(error, SY_UNSUPPORTED, "%s: determinism class %u", op, r.determinism);
    const size_t operands = backward ? 2 : 1;
    if (!r.HasCounts(operands, operands, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation())
      return SY_UNSUPPORTED;
    for (const auto* tensors : {&r.inputs, &r.outputs}) {
      for (const sy_tensor& tensor : *tensors) {
        if (!r.RequireDtype(tensor, SY_F32, "an operand") || !r.RequireDimsOf(tensor, r.inputs[0], "an operand"))
          return SY_UNSUPPORTED;
      }
    }
    *kernel = new sy_kernel{backward, Elements(r.inputs[0]), r.Attributes<example_squareplus_attributes>().b};
    sy_kernel_info filled = ReadStruct(info);
    filled.determinism = SY_DETERMINISM_EXACT;
    FillStruct(info, filled);
    return SY_OK;
  });
}

sy_status Run(sy_bound* bound, sy_stream*, sy_error*) {
  const sy_kernel& kernel = bound->kernel;
  ++launches[kernel.backward];
  for (int64_t i = 0; i < kernel.elements; ++i) {
    const float x = bound->x[i], root = std::sqrt(x * x + kernel.b);
    bound->out[i] = kernel.backward ? bound->dy[i] * (1 + x / root) / 2 : (x + root) / 2;
  }
  return SY_OK;
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch,
               sy_error* error) {
  if (!KnowsExtensions(binding, error)) return SY_UNSUPPORTED;
  const uint64_t bytes = static_cast<uint64_t>(kernel->elements) * sizeof(float);
  char *x = Resolve(binding->inputs[0], bytes), *out = Resolve(binding->outputs[0], bytes);
  char* dy = kernel->backward ? Resolve(binding->inputs[1], bytes) : x;
  if (x == nullptr || dy == nullptr || out == nullptr)
    return SY_FAIL(error, SY_INVALID, "bind: an operand does not lie in its buffer");
  return Guarded(error, [&] {
    *bound =
        new sy_bound{*kernel, reinterpret_cast<float*>(x), reinterpret_cast<float*>(dy), reinterpret_cast<float*>(out)};
    *launch = Run;
    return SY_OK;
  });
}
void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete kernel; }

constexpr sy_kernel_v2 kKernels = {SY_HEADER(sy_kernel_v2), Prepare, Bind, Unbind, Release};
constexpr sy_device_v2 kDevice = {.header = SY_HEADER(sy_device_v2),
                                  .count = Count,
                                  .open = Open,
                                  .close = Close,
                                  .query = Query,
                                  .alloc = Allocate,
                                  .free = Free,
                                  .copy = Copy,
                                  .synchronize = Synchronize};

const void* GetInterface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kDevice;
  if (std::strcmp(name, "kernel/2") == 0) return &kKernels;
  return nullptr;
}

}  // namespace

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return AnswerCreate(host, plugin, error, {"example", "1", "nobody"}, GetInterface);
}
