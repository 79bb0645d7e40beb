// The attention graphs against the installed cuDNN: it recognises each as its fused kernel.
#define PrepareCudnnAttention PrepareCudnnAttentionAgain
#define PrepareCudnnAttentionBackward PrepareCudnnAttentionBackwardAgain
#include "backends/cuda/attention.cc"
#include "tests/gpu/absent_device.h"

namespace switchyard {
namespace {

enum class Addend { kNone, kBias, kMask };

class AttentionGraphs : public CudnnGraphs {
 protected:
  static std::unique_ptr<CudnnAttention> Described(const Request& request, std::optional<size_t> place, bool mask,
                                                   bool backward) {
    auto kernel = std::make_unique<CudnnAttention>(request, 0.125f, place, mask, backward);
    backward ? kernel->DescribeBackward() : kernel->DescribeForward();
    return kernel;
  }
  std::unique_ptr<CudnnAttention> Described(int64_t batch, int64_t tokens, int64_t heads, int64_t dim, Addend addend,
                                            bool backward, bool deterministic) {
    const sy_tensor qkv = TensorOf(SY_BF16, {batch, tokens, 3, heads, dim}),
                    out = TensorOf(SY_BF16, {batch, tokens, heads, dim}),
                    logsumexp = TensorOf(SY_F32, {batch, heads, tokens});
    std::vector<sy_tensor> inputs = {qkv}, outputs = {out, logsumexp};
    if (backward) {
      inputs = {qkv, out, logsumexp, out};
      outputs = {qkv};
    }
    std::optional<size_t> place;
    if (addend != Addend::kNone) {
      place = inputs.size();
      inputs.push_back(TensorOf(SY_F32, {addend == Addend::kBias ? heads : 1, tokens, tokens}));
    }
    return Described(Asking(inputs, outputs, deterministic), place, addend == Addend::kMask, backward);
  }
  int64_t Engines(const AbsentDevice& gpu, int64_t tokens, Addend addend, bool backward, bool deterministic) {
    return PermittedEngines(Described(8, tokens, 12, 64, addend, backward, deterministic)->graph_, gpu, deterministic,
                            false);
  }
};

// ViT-B/16 and the first windows of Swin-B that are not shifted, bf16.
TEST_F(AttentionGraphs, ArePlannedForTheModelsThatUseThem) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const bool deterministic : {false, true})
      for (const bool backward : {false, true}) {
        const std::string gradient = backward ? " gradient" : "";
        ExpectPlan(Described(256, 197, 12, 64, Addend::kNone, backward, deterministic)->graph_, gpu,
                   "vit_base attention" + gradient, deterministic, false);
        ExpectPlan(Described(8192, 49, 4, 32, Addend::kBias, backward, deterministic)->graph_, gpu,
                   "swin_base attention" + gradient, deterministic, false);
      }
  ExpectNoneIsLeft(IsOfAttention);
}

TEST_F(AttentionGraphs, AreRecognisedForwardAndBackwardWithAndWithoutAddend) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const int64_t tokens : {197, 256})
      for (const Addend addend : {Addend::kNone, Addend::kBias, Addend::kMask})
        for (const bool backward : {false, true})
          for (const bool deterministic : {false, true})
            EXPECT_GT(Engines(gpu, tokens, addend, backward, deterministic), 0)
                << gpu.name << ", " << tokens << " tokens, addend " << static_cast<int>(addend) << ", backward "
                << backward << ", deterministic " << deterministic;
}

}  // namespace
}  // namespace switchyard
