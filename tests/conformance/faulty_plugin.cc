// The reference plugin with one fault planted in it: SWITCHYARD_FAULT names the fault, SWITCHYARD_FAULT_BASE the
// reference library. The kit has to find each.
#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/plugin.h"

namespace {

const sy_host* host = nullptr;
sy_plugin base{};
sy_device_v1 device_interface{};
sy_kernel_v1 kernel_interface{};
const sy_device_v1* base_device = nullptr;
const sy_kernel_v1* base_kernel = nullptr;
sy_device* opened = nullptr;

bool Fault(const char* name) {
  const char* fault = host->setting("FAULT");
  return fault != nullptr && strcmp(fault, name) == 0;
}

uint64_t BytesOf(const sy_tensor& tensor) {
  constexpr uint64_t kBytes[SY_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1};
  uint64_t bytes = kBytes[tensor.dtype];
  for (int32_t i = 0; i < tensor.rank; ++i) bytes *= static_cast<uint64_t>(tensor.dims[i]);
  return bytes;
}

uint8_t* Address(sy_place place) {
  const auto* memory = static_cast<const sy_memory_ext_v1*>(base.interface("memory_ext/1"));
  void* address = nullptr;
  int32_t kind = 0;
  memory->native_address(opened, place.buffer, &address, &kind, nullptr);
  return static_cast<uint8_t*>(address) + place.offset;
}

struct FaultyKernel {
  sy_kernel* base;
  std::string op;
  std::vector<sy_tensor> inputs, outputs;
  bool accumulates = false;
  struct FaultyBound* first = nullptr;
};
struct FaultyBound {
  FaultyKernel* kernel;
  sy_bound* base;
  sy_launch launch;
  std::vector<sy_place> inputs, outputs;
  int launches = 0;
};

void AddToFirst(const sy_tensor& tensor, uint8_t* address, float amount) {
  if (tensor.dtype == SY_F64) {
    double value;
    memcpy(&value, address, sizeof value);
    value += amount;
    memcpy(address, &value, sizeof value);
  } else if (tensor.dtype == SY_F32) {
    float value;
    memcpy(&value, address, sizeof value);
    value += amount;
    memcpy(address, &value, sizeof value);
  }
}

sy_status Launch(sy_bound* handle, sy_stream* stream, sy_error* error) {
  auto* bound = reinterpret_cast<FaultyBound*>(handle);
  FaultyKernel& kernel = *bound->kernel;
  const std::string& op = kernel.op;
  ++bound->launches;
  if (Fault("skips_a_launch") && op == "matmul") return SY_OK;
  if (Fault("forgets_other_bindings") && op == "transpose" && kernel.first != bound && kernel.first != nullptr) {
    return kernel.first->launch(kernel.first->base, stream, error);
  }
  const sy_status status = bound->launch(bound->base, stream, error);
  uint8_t* const output = Address(bound->outputs[0]);
  if (Fault("wrong_number") && op == "layer_norm") AddToFirst(kernel.outputs[0], output, 0.01f);
  if (Fault("wrong_gradient") && op == "softmax_backward") AddToFirst(kernel.outputs[0], output, 0.01f);
  if (Fault("wrong_second_output") && op == "attention")
    AddToFirst(kernel.outputs[1], Address(bound->outputs[1]), 0.1f);
  if (Fault("writes_outside") && op == "reduce") output[BytesOf(kernel.outputs[0])] = 1;
  if (Fault("writes_before") && op == "reduce") output[-1] = 1;
  if (Fault("changes_an_input") && op == "concat") Address(bound->inputs[1])[0] ^= 1;
  if (Fault("wrong_in_place") && op == "roll" && bound->inputs[0].buffer == bound->outputs[0].buffer) output[0] ^= 1;
  if (Fault("changes_on_relaunch") && op == "pad" && bound->launches > 1) output[0] ^= 1;
  if (Fault("accumulates_twice") && kernel.accumulates && op == "squared_norm") {
    return bound->launch(bound->base, stream, error);
  }
  if (Fault("trains_wrongly") && op == "optimizer_update") AddToFirst(kernel.outputs[0], output, 1.0f);
  return status;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* request, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  sy_prepare_request call = *request;
  sy_status status = base_kernel->prepare(device, &call, kernel, info, error);
  if (Fault("takes_unknown_ops") && status == SY_UNSUPPORTED) {
    call.op = "pointwise";
    status = base_kernel->prepare(device, &call, kernel, info, error);
  }
  if (status != SY_OK) return status;
  if (Fault("hides_strides")) info->accepts_strided = 0;
  auto* faulty = new FaultyKernel{*kernel, request->op, {}, {}};
  faulty->inputs.assign(request->inputs, request->inputs + request->input_count);
  faulty->outputs.assign(request->outputs, request->outputs + request->output_count);
  faulty->accumulates = request->accumulate != nullptr;
  *kernel = reinterpret_cast<sy_kernel*>(faulty);
  return SY_OK;
}

sy_status Bind(sy_kernel* handle, const sy_binding* binding, sy_bound** bound, sy_launch* launch, sy_error* error) {
  auto* kernel = reinterpret_cast<FaultyKernel*>(handle);
  auto* faulty = new FaultyBound{kernel, nullptr, nullptr, {}, {}};
  faulty->inputs.assign(binding->inputs, binding->inputs + kernel->inputs.size());
  faulty->outputs.assign(binding->outputs, binding->outputs + kernel->outputs.size());
  const sy_status status = base_kernel->bind(kernel->base, binding, &faulty->base, &faulty->launch, error);
  if (status != SY_OK) {
    delete faulty;
    return status;
  }
  if (kernel->first == nullptr) kernel->first = faulty;
  *bound = reinterpret_cast<sy_bound*>(faulty);
  *launch = Launch;
  return SY_OK;
}

void Unbind(sy_bound* handle) {
  auto* bound = reinterpret_cast<FaultyBound*>(handle);
  if (bound->kernel->first == bound) bound->kernel->first = nullptr;
  base_kernel->unbind(bound->base);
  delete bound;
}

void Release(sy_kernel* handle) {
  auto* kernel = reinterpret_cast<FaultyKernel*>(handle);
  base_kernel->release(kernel->base);
  if (!Fault("leaks_on_the_host")) delete kernel;
}

sy_status Query(int32_t index, sy_device_info* info, sy_error* error) {
  const sy_status status = base_device->query(index, info, error);
  if (status == SY_OK && Fault("writes_beyond_a_struct")) info->dtypes = 7;
  if (status != SY_OK && Fault("answers_nonsense_indices")) return SY_OK;
  return status;
}

sy_status Alloc(sy_device* device, uint64_t bytes, sy_buffer** buffer, sy_error* error) {
  const sy_status status = base_device->alloc(device, bytes, buffer, error);
  return status == SY_OUT_OF_MEMORY && Fault("misnames_out_of_memory") ? SY_INTERNAL : status;
}

void Free(sy_device* device, sy_buffer* buffer) {
  if (!Fault("never_frees")) base_device->free(device, buffer);
}

sy_status Copy(sy_device* device, sy_stream* stream, sy_place to, sy_place from, uint64_t bytes, sy_error* error) {
  if (Fault("copies_whole_words") && to.buffer != nullptr && from.buffer != nullptr) bytes &= ~uint64_t{3};
  return base_device->copy(device, stream, to, from, bytes, error);
}

sy_status Open(int32_t index, const sy_open_options* options, sy_device** device, sy_error* error) {
  const sy_status status = base_device->open(index, options, device, error);
  if (opened == nullptr) opened = *device;
  return status;
}

const void* Interface(const char* name) {
  if (strcmp(name, "device/1") == 0) return &device_interface;
  if (strcmp(name, "kernel/1") == 0) return &kernel_interface;
  return base.interface(name);
}

}  // namespace

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  host = given;
  void* const library = dlopen(host->setting("FAULT_BASE"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return SY_INTERNAL;
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(library, "sy_plugin_query"));
  base.header = SY_HEADER(sy_plugin);
  if (query(host, &base, error) != SY_OK) return SY_INTERNAL;
  base_device = static_cast<const sy_device_v1*>(base.interface("device/1"));
  base_kernel = static_cast<const sy_kernel_v1*>(base.interface("kernel/1"));
  device_interface = *base_device;
  device_interface.open = Open;
  device_interface.query = Query;
  device_interface.alloc = Alloc;
  device_interface.free = Free;
  device_interface.copy = Copy;
  kernel_interface = {SY_HEADER(sy_kernel_v1), Prepare, Bind, Unbind, Release};
  *plugin = base;
  plugin->name = "faulty";
  plugin->interface = Interface;
  return SY_OK;
}
