// transpose, slice, pad, roll and concat, for every dtype: each is one or more strided copies.
#include <algorithm>

#include "backends/cpu/copy.h"
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

// Row-major strides, elements.
std::vector<int64_t> Strides(const sy_tensor& t) {
  std::vector<int64_t> strides(static_cast<size_t>(t.rank));
  int64_t stride = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= t.dims[d];
  }
  return strides;
}

class Copies : public Kernel {
 public:
  explicit Copies(const Request& request) : Kernel(request) {}
  void Add(size_t input, const StridedCopy& copy) { copies_.push_back({input, copy.Simplified()}); }
  // The output is first filled with `value`.
  void FillWith(float value) {
    fills_ = true;
    Vector().from_float(outputs[0].dtype, &value, pattern_, 1);
  }

  void Run(const Arguments& a) const override {
    if (fills_) {
      const int64_t bytes = DtypeBytes(outputs[0].dtype);
      ParallelRanges(device->threads, Elements(outputs[0]), kParallelElements, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
          std::memcpy(a.outputs[0] + i * bytes, pattern_, static_cast<size_t>(bytes));
      });
    }
    for (const auto& [input, copy] : copies_) copy.Run(device->threads, a.inputs[input], a.outputs[0]);
  }

 private:
  struct Piece {
    size_t input;
    StridedCopy copy;
  };
  std::vector<Piece> copies_;
  bool fills_ = false;
  alignas(8) char pattern_[8] = {};
};

// One input, one output of its dtype and rank, nothing accumulated.
bool IsPlain(const Request& r) {
  if (!r.HasCounts(1, 1, 1)) return false;
  if (r.Accumulates()) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: cannot accumulate", r.op), false;
  if (r.inputs[0].rank != r.outputs[0].rank) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: ranks differ", r.op), false;
  return r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y");
}

KernelPointer PrepareTranspose(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_axes_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  StridedCopy copy(DtypeBytes(x.dtype));
  uint32_t seen = 0;
  for (int d = 0; d < y.rank; ++d) {
    const int32_t axis = attributes.values[d];
    if (axis < 0 || axis >= x.rank || (seen & 1u << axis) || x.dims[axis] != y.dims[d])
      return SY_REFUSE(r, "transpose: axes are not a permutation that gives the output's dims");
    seen |= 1u << axis;
    copy.AddAxis(y.dims[d], from[static_cast<size_t>(axis)], to[static_cast<size_t>(d)]);
  }
  auto kernel = std::make_unique<Copies>(r);
  kernel->Add(0, copy);
  return kernel;
}

KernelPointer PrepareSlice(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_slice_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  int64_t offset = 0;
  for (int d = 0; d < y.rank; ++d) {
    const int64_t start = attributes.start[d];
    int64_t reach, last;
    if (__builtin_mul_overflow(y.dims[d] - 1, attributes.step[d], &reach) ||
        __builtin_add_overflow(start, reach, &last) || start < 0 || start >= x.dims[d] || last < 0 || last >= x.dims[d])
      return SY_REFUSE(r, "slice: axis %d leaves the input", d);
    offset += start * from[static_cast<size_t>(d)];
  }
  StridedCopy copy(DtypeBytes(x.dtype), offset);
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    copy.AddAxis(y.dims[d], y.dims[d] == 1 ? 0 : from[i] * attributes.step[d], to[i]);
  }
  auto kernel = std::make_unique<Copies>(r);
  kernel->Add(0, copy);
  return kernel;
}

KernelPointer PreparePad(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_pad_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  int64_t offset = 0;
  for (int d = 0; d < y.rank; ++d) {
    if (attributes.before[d] < 0 || attributes.after[d] < 0 || attributes.before[d] > y.dims[d] ||
        attributes.after[d] > y.dims[d] || x.dims[d] + attributes.before[d] + attributes.after[d] != y.dims[d])
      return SY_REFUSE(r, "pad: axis %d of the output is not input + before + after", d);
    offset += attributes.before[d] * to[static_cast<size_t>(d)];
  }
  StridedCopy copy(DtypeBytes(x.dtype), 0, offset);
  for (int d = 0; d < y.rank; ++d) copy.AddAxis(x.dims[d], from[static_cast<size_t>(d)], to[static_cast<size_t>(d)]);
  auto kernel = std::make_unique<Copies>(r);
  if (!SameDims(x, y)) kernel->FillWith(attributes.value);
  kernel->Add(0, copy);
  return kernel;
}

KernelPointer PrepareRoll(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  if (!SameDims(r.inputs[0], r.outputs[0])) return SY_REFUSE(r, "roll: dims differ");
  const auto attributes = r.Attributes<sy_axes_attributes>();
  const sy_tensor& x = r.inputs[0];
  const auto strides = Strides(x);
  const auto rank = static_cast<uint32_t>(x.rank);
  auto kernel = std::make_unique<Copies>(r);
  // Each axis falls into [0, n − s), which moves up by s, and [n − s, n), which comes first: bit d of `corner` chooses.
  for (uint32_t corner = 0; corner < 1u << rank; ++corner) {
    int64_t from = 0, to = 0;
    std::vector<int64_t> extents;
    for (uint32_t d = 0; d < rank; ++d) {
      const int64_t n = x.dims[d], shift = ((attributes.values[d] % n) + n) % n;
      const bool wrapped = corner & 1u << d;
      extents.push_back(wrapped ? shift : n - shift);
      (wrapped ? from : to) += (wrapped ? n - shift : shift) * strides[d];
    }
    if (std::count(extents.begin(), extents.end(), 0) > 0) continue;
    StridedCopy copy(DtypeBytes(x.dtype), from, to);
    for (uint32_t d = 0; d < rank; ++d) copy.AddAxis(extents[d], strides[d], strides[d]);
    kernel->Add(0, copy);
  }
  return kernel;
}

KernelPointer PrepareConcat(const Request& r) {
  if (!r.HasCounts(1, 1 << 20, 1)) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "concat: cannot accumulate");
  const sy_tensor& y = r.outputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 0 || axis >= y.rank) return SY_REFUSE(r, "concat: axis %d of rank %d", axis, y.rank);
  const auto to = Strides(y);
  auto kernel = std::make_unique<Copies>(r);
  int64_t position = 0;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const sy_tensor& x = r.inputs[i];
    if (!r.RequireDtype(x, y.dtype, "an input")) return nullptr;
    const auto from = Strides(x);
    StridedCopy copy(DtypeBytes(y.dtype), 0, position * to[static_cast<size_t>(axis)]);
    if (x.rank != y.rank) return SY_REFUSE(r, "concat: ranks differ");
    for (int d = 0; d < y.rank; ++d) {
      if (d != axis && x.dims[d] != y.dims[d]) return SY_REFUSE(r, "concat: input %zu differs along axis %d", i, d);
      copy.AddAxis(x.dims[d], from[static_cast<size_t>(d)], to[static_cast<size_t>(d)]);
    }
    position += x.dims[axis];
    kernel->Add(i, copy);
  }
  if (position != y.dims[axis]) return SY_REFUSE(r, "concat: the inputs do not add up to the output");
  return kernel;
}

const Registration kTranspose{"transpose", PrepareTranspose, sizeof(sy_axes_attributes)};
const Registration kSlice{"slice", PrepareSlice, sizeof(sy_slice_attributes)};
const Registration kPad{"pad", PreparePad, sizeof(sy_pad_attributes)};
const Registration kRoll{"roll", PrepareRoll, sizeof(sy_axes_attributes)};
const Registration kConcat{"concat", PrepareConcat, sizeof(sy_axes_attributes)};

}  // namespace
}  // namespace switchyard
