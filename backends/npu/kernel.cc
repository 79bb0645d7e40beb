#include "backends/npu/kernel.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace switchyard {

namespace {

// One operator at fixed addresses.
struct Task {
  const Step* step;
  uint64_t workspace_bytes;
  aclOpExecutor* executor;  // nullptr: it cannot be made repeatable, and every launch plans it anew
};

}  // namespace
}  // namespace switchyard

struct sy_bound {
  sy_bound(const sy_kernel& from, switchyard::Handed::Resolver where)
      : kernel(from), resolver(std::move(where)), handed(*from.device->acl, resolver) {}
  ~sy_bound() {
    for (const switchyard::Task& task : tasks) {
      if (task.executor != nullptr) kernel.device->acl->aclDestroyAclOpExecutor(task.executor);
    }
  }
  const sy_kernel& kernel;
  const switchyard::Handed::Resolver resolver;
  switchyard::Handed handed;
  void* operator_workspace = nullptr;
  std::vector<switchyard::Task> tasks;
};

namespace switchyard {
namespace {

constinit const Registration* last_registered = nullptr;
}  // namespace

Registration::Registration(const char* name, Builder function, size_t bytes)
    : op(name), build(function), attribute_bytes(bytes), next(std::exchange(last_registered, this)) {}

const Registration* Registration::Find(const char* op) {
  const Registration* row = last_registered;
  while (row != nullptr && std::strcmp(row->op, op) != 0) row = row->next;
  return row;
}

namespace {

uint64_t BytesIn(const Operand& operand) { return static_cast<uint64_t>(operand.count() * BytesOf(operand.dtype)); }

// Asks an operator for its workspace and an executor that can be run many times.
sy_status Plan(const Runtime& acl, const Step& step, Handed& handed, Task* task, sy_error* error) {
  *task = {&step, 0, nullptr};
  if (const aclnnStatus code = step.plan(handed, &task->workspace_bytes, &task->executor); code != ACL_SUCCESS)
    return CheckAcl(error, code, step.name);
  if (acl.aclSetAclOpExecutorRepeatable(task->executor) != ACL_SUCCESS) {
    acl.aclDestroyAclOpExecutor(task->executor);
    task->executor = nullptr;
  }
  return SY_OK;
}

// Enqueues one operator.
sy_status RunTask(const sy_bound& bound, const Task& task, aclrtStream stream, sy_error* error) {
  if (task.executor != nullptr) {
    const auto code = task.step->run(bound.operator_workspace, task.workspace_bytes, task.executor, stream);
    return CheckAcl(error, code, task.step->name);
  }
  Handed handed(*bound.kernel.device->acl, bound.resolver);
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;  // runs once, and goes with it
  const aclnnStatus code = task.step->plan(handed, &bytes, &executor);
  if (code != ACL_SUCCESS) return CheckAcl(error, code, task.step->name);
  if (bytes > task.workspace_bytes)
    return Refuse(error, SY_INTERNAL, Text(task.step->name, ": asks for more workspace than it did before"));
  return CheckAcl(error, task.step->run(bound.operator_workspace, bytes, executor, stream), task.step->name);
}

// What every tensor of a prepare call must be.
sy_status CheckTensors(const sy_prepare_request& request, const std::string& op, sy_error* error) {
  const auto check = [&](const sy_tensor* tensors, uint32_t count, const char* what) -> sy_status {
    for (uint32_t k = 0; k < count; ++k) {
      const sy_tensor& tensor = tensors[k];
      if (tensor.rank < 0 || tensor.rank > SY_MAX_RANK)
        return Refuse(error, SY_INVALID, Text(op, ": ", what, " ", k, " has rank ", tensor.rank));
      if (tensor.dtype < 0 || tensor.dtype >= SY_DTYPE_COUNT)
        return Refuse(error, SY_INVALID, Text(op, ": ", what, " ", k, " has the unknown dtype ", tensor.dtype));
      if (tensor.dtype == SY_F64 || tensor.dtype == SY_I64)
        return Refuse(error, SY_UNSUPPORTED,
                      Text(op, ": ", what, " ", k, " has 64-bit elements; 32 are the most here"));
      int64_t bytes = 8;  // of one element, at most
      for (int32_t i = 0; i < tensor.rank; ++i) {
        if (tensor.dims[i] < 1 || __builtin_mul_overflow(bytes, tensor.dims[i], &bytes))
          return Refuse(error, SY_UNSUPPORTED, Text(op, ": ", what, " ", k, " has an axis of ", tensor.dims[i]));
      }
      if (!MakeOperand(Operand::kInput, k, tensor).IsContiguous())
        return Refuse(error, SY_UNSUPPORTED, Text(op, ": ", what, " ", k, " must be contiguous"));
    }
    return SY_OK;
  };
  const sy_status status = check(request.inputs, request.input_count, "input");
  return status != SY_OK ? status : check(request.outputs, request.output_count, "output");
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** result, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    const sy_prepare_request request = ReadStruct(given);
    Request r;
    r.op = request.op;
    r.error = error;
    if (request.op_version != 1)
      return Refuse(error, SY_UNSUPPORTED, Text("no op ", r.op, " of version ", request.op_version));
    if (const sy_status status = CheckTensors(request, r.op, error); status != SY_OK) return status;
    if (request.determinism > ReachedDeterminism(device))
      return Refuse(error, SY_UNSUPPORTED,
                    Text(r.op, ": this device was not opened for results that repeat so exactly"));
    r.attributes = request.attributes;
    r.attributes_size = request.attributes_size;
    for (uint32_t i = 0; i < request.input_count; ++i)
      r.inputs.push_back(MakeOperand(Operand::kInput, i, request.inputs[i]));
    for (uint32_t o = 0; o < request.output_count; ++o)
      r.outputs.push_back(MakeOperand(Operand::kOutput, o, request.outputs[o]));
    r.accumulate.assign(request.output_count, 0);
    if (request.accumulate != nullptr)
      r.accumulate.assign(request.accumulate, request.accumulate + request.output_count);
    r.inplace.assign(request.output_count, -1);

    if (const sy_status status = device->Enter(error); status != SY_OK) return status;
    Sequence sequence(*device, AllOperators());
    if (const sy_status status = Build(sequence, r); status != SY_OK) return status;
    std::unique_ptr<sy_kernel> kernel;
    if (const sy_status status = MakeKernel(device, sequence, r, request.workspace_limit, &kernel, error);
        status != SY_OK) {
      return status;
    }
    sy_kernel_info filled = ReadStruct(info);
    filled.workspace_bytes = kernel->workspace_bytes;
    filled.persistent_bytes = filled.residual_bytes = 0;
    filled.determinism = ReachedDeterminism(device);
    filled.capturable = filled.accepts_strided = 0;
    if (filled.inplace != nullptr) std::copy(r.inplace.begin(), r.inplace.end(), filled.inplace);
    FillStruct(info, filled);
    *result = kernel.release();
    return SY_OK;
  });
}

sy_status Launch(sy_bound* bound, sy_stream* stream, sy_error* error) {
  const sy_kernel& kernel = bound->kernel;
  if (stream == nullptr) return Refuse(error, SY_INVALID, Text(kernel.name, ": launch expects a stream"));
  if (const sy_status status = kernel.device->Enter(error); status != SY_OK) return status;
  for (const Task& task : bound->tasks) {
    if (const sy_status status = RunTask(*bound, task, stream->stream, error); status != SY_OK) return status;
  }
  return SY_OK;
}

sy_status Bind(sy_kernel* kernel, const sy_binding* given, sy_bound** result, sy_launch* launch, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    const sy_binding binding = ReadStruct(given);
    if (const sy_status status = kernel->device->Enter(error); status != SY_OK) return status;
    std::vector<char*> inputs, outputs;
    for (size_t i = 0; i < kernel->input_bytes.size(); ++i) {
      inputs.push_back(Resolve(binding.inputs[i], kernel->input_bytes[i], error));
      if (inputs.back() == nullptr) return SY_INVALID;
    }
    for (size_t o = 0; o < kernel->output_bytes.size(); ++o) {
      outputs.push_back(Resolve(binding.outputs[o], kernel->output_bytes[o], error));
      if (outputs.back() == nullptr) return SY_INVALID;
    }
    char* workspace = nullptr;
    if (kernel->workspace_bytes > 0) {
      workspace = Resolve(binding.workspace, kernel->workspace_bytes, error);
      if (workspace == nullptr) return SY_INVALID;
    }
    auto bound = std::make_unique<sy_bound>(*kernel, [=](const Operand& operand) -> char* {
      switch (operand.home) {
        case Operand::kInput:
          return inputs[operand.index];
        case Operand::kOutput:
          return outputs[operand.index];
        case Operand::kScratch:
          return workspace + operand.start;
        default:
          return static_cast<char*>(operand.address);
      }
    });
    if (workspace != nullptr) bound->operator_workspace = workspace + kernel->scratch_bytes;
    for (const Step& step : kernel->steps) {
      Task task;
      const sy_status status = Plan(*kernel->device->acl, step, bound->handed, &task, error);
      if (status != SY_OK) return status;
      bound->tasks.push_back(task);
      if (kernel->scratch_bytes + task.workspace_bytes > kernel->workspace_bytes) {
        return Refuse(error, SY_INTERNAL,
                      Text(kernel->name, ": ", step.name, " asks for ", task.workspace_bytes,
                           " bytes of workspace at its addresses, more than it did in prepare"));
      }
    }
    *result = bound.release();
    *launch = Launch;
    return SY_OK;
  });
}

void Unbind(sy_bound* bound) { delete bound; }
void Release(sy_kernel* kernel) { delete kernel; }

}  // namespace

sy_status Build(Sequence& s, Request& r) {
  const Registration* op = Registration::Find(r.op.c_str());
  if (op == nullptr) return Refuse(r.error, SY_UNSUPPORTED, Text("no op ", r.op));
  if (r.attributes_size < op->attribute_bytes || (op->attribute_bytes > 0 && r.attributes == nullptr)) {
    return Refuse(r.error, SY_INVALID,
                  Text(r.op, ": expected ", op->attribute_bytes, " bytes of attributes, found ", r.attributes_size));
  }
  return op->build(s, r);
}

uint32_t ReachedDeterminism(const sy_device* device) {
  return device->deterministic ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
}

sy_status MakeKernel(sy_device* device, const Sequence& sequence, const Request& request, uint64_t workspace_limit,
                     std::unique_ptr<sy_kernel>* kernel, sy_error* error) {
  if (const sy_status status = sequence.Finished(error); status != SY_OK) return status;
  auto made = std::make_unique<sy_kernel>();
  made->device = device;
  made->steps = sequence.steps();
  made->name = request.op;
  made->scratch_bytes = sequence.scratch_bytes();
  for (const Operand& input : request.inputs) made->input_bytes.push_back(BytesIn(input));
  for (const Operand& output : request.outputs) made->output_bytes.push_back(BytesIn(output));
  uint64_t largest = 0;
  Handed handed(*device->acl, [](const Operand&) -> char* { return nullptr; });
  for (const Step& step : made->steps) {
    Task task;
    sy_status status = Plan(*device->acl, step, handed, &task, error);
    if (task.executor != nullptr) device->acl->aclDestroyAclOpExecutor(task.executor);
    if (status != SY_OK && status != SY_OUT_OF_MEMORY && status != SY_DEVICE_LOST) status = SY_UNSUPPORTED;
    if (status != SY_OK) return status;
    largest = std::max(largest, task.workspace_bytes);
  }
  made->workspace_bytes = made->scratch_bytes + largest;
  if (made->workspace_bytes > workspace_limit) {
    return Refuse(
        error, SY_UNSUPPORTED,
        Text(request.op, ": needs ", made->workspace_bytes, " bytes of workspace, allowed are ", workspace_limit));
  }
  *kernel = std::move(made);
  return SY_OK;
}

const sy_kernel_v1 kNpuKernels = {
    .header = SY_HEADER(sy_kernel_v1), .prepare = Prepare, .bind = Bind, .unbind = Unbind, .release = Release};

}  // namespace switchyard
