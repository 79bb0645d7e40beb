// Prepared kernels: a Sequence, sized, and bound kernels: its operators as executors at fixed addresses, which a launch
// enqueues one after the other. Executors are made repeatable, so that a launch plans nothing; an operator that cannot
// be is planned at every launch.
//
// Builders, one per op, are listed in kernel.cc. Each appends the op's operators to a sequence, or refuses:
// SY_UNSUPPORTED for what is not offered, SY_INVALID for shapes that the op does not have. Thread-safe: a kernel is
// constant once prepared.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/npu/sequence.h"

struct sy_kernel {
  sy_device* device;
  std::vector<switchyard::Step> steps;
  std::string name;              // of the op, for messages
  uint64_t scratch_bytes = 0;    // of the sequence
  uint64_t workspace_bytes = 0;  // scratch, then the operators' own
  std::vector<uint64_t> input_bytes, output_bytes;
};

namespace switchyard {

struct Builder {
  sy_status (*build)(Sequence& s, Request& r);
  size_t attributes_size;  // the least; 0: the op has none
};
// Calls the builder of r.op; SY_UNSUPPORTED where there is none.
sy_status Build(Sequence& s, Request& r);

sy_status BuildMatmul(Sequence& s, Request& r);
sy_status BuildAttention(Sequence& s, Request& r);
sy_status BuildAttentionBackward(Sequence& s, Request& r);
sy_status BuildLayerNorm(Sequence& s, Request& r);
sy_status BuildLayerNormBackward(Sequence& s, Request& r);
sy_status BuildSoftmax(Sequence& s, Request& r);
sy_status BuildSoftmaxBackward(Sequence& s, Request& r);
sy_status BuildCrossEntropy(Sequence& s, Request& r);
sy_status BuildCrossEntropyBackward(Sequence& s, Request& r);
sy_status BuildLabelRank(Sequence& s, Request& r);
sy_status BuildPointwise(Sequence& s, Request& r);
sy_status BuildReduce(Sequence& s, Request& r);
sy_status BuildSquaredNorm(Sequence& s, Request& r);
sy_status BuildTranspose(Sequence& s, Request& r);
sy_status BuildSlice(Sequence& s, Request& r);
sy_status BuildPad(Sequence& s, Request& r);
sy_status BuildRoll(Sequence& s, Request& r);
sy_status BuildConcat(Sequence& s, Request& r);
sy_status BuildGather(Sequence& s, Request& r);
sy_status BuildScatterAdd(Sequence& s, Request& r);
sy_status BuildOptimizerUpdate(Sequence& s, Request& r);
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
