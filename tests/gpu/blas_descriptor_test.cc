// The descriptors of matrix products against the installed cuBLASLt, which makes them without a GPU: each attribute
// that the plugin sets is taken (a value of the wrong size is refused) and reads back as what it was set to. What needs
// a GPU, the choice of an algorithm, answers that the library was not initialised, and nothing before it fails.
#include <dlfcn.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "backends/cuda/blas.h"

namespace switchyard {
namespace {

class BlasDescriptors : public testing::Test {
 protected:
  void SetUp() override {
    if (!BlasLibrary().reason.empty()) GTEST_SKIP() << BlasLibrary().reason;
    void* const library = dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(), RTLD_LAZY);
    get_operation_ = reinterpret_cast<decltype(get_operation_)>(dlsym(library, "cublasLtMatmulDescGetAttribute"));
    get_layout_ = reinterpret_cast<decltype(get_layout_)>(dlsym(library, "cublasLtMatrixLayoutGetAttribute"));
    get_preference_ =
        reinterpret_cast<decltype(get_preference_)>(dlsym(library, "cublasLtMatmulPreferenceGetAttribute"));
    ASSERT_TRUE(get_operation_ != nullptr && get_layout_ != nullptr && get_preference_ != nullptr);
    device_.instance = &instance_;
    device_.blas.reset(new Blas(device_));  // without a handle, for which there would have to be a GPU
  }
  // get: of the library, for descriptors of its kind.
  template <typename T, typename Get, typename Handle, typename Attribute>
  static void ExpectHeld(Get get, Handle handle, Attribute attribute, T expected) {
    T found{};
    size_t bytes = 0;
    ASSERT_EQ(get(handle, attribute, &found, sizeof found, &bytes), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(bytes, sizeof found) << "attribute " << attribute << "\n";
    EXPECT_EQ(found, expected) << "attribute " << attribute << "\n";
  }
  template <typename T>
  void ExpectAttribute(const Gemm::Operation& operation, cublasLtMatmulDescAttributes_t attribute, T expected) {
    ExpectHeld(get_operation_, operation.get(), attribute, expected);
  }
  template <typename T>
  void ExpectLayout(const Gemm::Layout& layout, cublasLtMatrixLayoutAttribute_t attribute, T expected) {
    ExpectHeld(get_layout_, layout.get(), attribute, expected);
  }
  template <typename T>
  void ExpectPreference(const Gemm::Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                        T expected) {
    ExpectHeld(get_preference_, preference.get(), attribute, expected);
  }

  decltype(&::cublasLtMatmulDescGetAttribute) get_operation_ = nullptr;
  decltype(&::cublasLtMatrixLayoutGetAttribute) get_layout_ = nullptr;
  decltype(&::cublasLtMatmulPreferenceGetAttribute) get_preference_ = nullptr;
  sy_instance instance_;  // that nobody serves: nothing is logged
  sy_device device_;
  sy_error error_{SY_HEADER(sy_error)};
};

// The first layer of ViT-B's MLP: a tanh GELU that keeps its preactivation, with its bias.
GemmProblem FirstLayer() {
  GemmProblem p;
  p.batch = 2;
  p.m = 197;
  p.k = 768;
  p.n = 3072;
  p.transpose_b = true;
  p.input = p.output = p.bias = p.auxiliary = SY_BF16;
  p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  return p;
}

class BlasOperations : public BlasDescriptors {
 protected:
  // Of `problem` the descriptor that FirstLayer() has to have.
  void ExpectFirstLayer(const GemmProblem& problem) {
    const Gemm gemm(device_, problem);
    Gemm::Operation operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy);
    void *const bias = reinterpret_cast<void*>(0x1000), *const auxiliary = reinterpret_cast<void*>(0x2000);
    ASSERT_EQ(gemm.Bind({.bias = bias, .auxiliary = auxiliary}, &operation, &error_), SY_OK) << error_.message;
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, static_cast<int32_t>(CUBLAS_COMPUTE_32F));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, static_cast<int32_t>(CUDA_R_32F));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(CUBLAS_OP_T));  // the library's A is b
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(CUBLAS_OP_N));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_16BF));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, auxiliary);
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{3072});
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, int64_t{197 * 3072});
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, static_cast<int32_t>(CUDA_R_16BF));
  }
};

TEST_F(BlasOperations, HoldEachAttributeAsItWasSet) { ExpectFirstLayer(FirstLayer()); }

// Each of these is one attribute that is not what it should be.
TEST_F(BlasOperations, OfAnotherProductAreTold) {
  const std::pair<cublasLtMatmulDescAttributes_t, void (*)(GemmProblem&)> faults[] = {
      {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, [](GemmProblem& p) { p.tf32 = true, p.input = SY_F32; }},
      {CUBLASLT_MATMUL_DESC_TRANSA, [](GemmProblem& p) { p.transpose_b = false; }},
      {CUBLASLT_MATMUL_DESC_TRANSB, [](GemmProblem& p) { p.transpose_a = true; }},
      {CUBLASLT_MATMUL_DESC_EPILOGUE, [](GemmProblem& p) { p.epilogue = CUBLASLT_EPILOGUE_RELU_AUX_BIAS; }},
      {CUBLASLT_MATMUL_DESC_BIAS_POINTER, [](GemmProblem& p) { p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX; }},
      {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, [](GemmProblem& p) { p.bias = SY_F32; }},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, [](GemmProblem& p) { p.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS; }},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, [](GemmProblem& p) { p.n = p.m; }},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, [](GemmProblem& p) { p.m = 1; }},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, [](GemmProblem& p) { p.auxiliary = SY_F16; }}};
  for (const auto& [attribute, plant] : faults) {
    GemmProblem problem = FirstLayer();
    plant(problem);
    testing::TestPartResultArray told;
    {
      const testing::ScopedFakeTestPartResultReporter listening(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &told);
      ExpectFirstLayer(problem);
    }
    std::string all;
    for (int i = 0; i < told.size(); ++i) all += told.GetTestPartResult(i).message();
    EXPECT_NE(all.find("attribute " + std::to_string(attribute) + "\n"), std::string::npos)
        << "attribute " << attribute << " was changed, and told was: " << all;
  }
}

// The gradient of a layer's weights, dw = dyᵀ·x, with that of its bias in f32.
GemmProblem WeightGradient(sy_dtype output) {
  GemmProblem p;
  p.m = 3072;
  p.k = 50432;
  p.n = 768;
  p.transpose_a = true;
  p.input = SY_BF16;
  p.output = output;
  p.bias = SY_F32;
  p.beta = 1;
  p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  return p;
}

TEST_F(BlasDescriptors, TheBiasGradientOfAHalfProductIsF32) {
  for (const sy_dtype output : {SY_BF16, SY_F32}) {
    const Gemm gemm(device_, WeightGradient(output));
    Gemm::Operation operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy);
    void* const bias = reinterpret_cast<void*>(0x1000);
    ASSERT_EQ(gemm.Bind({.bias = bias}, &operation, &error_), SY_OK) << error_.message;
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BGRADB));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_32F));
    ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(CUBLAS_OP_T));  // its B is dy
  }
}

// TF32 only where it was asked for, and of f32 only; every product of halves is added up in f32.
TEST_F(BlasDescriptors, TheComputeTypeIsWhatWasAskedFor) {
  for (const sy_dtype input : {SY_F32, SY_BF16, SY_F16})
    for (const bool tf32 : {false, true}) {
      GemmProblem p;
      p.m = p.k = p.n = 64;
      p.input = p.output = input;
      p.tf32 = tf32;
      const Gemm gemm(device_, p);
      Gemm::Operation operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy);
      ASSERT_EQ(gemm.Bind({}, &operation, &error_), SY_OK) << error_.message;
      const bool rounded = tf32 && input == SY_F32;
      ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE,
                      static_cast<int32_t>(rounded ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F));
      ExpectAttribute(operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, static_cast<int32_t>(CUDA_R_32F));
    }
}

// Sums of several blocks in f32 or in one block, operands at multiples of 16 bytes, and no more workspace than there
// is.
TEST_F(BlasDescriptors, PreferencesHoldWhatIsAskedOfAnAlgorithm) {
  for (const uint64_t limit : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    Gemm::Preference preference(nullptr, BlasLibrary().cublasLtMatmulPreferenceDestroy);
    ASSERT_EQ(Gemm::Prefer(limit, &preference, &error_), SY_OK) << error_.message;
    ExpectPreference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::min(limit, uint64_t{32} << 20));
    ExpectPreference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      ExpectPreference(preference, attribute, uint32_t{16});
  }
}

TEST_F(BlasDescriptors, LayoutsAreTheTransposesOfRowMajorMatrices) {
  const Gemm gemm(device_, FirstLayer());
  Gemm::Layout layout(nullptr, BlasLibrary().cublasLtMatrixLayoutDestroy);
  ASSERT_EQ(gemm.MakeLayout(SY_BF16, 197, 768, &layout, &error_), SY_OK) << error_.message;
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, static_cast<uint32_t>(CUDA_R_16BF));
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, static_cast<int32_t>(CUBLASLT_ORDER_COL));
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, uint64_t{768});
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_COLS, uint64_t{197});
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_LD, int64_t{768});
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t{2});
  ExpectLayout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, int64_t{197 * 768});
}

// Descriptors, layouts and preferences are all made before the library asks for its handle.
TEST_F(BlasDescriptors, NothingFailsBeforeAnAlgorithmIsChosen) {
  GemmProblem plain;
  plain.m = plain.k = plain.n = 64;
  plain.tf32 = true;
  for (const GemmProblem& problem : {FirstLayer(), WeightGradient(SY_BF16), WeightGradient(SY_F32), plain}) {
    std::unique_ptr<Gemm> gemm;
    error_ = {SY_HEADER(sy_error)};
    EXPECT_NE(Gemm::Create(device_, problem, 1 << 25, false, &gemm, &error_), SY_OK);
    EXPECT_NE(std::string(error_.message).find("cublasLtMatmulAlgoGetHeuristic"), std::string::npos) << error_.message;
    EXPECT_EQ(error_.native_code, CUBLAS_STATUS_NOT_INITIALIZED) << error_.message;
  }
}

}  // namespace
}  // namespace switchyard
