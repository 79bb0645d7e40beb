// Prepared kernels: a Sequence, sized, and bound kernels: its operators as executors at fixed addresses, which a launch
// enqueues one after the other. Executors are made repeatable, so that a launch plans nothing; an operator that cannot
// be is planned at every launch.
//
// Builders, one per op, register themselves. Each appends the op's operators to a sequence, or refuses what it does not
// take: SY_UNSUPPORTED and the reason. Thread-safe: a kernel is constant once prepared.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/npu/sequence.h"
#include "core/abi/op_request.h"

struct sy_kernel {
  sy_device* device;
  std::vector<switchyard::Step> steps;
  std::string name;              // of the op, for messages
  uint64_t scratch_bytes = 0;    // of the sequence
  uint64_t workspace_bytes = 0;  // scratch, then the operators' own
  std::vector<uint64_t> input_bytes, output_bytes;
};

namespace switchyard {

using Builder = sy_status (*)(Sequence& s, Request& r);

// An op's row in the plugin's table. Defined at namespace scope beside the op's builder, it enters itself when the
// plugin is loaded, so that an op is one file: const Registration kSoftmax{"softmax", BuildSoftmax, 0};
struct Registration {
  Registration(const char* name, Builder function, size_t bytes);
  static const Registration* Find(const char* op);  // nullptr where there is none

  const char* const op;
  const Builder build;
  const size_t attribute_bytes;  // of its struct; 0: it has none
  const Registration* const next;
};
// What a call of prepare, or a node of a region, must be before its op is built: an op of the plugin, attributes that
// it knows, contiguous tensors of 32-bit elements at most. A refusal otherwise.
sy_status CheckRequest(const sy_prepare_request& request, sy_error* error);
// Calls the builder of r.op, which CheckRequest let pass.
sy_status Build(Sequence& s, Request& r);

sy_status BuildReshape(Sequence& s, Request& r);  // between the nodes of a region

// activation(x), and gradient·activation'(x); pointwise and matmul share them. `gradient` broadcasts to x.
Operand Activate(Sequence& s, int32_t activation, const Operand& x, const Operand* into = nullptr);
Operand ActivateGradient(Sequence& s, int32_t activation, const Operand& gradient, const Operand& x,
                         const Operand* into = nullptr);

uint32_t ReachedDeterminism(const sy_device* device);  // SY_DETERMINISM_*

// Sizes the sequence and hands out the kernel; SY_UNSUPPORTED where an operator refuses or `workspace_limit` is too
// small.
sy_status MakeKernel(sy_device* device, const Sequence& sequence, const Request& request, uint64_t workspace_limit,
                     std::unique_ptr<sy_kernel>* kernel, sy_error* error);

}  // namespace switchyard
