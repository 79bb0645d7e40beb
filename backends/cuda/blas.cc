#include "backends/cuda/blas.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "backends/cuda/library.h"
#include "backends/cuda/tuning.h"

namespace switchyard {
namespace {

constexpr uint64_t kMostWorkspace = uint64_t{32} << 20;  // what the library's guide advises for compute capability 9.0
constexpr uint32_t kAlignment = 16;                      // bytes, of every operand
constexpr int kCandidates = 8;                           // of a measurement
#define SY_TEXT_OF(x) #x
#define SY_TEXT(x) SY_TEXT_OF(x)
constexpr char kLibrary[] = "libcublasLt.so." SY_TEXT(CUBLAS_VER_MAJOR);

BlasFunctions Load() {
  BlasFunctions functions;
  SharedLibrary library(kLibrary);
#define SY_BIND(name) library.Bind(#name, &functions.name);
  SY_CUBLASLT_FUNCTIONS(SY_BIND)
#undef SY_BIND
  functions.reason = library.reason();
  return functions;
}

cudaDataType_t DataType(sy_dtype dtype) {
  return dtype == SY_BF16 ? CUDA_R_16BF : dtype == SY_F16 ? CUDA_R_16F : CUDA_R_32F;
}

template <typename T>
sy_status SetOperation(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value,
                       sy_error* error) {
  SY_BLAS(error, cublasLtMatmulDescSetAttribute, operation, attribute, &value, sizeof value);
  return SY_OK;
}
template <typename T>
sy_status SetLayout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value,
                    sy_error* error) {
  SY_BLAS(error, cublasLtMatrixLayoutSetAttribute, layout, attribute, &value, sizeof value);
  return SY_OK;
}
template <typename T>
sy_status SetPreference(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                        const T& value, sy_error* error) {
  SY_BLAS(error, cublasLtMatmulPreferenceSetAttribute, preference, attribute, &value, sizeof value);
  return SY_OK;
}

}  // namespace

const BlasFunctions& BlasLibrary() {
  static const BlasFunctions functions = Load();
  return functions;
}

sy_status BlasFailed(sy_error* error, cublasStatus_t code, const char* call, std::source_location where) {
  if (code == CUBLAS_STATUS_EXECUTION_FAILED)  // the device's own error says more, and may be sticky
    if (const cudaError_t last = cudaPeekAtLastError(); last != cudaSuccess)
      return CudaFailed(error, last, call, where);
  const sy_status status = code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_ARCH_MISMATCH ? SY_UNSUPPORTED
                           : code == CUBLAS_STATUS_ALLOC_FAILED                                       ? SY_OUT_OF_MEMORY
                                                                                                      : SY_INTERNAL;
  return LibraryFailed(error, status, code, BlasLibrary().cublasLtGetStatusString(code), call, where);
}

bool GemmProblem::HasBias() const {
  return epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
}

// The bit that every epilogue with an auxiliary matrix has, and no other of those that matmul.cc asks for.
constexpr int kAuxiliaryBit = 128;
static_assert((CUBLASLT_EPILOGUE_GELU_AUX & kAuxiliaryBit) && (CUBLASLT_EPILOGUE_GELU_AUX_BIAS & kAuxiliaryBit) &&
              (CUBLASLT_EPILOGUE_DGELU & kAuxiliaryBit));
static_assert(!((CUBLASLT_EPILOGUE_GELU_BIAS | CUBLASLT_EPILOGUE_BGRADB) & kAuxiliaryBit));
static_assert(CUBLASLT_EPILOGUE_GELU_AUX_BIAS == (CUBLASLT_EPILOGUE_GELU_AUX | CUBLASLT_EPILOGUE_BIAS) &&
              CUBLASLT_EPILOGUE_GELU_BIAS == (CUBLASLT_EPILOGUE_GELU | CUBLASLT_EPILOGUE_BIAS));
bool GemmProblem::HasAuxiliary() const { return epilogue & kAuxiliaryBit; }

cublasComputeType_t GemmProblem::ComputeType() const {
  return input == SY_F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

std::string GemmProblem::Key() const {
  return Format("%lld,%lld,%lld,%lld,%d%d,%d%d%d%d,%a,%a,%d,%d", static_cast<long long>(batch),
                static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(n), transpose_a,
                transpose_b, input, output, bias, auxiliary, alpha, beta, epilogue, ComputeType());
}

Blas::Blas(const sy_device& device)
    : device_(device),
      cache_(
          std::make_unique<TuningCache>(TuningCacheName(device, std::to_string(BlasLibrary().cublasLtGetVersion())))) {}

std::unique_ptr<Blas> Blas::Open(const sy_device& device, std::string* reason) {
  const BlasFunctions& library = BlasLibrary();
  *reason = library.reason;
  if (!reason->empty()) return nullptr;
  std::unique_ptr<Blas> blas(new Blas(device));
  if (const cublasStatus_t code = library.cublasLtCreate(&blas->handle_); code != CUBLAS_STATUS_SUCCESS) {
    *reason = std::string("cublasLtCreate: ") + library.cublasLtGetStatusString(code);
    return nullptr;
  }
  return blas;
}

Blas::~Blas() {
  if (handle_ != nullptr && BlasLibrary().cublasLtDestroy(handle_) != CUBLAS_STATUS_SUCCESS)
    device_.instance->Log(2, "cuda: cublasLtDestroy failed");
}

// Kept as text: the workspace, then the eight words of the algorithm. A text that does not read is none.
bool Blas::Find(const std::string& key, GemmChoice* choice) {
  const std::optional<std::string> kept = cache_->Find(key);
  if (!kept) return false;
  std::istringstream words(*kept);
  words >> choice->workspace_bytes >> std::hex;
  for (uint64_t& word : choice->algorithm.data) words >> word;
  return static_cast<bool>(words);
}

void Blas::Keep(const std::string& key, const GemmChoice& choice, bool measured) {
  std::string text = Format("%llu", static_cast<unsigned long long>(choice.workspace_bytes));
  for (const uint64_t word : choice.algorithm.data) text += Format(" %llx", static_cast<unsigned long long>(word));
  cache_->Keep(key, text, measured);
}

Gemm::Gemm(sy_device& device, const GemmProblem& problem)
    : device_(device),
      problem_(problem),
      a_(nullptr, BlasLibrary().cublasLtMatrixLayoutDestroy),
      b_(nullptr, BlasLibrary().cublasLtMatrixLayoutDestroy),
      d_(nullptr, BlasLibrary().cublasLtMatrixLayoutDestroy) {}

// A row-major (rows, columns) matrix as the library sees it: column-major (columns, rows) with columns as leading
// dimension.
sy_status Gemm::MakeLayout(sy_dtype dtype, int64_t rows, int64_t columns, Layout* layout, sy_error* error) const {
  cublasLtMatrixLayout_t made = nullptr;
  SY_BLAS(error, cublasLtMatrixLayoutCreate, &made, DataType(dtype), static_cast<uint64_t>(columns),
          static_cast<uint64_t>(rows), columns);
  layout->reset(made);
  if (problem_.batch == 1) return SY_OK;
  SY_TRY(SetLayout(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(problem_.batch), error));
  return SetLayout(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, rows * columns, error);
}

// d = op(a)·op(b) row-major is dᵀ = op(b)ᵀ·op(a)ᵀ column-major: the library's A is b, its B is a.
sy_status Gemm::Bind(const Places& places, Operation* operation, sy_error* error) const {
  for (const void* place : {places.a, places.b, places.c, static_cast<const void*>(places.d),
                            static_cast<const void*>(places.bias), static_cast<const void*>(places.auxiliary)})
    if (reinterpret_cast<uintptr_t>(place) % kAlignment != 0)
      return SY_FAIL(error, SY_INVALID, "matmul: an operand is not aligned to %u bytes", kAlignment);
  cublasLtMatmulDesc_t made = nullptr;
  SY_BLAS(error, cublasLtMatmulDescCreate, &made, problem_.ComputeType(), CUDA_R_32F);
  *operation = Operation(made, BlasLibrary().cublasLtMatmulDescDestroy);
  const auto transpose = [](bool t) { return static_cast<int32_t>(t ? CUBLAS_OP_T : CUBLAS_OP_N); };
  SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_TRANSA, transpose(problem_.transpose_b), error));
  SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_TRANSB, transpose(problem_.transpose_a), error));
  SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(problem_.epilogue), error));
  if (problem_.HasBias()) {
    SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, places.bias, error));
    SY_TRY(
        SetOperation(made, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(DataType(problem_.bias)), error));
  }
  if (problem_.HasAuxiliary()) {
    SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, places.auxiliary, error));
    SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem_.n, error));
    SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, problem_.m * problem_.n, error));
    SY_TRY(SetOperation(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE,
                        static_cast<int32_t>(DataType(problem_.auxiliary)), error));
  }
  return SY_OK;
}

sy_status Gemm::Run(const Operation& operation, const Places& places, cudaStream_t stream, sy_error* error) const {
  SY_BLAS(error, cublasLtMatmul, device_.blas->handle(), operation.get(), &problem_.alpha, places.b, b_.get(), places.a,
          a_.get(), &problem_.beta, places.c, d_.get(), places.d, d_.get(), &choice_.algorithm, places.workspace,
          choice_.workspace_bytes, stream);
  return SY_OK;
}

sy_status Gemm::Create(sy_device& device, const GemmProblem& problem, uint64_t workspace_limit, bool measure,
                       std::unique_ptr<Gemm>* gemm, sy_error* error) {
  if (problem.batch > std::numeric_limits<int32_t>::max())
    return SY_FAIL(error, SY_UNSUPPORTED, "matmul: a batch of %lld matrices", static_cast<long long>(problem.batch));
  std::unique_ptr<Gemm> made(new Gemm(device, problem));
  const auto& p = problem;
  SY_TRY(made->MakeLayout(p.input, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, &made->a_, error));
  SY_TRY(made->MakeLayout(p.input, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, &made->b_, error));
  SY_TRY(made->MakeLayout(p.output, p.m, p.n, &made->d_, error));
  SY_TRY(made->Choose(workspace_limit, measure, error));
  *gemm = std::move(made);
  return SY_OK;
}

sy_status Gemm::Prefer(uint64_t workspace_limit, Preference* preference, sy_error* error) {
  cublasLtMatmulPreference_t made = nullptr;
  SY_BLAS(error, cublasLtMatmulPreferenceCreate, &made);
  preference->reset(made);
  SY_TRY(
      SetPreference(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::min(workspace_limit, kMostWorkspace), error));
  // Parts of a sum that several blocks share are added in f32, never in the dtype of a half output.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  SY_TRY(SetPreference(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes, error));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    SY_TRY(SetPreference(made, attribute, kAlignment, error));
  return SY_OK;
}

sy_status Gemm::Choose(uint64_t workspace_limit, bool measure, sy_error* error) {
  const cublasLtHandle_t handle = device_.blas->handle();
  const std::string room = workspace_limit < kMostWorkspace ? ",workspace=" + std::to_string(workspace_limit) : "";
  const std::string key = problem_.Key() + room + (measure ? ",measured" : "");
  // The heuristics read the alignment of the epilogue's pointers, not what they point to.
  void* const aligned = reinterpret_cast<void*>(static_cast<uintptr_t>(kAlignment));
  Operation operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy);
  // Of an epilogue that it does not have beside these dtypes the library says "unsupported" or "invalid", here or when
  // it is told of the attribute: either way there is a simpler one.
  sy_error reason{SY_HEADER(sy_error)};
  if (sy_status described = Bind({.bias = aligned, .auxiliary = aligned}, &operation, &reason); described != SY_OK) {
    if (reason.native_code == CUBLAS_STATUS_INVALID_VALUE && problem_.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
      described = SY_UNSUPPORTED;
    if (error != nullptr) FillStruct(error, reason);
    return described;
  }
  if (device_.blas->Find(key, &choice_) && choice_.workspace_bytes <= workspace_limit) {
    cublasLtMatmulHeuristicResult_t checked{};
    if (BlasLibrary().cublasLtMatmulAlgoCheck(handle, operation.get(), b_.get(), a_.get(), d_.get(), d_.get(),
                                              &choice_.algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
        checked.workspaceSize <= choice_.workspace_bytes)
      return SY_OK;
  }
  Preference preference(nullptr, BlasLibrary().cublasLtMatmulPreferenceDestroy);
  SY_TRY(Prefer(workspace_limit, &preference, error));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int count = 0, best = 0;
  const cublasStatus_t answer = BlasLibrary().cublasLtMatmulAlgoGetHeuristic(
      handle, operation.get(), b_.get(), a_.get(), d_.get(), d_.get(), preference.get(), measure ? kCandidates : 1,
      candidates.data(), &count);
  if (answer == CUBLAS_STATUS_INVALID_VALUE && problem_.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return SY_FAIL(error, SY_UNSUPPORTED, "matmul: cuBLASLt calls epilogue %d invalid for %s", problem_.epilogue,
                   problem_.Key().c_str());
  if (answer != CUBLAS_STATUS_SUCCESS) return BlasFailed(error, answer, "cublasLtMatmulAlgoGetHeuristic");
  if (count < 1 || candidates[0].state != CUBLAS_STATUS_SUCCESS)
    return SY_FAIL(error, SY_UNSUPPORTED, "matmul: cuBLASLt has no algorithm for %s", problem_.Key().c_str());
  bool measured = false;
  if (measure && count > 1) {
    reason = {SY_HEADER(sy_error)};
    measured = Measure(candidates.data(), count, &best, &reason) == SY_OK;
    SY_TRY(FirstLoss(device_.index, error));
    if (!measured)
      device_.instance->Log(1, Format("cuda: %s was not measured: %.300s", problem_.Key().c_str(), reason.message));
  }
  const auto& chosen = candidates[static_cast<size_t>(best)];
  choice_ = {chosen.algo, chosen.workspaceSize};
  device_.blas->Keep(key, choice_, measured);
  return SY_OK;
}

sy_status Gemm::Measure(const cublasLtMatmulHeuristicResult_t* candidates, int count, int* best, sy_error* error) {
  const cudaStream_t stream = device_.own.stream;
  const GemmProblem& p = problem_;
  size_t workspace_bytes = 16;
  for (int i = 0; i < count; ++i) workspace_bytes = std::max(workspace_bytes, candidates[i].workspaceSize);
  const auto allocate = [&](Scratch& scratch, int64_t elements, int64_t element_bytes) {
    return scratch.Allocate(elements * element_bytes, stream, error);
  };
  const int64_t input = p.input == SY_F32 ? 4 : 2, output = p.output == SY_F32 ? 4 : 2;
  Scratch a(device_), b(device_), d(device_), bias(device_), auxiliary(device_), workspace(device_);
  SY_TRY(allocate(a, p.batch * p.m * p.k, input));
  SY_TRY(allocate(b, p.batch * p.k * p.n, input));
  SY_TRY(allocate(d, p.batch * p.m * p.n, output));
  SY_TRY(allocate(bias, std::max(p.m, p.n), 4));
  SY_TRY(allocate(auxiliary, p.HasAuxiliary() ? p.batch * p.m * p.n : 4, 4));
  SY_TRY(allocate(workspace, static_cast<int64_t>(workspace_bytes), 1));
  const Places places = {a.address(),    b.address(),         d.address(),        d.address(),
                         bias.address(), auxiliary.address(), workspace.address()};
  Operation operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy);
  SY_TRY(Bind(places, &operation, error));
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) {
    if (candidates[i].state != CUBLAS_STATUS_SUCCESS) continue;
    choice_ = {candidates[i].algo, candidates[i].workspaceSize};
    float ms = 0;
    SY_TRY(MeasureRuns(
        device_, stream, [&] { return Run(operation, places, stream, error); }, &ms, error));
    if (ms < least) least = ms, *best = i;
  }
  return SY_OK;
}

}  // namespace switchyard
