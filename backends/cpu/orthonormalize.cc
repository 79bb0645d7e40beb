// orthonormalize: each matrix by one thread, whoever is free taking the next.
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

class Orthonormalize : public Kernel {
 public:
  explicit Orthonormalize(const Request& request) : Kernel(request) {
    for (size_t o = 0; o < outputs.size(); ++o) inplace[o] = static_cast<int32_t>(o);
  }
  void Run(const Arguments& a) const override {
    const size_t count = outputs.size();
    ParallelPieces(device->threads, static_cast<int64_t>(count), [&](int64_t piece, int) {
      const auto i = static_cast<size_t>(piece);
      Vector().orthonormalize({outputs[i].dims[0], outputs[i].dims[1], a.Input<float>(i),
                               inputs.size() > count ? a.Input<float>(count + i) : nullptr, a.Output<float>(i)});
    });
  }
};

KernelPointer PrepareOrthonormalize(const Request& r) {
  const int32_t drawn = r.Attributes<sy_orthonormalize_attributes>().drawn;
  if (drawn != 0 && drawn != 1) return SY_REFUSE(r, "orthonormalize: drawn %d", drawn);
  const size_t count = r.outputs.size();
  if (count == 0 || !r.HasCounts(count * (drawn ? 2 : 1), count * (drawn ? 2 : 1), count)) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "orthonormalize: cannot accumulate");
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const sy_tensor& q = r.outputs[i % count];
    if (r.inputs[i].rank != 2) return SY_REFUSE(r, "orthonormalize: rank %d, expected 2", r.inputs[i].rank);
    if (!r.RequireDtype(r.inputs[i], SY_F32, "a matrix") || !r.RequireDtype(q, SY_F32, "a result") ||
        !r.RequireDimsOf(r.inputs[i], q, "a matrix"))
      return nullptr;
  }
  return std::make_unique<Orthonormalize>(r);
}

const Registration kOrthonormalize{"orthonormalize", PrepareOrthonormalize, sizeof(sy_orthonormalize_attributes)};

}  // namespace
}  // namespace switchyard
