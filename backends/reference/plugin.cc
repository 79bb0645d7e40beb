// The plugin's one symbol, and kernel/2: prepare finds the op, bind resolves addresses, launch computes.
#include "core/abi/plugin.h"

#include <cstring>
#include <vector>

#include "backends/reference/device.h"
#include "backends/reference/kernel.h"

struct sy_kernel {
  std::unique_ptr<switchyard::ReferenceKernel> kernel;
};

struct sy_bound {
  const switchyard::ReferenceKernel* kernel;
  std::vector<void*> inputs, outputs;
};

namespace switchyard {
namespace {

sy_status Prepare(sy_device*, const sy_prepare_request* request, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&] {
    auto made = std::make_unique<sy_kernel>();
    const sy_status status = ReferenceKernel::Prepare(request, &made->kernel, info, error);
    if (status == SY_OK) *kernel = made.release();
    return status;
  });
}

// The addresses of `places`, each of which holds the tensor beside it.
bool ResolveAll(const sy_place* places, const std::vector<sy_tensor>& tensors, std::vector<void*>* addresses,
                sy_error* error) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    char* address = Resolve(places[i], Extent(tensors[i]), error);
    if (address == nullptr) return false;
    addresses->push_back(address);
  }
  return true;
}

sy_status Launch(sy_bound* bound, sy_stream*, sy_error* error) {
  return Guarded(error, [&] {
    bound->kernel->Run(bound->inputs.data(), bound->outputs.data());
    return SY_OK;
  });
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* given, sy_bound** bound, sy_launch* launch,
               sy_error* error) {
  if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
  return Guarded(error, [&] {
    const sy_binding binding = ReadStruct(given);
    const Problem& problem = kernel->kernel->problem();
    auto made = std::make_unique<sy_bound>();
    made->kernel = kernel->kernel.get();
    if (!ResolveAll(binding.inputs, problem.inputs, &made->inputs, error) ||
        !ResolveAll(binding.outputs, problem.outputs, &made->outputs, error)) {
      return SY_INVALID;
    }
    *bound = made.release();
    *launch = Launch;
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete kernel; }

const void* Interface(sy_instance*, const char* name) {
  if (std::strcmp(name, "device/2") == 0) return &kReferenceDevice;
  if (std::strcmp(name, "kernel/2") == 0) return &kReferenceKernels;
  if (std::strcmp(name, "memory_ext/2") == 0) return &kReferenceMemory;
  return nullptr;
}

}  // namespace

const sy_kernel_v2 kReferenceKernels = {
    .header = SY_HEADER(sy_kernel_v2), .prepare = Prepare, .bind = Bind, .unbind = Unbind, .release = Release};

}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"reference", "0.1.0", "Switchyard"}, switchyard::Interface);
}
