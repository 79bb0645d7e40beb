// matmul of bf16 on tiles (vector/tile_matmul.cc): the factors are packed, but for rows that can be multiplied where
// they lie; then the pieces of C are divided among the threads, each of which sums its piece in f32 beside its cache
// and rounds it once. What an element of C is does not depend on how C was cut.
#include "backends/cpu/matmul.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

// The most that is packed of a factor at a time, in elements (19 MB) and in rows or columns. The inner dimension is cut
// where its parts can be added in the output; else it is whole.
constexpr int64_t kMostElements = 3072 * 3072, kMostPackedRows = 2048, kMostPackedColumns = 3072;
constexpr int64_t kMostCutDepth = 2048, kMostWholeDepth = 65536;
// Of a piece of C. Its sums (614 KB), and twice 256 elements of its rows and of its columns (197 KB each), are together
// in a second-level cache of 2 MB.
constexpr int64_t kPieceRows = 384, kPieceColumns = 384;
// Rows of sums lie farther apart than that: otherwise every eighth would fall into one set of the first-level cache.
constexpr int64_t kPitch = kPieceColumns + 16;

int64_t WholeUnits(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The length of equal pieces of n, none above `most` but for what makes them whole panels (and steps).
static_assert(kTilePanel == kTileStep);
int64_t PiecePanels(int64_t n, int64_t most) {
  const int64_t pieces = (n + most - 1) / most;
  return WholeUnits((n + pieces - 1) / pieces, kTilePanel);
}

class TileMatmul : public Kernel {
 public:
  TileMatmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape)
      : Kernel(request),
        t_(attributes),
        shape_(shape),
        bias_gradient_(shape, t_.transpose_a, device->threads),
        depth_(CanCutDepth(request, attributes) ? PiecePanels(shape.k, kMostCutDepth) : shape.k),
        rows_(PiecePanels(shape.m, std::min(kMostPackedRows, kMostElements / depth_))),
        columns_(PiecePanels(shape.n, std::min(kMostPackedColumns, kMostElements / depth_))),
        in_place_(!t_.transpose_a && shape.k % kTileStep == 0 && shape.k % kPageElements != 0),
        piece_rows_(PiecePanels(std::min(rows_, shape.m), kPieceRows)),
        piece_columns_(PiecePanels(std::min(columns_, shape.n), kPieceColumns)) {
    // Some pieces for each thread, so that those that are ready sooner take more.
    const auto pieces = [&](int64_t n, int64_t piece) { return (n + piece - 1) / piece; };
    while (pieces(rows_, piece_rows_) * pieces(columns_, piece_columns_) < kPiecesPerThread * device->threads &&
           std::max(piece_rows_, piece_columns_) > kTilePanel) {
      int64_t& larger = piece_rows_ >= piece_columns_ ? piece_rows_ : piece_columns_;
      larger = WholeUnits(larger / 2, kTilePanel);
    }
    const auto take = [&](uint64_t bytes) {
      const uint64_t at = workspace_bytes;
      workspace_bytes += (bytes + 63) / 64 * 64;
      return at;
    };
    const int64_t deep = WholeUnits(std::min(depth_, shape.k), kTileStep);
    left_ = take(static_cast<uint64_t>((in_place_ ? kTilePanel : rows_) * deep * 2));
    right_ = take(static_cast<uint64_t>(columns_ * deep * 2));
    sums_ = take(static_cast<uint64_t>(device->threads) * SumsBytes());
    if (t_.bias_gradient) bias_partial_ = take(bias_gradient_.workspace_bytes());
  }

  // Whether the inner dimension may be cut: its parts can be added in an output of f32, and nothing follows them.
  static bool CanCutDepth(const Request& r, const sy_matmul_attributes& t) {
    return r.outputs[0].dtype == SY_F32 && !t.bias && t.activation == SY_ACTIVATION_NONE && !t.save_preactivation &&
           !t.residual;
  }

  void Run(const Arguments& a) const override {
    for (int64_t column = 0; column < shape_.n; column += columns_)
      for (int64_t first = 0; first < shape_.k; first += depth_)
        for (int64_t row = 0; row < shape_.m; row += rows_) Multiply(a, row, column, first);
    if (t_.bias_gradient)
      bias_gradient_.Run(In(a, 0), accumulate[1], a.Output<float>(1), a.Workspace<float>(bias_partial_));
  }

 private:
  static constexpr int64_t kPiecesPerThread = 3;
  // Elements of 4 KiB: rows that far apart fall into one set of the first-level cache.
  static constexpr int64_t kPageElements = 2048;

  uint64_t SumsBytes() const { return static_cast<uint64_t>(piece_rows_ * kPitch) * sizeof(float); }

  TilePacking Left(const Arguments& a, int64_t row, int64_t first) const {
    const int64_t stride = t_.transpose_a ? shape_.m : shape_.k;
    return {a.inputs[0] + (t_.transpose_a ? first * stride + row : row * stride + first) * 2,
            stride,
            !t_.transpose_a,
            false,
            std::min(rows_, shape_.m - row),
            std::min(depth_, shape_.k - first),
            a.Workspace<float>(left_)};
  }
  TilePacking Right(const Arguments& a, int64_t column, int64_t first) const {
    const int64_t stride = t_.transpose_b ? shape_.k : shape_.n;
    return {a.inputs[1] + (t_.transpose_b ? column * stride + first : first * stride + column) * 2,
            stride,
            t_.transpose_b != 0,
            true,
            std::min(columns_, shape_.n - column),
            std::min(depth_, shape_.k - first),
            a.Workspace<float>(right_)};
  }

  // The part of C at (row, column), summed from `first` on along the inner dimension.
  void Multiply(const Arguments& a, int64_t row, int64_t column, int64_t first) const {
    const auto pieces = [](const TilePacking& p) {
      return p.depth_is_contiguous ? WholeUnits(p.lines, kTilePanel) / kTilePanel
                                   : WholeUnits(p.depth, kTileStep) / kTileStep;
    };
    const TilePacking left = Left(a, row, first), right = Right(a, column, first);
    const int64_t whole_rows = in_place_ ? left.lines / kTilePanel * kTilePanel : 0;
    TilePacking packed = left;
    packed.from += whole_rows * left.stride * 2;
    packed.lines -= whole_rows;
    const int64_t left_pieces = pieces(packed), right_pieces = row == 0 ? pieces(right) : 0;
    ParallelPieces(device->threads, left_pieces + right_pieces, [&](int64_t i, int) {
      i < left_pieces ? Vector().tile_pack(packed, i) : Vector().tile_pack(right, i - left_pieces);
    });
    const int64_t down = (left.lines + piece_rows_ - 1) / piece_rows_;
    const int64_t across = (right.lines + piece_columns_ - 1) / piece_columns_;
    const int threads = device->threads;
    ParallelPieces(threads, down * across, [&](int64_t i, int thread) {
      TileProduct p = {};
      p.left = left.to;
      p.right = right.to;
      p.rows_in_place = left.from;
      p.row_stride = left.stride;
      p.whole_rows = whole_rows;
      p.left_rows = left.lines;
      p.right_columns = right.lines;
      p.depth = left.depth;
      p.row = i % down * piece_rows_;
      p.rows = std::min(piece_rows_, left.lines - p.row);
      p.column = i / down * piece_columns_;
      p.columns = std::min(piece_columns_, right.lines - p.column);
      p.next_row = i + threads < down * across ? (i + threads) % down * piece_rows_ : -1;
      p.sums = a.Workspace<float>(sums_ + static_cast<uint64_t>(thread) * SumsBytes());
      p.sums_stride = kPitch;
      const int64_t at = (row + p.row) * shape_.n + column + p.column;
      p.out = AfterSums(*this, a, t_, shape_, at, column + p.column, p.columns);
      p.out.accumulate = accumulate[0] || first > 0;
      p.out.streamed = !p.out.accumulate;
      Vector().tile_product(p);
    });
  }

  sy_matmul_attributes t_;
  MatmulShape shape_;
  MatmulBiasGradient bias_gradient_;
  int64_t depth_, rows_, columns_;                               // packed at a time
  bool in_place_;                                                // whole panels of rows are multiplied where they lie
  int64_t piece_rows_, piece_columns_;                           // of a piece of C
  uint64_t left_ = 0, right_ = 0, sums_ = 0, bias_partial_ = 0;  // bytes into the workspace
};

}  // namespace

KernelPointer MakeTileMatmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape) {
  const bool is_bf16 = request.inputs[0].dtype == SY_BF16 && request.inputs[1].dtype == SY_BF16;
  const bool is_empty = shape.m == 0 || shape.n == 0 || shape.k == 0;
  if (!Vector().has_tiles() || !is_bf16 || shape.batch != 1 || is_empty) return nullptr;
  if (shape.k > kMostWholeDepth && !TileMatmul::CanCutDepth(request, attributes)) return nullptr;
  return std::make_unique<TileMatmul>(request, attributes, shape);
}

}  // namespace switchyard
