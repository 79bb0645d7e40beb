// The boundary: the exported symbol, the table of registered ops, and prepare, bind and launch. No exception crosses
// it.
#include "core/abi/plugin.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/cpu/kernel.h"
#include "core/abi/ops.h"

namespace switchyard {
namespace {
constinit const Registration* last_registered = nullptr;
}

Registration::Registration(const char* name, PrepareFunction function, size_t bytes)
    : op(name), prepare(function), attribute_bytes(bytes), next(std::exchange(last_registered, this)) {}

const Registration* Registration::Find(const char* op) {
  const Registration* row = last_registered;
  while (row != nullptr && std::strcmp(row->op, op) != 0) row = row->next;
  return row;
}

namespace {

struct SimpleBound : sy_bound {
  const Kernel* kernel;
  Arguments arguments;
};

sy_status RunBound(sy_bound* bound, sy_stream*, sy_error* error) {
  const auto* simple = static_cast<const SimpleBound*>(bound);
  if (const sy_status entered = simple->kernel->device->EnterToLaunch(error); entered != SY_OK) return entered;
  simple->kernel->Run(simple->arguments);
  return SY_OK;
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** kernel, sy_kernel_info* info,
                  sy_error* error) {
  *kernel = nullptr;
  const sy_prepare_request request = ReadStruct(given);
  const Registration* op = Registration::Find(request.op);
  if (op == nullptr) return SY_FAIL(error, SY_UNSUPPORTED, "%s: not an op of the cpu plugin", request.op);
  if (request.determinism > SY_DETERMINISM_RUN)
    return SY_FAIL(error, SY_UNSUPPORTED, "%s: results depend on the thread count", op->op);
  return Guarded(error, [&]() -> sy_status {
    Request r;
    r.device = device;
    if (const sy_status status = ReadOpRequest(request, op->op, op->attribute_bytes, &r, error); status != SY_OK)
      return status;
    if (!r.RequireContiguous()) return SY_UNSUPPORTED;
    device->Enter();
    KernelPointer made = op->prepare(r);
    if (made == nullptr) return SY_UNSUPPORTED;
    if (made->workspace_bytes > request.workspace_limit) {
      return SY_REFUSE_OP(r, "needs %llu bytes of workspace, the limit is %llu",
                          static_cast<unsigned long long>(made->workspace_bytes),
                          static_cast<unsigned long long>(request.workspace_limit));
    }
    sy_kernel_info filled = ReadStruct(info);
    filled.workspace_bytes = made->workspace_bytes;
    filled.persistent_bytes = filled.residual_bytes = 0;
    filled.determinism = SY_DETERMINISM_RUN;
    filled.capturable = filled.accepts_strided = 0;
    if (filled.inplace) std::copy(made->inplace.begin(), made->inplace.end(), filled.inplace);
    FillStruct(info, filled);
    *kernel = made.release();
    return SY_OK;
  });
}

sy_status Bind(sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch, sy_error* error) {
  *bound = nullptr;
  auto* k = static_cast<Kernel*>(kernel);
  return Guarded(error, [&]() -> sy_status {
    k->device->Enter();
    Arguments arguments;
    for (size_t i = 0; i < k->input_count(); ++i) arguments.inputs.push_back(Address(binding->inputs[i]));
    for (size_t o = 0; o < k->inplace.size(); ++o) arguments.outputs.push_back(Address(binding->outputs[o]));
    if (k->workspace_bytes > 0) arguments.workspace = Address(binding->workspace);
    std::unique_ptr<sy_bound> made = k->Bind(std::move(arguments), launch, error);
    if (made == nullptr) return SY_INTERNAL;
    *bound = made.release();
    return SY_OK;
  });
}

void Unbind(sy_bound* bound) { delete bound; }
void Release(sy_kernel* kernel) { delete static_cast<Kernel*>(kernel); }

constexpr sy_kernel_v1 kKernels = {SY_HEADER(sy_kernel_v1), Prepare, Bind, Unbind, Release};

const void* Interface(const char* name) {
  if (!std::strcmp(name, "device/1")) return &DeviceInterface();
  if (!std::strcmp(name, "memory_ext/1")) return &MemoryInterface();
  if (!std::strcmp(name, "kernel/1")) return &kKernels;
  return nullptr;
}

}  // namespace

std::unique_ptr<sy_bound> Kernel::Bind(Arguments arguments, sy_launch* launch, sy_error*) {
  auto bound = std::make_unique<SimpleBound>();
  bound->kernel = this;
  bound->arguments = std::move(arguments);
  *launch = RunBound;
  return bound;
}

}  // namespace switchyard

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "cpu", "0.1.0", switchyard::Interface);
}
