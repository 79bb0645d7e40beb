#include "tools/conform/bound_pair.h"

#include "core/abi/ops.h"
#include "tools/conform/op_run.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

// operation(input, constant)
StatusOr<Kernel> PrepareWithConstant(Device& device, int32_t operation, float constant, const char* tag) {
  sy_pointwise_attributes attributes{};
  attributes.instruction_count = 2;
  attributes.output_count = 1;
  attributes.instructions[0] = {SY_PW_CONSTANT, 0, 0, 0, constant};
  attributes.instructions[1] = {operation, 0, 1, 0, 0};
  attributes.outputs[0] = 2;
  const sy_tensor one = Contiguous(SY_F32, {1});
  sy_prepare_request request{};
  request.op = "pointwise";
  request.op_version = 1;
  request.attributes = &attributes;
  request.attributes_size = sizeof attributes;
  request.input_count = request.output_count = 1;
  request.inputs = request.outputs = &one;
  request.workspace_limit = kWorkspaceLimit;
  request.tag = tag;
  return device.Prepare(request);
}

StatusOr<BoundKernel> Bind(Device& device, const Kernel& kernel, const Buffer& input, const Buffer& output) {
  if (kernel.info().persistent_bytes > 0 || kernel.info().constant_bytes > 0)
    return Unimplemented("a pointwise kernel with memory of its own");
  const sy_place from = input.at(0), to = output.at(0);
  sy_binding binding{};
  binding.inputs = &from;
  binding.outputs = &to;
  return device.Bind(kernel, binding);
}

}  // namespace

StatusOr<std::unique_ptr<BoundPair>> BoundPair::Make(Device& device, const char* tag, uint64_t bytes) {
  std::unique_ptr<BoundPair> pair(new BoundPair());
  pair->device_ = &device;
  SY_ASSIGN_OR_RETURN(pair->value_, device.Allocate(bytes));
  SY_ASSIGN_OR_RETURN(pair->between_, device.Allocate(bytes));
  SY_ASSIGN_OR_RETURN(pair->add_, PrepareWithConstant(device, SY_PW_ADD, 1, tag));
  SY_ASSIGN_OR_RETURN(pair->scale_, PrepareWithConstant(device, SY_PW_MUL, 2, tag));
  SY_ASSIGN_OR_RETURN(pair->bound_add_, Bind(device, pair->add_, pair->value_, pair->between_));
  SY_ASSIGN_OR_RETURN(pair->bound_scale_, Bind(device, pair->scale_, pair->between_, pair->value_));
  return pair;
}

BoundPair::~BoundPair() {
  if (device_ != nullptr) (void)device_->Synchronize();
}

Status BoundPair::Launch(const Stream& stream) {
  for (const BoundKernel* bound : {&bound_add_, &bound_scale_}) {
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(bound->Launch(stream.handle(), &error), error, "launch"));
  }
  return OkStatus();
}

Status BoundPair::Set(float value) { return device_->Upload(value_.at(0), &value, sizeof value); }

StatusOr<float> BoundPair::Get() {
  float value = 0;
  SY_RETURN_IF_ERROR(device_->Download(&value, value_.at(0), sizeof value));
  return value;
}

void BoundPair::FreeMemory() {
  value_.reset();
  between_.reset();
}

float BoundPair::After(float value, int runs) {
  for (int run = 0; run < runs; ++run) value = 2 * (value + 1);
  return value;
}

}  // namespace switchyard::conform
