// resize and resize_backward: weighted sums of rows of channels, and their transpose, which is gathered too, so that
// nothing is added to by two threads. Positions and weights are computed in f64 at prepare.
#include <utility>

#include "backends/cpu/parallel.h"
#include "backends/cpu/window.h"

namespace switchyard {
namespace {

// The one or two places along an axis that each output reads.
AxisTerms ResizeSources(const sy_resize_attributes& t, int64_t in, int64_t out) {
  AxisTerms sources(static_cast<size_t>(out));
  const auto size = static_cast<double>(in);
  for (int64_t o = 0; o < out; ++o) {
    auto& terms = sources[static_cast<size_t>(o)];
    if (t.mode == SY_RESIZE_NEAREST) {
      terms.push_back({o * in / out, 1, 0});
      continue;
    }
    const auto place = static_cast<double>(o), count = static_cast<double>(out);
    const double x = t.align_corners ? (out > 1 ? place * (size - 1) / (count - 1) : 0)
                                     : std::max(0.0, (place + 0.5) * size / count - 0.5);
    const int64_t low = std::min(static_cast<int64_t>(x), in - 1);
    const double part = low + 1 < in ? x - static_cast<double>(low) : 0;
    terms.push_back({low, 1 - part, 0});
    if (part > 0) terms.push_back({low + 1, part, 0});
  }
  return sources;
}

// Row by row of the result: the rows of the input that its outer axes name are summed into a row that stays in cache,
// and that is resized along the last axis. So a trilinear place costs 4 terms for each of half as many places, and 2,
// not 8.
class Resize : public Kernel {
 public:
  Resize(const Request& request, const sy_resize_attributes& t, bool backward) : Kernel(request) {
    const sy_tensor &x = backward ? outputs[0] : inputs[0], &y = backward ? inputs[0] : outputs[0];
    channels_ = x.dims[x.rank - 1];
    for (int i = 1; i <= t.spatial_rank; ++i) {
      const AxisTerms sources = ResizeSources(t, x.dims[i], y.dims[i]);
      AxisTerms terms = backward ? WindowMap::Inverted(sources, x.dims[i]) : sources;
      if (i < t.spatial_rank) {
        rows_.AddAxis(std::move(terms), inputs[0].dims[i], 1);
        continue;
      }
      for (const auto& place : terms) {
        first_term_.push_back(static_cast<int64_t>(terms_.size()));
        for (const AxisTerm& term : place) terms_.push_back({term.at * channels_, static_cast<float>(term.weight), 0});
      }
      first_term_.push_back(static_cast<int64_t>(terms_.size()));
      row_elements_ = inputs[0].dims[i] * channels_;
    }
    workspace_bytes = rows_.TermBytes(device->threads) + static_cast<uint64_t>(device->threads) * RowBytes();
  }

  void Run(const Arguments& a) const override {
    const int64_t per_image = rows_.places(), most = rows_.most_terms();
    ParallelRanges(device->threads, inputs[0].dims[0] * per_image, RowGrain(row_elements_ * most),
                   [&](int64_t begin, int64_t end, int thread) {
                     const auto t = static_cast<uint64_t>(thread);
                     WindowTerm* const list = a.Workspace<WindowTerm>() + thread * most;
                     char* const sum = a.Workspace<char>(rows_.TermBytes(device->threads) + t * RowBytes());
                     for (int64_t place = begin; place < end; ++place) {
                       WindowRow row = {};
                       row.columns = row_elements_;
                       row.terms = list;
                       row.from = In(a, 0);
                       row.to = {sum, SY_F32};
                       row.count =
                           rows_.Fill(place % per_image, place / per_image * rows_.from_rows(), row.columns, list);
                       Vector().window_sum(row);
                       ResizeRow(row.to, place, Out(a, 0));
                     }
                   });
  }

 private:
  void ResizeRow(Rows from, int64_t place, Rows to) const {
    const auto extent = static_cast<int64_t>(first_term_.size()) - 1;
    WindowRow row = {};
    row.columns = channels_;
    row.from = from;
    row.to = to;
    for (int64_t i = 0; i < extent; ++i) {
      const int64_t first = first_term_[static_cast<size_t>(i)];
      row.at = (place * extent + i) * channels_;
      row.count = first_term_[static_cast<size_t>(i) + 1] - first;
      row.terms = terms_.data() + first;
      Vector().window_sum(row);
    }
  }
  uint64_t RowBytes() const { return (static_cast<uint64_t>(row_elements_) * sizeof(float) + 63) / 64 * 64; }

  WindowMap rows_;                           // of the axes but the last
  std::vector<WindowTerm> terms_;            // of the last axis, in its places' order
  std::vector<int64_t> first_term_;          // by place, and the end
  int64_t channels_ = 0, row_elements_ = 0;  // of an input's row along the last axis
};

KernelPointer PrepareResizing(const Request& r, bool backward) {
  const auto t = r.Attributes<sy_resize_attributes>();
  if (!r.HasCounts(1, 1, 1) || !r.RequireNoAccumulation() || !r.RequireFloat(r.inputs[0], "the input") ||
      !r.RequireFloat(r.outputs[0], "the result"))
    return nullptr;
  const sy_tensor &in = r.inputs[0], &out = r.outputs[0];
  if (t.mode != SY_RESIZE_NEAREST && t.mode != SY_RESIZE_LINEAR)
    return SY_REFUSE(r, "%s: mode %d, known are nearest and linear", r.op, t.mode);
  if ((t.spatial_rank != 2 && t.spatial_rank != 3) || in.rank != t.spatial_rank + 2 || out.rank != in.rank)
    return SY_REFUSE(r, "%s: spatial_rank %d with operands of rank %d and %d; 2 takes (N, H, W, C), 3 (N, D, H, W, C)",
                     r.op, t.spatial_rank, in.rank, out.rank);
  if (in.dims[0] != out.dims[0] || in.dims[in.rank - 1] != out.dims[in.rank - 1])
    return SY_REFUSE(r, "%s: the operands differ in images or channels", r.op);
  return std::make_unique<Resize>(r, t, backward);
}
KernelPointer PrepareResize(const Request& r) { return PrepareResizing(r, false); }
KernelPointer PrepareResizeBackward(const Request& r) { return PrepareResizing(r, true); }

const Registration kResize{"resize", PrepareResize, sizeof(sy_resize_attributes)};
const Registration kResizeBackward{"resize_backward", PrepareResizeBackward, sizeof(sy_resize_attributes)};

}  // namespace
}  // namespace switchyard
