// A prepared reference op: checks the request once, then computes on host addresses. Both the reference and the null
// plugin run their kernels through it. Thread-safe: a ReferenceKernel is constant once prepared; Run may be called from
// several threads.
#pragma once

#include <memory>
#include <vector>

#include "backends/reference/operation.h"
#include "core/abi/kernel.h"

namespace switchyard {

class ReferenceKernel {
 public:
  // SY_UNSUPPORTED: no such op, dtype or attribute, or it cannot accumulate into an integer. SY_INVALID: shapes or
  // dtypes that contradict each other or the op. SY_OK also fills *info (in-place pairs, determinism; no bytes of any
  // kind).
  static sy_status Prepare(const sy_prepare_request* request, std::unique_ptr<ReferenceKernel>* kernel,
                           sy_kernel_info* info, sy_error* error);

  const Problem& problem() const { return problem_; }
  // Reads every input before it writes an output: any output may share its place with an input.
  void Run(const void* const* inputs, void* const* outputs) const;

 private:
  Problem problem_;
  const Operation* operation_ = nullptr;
  std::vector<uint8_t> accumulate_;
};

}  // namespace switchyard
