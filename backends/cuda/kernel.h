// What an op file sees: a Request (one prepare call, copied and checked), and Kernel, the class that it derives. A
// kernel is an op at fixed shapes; bound to places it becomes a Bound; Run enqueues it on a stream. Op files define one
// Prepare function per op and register it (Registration). Prepare refuses what it does not take (SY_REFUSE), so that
// the core finds another way. Thread-safe: a kernel is immutable after prepare, its bindings share nothing but it.
//
//   struct Softmax : Kernel {
//     using Kernel::Kernel;
//     sy_status Run(const Bound& b, const LaunchContext& c, sy_error* error) const override {
//       SY_CUDA(error, Launch(SoftmaxKernel<float>, rows, 256, 0, c.stream, b.Input<float>(0), b.Output<float>(0)));
//       return SY_OK;
//     }
//   };
//   KernelPointer PrepareSoftmax(const Request& r) {
//     if (!r.HasCounts(1, 1, 1) || !r.RequireFloat(r.inputs[0], "x")) return nullptr;
//     return std::make_unique<Softmax>(r);
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/check.h"
#include "backends/cuda/device.h"
#include "backends/cuda/launch.h"
#include "core/abi/op_request.h"
#include "core/abi/ops.h"

struct sy_kernel {};
struct sy_bound {
  virtual ~sy_bound() = default;
};

namespace switchyard {

inline constexpr int kThreads = 256;  // of a block, of kernels that have no reason for another number

// One prepare call; every tensor is contiguous.
struct Request : OpRequest {
  sy_device* device = nullptr;
  bool deterministic = false;  // SY_DETERMINISM_RUN or more is required, by the request or by the device
  bool* missed = nullptr;      // set by SY_MISS
};

class Kernel;

// A kernel at fixed places: device pointers, aligned as the places are (offsets of the core: 256 bytes).
struct Bound : sy_bound {
  const Kernel* kernel = nullptr;
  std::vector<char*> inputs, outputs;
  char* workspace = nullptr;

  template <typename T>
  const T* Input(size_t i) const {
    return reinterpret_cast<const T*>(inputs[i]);
  }
  template <typename T>
  T* Output(size_t o) const {
    return reinterpret_cast<T*>(outputs[o]);
  }
  template <typename T>
  T* Workspace(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
};

struct LaunchContext {
  cudaStream_t stream = nullptr;
};

class Kernel : public sy_kernel {
 public:
  explicit Kernel(const Request& request);
  virtual ~Kernel() = default;

  // Enqueues the op. Never waits, allocates or copies from pageable memory: it may be running under a capture.
  virtual sy_status Run(const Bound& bound, const LaunchContext& context, sy_error* error) const = 0;
  // For kernels that keep more than addresses per binding (a DeviceTable): may replace *bound by a derived Bound.
  virtual sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const;

  sy_device* const device;
  std::vector<sy_tensor> inputs, outputs;
  std::vector<uint8_t> accumulate;

  // Set by Prepare, answered as sy_kernel_info.
  uint64_t workspace_bytes = 0;  // scratch during one launch
  std::vector<int32_t> inplace;  // per output: the input whose place it may share, or -1
  bool repeatable = true;        // same bits every time: SY_DETERMINISM_RUN
  bool capturable = true;
  std::string second_choice;                // why a faster way was not taken; empty: this is the fastest that there is
  const char* tag = "";                     // profiler tag; lives as long as the device
  mutable std::atomic<bool> loaded{false};  // its code is on the device: set by the first bind that launches any
};

using KernelPointer = std::unique_ptr<Kernel>;
// nullptr after having filled request.error; the status is SY_UNSUPPORTED for whatever a Prepare refuses.
using PrepareFunction = KernelPointer (*)(const Request& request);

// An op's row in the plugin's table. Defined at namespace scope beside the op's code, it enters itself when the plugin
// is loaded, so that an op is one file: const Registration kSoftmax{"softmax", PrepareSoftmax, 0}; An op may have
// a row of each kind: our own for certain shapes is asked first, then a library's, then our own for what is left.
enum Provider { kOwn, kLibrary, kTailored };
struct Registration {
  Registration(const char* name, PrepareFunction function, size_t bytes, Provider by = kOwn);
  static const Registration* Find(const char* op, Provider by);  // nullptr where there is none

  const char* const op;
  const PrepareFunction prepare;
  const size_t attribute_bytes;  // of its struct; 0: it has none
  const Provider provider;
  const Registration* const next;
};

// What matmul.cc asks of our own kernels where cuBLASLt has no epilogue for it (matmul_epilogue.cu). Element (r, c) of
// a (rows, columns) matrix; arithmetic in f32; every pointer but `accumulator` and `output` may be null; `output` may
// be `accumulator`:
//   t = accumulator; t += bias[c]; if preactivation: t *= activation'(preactivation), else: saved = t, t =
//   activation(t); t += residual; output = t (or += t)
// column_sums[c] f32 = (or +=) Σ over r of t, in a fixed order: where there is a preactivation and nothing else beside
// it, and the columns are eights. `workspace` then holds ColumnSumBytes(rows, columns) bytes.
struct MatmulEpilogue {
  const void *accumulator = nullptr, *bias = nullptr, *preactivation = nullptr, *residual = nullptr;
  void *saved = nullptr, *output = nullptr;
  sy_dtype accumulator_dtype = SY_F32, bias_dtype = SY_F32, preactivation_dtype = SY_F32, residual_dtype = SY_F32,
           saved_dtype = SY_F32, output_dtype = SY_F32;
  int32_t activation = SY_ACTIVATION_NONE;  // SY_ACTIVATION_*
  bool accumulate = false;
  int64_t rows = 0, columns = 0;
  float* column_sums = nullptr;
  void* workspace = nullptr;
  bool adds_column_sums = false;
};
uint64_t ColumnSumBytes(int64_t rows, int64_t columns);
cudaError_t LaunchMatmulEpilogue(const MatmulEpilogue& epilogue, cudaStream_t stream);

// out[c] f32 = (adds ? out[c] : 0) + Σ over rows of a[row, c], in fixed order: a is (rows, columns), columns in eights.
// `workspace` holds ColumnSumBytes(rows, columns) bytes.
cudaError_t LaunchColumnSums(const void* a, sy_dtype dtype, int64_t rows, int64_t columns, bool adds, float* out,
                             void* workspace, cudaStream_t stream);

// out[m] f32 = (accumulate ? out[m] : 0) + Σ over k of a[m, k], where a is (rows = M, columns = K) row-major or, if
// `transposed`, stored as (K, M). Fixed order. `workspace` holds RowSumBytes(rows, columns, transposed) bytes.
uint64_t RowSumBytes(int64_t rows, int64_t columns, bool transposed);
cudaError_t LaunchRowSum(const void* a, sy_dtype dtype, int64_t rows, int64_t columns, bool transposed, bool accumulate,
                         float* out, void* workspace, cudaStream_t stream);

// Fails a Prepare: this row never takes such an op.
#define SY_REFUSE(request, ...) (SY_FAIL((request).error, SY_UNSUPPORTED, __VA_ARGS__), nullptr)
// The same of what a library's row takes elsewhere: the library is missing, too old, found no plan within the limits,
// or takes such an op but for an operand. Our own kernel is then a second choice, and says so with this reason.
#define SY_MISS(request, ...) (*(request).missed = true, SY_REFUSE(request, __VA_ARGS__))

}  // namespace switchyard
