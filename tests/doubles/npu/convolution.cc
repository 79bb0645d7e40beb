// Convolutions of images and volumes, forward, transposed, and the gradient by the weights, by their pages: windows as
// columns of a matrix, and a product.
#include <algorithm>

#include "tests/doubles/npu/windows.h"

namespace simulator {
namespace {

// A convolution of x (N, C, spatial) by w (K, C/groups, kernel) to y (N, K, spatial'); the transposed one gives x of y.
struct Convolution {
  Windows windows;
  int64_t images, groups, c, k;  // c and k: channels of a group
  int64_t Columns() const { return windows.Taps() * c; }
};

struct Arrays {
  const aclIntArray *stride, *padding, *dilation, *beyond;
};

// Checks what forward and backward demand alike; `larger` and `smaller` are x and y of the convolution.
bool ReadConvolution(Planner& plan, const aclTensor* larger, const aclTensor* w, const aclTensor* smaller,
                     const Arrays& arrays, bool transposed, int64_t groups, int8_t math, Convolution* result) {
  plan.Floats({larger, w, smaller}).SameDtype({larger, w, smaller});
  if (!plan.ok()) return false;
  const size_t rank = larger->dims.size();
  plan.Need(rank == 4 || rank == 5, "simulated in two and three dimensions")
      .Need(w->dims.size() == rank && smaller->dims.size() == rank, "its tensors differ in rank")
      .Need(math == 0, "simulated with cubeMathType 0")
      .Need(groups >= 1 && groups <= 65535, "groups must be in [1, 65535]");
  if (!plan.ok()) return false;
  const aclFormat format = rank == 4 ? ACL_FORMAT_NCHW : ACL_FORMAT_NCDHW;
  for (const aclTensor* each : {larger, w, smaller}) plan.Need(each->format == format, "expected format NCHW or NCDHW");
  for (const aclIntArray* each : {arrays.stride, arrays.padding, arrays.dilation, arrays.beyond})
    plan.Need(each->values.size() == rank - 2, "expected an array value for each spatial axis");
  plan.Need(w->dims[1] * groups == larger->dims[1],
            "groups times the channels of the weights must be those of the input")
      .Need(w->dims[0] == smaller->dims[1] && w->dims[0] % groups == 0, "the weights' output channels differ")
      .Need(larger->dims[0] == smaller->dims[0], "the batches differ");
  if (!plan.ok()) return false;
  Windows& windows = result->windows;
  SetLast(windows.in, SpatialOf(*larger));
  SetLast(windows.out, SpatialOf(*smaller));
  SetLast(windows.kernel, SpatialOf(*w));
  SetLast(windows.stride, arrays.stride->values);
  SetLast(windows.padding, arrays.padding->values);
  SetLast(windows.dilation, arrays.dilation->values);
  for (size_t i = 3 - (rank - 2); i < 3; ++i) {
    const int64_t beyond = arrays.beyond->values[i - (5 - rank)];
    const int64_t stride = windows.stride[i], dilation = windows.dilation[i];
    plan.Need(stride > 0 && dilation > 0 && dilation <= 255 && windows.padding[i] >= 0 && windows.padding[i] <= 255,
              "stride, padding or dilation is out of range");
    plan.Need(windows.kernel[i] >= 1 && windows.kernel[i] <= (transposed ? 255 : 511), "the window is too large");
    plan.Need(rank == 4 || i == 0 || stride <= 63, "strides of volumes must be in [1, 63]");
    if (!plan.ok()) return false;
    if (transposed) {
      plan.Need(beyond >= 0 && (beyond < stride || beyond < dilation),
                "outputPadding must be below stride or dilation");
      plan.Need(windows.in[i] == (windows.out[i] - 1) * stride - 2 * windows.padding[i] +
                                     dilation * (windows.kernel[i] - 1) + beyond + 1,
                "the output's shape does not follow");
    } else {
      const int64_t room = windows.in[i] + 2 * windows.padding[i] - dilation * (windows.kernel[i] - 1) - 1;
      plan.Need(room >= 0 && windows.out[i] == room / stride + 1, "the output's shape does not follow");
    }
  }
  result->images = larger->dims[0];
  result->groups = groups;
  result->c = w->dims[1];
  result->k = w->dims[0] / groups;
  return plan.ok();
}

using Floats = std::vector<float>;
Floats Zeros(int64_t count) { return Floats(static_cast<size_t>(count), 0.0f); }

// Group g of an image x (spatial, C): what each output's window covers, (outputs, taps · c).
void ToColumns(const Convolution& v, const float* x, int64_t g, Floats* columns) {
  ForEachTap(v.windows, [&](int64_t o, int64_t tap, int64_t from) {
    float* const to = columns->data() + (o * v.windows.Taps() + tap) * v.c;
    for (int64_t i = 0; i < v.c; ++i) to[i] = from < 0 ? 0 : x[from * v.c * v.groups + g * v.c + i];
  });
}
void AddColumns(const Convolution& v, const Floats& columns, int64_t g, float* x) {
  ForEachTap(v.windows, [&](int64_t o, int64_t tap, int64_t to) {
    const float* const from = columns.data() + (o * v.windows.Taps() + tap) * v.c;
    for (int64_t i = 0; to >= 0 && i < v.c; ++i) x[to * v.c * v.groups + g * v.c + i] += from[i];
  });
}
// Group g of an image y (outputs, K): (outputs, k), or back.
void TakeGroup(const Convolution& v, const float* y, int64_t g, Floats* part) {
  for (int64_t o = 0; o < v.windows.Outputs(); ++o)
    for (int64_t i = 0; i < v.k; ++i) (*part)[static_cast<size_t>(o * v.k + i)] = y[(o * v.groups + g) * v.k + i];
}
void PutGroup(const Convolution& v, const Floats& part, int64_t g, float* y) {
  for (int64_t o = 0; o < v.windows.Outputs(); ++o)
    for (int64_t i = 0; i < v.k; ++i) y[(o * v.groups + g) * v.k + i] = part[static_cast<size_t>(o * v.k + i)];
}
Floats Transposed(const float* a, int64_t rows, int64_t columns) {
  Floats result(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) result[static_cast<size_t>(j * rows + i)] = a[i * columns + j];
  return result;
}

void Forward(const Convolution& v, const float* x, const float* w, float* y) {
  const int64_t p = v.windows.Outputs();
  Floats columns = Zeros(p * v.Columns()), part = Zeros(p * v.k);
  for (int64_t g = 0; g < v.groups; ++g) {
    const Floats weights = Transposed(w + g * v.k * v.Columns(), v.k, v.Columns());
    for (int64_t n = 0; n < v.images; ++n) {
      ToColumns(v, x + n * v.windows.Inputs() * v.c * v.groups, g, &columns);
      Multiply(columns.data(), weights.data(), part.data(), p, v.Columns(), v.k);
      PutGroup(v, part, g, y + n * p * v.k * v.groups);
    }
  }
}

void Backward(const Convolution& v, const float* y, const float* w, float* x) {
  const int64_t p = v.windows.Outputs();
  Floats columns = Zeros(p * v.Columns()), part = Zeros(p * v.k);
  std::fill_n(x, v.images * v.windows.Inputs() * v.c * v.groups, 0.0f);
  for (int64_t n = 0; n < v.images; ++n) {
    for (int64_t g = 0; g < v.groups; ++g) {
      TakeGroup(v, y + n * p * v.k * v.groups, g, &part);
      Multiply(part.data(), w + g * v.k * v.Columns(), columns.data(), p, v.k, v.Columns());
      AddColumns(v, columns, g, x + n * v.windows.Inputs() * v.c * v.groups);
    }
  }
}

void WeightGradient(const Convolution& v, const float* x, const float* y, float* w) {
  const int64_t p = v.windows.Outputs(), size = v.k * v.Columns();
  Floats columns = Zeros(p * v.Columns()), part = Zeros(p * v.k), own = Zeros(size);
  std::fill_n(w, v.groups * size, 0.0f);
  for (int64_t n = 0; n < v.images; ++n) {
    for (int64_t g = 0; g < v.groups; ++g) {
      ToColumns(v, x + n * v.windows.Inputs() * v.c * v.groups, g, &columns);
      TakeGroup(v, y + n * p * v.k * v.groups, g, &part);
      Multiply(Transposed(part.data(), p, v.k).data(), columns.data(), own.data(), v.k, p, v.Columns());
      for (int64_t i = 0; i < size; ++i) w[g * size + i] += own[static_cast<size_t>(i)];
    }
  }
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnConvolutionGetWorkspaceSize(const aclTensor* input, const aclTensor* weight,
                                                        const aclTensor* bias, const aclIntArray* stride,
                                                        const aclIntArray* padding, const aclIntArray* dilation,
                                                        bool transposed, const aclIntArray* outputPadding,
                                                        int64_t groups, aclTensor* output, int8_t cubeMathType,
                                                        uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnConvolution");
  Convolution v;
  ReadConvolution(plan, transposed ? output : input, weight, transposed ? input : output,
                  {stride, padding, dilation, outputPadding}, transposed, groups, cubeMathType, &v);
  if (plan.ok() && bias != nullptr) {
    plan.Need(!transposed, "simulated without a bias of the transposed one").SameDtype({input, bias});
    plan.Shape(bias, {weight->dims[0]});
  }
  if (!plan.ok()) return plan.code();
  const aclTensor offset = bias != nullptr ? *bias : *input;
  return plan.Give(
      [v, transposed, biased = bias != nullptr, offset, from = ChannelsLast(*input), weights = ChannelsLast(*weight),
       to = ChannelsLast(*output)]() -> Outcome {
        const Read<float> x(from, from.dims), w(weights, weights.dims), b(offset, offset.dims);
        Write y(to);
        if (!x.valid() || !w.valid() || !b.valid() || !y.valid()) return LostMemory("aclnnConvolution");
        (transposed ? Backward : Forward)(v, x.data(), w.data(), y.data());
        const int64_t channels = to.dims.back();
        for (int64_t i = 0; biased && i < Count(to.dims); ++i) y[i] += b[i % channels];
        y.Finish();
        return {};
      },
      4096, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnConvolutionBackwardGetWorkspaceSize(
    const aclTensor* gradOutput, const aclTensor* input, const aclTensor* weight, const aclIntArray* biasSizes,
    const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool transposed,
    const aclIntArray* outputPadding, int groups, const aclBoolArray* outputMask, int8_t cubeMathType, aclTensor*,
    aclTensor* gradWeight, aclTensor*, uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnConvolutionBackward");
  plan.Need(!transposed && outputMask->values == std::vector<bool>{false, true, false},
            "simulated for the gradient by the weights of a plain convolution");
  Convolution v;
  if (ReadConvolution(plan, input, weight, gradOutput, {stride, padding, dilation, outputPadding}, false, groups,
                      cubeMathType, &v)) {
    plan.Floats({gradWeight}).SameDtype({input, gradWeight});
  }
  if (plan.ok()) {
    plan.Shape(gradWeight, weight->dims)
        .Need(gradWeight->format == weight->format, "gradWeight must have the format of the weights")
        .Need(IsContiguous(*gradWeight), "gradWeight must be contiguous")
        .Need(biasSizes->values == Dims{weight->dims[0]}, "biasSizes must be the output channels");
    for (const int64_t each : outputPadding->values) plan.Need(each == 0, "outputPadding must be 0");
    for (const int64_t each : SpatialOf(*weight)) plan.Need(each <= 255, "the window is too large");
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [v, dy_from = ChannelsLast(*gradOutput), x_from = ChannelsLast(*input),
       to = ChannelsLast(*gradWeight)]() -> Outcome {
        const Read<float> dy(dy_from, dy_from.dims), x(x_from, x_from.dims);
        Write dw(to);
        if (!dy.valid() || !x.valid() || !dw.valid()) return LostMemory("aclnnConvolutionBackward");
        WeightGradient(v, x.data(), dy.data(), dw.data());
        dw.Finish();
        return {};
      },
      4096, workspaceSize, executor);
}
