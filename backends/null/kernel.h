// Kernels of the null device: the reference ops, run by a stream's worker, asking for everything that kernel/2 knows of
// so that every path of the core is walked: scratch, and a second choice without it (matmul), persistent bytes and
// constants (cross_entropy), residuals that replace the backward's own inputs (layer_norm, pool), accumulation (matmul
// only), in-place pairs (optimizer_update only), contiguous tensors only, no f64. Thread-safe: constant once prepared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/reference/kernel.h"
#include "core/abi/kernel.h"

namespace switchyard {

// A stretch of the residual: a copy of one operand of the forward, which its backward reads in place of
// `backward_input`.
struct Saved {
  bool is_output;
  size_t operand, backward_input;
  uint64_t offset, bytes;
};

struct NullKernel {
  sy_device* device;
  std::unique_ptr<ReferenceKernel> reference;
  const char* tag;
  sy_kernel_info info{};
  std::vector<Saved> saved;  // a forward writes them, a backward reads them
  bool reads_saved = false;
  std::vector<uint64_t> constants;  // unlike those of any other kernel

  sy_status WriteConstants(const sy_place& place, sy_error* error) const;
  sy_status VerifyConstants(const sy_place& place, sy_error* error) const;
};

// A kernel at fixed places. Run is called by a worker, after the host has moved on.
class Bound {
 public:
  Bound(std::shared_ptr<const NullKernel> kernel, const sy_binding& binding);
  // Every place lies inside its buffer now; the worker looks again.
  bool Resolvable(sy_error* error) const;
  sy_status Run(const sy_stream* stream, sy_error* error);
  void Unbind() { unbound_ = true; }  // launches that have not run yet fail
  sy_device* device() const { return kernel_->device; }

 private:
  sy_status Compute(sy_error* error);

  const std::shared_ptr<const NullKernel> kernel_;
  std::vector<sy_place> inputs_, outputs_;
  sy_place workspace_, persistent_, residual_, constants_;
  std::atomic<uint64_t> runs_{0};
  std::atomic<bool> unbound_{false};
};

}  // namespace switchyard
