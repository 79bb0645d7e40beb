// cuBLASLt on one device: its functions, its handle, and the algorithms that were chosen, by problem. A Gemm is one
// matrix product at fixed shapes with an epilogue that cuBLASLt knows; matmul.cc decides which. Algorithms come from
// the library's heuristics, or are measured on request; measured ones are kept on disk (tuning.h). Thread-safe.
// https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <type_traits>

#include "backends/cuda/device.h"

namespace switchyard {

class TuningCache;

#define SY_CUBLASLT_FUNCTIONS(X)          \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetVersion)                   \
  X(cublasLtGetStatusString)              \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoCheck)

struct BlasFunctions {
#define SY_DECLARE(name) std::remove_reference_t<decltype(::name)>* name = nullptr;
  SY_CUBLASLT_FUNCTIONS(SY_DECLARE)
#undef SY_DECLARE
  std::string reason;  // why they are not there; else empty
};
const BlasFunctions& BlasLibrary();

sy_status BlasFailed(sy_error* error, cublasStatus_t code, const char* call,
                     std::source_location where = std::source_location::current());
// SY_BLAS(error, cublasLtCreate(&handle)): looks the function up in the table.
#define SY_BLAS(error, function, ...)                                                     \
  do {                                                                                    \
    if (const cublasStatus_t sy_code = ::switchyard::BlasLibrary().function(__VA_ARGS__); \
        sy_code != CUBLAS_STATUS_SUCCESS)                                                 \
      return ::switchyard::BlasFailed((error), sy_code, #function);                       \
  } while (false)

// d (batch, m, n) = epilogue(alpha · op(a) · op(b) + beta · c), all row-major; op as in ops.h's matmul. c has d's shape
// and dtype. The epilogue works on columns of d (a bias has n elements), but BGRADB, which writes Σ over k of op(a),
// (m).
struct GemmProblem {
  int64_t batch = 1, m = 0, k = 0, n = 0;
  bool transpose_a = false, transpose_b = false;
  sy_dtype input = SY_F32, output = SY_F32;  // of a and b; of c and d
  bool tf32 = false;                         // f32 inputs may be rounded to TF32
  float alpha = 1, beta = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  sy_dtype bias = SY_F32, auxiliary = SY_F32;

  bool HasBias() const;       // the epilogue reads a bias or writes its gradient
  bool HasAuxiliary() const;  // the epilogue reads or writes the preactivation
  std::string Key() const;    // names the problem, one word
  cublasComputeType_t ComputeType() const;
};

struct GemmChoice {
  cublasLtMatmulAlgo_t algorithm{};
  uint64_t workspace_bytes = 0;
};

class Blas {
 public:
  // Null, with the reason, where the library is missing or refuses.
  static std::unique_ptr<Blas> Open(const sy_device& device, std::string* reason);
  ~Blas();
  cublasLtHandle_t handle() const { return handle_; }
  bool Find(const std::string& key, GemmChoice* choice);
  void Keep(const std::string& key, const GemmChoice& choice, bool measured);
  TuningCache& cache() { return *cache_; }  // whose file is named after the GPU and this library

 private:
  explicit Blas(const sy_device& device);

  const sy_device& device_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<TuningCache> cache_;
};

class Gemm {
 public:
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, cublasStatus_t (*)(cublasLtMatrixLayout_t)>;
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, cublasStatus_t (*)(cublasLtMatmulDesc_t)>;
  using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, cublasStatus_t (*)(cublasLtMatmulPreference_t)>;
  struct Places {
    const void *a = nullptr, *b = nullptr, *c = nullptr;                             // c == d where beta is 0
    void *d = nullptr, *bias = nullptr, *auxiliary = nullptr, *workspace = nullptr;  // each aligned to 16 bytes
  };

  // Chooses the algorithm; SY_UNSUPPORTED where the library has none for this problem within `workspace_limit` bytes.
  // `measure`: times the candidates on the device, on memory of its own.
  static sy_status Create(sy_device& device, const GemmProblem& problem, uint64_t workspace_limit, bool measure,
                          std::unique_ptr<Gemm>* gemm, sy_error* error);
  uint64_t workspace_bytes() const { return choice_.workspace_bytes; }
  const GemmProblem& problem() const { return problem_; }
  // The operation with its epilogue's pointers in it: one per binding.
  sy_status Bind(const Places& places, Operation* operation, sy_error* error) const;
  sy_status Run(const Operation& operation, const Places& places, cudaStream_t stream, sy_error* error) const;

 private:
  Gemm(sy_device& device, const GemmProblem& problem);
  sy_status MakeLayout(sy_dtype dtype, int64_t rows, int64_t columns, Layout* layout, sy_error* error) const;
  // What is asked of an algorithm.
  static sy_status Prefer(uint64_t workspace_limit, Preference* preference, sy_error* error);
  sy_status Choose(uint64_t workspace_limit, bool measure, sy_error* error);
  sy_status Measure(const cublasLtMatmulHeuristicResult_t* candidates, int count, int* best, sy_error* error);

  sy_device& device_;
  const GemmProblem problem_;
  Layout a_, b_, d_;
  GemmChoice choice_;
};

}  // namespace switchyard
