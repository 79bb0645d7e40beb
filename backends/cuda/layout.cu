// transpose, slice, pad, roll, concat, and copies that broadcast, for every dtype: bytes move, nothing is converted.
// Each is one or more Moves: a walk over the elements of the result, every one of which comes from a strided place,
// from a place that wraps around (roll), or from outside of the input (pad). Elements are moved in units of up to 16
// bytes where the innermost runs allow it; matrices are transposed by tiles in shared memory.
#include <algorithm>
#include <optional>

#include "backends/cuda/layout.h"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

constexpr int kSquare = 32, kSquareRows = 8;

struct Axis {
  Divider extent;
  int64_t from, to;  // strides, in units; from may be 0 or negative
  int32_t shift;     // added to the index before it is looked up in the input …
  int32_t size;      // … whose extent this is; 0: no shift and no check
};

struct Move {
  int32_t rank = 0;
  bool wraps = false;  // beyond the input: its other end, or `fill`
  Axis axes[SY_MAX_RANK];
  int64_t from = 0, to = 0;  // where the walk starts
  int64_t count = 1;
  uint4 fill = {};

  void Add(int64_t extent, int64_t from_stride, int64_t to_stride, int64_t shift = 0, int64_t size = 0) {
    if (extent == 1 && size == 0) return;
    count *= extent;
    axes[rank++] = {Divider(extent), from_stride, to_stride, static_cast<int32_t>(shift), static_cast<int32_t>(size)};
  }
  void MergeAxes();
  int GrowUnit(int bytes);  // bytes of the unit, given those of an element
  void Apply(int factor);
};

template <typename Unit>
__global__ void MoveKernel(const __grid_constant__ Move m, const Unit* x, Unit* y) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= m.count) return;
  auto index = static_cast<uint32_t>(at);
  int64_t from = m.from, to = m.to;
  bool inside = true;
  for (int d = m.rank - 1; d >= 0; --d) {
    const Axis& axis = m.axes[d];
    const uint32_t outer = axis.extent.Quotient(index);
    const auto i = static_cast<int32_t>(index - outer * axis.extent.divisor);
    int32_t source = i + axis.shift;
    if (axis.size != 0 && m.wraps && source < 0) source += axis.size;
    inside = inside && (axis.size == 0 || (source >= 0 && source < axis.size));
    from += source * axis.from;
    to += i * axis.to;
    index = outer;
  }
  Unit value;
  memcpy(&value, &m.fill, sizeof value);
  y[to] = inside ? x[from] : value;
}

// y[batch, i, j] = x[batch, j, i]: x (batch, columns, rows) becomes (batch, rows, columns).
template <typename Unit>
__global__ void TransposeKernel(int64_t rows, int64_t columns, const Unit* x, Unit* y) {
  __shared__ Unit tile[kSquare][kSquare + 1];
  const int64_t row = blockIdx.x * static_cast<int64_t>(kSquare), column = blockIdx.y * static_cast<int64_t>(kSquare);
  const int64_t batch = blockIdx.z * rows * columns;
  for (int k = threadIdx.y; k < kSquare; k += kSquareRows) {
    if (column + k < columns && row + threadIdx.x < rows)
      tile[k][threadIdx.x] = x[batch + (column + k) * rows + row + threadIdx.x];
  }
  __syncthreads();
  for (int k = threadIdx.y; k < kSquare; k += kSquareRows) {
    if (row + k < rows && column + threadIdx.x < columns)
      y[batch + (row + k) * columns + column + threadIdx.x] = tile[threadIdx.x][k];
  }
}

void Move::MergeAxes() {
  int merged = 0;
  for (int d = 0; d < rank; ++d) {
    const Axis axis = axes[d];
    if (merged > 0) {
      Axis& last = axes[merged - 1];
      const int64_t extent = axis.extent.divisor;
      if (last.size == 0 && axis.size == 0 && last.from == axis.from * extent && last.to == axis.to * extent) {
        last = {Divider(last.extent.divisor * extent), axis.from, axis.to, 0, 0};
        continue;
      }
    }
    axes[merged++] = axis;
  }
  rank = merged;
}

int Move::GrowUnit(int bytes) {
  if (rank == 0 || axes[rank - 1].size != 0 || axes[rank - 1].from != 1 || axes[rank - 1].to != 1) return bytes;
  int factor = 16 / bytes;
  const auto divides = [&](int f) {
    if (axes[rank - 1].extent.divisor % static_cast<uint32_t>(f) != 0 || from % f != 0 || to % f != 0) return false;
    return std::all_of(axes, axes + rank - 1, [&](const Axis& a) { return a.from % f == 0 && a.to % f == 0; });
  };
  while (factor > 1 && !divides(factor)) factor /= 2;
  Apply(factor);
  return bytes * factor;
}

void Move::Apply(int factor) {
  for (int d = 0; d + 1 < rank; ++d) {
    axes[d].from /= factor;
    axes[d].to /= factor;
  }
  Axis& inner = axes[rank - 1];
  inner.extent = Divider(inner.extent.divisor / static_cast<uint32_t>(factor));
  from /= factor;
  to /= factor;
  count /= factor;
}

// A transposed matrix, or several: sizes of the result.
struct MatrixTranspose {
  int64_t batch, rows, columns;
};

std::optional<MatrixTranspose> AsMatrixTranspose(const Move& m) {
  if (m.wraps || m.from != 0 || m.to != 0 || m.rank < 2 || m.rank > 3) return std::nullopt;
  if (std::any_of(m.axes, m.axes + m.rank, [](const Axis& a) { return a.size != 0; })) return std::nullopt;
  const Axis &i = m.axes[m.rank - 2], &j = m.axes[m.rank - 1];
  const int64_t rows = i.extent.divisor, columns = j.extent.divisor;
  const int64_t batch = m.rank == 3 ? m.axes[0].extent.divisor : 1;
  const bool matrix = i.from == 1 && j.from == rows && i.to == columns && j.to == 1;
  const bool stacked = m.rank == 2 || (m.axes[0].from == rows * columns && m.axes[0].to == rows * columns);
  if (!matrix || !stacked || batch > 65535 || CeilDivide(columns, kSquare) > 65535) return std::nullopt;
  return MatrixTranspose{batch, rows, columns};
}

struct Piece {
  size_t input, output;
  Move move;
  int unit;  // bytes
  std::optional<MatrixTranspose> matrices;
};

template <typename Unit>
cudaError_t Start(const Piece& piece, const char* x, char* y, cudaStream_t stream) {
  const auto* from = reinterpret_cast<const Unit*>(x);
  auto* to = reinterpret_cast<Unit*>(y);
  if (piece.matrices) {
    const MatrixTranspose& t = *piece.matrices;
    const dim3 grid(static_cast<unsigned>(CeilDivide(t.rows, kSquare)),
                    static_cast<unsigned>(CeilDivide(t.columns, kSquare)), static_cast<unsigned>(t.batch));
    return Launch(TransposeKernel<Unit>, grid, dim3(kSquare, kSquareRows), 0, stream, t.rows, t.columns, from, to);
  }
  const dim3 grid(static_cast<unsigned>(CeilDivide(piece.move.count, kThreads)));
  return Launch(MoveKernel<Unit>, grid, dim3(kThreads), 0, stream, piece.move, from, to);
}

class Moves : public Kernel {
 public:
  using Kernel::Kernel;

  // False where there are too many elements for one move.
  bool Add(Move move, size_t input, size_t output = 0) {
    const int bytes = static_cast<int>(DtypeBytes(outputs[output].dtype));
    if (move.count > kMostIndices) return false;
    move.MergeAxes();
    Piece piece = {input, output, move, bytes, AsMatrixTranspose(move)};
    if (!piece.matrices) piece.unit = piece.move.GrowUnit(bytes);
    pieces_.push_back(piece);
    return true;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    for (const Piece& piece : pieces_) {
      const char* x = b.inputs[piece.input];
      char* y = b.outputs[piece.output];
      if (x == y) continue;  // a copy onto itself
      switch (piece.unit) {
        case 1:
          SY_CUDA(error, Start<uint8_t>(piece, x, y, context.stream));
          break;
        case 2:
          SY_CUDA(error, Start<uint16_t>(piece, x, y, context.stream));
          break;
        case 4:
          SY_CUDA(error, Start<uint32_t>(piece, x, y, context.stream));
          break;
        case 8:
          SY_CUDA(error, Start<uint2>(piece, x, y, context.stream));
          break;
        default:
          SY_CUDA(error, Start<uint4>(piece, x, y, context.stream));
          break;
      }
    }
    return SY_OK;
  }

 private:
  std::vector<Piece> pieces_;
};

// Row-major strides, elements.
std::vector<int64_t> Strides(const sy_tensor& t) {
  std::vector<int64_t> strides(static_cast<size_t>(t.rank));
  int64_t stride = 1;
  for (size_t d = strides.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= t.dims[d];
  }
  return strides;
}

// One input and one output of the same dtype and rank, nothing accumulated.
bool IsPlain(const Request& r) {
  if (!r.HasCounts(1, 1, 1)) return false;
  if (r.Accumulates()) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: cannot accumulate", r.op), false;
  if (r.inputs[0].rank != r.outputs[0].rank) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: ranks differ", r.op), false;
  return r.RequireDtype(r.outputs[0], r.inputs[0].dtype, "y");
}

KernelPointer OneMove(const Request& r, const Move& move) {
  auto kernel = std::make_unique<Moves>(r);
  if (!kernel->Add(move, 0)) return SY_REFUSE(r, "%s: more than 2³¹ − 1 elements", r.op);
  return kernel;
}

template <typename T>
void Repeat(T value, uint4* pattern) {
  for (size_t at = 0; at < sizeof *pattern; at += sizeof value)
    std::memcpy(reinterpret_cast<char*>(pattern) + at, static_cast<const void*>(&value), sizeof value);
}

// 16 bytes of `value`.
uint4 Pattern(sy_dtype dtype, float value) {
  uint4 pattern{};
  switch (dtype) {
    case SY_BF16:
      Repeat(__float2bfloat16_rn(value), &pattern);
      break;
    case SY_F16:
      Repeat(__float2half_rn(value), &pattern);
      break;
    case SY_F64:
      Repeat(static_cast<double>(value), &pattern);
      break;
    case SY_I32:
      Repeat(static_cast<int32_t>(value), &pattern);
      break;
    case SY_I64:
      Repeat(static_cast<int64_t>(value), &pattern);
      break;
    case SY_U8:
      Repeat(static_cast<uint8_t>(value), &pattern);
      break;
    default:
      Repeat(value, &pattern);
      break;
  }
  return pattern;
}

KernelPointer PrepareTranspose(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_axes_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  Move move;
  uint32_t seen = 0;
  for (int d = 0; d < y.rank; ++d) {
    const int32_t axis = attributes.values[d];
    if (axis < 0 || axis >= x.rank || (seen >> axis & 1) || x.dims[axis] != y.dims[d])
      return SY_REFUSE(r, "transpose: axes are not a permutation that gives the output's dims");
    seen |= 1u << axis;
    move.Add(y.dims[d], from[static_cast<size_t>(axis)], to[static_cast<size_t>(d)]);
  }
  return OneMove(r, move);
}

KernelPointer PrepareSlice(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_slice_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  Move move;
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    int64_t reach = 0, last = 0;
    if (__builtin_mul_overflow(y.dims[d] - 1, attributes.step[d], &reach) ||
        __builtin_add_overflow(attributes.start[d], reach, &last) || attributes.start[d] < 0 ||
        attributes.start[d] >= x.dims[d] || last < 0 || last >= x.dims[d])
      return SY_REFUSE(r, "slice: axis %d takes elements outside of the input", d);
    move.from += attributes.start[d] * from[i];
    move.Add(y.dims[d], from[i] * attributes.step[d], to[i]);
  }
  return OneMove(r, move);
}

KernelPointer PreparePad(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  const auto attributes = r.Attributes<sy_pad_attributes>();
  const sy_tensor &x = r.inputs[0], &y = r.outputs[0];
  const auto from = Strides(x), to = Strides(y);
  Move move;
  move.fill = Pattern(x.dtype, attributes.value);
  for (int d = 0; d < y.rank; ++d) {
    const auto i = static_cast<size_t>(d);
    const int64_t before = attributes.before[d], after = attributes.after[d];
    if (before < 0 || after < 0 || before > kMostIndices || after > kMostIndices ||
        x.dims[d] + before + after != y.dims[d] || y.dims[d] > kMostIndices)
      return SY_REFUSE(r, "pad: axis %d of the output is not before + input + after", d);
    const bool padded = before != 0 || after != 0;
    move.Add(y.dims[d], from[i], to[i], padded ? -before : 0, padded ? x.dims[d] : 0);
  }
  return OneMove(r, move);
}

KernelPointer PrepareRoll(const Request& r) {
  if (!IsPlain(r)) return nullptr;
  if (!SameDims(r.inputs[0], r.outputs[0])) return SY_REFUSE(r, "roll: the output's dims differ from the input's");
  const auto attributes = r.Attributes<sy_axes_attributes>();
  const sy_tensor& x = r.inputs[0];
  const auto strides = Strides(x);
  Move move;
  move.wraps = true;
  for (int d = 0; d < x.rank; ++d) {
    const int64_t n = x.dims[d], shift = (attributes.values[d] % n + n) % n;
    if (n > kMostIndices) return SY_REFUSE(r, "roll: axis %d has more than 2³¹ − 1 elements", d);
    const auto i = static_cast<size_t>(d);
    move.Add(n, strides[i], strides[i], -shift, shift != 0 ? n : 0);
  }
  return OneMove(r, move);
}

KernelPointer PrepareConcat(const Request& r) {
  if (!r.HasCounts(1, 1 << 20, 1)) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "concat: cannot accumulate");
  const sy_tensor& y = r.outputs[0];
  const int32_t axis = r.Attributes<sy_axes_attributes>().values[0];
  if (axis < 0 || axis >= y.rank) return SY_REFUSE(r, "concat: axis %d of rank %d", axis, y.rank);
  const auto to = Strides(y);
  auto kernel = std::make_unique<Moves>(r);
  int64_t position = 0;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    const sy_tensor& x = r.inputs[i];
    if (!r.RequireDtype(x, y.dtype, "an input")) return nullptr;
    if (x.rank != y.rank) return SY_REFUSE(r, "concat: input %zu has rank %d, the output %d", i, x.rank, y.rank);
    const auto from = Strides(x);
    Move move;
    move.to = position * to[static_cast<size_t>(axis)];
    for (int d = 0; d < y.rank; ++d) {
      if (d != axis && x.dims[d] != y.dims[d]) return SY_REFUSE(r, "concat: input %zu differs along axis %d", i, d);
      move.Add(x.dims[d], from[static_cast<size_t>(d)], to[static_cast<size_t>(d)]);
    }
    position += x.dims[axis];
    if (!kernel->Add(move, i)) return SY_REFUSE(r, "concat: more than 2³¹ − 1 elements");
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

KernelPointer PrepareBroadcast(const Request& r, const int32_t* sources) {
  auto kernel = std::make_unique<Moves>(r);
  for (size_t o = 0; o < r.outputs.size(); ++o) {
    const sy_tensor &x = r.inputs[static_cast<size_t>(sources[o])], &y = r.outputs[o];
    const auto from = Strides(x), to = Strides(y);
    Move move;
    for (int d = 0; d < y.rank; ++d) {
      const int own = d - (y.rank - x.rank);
      const bool repeats = own < 0 || x.dims[own] == 1;
      move.Add(y.dims[d], repeats ? 0 : from[static_cast<size_t>(own)], to[static_cast<size_t>(d)]);
    }
    if (!kernel->Add(move, static_cast<size_t>(sources[o]), o))
      return SY_REFUSE(r, "%s: more than 2³¹ − 1 elements", r.op);
    if (r.outputs.size() == 1 && SameDims(x, y)) kernel->inplace[o] = sources[o];
  }
  return kernel;
}

}  // namespace switchyard
