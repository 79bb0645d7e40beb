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
  aclOpExecutor* executor;                     // nullptr: it cannot be made repeatable, and every launch plans it anew
  std::unique_ptr<Handed> operands = nullptr;  // of those launches, which may still read them when the next is planned
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
  task.operands->Again();
  uint64_t bytes = 0;
  aclOpExecutor* executor = nullptr;  // runs once, and goes with it
  const aclnnStatus code = task.step->plan(*task.operands, &bytes, &executor);
  if (code != ACL_SUCCESS) return CheckAcl(error, code, task.step->name);
  if (bytes > task.workspace_bytes)
    return Refuse(error, SY_INTERNAL, Text(task.step->name, ": asks for more workspace than it did before"));
  return CheckAcl(error, task.step->run(bound.operator_workspace, bytes, executor, stream), task.step->name);
}

sy_status Prepare(sy_device* device, const sy_prepare_request* given, sy_kernel** result, sy_kernel_info* info,
                  sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (given == nullptr || given->op == nullptr) return Refuse(error, SY_INVALID, "prepare: the request names no op");
    if (!KnowsExtensions(info, error)) return SY_UNSUPPORTED;
    const sy_prepare_request request = ReadStruct(given);
    if (const sy_status status = CheckRequest(request, error); status != SY_OK) return status;
    if (request.determinism > ReachedDeterminism(device))
      return Refuse(error, SY_UNSUPPORTED,
                    Text(request.op, ": this device was not opened for results that repeat so exactly"));
    Request r;
    r.op = request.op;
    r.error = error;
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
    filled.persistent_bytes = filled.constant_bytes = filled.residual_bytes = 0;
    filled.determinism = ReachedDeterminism(device);
    filled.capturable = 0;
    if (filled.inplace != nullptr) std::copy(r.inplace.begin(), r.inplace.end(), filled.inplace);
    FillStruct(info, filled);
    *result = kernel.release();
    return SY_OK;
  });
}

sy_status Launch(sy_bound* bound, sy_stream* stream, sy_error* error) {
  const sy_kernel& kernel = bound->kernel;
  return Guarded(error, [&]() -> sy_status {
    if (stream == nullptr) return Refuse(error, SY_INVALID, Text(kernel.name, ": launch expects a stream"));
    if (const sy_status status = kernel.device->Enter(error); status != SY_OK) return status;
    for (const Task& task : bound->tasks) {
      if (const sy_status status = RunTask(*bound, task, stream->stream, error); status != SY_OK) return status;
    }
    return SY_OK;
  });
}

sy_status Bind(sy_device*, sy_kernel* kernel, const sy_binding* given, sy_bound** result, sy_launch* launch,
               sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (!KnowsExtensions(given, error)) return SY_UNSUPPORTED;
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
      const uint64_t asked = task.workspace_bytes;
      if (task.executor == nullptr) task.operands = std::make_unique<Handed>(*kernel->device->acl, bound->resolver);
      bound->tasks.push_back(std::move(task));
      if (kernel->scratch_bytes + asked > kernel->workspace_bytes) {
        return Refuse(error, SY_INTERNAL,
                      Text(kernel->name, ": ", step.name, " asks for ", asked,
                           " bytes of workspace at its addresses, more than it did in prepare"));
      }
    }
    *result = bound.release();
    *launch = Launch;
    return SY_OK;
  });
}

void Unbind(sy_device*, sy_bound* bound) { delete bound; }
void Release(sy_device*, sy_kernel* kernel) { delete kernel; }

}  // namespace

sy_status CheckRequest(const sy_prepare_request& request, sy_error* error) {
  const Registration* op = Registration::Find(request.op);
  if (op == nullptr) return Refuse(error, SY_UNSUPPORTED, Text("no op ", request.op));
  OpRequest read;
  if (const sy_status status = ReadOpRequest(request, op->op, op->attribute_bytes, &read, error); status != SY_OK)
    return status;
  for (const auto* tensors : {&read.inputs, &read.outputs}) {
    for (const sy_tensor& tensor : *tensors) {
      if (tensor.dtype == SY_F64 || tensor.dtype == SY_I64)
        return SY_REFUSE_OP(read, "a tensor has 64-bit elements; 32 are the most here");
    }
  }
  return read.RequireContiguous() ? SY_OK : SY_UNSUPPORTED;
}

sy_status Build(Sequence& s, Request& r) {
  const Registration* op = Registration::Find(r.op.c_str());
  return op == nullptr ? Refuse(r.error, SY_UNSUPPORTED, Text("no op ", r.op)) : op->build(s, r);
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

const sy_kernel_v2 kNpuKernels = {
    .header = SY_HEADER(sy_kernel_v2), .prepare = Prepare, .bind = Bind, .unbind = Unbind, .release = Release};

}  // namespace switchyard
