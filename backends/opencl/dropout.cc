// dropout and drop_path.
#include "backends/opencl/kernel.h"

namespace switchyard {
namespace {

sy_status PrepareDropout(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_dropout_attributes>();
  if (!r.HasCounts(3, 3, 1)) return SY_UNSUPPORTED;
  const sy_tensor& x = r.inputs[0];
  if (!r.RequireContiguous() || !r.RequireNoAccumulation() || !r.RequireFloat(x, "x") ||
      !r.RequireDtype(r.inputs[1], SY_I32, "sample_ids") || !r.RequireDtype(r.inputs[2], SY_I32, "step") ||
      !r.RequireElements(r.inputs[2], 2, "step") || !r.RequireDtype(r.outputs[0], x.dtype, "y") ||
      !r.RequireDims(r.outputs[0], {x.dims, x.dims + x.rank}, "y")) {
    return SY_UNSUPPORTED;
  }
  const int64_t samples = Elements(r.inputs[1]), elements = Elements(x);
  if (!(a.p >= 0 && a.p <= 1)) return SY_REFUSE_OP(r, "p must lie in 0 … 1, found %g", static_cast<double>(a.p));
  if (elements % samples != 0) return SY_REFUSE_OP(r, "the elements cannot be divided into as many samples");
  kernel.inplace[0] = 0;
  const int64_t size = elements / samples, quads = samples * DivideUp(size, 4);
  const Tiling tiling = TileOver(*kernel.device(), 1, quads);
  kernel.Add("dropout", "dropout", Define("T", x))
      .In(0)
      .In(1)
      .In(2)
      .Out(0)
      .Uint(samples)
      .Uint(size)
      .Uint(static_cast<uint32_t>(a.key))
      .Uint(static_cast<uint32_t>(a.key >> 32))
      .Float(a.p)
      .Uint(a.per_sample != 0)
      .Uint(tiling.columns_each)
      .Groups(tiling.groups);
  return SY_OK;
}

const Registration kDropout{"dropout", PrepareDropout, sizeof(sy_dropout_attributes)};

}  // namespace

}  // namespace switchyard
