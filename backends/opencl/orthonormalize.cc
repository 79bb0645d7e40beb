// orthonormalize: a launch of one work-group for each matrix.
#include "backends/opencl/kernel.h"

namespace switchyard {
namespace {

sy_status PrepareOrthonormalize(const Request& r, Kernel& kernel) {
  const int32_t drawn = r.Attributes<sy_orthonormalize_attributes>().drawn;
  if (drawn != 0 && drawn != 1) return SY_REFUSE_OP(r, "drawn %d, expected 0 or 1", drawn);
  const size_t count = r.outputs.size(), given = count * (drawn ? 2 : 1);
  if (count == 0) return SY_REFUSE_OP(r, "there is no matrix");
  if (!r.HasCounts(given, given, count) || !r.RequireContiguous() || !r.RequireNoAccumulation()) return SY_UNSUPPORTED;
  for (size_t i = 0; i < given; ++i) {
    const sy_tensor& q = r.outputs[i % count];
    if (r.inputs[i].rank != 2) return SY_REFUSE_OP(r, "a matrix of rank %d, expected 2", r.inputs[i].rank);
    if (!r.RequireDtype(r.inputs[i], SY_F32, "a matrix") || !r.RequireDtype(q, SY_F32, "a result") ||
        !r.RequireDimsOf(r.inputs[i], q, "a matrix")) {
      return SY_UNSUPPORTED;
    }
  }
  const cl_program program = kernel.Compile("orthonormalize", "");
  for (size_t o = 0; o < count; ++o) {
    kernel.inplace[o] = static_cast<int32_t>(o);
    kernel.Add(program, "orthonormalize")
        .In(o)
        .In(drawn ? count + o : o)
        .Out(o)
        .Uint(r.outputs[o].dims[0])
        .Uint(r.outputs[o].dims[1])
        .Uint(drawn);
  }
  return SY_OK;
}

const Registration kOrthonormalize{"orthonormalize", PrepareOrthonormalize, sizeof(sy_orthonormalize_attributes)};

}  // namespace
}  // namespace switchyard
