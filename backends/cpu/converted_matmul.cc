// matmul by conversion, for the dtypes that this CPU does not multiply. The product is made of blocks of C, and a block
// of C of sums over blocks of K: both operands' blocks become f32 (f32 operands are read where they lie), oneDNN's
// sgemm adds their product to the block's sums, and what follows (bias, activation, residual, the one rounding) passes
// over the block's rows while they lie in the cache. Sums are made in the output itself where that is f32.
#include <dnnl.h>

#include "backends/cpu/matmul.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

// A block of a stored matrix as f32: its first element and the distance of its rows.
struct FloatBlock {
  const float* data;
  int64_t stride;
};

// The largest pieces of C and K: at most 12 MB of f32 together, and large, because sgemm packs the operands of each
// piece anew. They are not tuned: other sizes differed by less than the noise of the measurement.
constexpr int64_t kMostRows = 768, kMostColumns = 768, kMostDepth = 1536;

// The length of equal pieces of n, none above `most`; a multiple of 16 unless it is n.
int64_t Piece(int64_t n, int64_t most) {
  const int64_t pieces = (n + most - 1) / most;
  return pieces <= 1 ? n : ((n + pieces - 1) / pieces + 15) / 16 * 16;
}

class ConvertedMatmul : public Kernel {
 public:
  ConvertedMatmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape)
      : Kernel(request),
        t_(attributes),
        shape_(shape),
        bias_gradient_(shape, t_.transpose_a, device->threads),
        rows_(Piece(shape.m, kMostRows)),
        columns_(Piece(shape.n, kMostColumns)),
        depth_(Piece(shape.k, kMostDepth)) {
    has_epilogue_ = t_.bias || t_.activation != SY_ACTIVATION_NONE || t_.save_preactivation || t_.residual;
    in_place_ = outputs[0].dtype == SY_F32 && !(has_epilogue_ && accumulate[0]);
    const auto take = [&](int64_t floats) {
      const uint64_t at = workspace_bytes;
      workspace_bytes += static_cast<uint64_t>(floats + 15) / 16 * 64;
      return at;
    };
    if (inputs[0].dtype != SY_F32) left_ = take(rows_ * depth_);
    if (inputs[1].dtype != SY_F32) right_ = take(depth_ * columns_);
    if (!in_place_) product_ = take(rows_ * columns_);
    if (t_.bias_gradient) bias_partial_ = take(static_cast<int64_t>(bias_gradient_.workspace_bytes() / sizeof(float)));
  }

  std::unique_ptr<sy_bound> Bind(Arguments arguments, sy_launch* launch) const override {
    auto bound = std::make_unique<Bound>();
    bound->kernel = this;
    bound->arguments = std::move(arguments);
    *launch = Launch;
    return bound;
  }
  void Run(const Arguments&) const override {}  // bound by Bind above

 private:
  struct Bound : sy_bound {
    const ConvertedMatmul* kernel = nullptr;
    Arguments arguments;
  };

  static sy_status Launch(sy_bound* bound, sy_stream*, sy_error* error) {
    const auto& b = *static_cast<const Bound*>(bound);
    const ConvertedMatmul& k = *b.kernel;
    if (const sy_status entered = k.device->EnterToLaunch(error); entered != SY_OK) return entered;
    for (int64_t matrix = 0; matrix < k.shape_.batch; ++matrix)
      if (const dnnl_status_t status = k.Multiply(b.arguments, matrix); status != dnnl_success)
        return SY_FAIL(error, SY_INTERNAL, "matmul: oneDNN's sgemm failed with status %d", status);
    if (k.t_.bias_gradient)
      k.bias_gradient_.Run(k.In(b.arguments, 0), k.accumulate[1], b.arguments.Output<float>(1),
                           b.arguments.Workspace<float>(k.bias_partial_));
    return SY_OK;
  }

  dnnl_status_t Multiply(const Arguments& a, int64_t matrix) const {
    const int64_t left = matrix * shape_.m * shape_.k, right = matrix * shape_.k * shape_.n;
    for (int64_t column = 0; column < shape_.n; column += columns_)
      for (int64_t row = 0; row < shape_.m; row += rows_) {
        const int64_t rows = std::min(rows_, shape_.m - row), columns = std::min(columns_, shape_.n - column);
        const int64_t at = matrix * shape_.m * shape_.n + row * shape_.n + column;
        float* sums = in_place_ ? a.Output<float>(0) + at : a.Workspace<float>(product_);
        const int64_t stride = in_place_ ? shape_.n : columns;
        for (int64_t first = 0; first < shape_.k; first += depth_) {
          const int64_t depth = std::min(depth_, shape_.k - first);
          const FloatBlock x = Block(In(a, 0), left, t_.transpose_a, shape_.m, shape_.k, row, rows, first, depth,
                                     a.Workspace<float>(left_));
          // With the whole of K in one block the next rows find the right operand as it was left.
          const bool kept = row > 0 && depth_ == shape_.k;
          const FloatBlock y = Block(In(a, 1), right, t_.transpose_b, shape_.k, shape_.n, first, depth, column, columns,
                                     a.Workspace<float>(right_), kept);
          const bool add = first > 0 || (in_place_ && accumulate[0]);
          const dnnl_status_t status =
              dnnl_sgemm(t_.transpose_a ? 'T' : 'N', t_.transpose_b ? 'T' : 'N', rows, columns, depth, t_.alpha, x.data,
                         x.stride, y.data, y.stride, add ? 1.0f : 0.0f, sums, stride);
          if (status != dnnl_success) return status;
        }
        if (has_epilogue_ || !in_place_) Finish(a, at, rows, column, columns, sums, stride);
      }
    return dnnl_success;
  }

  // Rows [row, row + rows) and columns [column, column + columns) of the (all_rows, all_columns) matrix at `element` of
  // x, which is stored as (all_columns, all_rows) if transposed; the block is as the matrix is. `kept`: `copy` has it.
  FloatBlock Block(const Rows& x, int64_t element, bool transposed, int64_t all_rows, int64_t all_columns, int64_t row,
                   int64_t rows, int64_t column, int64_t columns, float* copy, bool kept = false) const {
    if (transposed) {
      std::swap(all_rows, all_columns);
      std::swap(row, column);
      std::swap(rows, columns);
    }
    const char* from = x.data + (element + row * all_columns + column) * DtypeBytes(x.dtype);
    if (x.dtype == SY_F32) return {reinterpret_cast<const float*>(from), all_columns};
    if (kept) return {copy, columns};
    const int64_t stride = all_columns * DtypeBytes(x.dtype);
    ParallelRanges(device->threads, rows, RowGrain(columns), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) Vector().to_float(x.dtype, from + r * stride, copy + r * columns, columns);
    });
    return {copy, columns};
  }

  // What follows the product, on a block of C whose first element is `at`.
  void Finish(const Arguments& a, int64_t at, int64_t rows, int64_t column, int64_t columns, float* sums,
              int64_t stride) const {
    ParallelRanges(device->threads, rows, RowGrain(columns), [&](int64_t begin, int64_t end, int) {
      MatmulRows m = AfterSums(*this, a, t_, shape_, at + begin * shape_.n, column, columns);
      m.alpha = 1;  // the sums have it
      m.accumulate = accumulate[0];
      Vector().finish_matmul(m, end - begin, sums + begin * stride, stride);
    });
  }

  sy_matmul_attributes t_;
  MatmulShape shape_;
  MatmulBiasGradient bias_gradient_;
  int64_t rows_, columns_, depth_;  // of a block
  bool has_epilogue_ = false;
  bool in_place_ = false;                                           // the sums are made in output 0
  uint64_t left_ = 0, right_ = 0, product_ = 0, bias_partial_ = 0;  // bytes into the workspace
};

}  // namespace

KernelPointer MakeConvertedMatmul(const Request& request, const sy_matmul_attributes& attributes,
                                  const MatmulShape& shape) {
  return std::make_unique<ConvertedMatmul>(request, attributes, shape);
}

}  // namespace switchyard
