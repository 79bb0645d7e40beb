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
  if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  const sy_prepare_request request = ReadStruct(given);
  if (request.op == nullptr) return SY_FAIL(error, SY_INVALID, "cpu: prepare names no op");
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
    filled.persistent_bytes = filled.constant_bytes = filled.residual_bytes = 0;
    filled.determinism = SY_DETERMINISM_RUN;
    filled.capturable = 0;
    if (filled.inplace) std::copy(made->inplace.begin(), made->inplace.end(), filled.inplace);
    FillStruct(info, filled);
    *kernel = made.release();
    return SY_OK;
  });
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* binding, sy_bound** bound, sy_launch* launch,
               sy_error* error) {
  if (!KnowsExtensions(binding, error)) return SY_UNSUPPORTED;
  const auto* k = static_cast<const Kernel*>(kernel);
  return Guarded(error, [&]() -> sy_status {
    k->device->Enter();
    Arguments arguments;
    if (!k->Locate(ReadStruct(binding), &arguments, error)) return SY_INVALID;
    *bound = k->Bind(std::move(arguments), launch).release();
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete static_cast<Kernel*>(kernel); }

constexpr sy_kernel_v2 kKernels = {
    .header = SY_HEADER(sy_kernel_v2), .prepare = Prepare, .bind = Bind, .unbind = Unbind, .release = Release};

const void* Interface(sy_instance*, const char* name) {
  if (!std::strcmp(name, "device/2")) return &DeviceInterface();
  if (!std::strcmp(name, "memory_ext/2")) return &MemoryInterface();
  if (!std::strcmp(name, "kernel/2")) return &kKernels;
  if (!std::strcmp(name, "semaphore/1")) return &SemaphoreInterface();
  if (!std::strcmp(name, "peer/1")) return &PeerInterface();
  return nullptr;
}

}  // namespace

bool Kernel::Locate(const sy_binding& binding, Arguments* arguments, sy_error* error) const {
  const auto fits = [&](const sy_place& place, int64_t bytes, const char* what) {
    if (Fits(place, static_cast<uint64_t>(bytes))) return true;
    SY_FAIL(error, SY_INVALID, "cpu: bind: %s of %lld bytes does not lie inside its buffer", what,
            static_cast<long long>(bytes));
    return false;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!fits(binding.inputs[i], Bytes(inputs[i]), "an input")) return false;
    arguments->inputs.push_back(Address(binding.inputs[i]));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!fits(binding.outputs[o], Bytes(outputs[o]), "an output")) return false;
    arguments->outputs.push_back(Address(binding.outputs[o]));
  }
  if (workspace_bytes == 0) return true;
  if (!fits(binding.workspace, static_cast<int64_t>(workspace_bytes), "the workspace")) return false;
  arguments->workspace = Address(binding.workspace);
  return true;
}

std::unique_ptr<sy_bound> Kernel::Bind(Arguments arguments, sy_launch* launch) const {
  auto bound = std::make_unique<SimpleBound>();
  bound->kernel = this;
  bound->arguments = std::move(arguments);
  *launch = RunBound;
  return bound;
}

}  // namespace switchyard

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"cpu", "0.1.0", "Switchyard"}, switchyard::Interface);
}
