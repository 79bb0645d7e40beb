// Stands in for libcublasLt: the functions that backends/cuda looks up, with a plain product in f32 that runs on the
// stream of the runtime's double. Epilogues, layouts and batches mean what
// https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api says; what the library refuses (a bias whose dtype is not
// that of D, for one) is refused here, so that the plugin's other ways run too; with CUBLAS_LT_DOUBLE_PLAIN=1 in the
// environment, every epilogue is, with =invalid as an invalid value, with =attribute when the attribute is set. With
// CUBLAS_LT_DOUBLE_ZEROS=fault the device is lost where a product is given nothing but zeros, and with
// CUBLAS_LT_DOUBLE_DELAY_US each product takes that much longer. Its algorithms need different workspaces, which they
// leave full of NaN; the heuristics offer those that the preference has room for, with CUBLAS_LT_DOUBLE_WORKSPACE
// algorithms that all need so many bytes, whatever the preference says. A thread needs a context
// (cudaSetDevice). Column-major, as there. Thread-safe: as the library, one descriptor belongs to one thread at a time.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"

namespace {

struct Layout {
  cudaDataType type;
  int64_t rows, columns, leading;
  int64_t batch = 1, batch_stride = 0;
};

struct Operation {
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *auxiliary = nullptr;
  int32_t bias_type = -1, auxiliary_type = -1;  // -1: as D
  int64_t auxiliary_leading = 0, auxiliary_stride = 0;
};

struct Preference {
  uint64_t workspace_bytes = 0;
};

// What the algorithms need, the fastest first; a cublasLtMatmulAlgo_t holds the number of one, counted from 1.
constexpr uint64_t kWorkspaces[] = {3000, 5000, 0};

uint64_t WorkspaceOf(uint64_t algorithm) {
  static const int64_t set = doubles::NumberFrom("CUBLAS_LT_DOUBLE_WORKSPACE", -1, -1, 1'000'000'000);
  return set >= 0 ? static_cast<uint64_t>(set) : kWorkspaces[algorithm - 1];
}

bool Fits(uint64_t algorithm, const Preference& preference) {
  static const bool ignores = std::getenv("CUBLAS_LT_DOUBLE_WORKSPACE") != nullptr;
  return ignores || WorkspaceOf(algorithm) <= preference.workspace_bytes;
}

bool IsKnown(const cublasLtMatmulAlgo_t& algorithm) {
  return algorithm.data[0] >= 1 && algorithm.data[0] <= std::size(kWorkspaces);
}

struct Matrix {
  char* data;
  cudaDataType type;
  int64_t leading, batch_stride;

  int64_t At(int64_t batch, int64_t row, int64_t column) const { return batch * batch_stride + column * leading + row; }
  float Get(int64_t i) const {
    if (type == CUDA_R_32F) return reinterpret_cast<const float*>(data)[i];
    if (type == CUDA_R_16BF) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[i]);
    return __half2float(reinterpret_cast<const __half*>(data)[i]);
  }
  void Set(int64_t i, float value) const {
    if (type == CUDA_R_32F) {
      reinterpret_cast<float*>(data)[i] = value;
    } else if (type == CUDA_R_16BF) {
      reinterpret_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
    } else {
      reinterpret_cast<__half*>(data)[i] = __float2half_rn(value);
    }
  }
};

float Gelu(float x) { return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x))); }
float GeluGradient(float x) {
  const float t = std::tanh(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

// D (m, n) = epilogue(alpha·op(A)·op(B) + beta·C) for every matrix of the batch.
struct Product {
  Operation operation;
  Matrix a, b, c, d;
  int64_t m, n, k, batch;
  float alpha, beta;
  void* workspace;
  uint64_t workspace_bytes;

  bool Has(uint32_t bits) const { return (operation.epilogue & bits) == bits; }

  // Whether the first matrix of `x` holds nothing but zeros.
  static bool IsZero(const Matrix& x, int64_t elements) {
    for (int64_t i = 0; i < elements; ++i)
      if (x.Get(i) != 0) return false;
    return true;
  }

  // Nothing else that is in use may lie in the workspace, neither what the product reads nor what it writes.
  void Run() const {
    UseWorkspace();
    Multiply();
    UseWorkspace();
  }

 private:
  void UseWorkspace() const {
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, workspace_bytes);  // NaN in every dtype
  }
  void Multiply() const {
    static const auto delay =
        std::chrono::microseconds(doubles::NumberFrom("CUBLAS_LT_DOUBLE_DELAY_US", 0, 0, 1'000'000));
    std::this_thread::sleep_for(delay);
    static const bool faults = std::getenv("CUBLAS_LT_DOUBLE_ZEROS") != nullptr;
    if (faults && (IsZero(a, m * k) || IsZero(b, k * n))) return cudaDoubleLoseDevice(cudaErrorLaunchFailure);
    std::vector<float> left(static_cast<size_t>(m * k)), column(static_cast<size_t>(m));
    for (int64_t batch_index = 0; batch_index < batch; ++batch_index) {
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t i = 0; i < m; ++i)
          left[static_cast<size_t>(p * m + i)] =
              a.Get(operation.transpose_a == CUBLAS_OP_N ? a.At(batch_index, i, p) : a.At(batch_index, p, i));
      }
      for (int64_t j = 0; j < n; ++j) {
        std::fill(column.begin(), column.end(), 0.0f);
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          const float factor =
              b.Get(operation.transpose_b == CUBLAS_OP_N ? b.At(batch_index, p, j) : b.At(batch_index, j, p));
          const float* from = &left[static_cast<size_t>(p * m)];
          for (int64_t i = 0; i < m; ++i) column[static_cast<size_t>(i)] += factor * from[i];
          sum += factor;
        }
        if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB) Vector().Set(j, sum);
        for (int64_t i = 0; i < m; ++i) Finish(batch_index, i, j, column[static_cast<size_t>(i)]);
      }
    }
  }
  Matrix Vector() const {
    const auto type = operation.bias_type < 0 ? d.type : static_cast<cudaDataType>(operation.bias_type);
    return {static_cast<char*>(operation.bias), type, 0, 0};
  }
  void Finish(int64_t batch_index, int64_t i, int64_t j, float product) const {
    const auto type = operation.auxiliary_type < 0 ? d.type : static_cast<cudaDataType>(operation.auxiliary_type);
    const Matrix auxiliary = {static_cast<char*>(operation.auxiliary), type, operation.auxiliary_leading,
                              operation.auxiliary_stride};
    float t = alpha * product;
    if (beta != 0) t += beta * c.Get(c.At(batch_index, i, j));
    if (Has(CUBLASLT_EPILOGUE_BIAS)) t += Vector().Get(i);
    if (operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
      t *= GeluGradient(auxiliary.Get(auxiliary.At(batch_index, i, j)));
    } else if (Has(CUBLASLT_EPILOGUE_GELU)) {
      if (Has(CUBLASLT_EPILOGUE_GELU_AUX)) auxiliary.Set(auxiliary.At(batch_index, i, j), t);
      t = Gelu(t);
    } else if (Has(CUBLASLT_EPILOGUE_RELU)) {
      t = t > 0 ? t : 0;  // NaN too, as cuBLASLt 13.1 has it
    }
    d.Set(d.At(batch_index, i, j), t);
  }
};

Layout& Of(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
Operation& Of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Operation*>(handle); }
Preference& Of(cublasLtMatmulPreference_t handle) { return *reinterpret_cast<Preference*>(handle); }

template <typename T>
cublasStatus_t Read(T* field, const void* given, size_t bytes) {
  if (given == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field, given, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool IsSupported(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto known = [](cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; };
  if (!known(a.type) || a.type != b.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F))
    return false;
  constexpr uint32_t kKnown[] = {CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_BIAS,
                                 CUBLASLT_EPILOGUE_RELU,      CUBLASLT_EPILOGUE_GELU,
                                 CUBLASLT_EPILOGUE_GELU_AUX,  CUBLASLT_EPILOGUE_RELU_BIAS,
                                 CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                 CUBLASLT_EPILOGUE_DGELU,     CUBLASLT_EPILOGUE_BGRADB};
  static const bool plain = std::getenv("CUBLAS_LT_DOUBLE_PLAIN") != nullptr;
  if (plain && o.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
  if (std::find(std::begin(kKnown), std::end(kKnown), o.epilogue) == std::end(kKnown)) return false;
  const bool vector = o.epilogue == CUBLASLT_EPILOGUE_BGRADB || (o.epilogue & CUBLASLT_EPILOGUE_BIAS);
  if (vector && o.bias_type >= 0 && o.bias_type != d.type) return false;
  return o.auxiliary_type < 0 || o.auxiliary_type == d.type;
}

// The sizes fit together.
bool IsConsistent(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const int64_t m = o.transpose_a == CUBLAS_OP_N ? a.rows : a.columns,
                k = o.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  const int64_t n = o.transpose_b == CUBLAS_OP_N ? b.columns : b.rows,
                other = o.transpose_b == CUBLAS_OP_N ? b.rows : b.columns;
  return k == other && d.rows == m && d.columns == n && c.rows == m && c.columns == n && a.batch == b.batch &&
         a.batch == c.batch && a.batch == d.batch && a.leading >= a.rows && b.leading >= b.rows && d.leading >= m;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int anything;
  *handle = reinterpret_cast<cublasLtHandle_t>(&anything);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion() {
  return static_cast<size_t>(doubles::NumberFrom("CUBLAS_LT_DOUBLE_VERSION", CUBLAS_VERSION, 1, 10'000'000));
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality requested is not supported"
                                               : "an error of the double";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F || (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new (std::nothrow) Operation);
  return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  delete &Of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Operation& o = Of(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Read(&o.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Read(&o.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: {
      const cublasStatus_t read = Read(&o.epilogue, value, bytes);
      const char* plain = std::getenv("CUBLAS_LT_DOUBLE_PLAIN");
      const bool unknown = plain != nullptr && std::strcmp(plain, "attribute") == 0;
      return unknown && o.epilogue != CUBLASLT_EPILOGUE_DEFAULT ? CUBLAS_STATUS_INVALID_VALUE : read;
    }
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Read(&o.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Read(&o.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Read(&o.auxiliary, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Read(&o.auxiliary_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return Read(&o.auxiliary_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return Read(&o.auxiliary_type, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(
      new (std::nothrow) Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading});
  return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete &Of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return Read(&Of(handle).batch_stride, value, bytes);
  if (attribute != CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return CUBLAS_STATUS_INVALID_VALUE;
  int32_t count = 0;
  const cublasStatus_t status = Read(&count, value, bytes);
  Of(handle).batch = count;
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new (std::nothrow) Preference);
  return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete &Of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return Read(&Of(handle).workspace_bytes, value, bytes);
  uint32_t ignored;
  return Read(&ignored, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  if (wanted < 1 || !IsConsistent(Of(operation), Of(a), Of(b), Of(c), Of(d))) return CUBLAS_STATUS_INVALID_VALUE;
  if (!cudaDoubleHasContext()) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!IsSupported(Of(operation), Of(a), Of(b), Of(c), Of(d))) {
    const char* plain = std::getenv("CUBLAS_LT_DOUBLE_PLAIN");
    return plain != nullptr && std::strcmp(plain, "invalid") == 0 ? CUBLAS_STATUS_INVALID_VALUE
                                                                  : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (uint64_t algorithm = 1; algorithm <= std::size(kWorkspaces) && *count < wanted; ++algorithm) {
    if (!Fits(algorithm, Of(preference))) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.state = CUBLAS_STATUS_SUCCESS;
    result.algo.data[0] = algorithm;
    result.workspaceSize = WorkspaceOf(algorithm);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  if (!IsKnown(*algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = WorkspaceOf(algorithm->data[0]);
  return IsSupported(Of(operation), Of(a), Of(b), Of(c), Of(d)) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Operation& o = Of(operation);
  const Layout &la = Of(a_layout), &lb = Of(b_layout), &lc = Of(c_layout), &ld = Of(d_layout);
  if (!IsConsistent(o, la, lb, lc, ld) || !IsKnown(*algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  const uint64_t needed = WorkspaceOf(algorithm->data[0]);
  const bool has_room = workspace_bytes >= needed && (needed == 0 || workspace != nullptr);
  if (!has_room || reinterpret_cast<uintptr_t>(workspace) % 16 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!cudaDoubleHasContext()) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!IsSupported(o, la, lb, lc, ld)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto matrix = [](const void* data, const Layout& layout) {
    return Matrix{static_cast<char*>(const_cast<void*>(data)), layout.type, layout.leading, layout.batch_stride};
  };
  auto* product = new (std::nothrow) Product{o,
                                             matrix(a, la),
                                             matrix(b, lb),
                                             matrix(c, lc),
                                             matrix(d, ld),
                                             ld.rows,
                                             ld.columns,
                                             o.transpose_a == CUBLAS_OP_N ? la.columns : la.rows,
                                             ld.batch,
                                             *static_cast<const float*>(alpha),
                                             *static_cast<const float*>(beta),
                                             workspace,
                                             needed};
  if (product == nullptr) return CUBLAS_STATUS_ALLOC_FAILED;
  static const char kernel = 0;
  const cudaError_t code = cudaDoubleLaunch(
      &kernel, stream, [](void* data) { static_cast<const Product*>(data)->Run(); }, product,
      [](void* data) { delete static_cast<Product*>(data); });
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
