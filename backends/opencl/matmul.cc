// matmul: on a CPU b is packed and a work-item computes tiles of vectors; elsewhere work-groups share tiles in local
// memory.
#include "backends/opencl/matmul.h"

#include <algorithm>

#include "backends/opencl/reduction.h"

namespace switchyard {
namespace {

constexpr int64_t kTiledSide = 64, kTiledLanes = 16;  // TILE and SIDE of matmul_tiled.cl
constexpr int64_t kMostTiles = 16, kGroupsPerUnit = 8, kPackRows = 256;

// Storage of c, and of the bias, for which c stands where there is none.
std::string EpilogueTypes(const Product& p) {
  return Define("TC", p.c.dtype) + Define("TBIAS", p.flags & kBias ? p.bias_dtype : p.c.dtype);
}

Launch& Epilogue(Launch& launch, const Product& p) { return launch.Float(p.alpha).Int(p.activation).Uint(p.flags); }

// Absent operands are bound to c, which is never read for them.
Launch& ResultArrays(Launch& launch, const Product& p) {
  return launch.Array(p.c.operand)
      .Array(p.flags & kBias ? p.bias : p.c.operand)
      .Array(p.flags & (kSavePreactivation | kActivationGradient) ? p.preactivation : p.c.operand)
      .Array(p.flags & kResidual ? p.residual : p.c.operand);
}

void AddTiled(Kernel& kernel, const Product& p) {
  const std::string options = Define("TA", p.a.dtype) + Define("TB", p.b.dtype) + EpilogueTypes(p);
  Launch& launch = kernel.Add("epilogue matmul_tiled", "matmul", options);
  ResultArrays(launch.Array(p.a.operand).Array(p.b.operand), p);
  launch.Uint(p.m).Uint(p.n).Uint(p.k).Uint(p.a.row_stride).Uint(p.a.column_stride);
  launch.Uint(p.b.row_stride).Uint(p.b.column_stride).Uint(p.c.row_stride).Uint(p.inner_batches);
  for (const Matrix* m : {&p.a, &p.b, &p.c}) launch.Ulong(m->outer_stride).Ulong(m->inner_stride);
  Epilogue(launch, p)
      .Groups(DivideUp(p.n, kTiledSide), DivideUp(p.m, kTiledSide), p.batches)
      .Lanes(kTiledLanes, kTiledLanes);
}

// As many rows as leave room for two vectors of b in the registers that go with vectors of this width.
int64_t RowsFor(uint32_t width) { return width >= 16 ? 8 : width == 8 ? 6 : 4; }

void AddVector(Kernel& kernel, const Product& p) {
  const sy_device& device = *kernel.device();
  const int64_t columns = 2 * device.width, panels = DivideUp(p.n, columns);
  const Operand packed = kernel.Panels(p.batches * panels * p.k * columns * DtypeBytes(SY_F32));
  kernel.Add("pack", "pack", Define("TB", p.b.dtype))
      .Array(p.b.operand)
      .Array(packed)
      .Uint(p.n)
      .Uint(p.k)
      .Uint(p.b.row_stride)
      .Uint(p.b.column_stride)
      .Uint(p.inner_batches)
      .Ulong(p.b.outer_stride)
      .Ulong(p.b.inner_stride)
      .Uint(kPackRows)
      .Groups(DivideUp(p.k, kPackRows), panels, p.batches);

  const int64_t rows = RowsFor(device.width), row_tiles = DivideUp(p.m, rows);
  const int64_t fair = row_tiles * panels * p.batches / (device.traits.compute_units * kGroupsPerUnit);
  const int64_t tiles = std::clamp<int64_t>(fair, 1, kMostTiles);
  std::string options = Define("TA", p.a.dtype) + EpilogueTypes(p) + Define("ROWS", rows);
  if (p.a.column_stride == 1) options += Define("A_UNIT", int64_t{1});
  Launch& launch = kernel.Add("epilogue matmul_vector", "matmul", options);
  ResultArrays(launch.Array(p.a.operand).Array(packed), p);
  launch.Uint(p.m).Uint(p.n).Uint(p.k).Uint(tiles).Uint(p.a.row_stride).Uint(p.a.column_stride);
  launch.Uint(p.c.row_stride).Uint(p.inner_batches);
  for (const Matrix* m : {&p.a, &p.c}) launch.Ulong(m->outer_stride).Ulong(m->inner_stride);
  Epilogue(launch, p).Groups(panels, DivideUp(row_tiles, tiles), p.batches);
}

}  // namespace

void AddProduct(Kernel& kernel, const Product& product) {
  if (kernel.device()->grouped()) {
    AddTiled(kernel, product);
  } else {
    AddVector(kernel, product);
  }
}

namespace {

sy_status PrepareMatmul(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_matmul_attributes>();
  const size_t inputs = 2 + (a.bias != 0) + (a.activation_gradient != 0) + (a.residual != 0);
  const size_t outputs = 1 + (a.save_preactivation || a.bias_gradient);
  if (a.column_sums) return SY_REFUSE_OP(r, "column_sums");
  if (!r.HasCounts(inputs, inputs, outputs) || !r.RequireContiguous()) return SY_UNSUPPORTED;
  if (a.activation < SY_ACTIVATION_NONE || a.activation > SY_ACTIVATION_SILU ||
      (a.save_preactivation && a.bias_gradient) || (a.save_preactivation && a.activation_gradient)) {
    return SY_REFUSE_OP(r, "unknown activation %d, or flags that exclude each other", a.activation);
  }
  const sy_tensor &x = r.inputs[0], &y = r.inputs[1], &c = r.outputs[0];
  for (const sy_tensor* t : {&x, &y, &c}) {
    if (!r.RequireFloat(*t, "an operand")) return SY_UNSUPPORTED;
  }
  if (x.rank < 2 || x.rank != y.rank) return SY_REFUSE_OP(r, "a and b need equal ranks of at least 2");
  const int last = x.rank - 1;
  Product p;
  p.m = x.dims[a.transpose_a ? last : last - 1];
  p.k = x.dims[a.transpose_a ? last - 1 : last];
  p.n = y.dims[a.transpose_b ? last - 1 : last];
  if (y.dims[a.transpose_b ? last : last - 1] != p.k) return SY_REFUSE_OP(r, "a and b sum over different extents");
  std::vector<int64_t> c_dims(x.dims, x.dims + last - 1);
  for (int i = 0; i < last - 1; ++i) {
    if (x.dims[i] != y.dims[i]) return SY_REFUSE_OP(r, "a and b have different leading dims");
    p.batches *= x.dims[i];
  }
  c_dims.insert(c_dims.end(), {p.m, p.n});
  if (!r.RequireDims(c, c_dims, "c")) return SY_UNSUPPORTED;

  p.alpha = a.alpha;
  p.a = {In(0), x.dtype, a.transpose_a ? 1 : p.k, a.transpose_a ? p.m : 1, p.m * p.k, 0};
  p.b = {In(1), y.dtype, a.transpose_b ? 1 : p.n, a.transpose_b ? p.k : 1, p.k * p.n, 0};
  p.c = {Out(0), c.dtype, p.n, 1, p.m * p.n, 0};
  p.activation = a.activation;
  size_t next = 2;
  const auto take = [&](const char* name, const std::vector<int64_t>& dims, uint32_t flag, Operand* operand) {
    const sy_tensor& t = r.inputs[next];
    if ((flag != kBias && !r.RequireDtype(t, c.dtype, name)) || !r.RequireDims(t, dims, name)) return false;
    p.flags |= flag;
    *operand = In(next++);
    return true;
  };
  if (a.bias) {
    p.bias_dtype = r.inputs[next].dtype;
    if (!r.RequireFloat(r.inputs[next], "bias") || !take("bias", {p.n}, kBias, &p.bias)) return SY_UNSUPPORTED;
  }
  if (a.activation_gradient && !take("preactivation", c_dims, kActivationGradient, &p.preactivation))
    return SY_UNSUPPORTED;
  if (a.residual) {
    kernel.inplace[0] = r.accumulate[0] ? -1 : static_cast<int32_t>(next);
    if (!take("residual", c_dims, kResidual, &p.residual)) return SY_UNSUPPORTED;
  }
  if (r.accumulate[0]) p.flags |= kAccumulate;
  if (a.save_preactivation) {
    if (r.accumulate[1]) return SY_REFUSE_OP(r, "cannot accumulate into the preactivation");
    if (!r.RequireDtype(r.outputs[1], c.dtype, "preactivation") ||
        !r.RequireDims(r.outputs[1], c_dims, "preactivation")) {
      return SY_UNSUPPORTED;
    }
    p.flags |= kSavePreactivation;
    p.preactivation = Out(1);
  }
  AddProduct(kernel, p);
  if (!a.bias_gradient) return SY_OK;
  if (!r.RequireDims(r.outputs[1], {p.m}, "bias_gradient") || !r.RequireDtype(r.outputs[1], SY_F32, "bias_gradient")) {
    return SY_UNSUPPORTED;
  }
  if (!a.transpose_a && p.batches > 1) return SY_REFUSE_OP(r, "bias_gradient of a batch needs transpose_a");
  Reduction sums{SY_REDUCE_SUM, In(0), x.dtype, Out(1), SY_F32};
  sums.outer = a.transpose_a ? 1 : p.m;
  sums.reduced = a.transpose_a ? p.batches * p.k : p.k;
  sums.inner = a.transpose_a ? p.m : 1;
  sums.accumulate = r.accumulate[1];
  AddReduction(kernel, sums);
  return SY_OK;
}

const Registration kMatmul{"matmul", PrepareMatmul, sizeof(sy_matmul_attributes)};

}  // namespace

}  // namespace switchyard
