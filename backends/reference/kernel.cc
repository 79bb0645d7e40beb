#include "backends/reference/kernel.h"

#include <algorithm>

namespace switchyard {
namespace {

bool SamePlaceFits(const sy_tensor& output, const sy_tensor& input) {
  return output.dtype == input.dtype && DimsOf(output) == DimsOf(input) && IsContiguous(output) && IsContiguous(input);
}

// The input whose place output `o` may take, each input given away once; -1: none.
int SharedInput(const Operation& operation, const Problem& problem, size_t o, std::vector<bool>& taken) {
  const int first = operation.updates ? operation.updates(problem, o) : 0;
  const int last = operation.updates ? first : static_cast<int>(problem.inputs.size()) - 1;
  for (int i = std::max(first, 0); i <= last; ++i) {
    if (taken[static_cast<size_t>(i)] || !SamePlaceFits(problem.outputs[o], problem.inputs[static_cast<size_t>(i)]))
      continue;
    taken[static_cast<size_t>(i)] = true;
    return i;
  }
  return -1;
}

// The attributes of a request as the struct of `known` bytes that the op has: what the caller's is too small for is
// zero, and what it has beyond must be.
sy_status ReadAttributes(const sy_prepare_request& request, size_t known, std::vector<std::byte>* attributes,
                         sy_error* error) {
  const size_t given = request.attributes ? request.attributes_size : 0;
  const auto* bytes = static_cast<const std::byte*>(request.attributes);
  if (known > 0 && given == 0) {
    return Refuse(error, SY_INVALID,
                  Text(request.op, ": expected ", known, " bytes of attributes, found ", request.attributes_size));
  }
  for (size_t i = known; i < given; ++i) {
    if (bytes[i] != std::byte{0}) {
      return Refuse(error, SY_UNSUPPORTED,
                    Text(request.op, ": ", given, " bytes of attributes, of which ", known, " are known"));
    }
  }
  attributes->assign(known, std::byte{0});
  std::copy_n(bytes, std::min(given, known), attributes->data());
  return SY_OK;
}

}  // namespace

sy_status ReferenceKernel::Prepare(const sy_prepare_request* given, std::unique_ptr<ReferenceKernel>* result,
                                   sy_kernel_info* info, sy_error* error) {
  if (given == nullptr || info == nullptr)
    return Refuse(error, SY_INVALID, "prepare: request and info must not be NULL");
  if (!KnowsExtensions(given, error) || !KnowsExtensions(info, error)) return SY_UNSUPPORTED;
  const sy_prepare_request request = ReadStruct(given);
  if (request.op == nullptr || (request.input_count && !request.inputs) || (request.output_count && !request.outputs)) {
    return Refuse(error, SY_INVALID, "prepare: the request names no op or no tensors");
  }
  auto kernel = std::make_unique<ReferenceKernel>();
  kernel->operation_ = FindOperation(request.op);
  if (kernel->operation_ == nullptr || request.op_version != 1) {
    return Refuse(error, SY_UNSUPPORTED, Text("no op ", request.op, " version ", request.op_version));
  }
  if (request.determinism > SY_DETERMINISM_EXACT)
    return Refuse(error, SY_UNSUPPORTED, Text(request.op, ": unknown class of determinism ", request.determinism));
  const Operation& operation = *kernel->operation_;
  Problem& problem = kernel->problem_;
  problem.op = request.op;
  problem.inputs.assign(request.inputs, request.inputs + request.input_count);
  problem.outputs.assign(request.outputs, request.outputs + request.output_count);
  if (const sy_status status = ReadAttributes(request, operation.attributes_size, &problem.attributes, error);
      status != SY_OK) {
    return status;
  }
  for (const auto* tensors : {&problem.inputs, &problem.outputs}) {
    for (const sy_tensor& tensor : *tensors) {
      if (sy_dtype_bits(tensor.dtype) == 0)
        return Refuse(error, SY_UNSUPPORTED, Text(problem.op, ": unknown dtype ", tensor.dtype));
      const std::string defect = Defect(tensor);
      if (!defect.empty()) return Refuse(error, SY_INVALID, problem.op + ": " + defect);
    }
  }
  Check check(problem);
  operation.check(check);
  if (!check.ok()) return Refuse(error, check.status(), check.complaint());

  kernel->accumulate_.assign(problem.outputs.size(), 0);
  std::vector<bool> taken(problem.inputs.size(), false);
  std::vector<int32_t> inplace(problem.outputs.size(), -1);
  for (size_t o = 0; o < problem.outputs.size(); ++o) {
    if (request.accumulate) kernel->accumulate_[o] = request.accumulate[o];
    if (kernel->accumulate_[o] && !IsFloat(problem.outputs[o].dtype)) {
      return Refuse(error, SY_UNSUPPORTED, Text(problem.op, ": output ", o, " is an integer and cannot accumulate"));
    }
    if (!kernel->accumulate_[o]) inplace[o] = SharedInput(operation, problem, o, taken);
  }
  sy_kernel_info filled = ReadStruct(info);
  filled.workspace_bytes = filled.persistent_bytes = filled.constant_bytes = filled.residual_bytes = 0;
  filled.determinism = SY_DETERMINISM_EXACT;
  filled.capturable = 0;
  if (filled.inplace) std::copy(inplace.begin(), inplace.end(), filled.inplace);
  FillStruct(info, filled);
  *result = std::move(kernel);
  return SY_OK;
}

void ReferenceKernel::Run(const void* const* inputs, void* const* outputs) const {
  Call call(problem_, inputs);
  operation_->run(call);
  for (size_t o = 0; o < problem_.outputs.size(); ++o) {
    Store(call.output(o), problem_.outputs[o], outputs[o], accumulate_[o] != 0);
  }
}

}  // namespace switchyard
