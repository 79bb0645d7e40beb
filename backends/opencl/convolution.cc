// convolution and its gradients as products: the windows of some images at a time are laid out as columns (pixels,
// groups, taps, C/groups) in the workspace. Groups are the batch of the product.
#include <algorithm>

#include "backends/opencl/matmul.h"
#include "backends/opencl/window.h"

namespace switchyard {
namespace {

struct Problem {
  Window w;
  int64_t images, channels, filters, groups;
  sy_dtype dtype;

  int64_t PerGroup() const { return w.Taps() * channels / groups; }  // columns of one group
  int64_t ColumnBytes() const { return w.Outputs() * groups * PerGroup() * DtypeBytes(SY_F32); }  // of one image
  int64_t ImagesAtOnce() const {
    constexpr int64_t kBytes = int64_t{64} << 20;
    return std::clamp<int64_t>(kBytes / ColumnBytes(), 1, images);
  }
  // x (N, spatial, C), from image `first` on, in bytes.
  uint64_t InputOffset(int64_t first) const {
    return static_cast<uint64_t>(first * w.Inputs() * channels * DtypeBytes(dtype));
  }
  // y or dy from image `first` on: rows are pixels, the batch are groups.
  Matrix Pixels(const Operand& y, int64_t first) const {
    const int64_t start = first * w.Outputs() * filters * DtypeBytes(dtype);
    return {y.Plus(static_cast<uint64_t>(start)), dtype, filters, 1, 0, filters / groups};
  }
  // w or dw: rows are filters.
  Matrix Filters(const Operand& weights) const {
    return {weights, dtype, PerGroup(), 1, 0, filters / groups * PerGroup()};
  }
  Matrix Columns(const Operand& scratch) const { return {scratch, SY_F32, groups * PerGroup(), 1, 0, PerGroup()}; }
  Product Start() const {
    Product p;
    p.batches = p.inner_batches = groups;
    return p;
  }
};

bool Check(const Request& r, const sy_convolution_attributes& a, const sy_tensor& x, const sy_tensor& w,
           const sy_tensor& y, Problem* p) {
  if (!r.RequireContiguous() || !r.RequireFloat(x, "x") || !r.RequireDtype(w, x.dtype, "w") ||
      !r.RequireDtype(y, x.dtype, "y") || !SetExtents(r, a.spatial_rank, x, y, &p->w)) {
    return false;
  }
  const int last = a.spatial_rank + 1;
  p->images = x.dims[0];
  p->channels = x.dims[last];
  p->filters = y.dims[last];
  p->groups = a.groups;
  p->dtype = x.dtype;
  if (w.rank != x.rank || a.groups < 1 || w.dims[0] != p->filters || p->filters % a.groups != 0 ||
      w.dims[last] * a.groups != p->channels) {
    return SY_REFUSE_OP(r, "w does not fit x, y and %d groups", a.groups), false;
  }
  int32_t kernel[3] = {1, 1, 1};
  for (int i = 0; i < a.spatial_rank; ++i) kernel[i] = static_cast<int32_t>(w.dims[1 + i]);
  SetAxes(a.spatial_rank, kernel, p->w.kernel);
  SetAxes(a.spatial_rank, a.stride, p->w.stride);
  SetAxes(a.spatial_rank, a.dilation, p->w.dilation);
  SetAxes(a.spatial_rank, a.before, p->w.before);
  return CheckExtents(r, a.spatial_rank, p->w, a.after);
}

void AddColumns(Kernel& kernel, const Problem& p, const Operand& x, const Operand& columns, int64_t first,
                int64_t count) {
  const int64_t pixels = count * p.w.Outputs();
  kernel.Add("window", "image_to_columns", Define("T", p.dtype))
      .Array(x.Plus(p.InputOffset(first)))
      .Array(columns)
      .Struct(p.w)
      .Uint(pixels)
      .Uint(p.channels)
      .Uint(p.groups)
      .Groups(RowGroups(*kernel.device(), pixels * p.w.Taps()));
}

sy_status PrepareConvolution(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_convolution_attributes>();
  const size_t inputs = a.bias ? 3 : 2;
  Problem p;
  if (!r.HasCounts(inputs, inputs, 1) || !Check(r, a, r.inputs[0], r.inputs[1], r.outputs[0], &p))
    return SY_UNSUPPORTED;
  if (a.bias && (!r.RequireDims(r.inputs[2], {p.filters}, "bias") || !r.RequireFloat(r.inputs[2], "bias"))) {
    return SY_UNSUPPORTED;
  }
  const int64_t at_once = p.ImagesAtOnce();
  const Operand columns = kernel.Scratch(at_once * p.ColumnBytes());
  for (int64_t first = 0; first < p.images; first += at_once) {
    const int64_t count = std::min(at_once, p.images - first);
    AddColumns(kernel, p, In(0), columns, first, count);
    Product product = p.Start();
    product.m = count * p.w.Outputs();
    product.n = p.filters / p.groups;
    product.k = p.PerGroup();
    product.a = p.Columns(columns);
    product.b = Transposed(p.Filters(In(1)));
    product.c = p.Pixels(Out(0), first);
    if (a.bias) {
      product.flags |= kBias;
      product.bias = In(2);
      product.bias_dtype = r.inputs[2].dtype;
    }
    if (r.accumulate[0]) product.flags |= kAccumulate;
    AddProduct(kernel, product);
  }
  return SY_OK;
}

sy_status PrepareConvolutionBackwardData(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_convolution_attributes>();
  Problem p;
  if (!r.HasCounts(2, 2, 1) || !Check(r, a, r.outputs[0], r.inputs[1], r.inputs[0], &p)) return SY_UNSUPPORTED;
  const int64_t at_once = p.ImagesAtOnce();
  const Operand columns = kernel.Scratch(at_once * p.ColumnBytes());
  for (int64_t first = 0; first < p.images; first += at_once) {
    const int64_t count = std::min(at_once, p.images - first);
    Product product = p.Start();
    product.m = count * p.w.Outputs();
    product.n = p.PerGroup();
    product.k = p.filters / p.groups;
    product.a = p.Pixels(In(0), first);
    product.b = p.Filters(In(1));
    product.c = p.Columns(columns);
    AddProduct(kernel, product);
    const int64_t pixels = count * p.w.Inputs();
    kernel.Add("window", "columns_to_image", Define("T", p.dtype))
        .Array(columns)
        .Array(Out(0).Plus(p.InputOffset(first)))
        .Struct(p.w)
        .Uint(pixels)
        .Uint(p.channels)
        .Uint(p.groups)
        .Uint(r.accumulate[0])
        .Groups(RowGroups(*kernel.device(), pixels));
  }
  return SY_OK;
}

sy_status PrepareConvolutionBackwardWeights(const Request& r, Kernel& kernel) {
  const auto a = r.Attributes<sy_convolution_attributes>();
  Problem p;
  if (!r.HasCounts(2, 2, 1) || !Check(r, a, r.inputs[0], r.outputs[0], r.inputs[1], &p)) return SY_UNSUPPORTED;
  // Sums over the images are kept in f32; a half dw takes all images at once.
  const int64_t at_once = p.dtype == SY_F32 ? p.ImagesAtOnce() : p.images;
  const Operand columns = kernel.Scratch(at_once * p.ColumnBytes());
  for (int64_t first = 0; first < p.images; first += at_once) {
    const int64_t count = std::min(at_once, p.images - first);
    AddColumns(kernel, p, In(0), columns, first, count);
    Product product = p.Start();
    product.m = p.filters / p.groups;
    product.n = p.PerGroup();
    product.k = count * p.w.Outputs();
    product.a = Transposed(p.Pixels(In(1), first));
    product.b = p.Columns(columns);
    product.c = p.Filters(Out(0));
    if (r.accumulate[0] || first > 0) product.flags |= kAccumulate;
    AddProduct(kernel, product);
  }
  return SY_OK;
}

const Registration kConvolution{"convolution", PrepareConvolution, sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardData{"convolution_backward_data", PrepareConvolutionBackwardData,
                                            sizeof(sy_convolution_attributes)};
const Registration kConvolutionBackwardWeights{"convolution_backward_weights", PrepareConvolutionBackwardWeights,
                                               sizeof(sy_convolution_attributes)};

}  // namespace
}  // namespace switchyard
