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
  int64_t Engines(const AbsentDevice& gpu, int64_t tokens, Addend addend, bool backward, bool deterministic) {
    const int64_t batch = 8, heads = 12, dim = 64;
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
    CudnnAttention kernel(Asking(inputs, outputs, deterministic), 0.125f, place, addend == Addend::kMask, backward);
    backward ? kernel.DescribeBackward() : kernel.DescribeForward();
    return PermittedEngines(kernel.graph_, gpu, deterministic, false);
  }
};

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
