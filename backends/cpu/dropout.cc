// dropout and drop path: Philox words by (key, element, sample, step), so that a mask is never stored.
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kBlock = 1024;

class Dropout : public Kernel {
 public:
  Dropout(const Request& request, const sy_dropout_attributes& attributes)
      : Kernel(request),
        attributes_(attributes),
        samples_(Elements(inputs[1])),
        elements_(Elements(inputs[0]) / samples_) {
    workspace_bytes = static_cast<uint64_t>(device->threads * 2 * kBlock) * sizeof(float);
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }

  void Run(const Arguments& a) const override {
    const auto* ids = a.Input<int32_t>(1);
    const auto* step = a.Input<int32_t>(2);
    const int64_t blocks = (elements_ + kBlock - 1) / kBlock;
    ParallelRanges(device->threads, samples_ * blocks, 4, [&](int64_t begin, int64_t end, int thread) {
      float* scratch = a.Workspace<float>() + thread * 2 * kBlock;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t s = i / blocks, first = i % blocks * kBlock, last = std::min(elements_, first + kBlock);
        const DropoutSample sample = {
            .key = attributes_.key,
            .sample = static_cast<uint32_t>(ids[s]),
            .step0 = static_cast<uint32_t>(step[0]),
            .step1 = static_cast<uint32_t>(step[1]),
            .p = attributes_.p,
            .per_sample = attributes_.per_sample,
            .x = {a.inputs[0] + s * elements_ * DtypeBytes(inputs[0].dtype), inputs[0].dtype},
            .y = {a.outputs[0] + s * elements_ * DtypeBytes(outputs[0].dtype), outputs[0].dtype}};
        Vector().dropout(sample, first, last, scratch);
      }
    });
  }

 private:
  sy_dropout_attributes attributes_;
  int64_t samples_, elements_;
};

KernelPointer PrepareDropout(const Request& r) {
  const auto attributes = r.Attributes<sy_dropout_attributes>();
  if (!r.HasCounts(3, 3, 1) || !r.RequireFloat(r.inputs[0], "x") || !r.RequireFloat(r.outputs[0], "y") ||
      !r.RequireDtype(r.inputs[1], SY_I32, "sample_ids") || !r.RequireDtype(r.inputs[2], SY_I32, "step") ||
      !r.RequireElements(r.inputs[2], 2, "step") || !r.RequireDimsOf(r.outputs[0], r.inputs[0], "y"))
    return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "dropout: cannot accumulate");
  if (!(attributes.p >= 0.0f && attributes.p <= 1.0f))
    return SY_REFUSE(r, "dropout: p = %g is not a probability", static_cast<double>(attributes.p));
  if (Elements(r.inputs[0]) % Elements(r.inputs[1]) != 0)
    return SY_REFUSE(r, "dropout: x does not divide into the samples");
  return std::make_unique<Dropout>(r, attributes);
}

const Registration kDropout{"dropout", PrepareDropout, sizeof(sy_dropout_attributes)};

}  // namespace
}  // namespace switchyard
