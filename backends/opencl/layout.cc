// transpose, slice, pad, roll and concat, for every dtype: each is one or more strided copies of raw elements; gather
// and flip.
#include <algorithm>
#include <cmath>

#include "backends/opencl/kernel.h"

namespace switchyard {
namespace {

// Element (i0, i1, …) of x goes to y at Σ i·strides, both counted in elements from a start.
struct StridedCopy {
  struct Axis {
    int64_t extent, from, to;
  };
  std::vector<Axis> axes;
  int64_t from_start = 0, to_start = 0;

  // Without axes of one element; neighbours that run on into one another are one axis.
  void Simplify() {
    std::vector<Axis> simple;
    for (const Axis& axis : axes) {
      if (axis.extent == 1) continue;
      if (!simple.empty() && simple.back().from == axis.from * axis.extent &&
          simple.back().to == axis.to * axis.extent) {
        simple.back() = {simple.back().extent * axis.extent, axis.from, axis.to};
      } else {
        simple.push_back(axis);
      }
    }
    if (simple.empty()) simple.push_back({1, 1, 1});
    axes = std::move(simple);
  }
};

struct Walk {  // as in layout.cl
  uint32_t extent[8], from[8], to[8];
};

const char* ElementType(sy_dtype dtype) {
  switch (DtypeBytes(dtype)) {
    case 1:
      return " -DE=uchar";
    case 2:
      return " -DE=ushort";
    case 4:
      return " -DE=uint";
    default:
      return " -DE=ulong";
  }
}

void AddCopy(Kernel& kernel, size_t input, sy_dtype dtype, StridedCopy copy) {
  copy.Simplify();
  const StridedCopy::Axis inner = copy.axes.back();
  const size_t outer = copy.axes.size() - 1;
  Walk walk{};
  int64_t rows = 1;
  for (size_t i = 0; i < outer; ++i) {
    walk.extent[i] = static_cast<uint32_t>(copy.axes[i].extent);
    walk.from[i] = static_cast<uint32_t>(copy.axes[i].from);
    walk.to[i] = static_cast<uint32_t>(copy.axes[i].to);
    rows *= copy.axes[i].extent;
  }
  std::string options = ElementType(dtype);
  if (inner.from == 1) options += " -DX_UNIT";
  if (inner.to == 1) options += " -DY_UNIT";
  const Tiling tiling = TileOver(*kernel.device(), rows, inner.extent);
  kernel.Add("layout", "copy", options)
      .In(input)
      .Out(0)
      .Struct(walk)
      .Uint(static_cast<int64_t>(outer))
      .Uint(copy.from_start)
      .Uint(copy.to_start)
      .Uint(inner.from)
      .Uint(inner.to)
      .Uint(rows)
      .Uint(inner.extent)
      .Uint(tiling.rows_each)
      .Uint(tiling.columns_each)
      .Groups(tiling.groups);
}

// The bits of `value` in the storage of a dtype.
uint64_t BitsOf(float value, sy_dtype dtype) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  switch (dtype) {
    case SY_F32:
      return bits;
    case SY_BF16:
      return std::isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    case SY_F16: {
      const _Float16 half = static_cast<_Float16>(value);
      uint16_t word;
      std::memcpy(&word, &half, sizeof word);
      return word;
    }
    default:
      return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
}

void AddFill(Kernel& kernel, const sy_tensor& y, float value) {
  const Tiling tiling = TileOver(*kernel.device(), 1, Elements(y));
  kernel.Add("layout", "fill", ElementType(y.dtype))
      .Out(0)
      .Ulong(static_cast<int64_t>(BitsOf(value, y.dtype)))
      .Uint(1)
      .Uint(Elements(y))
      .Uint(tiling.rows_each)
      .Uint(tiling.columns_each)
      .Groups(tiling.groups);
}

std::vector<int64_t> Strides(const sy_tensor& t) {
  std::vector<int64_t> strides(static_cast<size_t>(t.rank));
  int64_t stride = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= t.dims[d];
  }
  return strides;
}

// One input, one output of its dtype and rank, nothing accumulated.
bool IsPlain(const Request& r) {
  if (!r.HasCounts(1, 1, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation()) return false;
  if (r.inputs[0].rank != r.outputs[0].rank) return SY_REFUSE_OP(r, "ranks differ"), false;
  return r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y");
}

sy_status PrepareTranspose(const Request& r, Kernel& kernel) {
  if (!IsPlain(r)) return SY_UNSUPPORTED;
  const auto a = r.Attributes<sy_axes_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  StridedCopy copy;
  uint32_t seen = 0;
  for (int d = 0; d < y.rank; ++d) {
    const int32_t axis = a.values[d];
    if (axis < 0 || axis >= x.rank || (seen & 1u << axis) || x.dims[axis] != y.dims[d]) {
      return SY_REFUSE_OP(r, "axes are not a permutation that gives the output's dims");
    }
    seen |= 1u << axis;
    copy.axes.push_back({y.dims[d], from[static_cast<size_t>(axis)], to[static_cast<size_t>(d)]});
  }
  AddCopy(kernel, 0, x.dtype, copy);
  return SY_OK;
}

sy_status PrepareSlice(const Request& r, Kernel& kernel) {
  if (!IsPlain(r)) return SY_UNSUPPORTED;
  const auto a = r.Attributes<sy_slice_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  StridedCopy copy;
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    int64_t reach, last;
    if (__builtin_mul_overflow(y.dims[d] - 1, a.step[d], &reach) || __builtin_add_overflow(a.start[d], reach, &last) ||
        a.start[d] < 0 || a.start[d] >= x.dims[d] || last < 0 || last >= x.dims[d]) {
      return SY_REFUSE_OP(r, "axis %d leaves the input", d);
    }
    copy.from_start += a.start[d] * from[i];
    copy.axes.push_back({y.dims[d], y.dims[d] == 1 ? 0 : from[i] * a.step[d], to[i]});
  }
  AddCopy(kernel, 0, x.dtype, copy);
  return SY_OK;
}

sy_status PreparePad(const Request& r, Kernel& kernel) {
  if (!IsPlain(r)) return SY_UNSUPPORTED;
  const auto a = r.Attributes<sy_pad_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  StridedCopy copy;
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    if (a.before[d] < 0 || a.after[d] < 0 || a.before[d] > y.dims[d] || a.after[d] > y.dims[d] ||
        x.dims[d] + a.before[d] + a.after[d] != y.dims[d]) {
      return SY_REFUSE_OP(r, "axis %d of the output is not input + before + after", d);
    }
    copy.to_start += a.before[d] * to[i];
    copy.axes.push_back({x.dims[d], from[i], to[i]});
  }
  if (Elements(x) != Elements(y)) AddFill(kernel, y, a.value);
  AddCopy(kernel, 0, x.dtype, copy);
  return SY_OK;
}

sy_status PrepareRoll(const Request& r, Kernel& kernel) {
  if (!IsPlain(r)) return SY_UNSUPPORTED;
  const sy_tensor& x = r.inputs[0];
  if (!r.RequireDims(r.outputs[0], {x.dims, x.dims + x.rank}, "y")) return SY_UNSUPPORTED;
  const auto a = r.Attributes<sy_axes_attributes>();
  const auto strides = Strides(x);
  const auto rank = static_cast<uint32_t>(x.rank);
  // Each axis falls into [0, n − s), which moves up by s, and [n − s, n), which comes first: bit d of `corner` chooses.
  for (uint32_t corner = 0; corner < 1u << rank; ++corner) {
    StridedCopy copy;
    bool empty = false;
    for (uint32_t d = 0; d < rank; ++d) {
      const int64_t n = x.dims[d], shift = ((a.values[d] % n) + n) % n;
      const bool wrapped = corner & 1u << d;
      const int64_t extent = wrapped ? shift : n - shift;
      empty = empty || extent == 0;
      (wrapped ? copy.from_start : copy.to_start) += (wrapped ? n - shift : shift) * strides[d];
      copy.axes.push_back({extent, strides[d], strides[d]});
    }
    if (!empty) AddCopy(kernel, 0, x.dtype, copy);
  }
  return SY_OK;
}

sy_status PrepareConcat(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(1, SIZE_MAX, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation()) return SY_UNSUPPORTED;
  const sy_tensor& y = r.outputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 0 || axis >= y.rank) return SY_REFUSE_OP(r, "axis %d of rank %d", axis, y.rank);
  const auto to = Strides(y);
  int64_t position = 0;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const sy_tensor& x = r.inputs[i];
    if (!r.RequireDtype(x, y.dtype, "an input")) return SY_UNSUPPORTED;
    if (x.rank != y.rank) return SY_REFUSE_OP(r, "ranks differ");
    const auto from = Strides(x);
    StridedCopy copy;
    copy.to_start = position * to[static_cast<size_t>(axis)];
    for (int d = 0; d < y.rank; ++d) {
      if (d != axis && x.dims[d] != y.dims[d]) return SY_REFUSE_OP(r, "input %zu differs along axis %d", i, d);
      copy.axes.push_back({x.dims[d], from[static_cast<size_t>(d)], to[static_cast<size_t>(d)]});
    }
    position += x.dims[axis];
    AddCopy(kernel, i, y.dtype, copy);
  }
  if (position != y.dims[axis]) return SY_REFUSE_OP(r, "the inputs do not add up to the output");
  return SY_OK;
}

sy_status PrepareGather(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation() ||
      !r.RequireDtype(r.inputs[1], SY_I32, "indices") || !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y")) {
    return SY_UNSUPPORTED;
  }
  const sy_tensor& table = r.inputs[0];
  if (table.rank < 1) return SY_REFUSE_OP(r, "the table has no axis");
  const int64_t columns = Elements(table) / table.dims[0], rows = Elements(r.inputs[1]);
  if (!r.RequireElements(r.outputs[0], rows * columns, "y")) return SY_UNSUPPORTED;
  const Tiling tiling = TileOver(*kernel.device(), rows, columns);
  kernel.Add("layout", "gather", ElementType(table.dtype))
      .In(0)
      .In(1)
      .Out(0)
      .Uint(table.dims[0])
      .Uint(rows)
      .Uint(columns)
      .Uint(tiling.rows_each)
      .Uint(tiling.columns_each)
      .Groups(tiling.groups);
  return SY_OK;
}

sy_status PrepareFlip(const Request& r, Kernel& kernel) {
  if (!r.HasCounts(2, 2, 1) || !r.RequireContiguous() || !r.RequireNoAccumulation() ||
      !r.RequireDtype(r.inputs[1], SY_U8, "flips") || !r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y")) {
    return SY_UNSUPPORTED;
  }
  const sy_tensor& x = r.inputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 1 || axis >= x.rank) return SY_REFUSE_OP(r, "axis %d of rank %d", axis, x.rank);
  if (!SameDims(x, r.outputs[0])) return SY_REFUSE_OP(r, "dims differ");
  if (!r.RequireElements(r.inputs[1], x.dims[0], "flips")) return SY_UNSUPPORTED;
  const int64_t run = Strides(x)[static_cast<size_t>(axis)], columns = x.dims[axis] * run, rows = Elements(x) / columns;
  const Tiling tiling = TileOver(*kernel.device(), rows, columns);
  kernel.Add("layout", "flip", ElementType(x.dtype))
      .In(0)
      .In(1)
      .Out(0)
      .Uint(rows / x.dims[0])
      .Uint(run)
      .Uint(rows)
      .Uint(columns)
      .Uint(tiling.rows_each)
      .Uint(tiling.columns_each)
      .Groups(tiling.groups);
  return SY_OK;
}

const Registration kTranspose{"transpose", PrepareTranspose, sizeof(sy_axes_attributes)};
const Registration kSlice{"slice", PrepareSlice, sizeof(sy_slice_attributes)};
const Registration kPad{"pad", PreparePad, sizeof(sy_pad_attributes)};
const Registration kRoll{"roll", PrepareRoll, sizeof(sy_axes_attributes)};
const Registration kConcat{"concat", PrepareConcat, sizeof(sy_axes_attributes)};
const Registration kGather{"gather", PrepareGather, 0};
const Registration kFlip{"flip", PrepareFlip, sizeof(sy_axes_attributes)};

}  // namespace
}  // namespace switchyard
