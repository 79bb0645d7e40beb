// Products with the exact GELU behind them against the installed cuDNN: which of the graphs it has engines for, and
// that one of these, which its heuristics do not offer, has the instructions of the newest GPU.
#define PreferFusedGelu PreferFusedGeluAgain
#include "backends/cuda/gelu_matmul.cc"
#include "tests/gpu/absent_device.h"

namespace switchyard {
namespace {

enum class Form { kForward, kTraining, kGradient };  // c; c and t; c from t

class GeluGraphs : public CudnnGraphs {
 protected:
  // Rows of `k` elements to rows of `n`; a bias in f32 where there is one, weights as a layer has them.
  std::unique_ptr<GeluMatmul> Described(int64_t m, int64_t k, int64_t n, Form form, sy_dtype dtype = SY_BF16) {
    sy_matmul_attributes t{.alpha = 1, .activation = SY_ACTIVATION_GELU};
    const sy_tensor rows = TensorOf(dtype, {m, k}), result = TensorOf(dtype, {m, n});
    std::vector<sy_tensor> inputs = {rows}, outputs = {result};
    if (form == Form::kGradient) {
      t.activation_gradient = 1;
      inputs.insert(inputs.end(), {TensorOf(dtype, {k, n}), result});
    } else {
      t.transpose_b = t.bias = 1;
      inputs.insert(inputs.end(), {TensorOf(dtype, {n, k}), TensorOf(SY_F32, {n})});
    }
    if (form == Form::kTraining) {
      t.save_preactivation = 1;
      outputs.push_back(result);
    }
    const Request request = Asking(inputs, outputs, false);
    EXPECT_TRUE(GeluMatmul::Takes(request, t));
    return std::make_unique<GeluMatmul>(request, t);
  }
};

// The MLPs of ViT-B/16 at batch 256 and of the first stage of Swin-B at batch 128; the gradient is that of the
// second layer.
TEST_F(GeluGraphs, ArePlannedForTheModelsThatUseThem) {
  struct Layer {
    const char* what;
    int64_t rows, width;
  };
  constexpr Layer kLayers[] = {{"vit_base", 50432, 768}, {"swin_base", 401408, 128}};
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const Layer& layer : kLayers)
      for (const Form form : {Form::kTraining, Form::kGradient})
        ExpectPlan(
            Described(layer.rows, layer.width, 4 * layer.width, form)->graph(), gpu,
            layer.what + std::string(form == Form::kGradient ? " product with GELU's gradient" : " product with GELU"),
            true, false);
  ExpectNoneIsLeft(IsOfGelu);
}

TEST_F(GeluGraphs, HaveEnginesInEitherHalfOfOddCountsOfRows) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const sy_dtype dtype : {SY_BF16, SY_F16})
      for (const Form form : {Form::kForward, Form::kTraining, Form::kGradient})
        EXPECT_GT(PermittedEngines(Described(77, 40, 24, form, dtype)->graph(), gpu, true, false), 0)
            << gpu.name << ", dtype " << dtype << ", form " << static_cast<int>(form);
}

// cuDNN 9.19 compiles engine 2 to wgmma for compute capability 9.0 (its kernels are named xmma_sm90), and has it only
// there; which of its kernels runs is to be chosen, and none needs workspace for these shapes.
TEST_F(GeluGraphs, AnEngineThatTheHeuristicsDoNotOfferIsThereForH200) {
  if (CudnnLibrary().cudnnGetVersion() != 91900) GTEST_SKIP() << "engines have other numbers in other versions";
  const auto& [a100, h200] = kAbsentDevices;
  for (const Form form : {Form::kTraining, Form::kGradient}) {
    const auto kernel = Described(50432, 768, 3072, form), elsewhere = Described(50432, 768, 3072, form);
    const CudnnDescriptor with = Describe(device_, h200), without = Describe(device_, a100);
    OperationGraph& graph = kernel->graph();
    EXPECT_GT(graph.EngineCount(&with), 2);
    EXPECT_EQ(graph.KernelCount(2, &with), 49);
    EXPECT_NO_THROW(graph.BuildOf(2, 16, 0, true, false, &with));
    EXPECT_EQ(graph.engine(), 2);
    EXPECT_THROW(graph.BuildOf(2, 49, 0, true, false, &with), CudnnError);
    EXPECT_THROW(elsewhere->graph().BuildOf(2, -1, kWorkspaceLimit, true, false, &without), CudnnError);
  }
}

}  // namespace
}  // namespace switchyard
