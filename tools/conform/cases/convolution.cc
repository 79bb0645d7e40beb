// Cases of core/graph/ops/convolution.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

void AddConvolutions(Table& table) {
  table.RowsApart({"convolution", "pool", "resize"});
  struct Sizes {
    int64_t n, c, k;
    std::vector<int64_t> image, kernel;
    std::vector<int> stride, dilation, before, after;
    int groups;
    bool bias, f32_bias = false;
  };
  const auto add = [&](const char* name, const Sizes& s) {
    sy_convolution_attributes a{};
    a.spatial_rank = static_cast<int32_t>(s.image.size());
    a.groups = s.groups;
    a.bias = s.bias;
    Dims x = {s.n}, w = {s.k}, y = {s.n};
    for (size_t i = 0; i < s.image.size(); ++i) {
      a.stride[i] = s.stride[i];
      a.dilation[i] = s.dilation[i];
      a.before[i] = s.before[i];
      a.after[i] = s.after[i];
      x.push_back(s.image[i]);
      w.push_back(s.kernel[i]);
      y.push_back((s.image[i] + s.before[i] + s.after[i] - s.dilation[i] * (s.kernel[i] - 1) - 1) / s.stride[i] + 1);
    }
    x.push_back(s.c);
    w.push_back(s.c / s.groups);
    y.push_back(s.k);
    std::vector<Operand> inputs = {T(x), T(w)};
    if (s.bias) inputs.push_back(s.f32_bias ? F({s.k}) : T({s.k}));
    table.Add("convolution", name, a, inputs, {T(y)});
    table.Gradient("convolution_backward_data", {"g0", "i1"}, {0});
    table.Gradient("convolution_backward_weights", {"i0", "g0"}, {1});
  };
  add("same", {2, 3, 5, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, true});
  add("pointwise", {2, 7, 4, {5, 3}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1, false});
  add("patches", {2, 3, 8, {12, 8}, {4, 4}, {4, 4}, {1, 1}, {0, 0}, {0, 0}, 1, true});
  add("strided", {1, 4, 6, {11, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, false});
  add("dilated", {1, 2, 3, {13, 11}, {3, 3}, {1, 1}, {2, 3}, {2, 3}, {2, 3}, 1, false});
  add("grouped", {2, 6, 9, {6, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 3, true});
  add("depthwise", {1, 5, 5, {7, 7}, {3, 3}, {2, 1}, {1, 1}, {1, 1}, {1, 1}, 5, false});
  add("uneven", {1, 2, 2, {6, 5}, {4, 2}, {2, 1}, {1, 1}, {1, 0}, {2, 1}, 1, true});
  add("volume", {1, 2, 3, {5, 4, 3}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1, true});
  add("volume_strided", {2, 4, 4, {5, 6, 7}, {2, 3, 2}, {2, 2, 2}, {1, 1, 1}, {0, 1, 0}, {0, 1, 1}, 2, false});
  add("volume_uneven", {2, 4, 4, {5, 6, 7}, {2, 3, 2}, {2, 2, 2}, {1, 1, 1}, {0, 1, 0}, {0, 1, 1}, 1, false});
  add("one_element", {1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1, false});
  // Whole vectors of channels, for which there are kernels of their own.
  add("blocks", {2, 48, 32, {8, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, true});
  add("blocks_strided", {2, 32, 64, {13, 11}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 1, false});
  add("blocks_uneven", {2, 32, 16, {12, 9}, {3, 3}, {2, 1}, {1, 2}, {0, 2}, {1, 1}, 1, false});
  add("blocks_pointwise", {2, 64, 48, {8, 7}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1, false});
  add("blocks_pointwise_strided", {2, 64, 32, {8, 7}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1, false});
  add("blocks_grouped", {1, 64, 64, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 4, false});
  add("blocks_depthwise", {1, 64, 64, {9, 8}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, 64, true});
  add("stem", {1, 3, 32, {38, 37}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}, 1, false});
  // As mixed precision has it: f32 beside halves.
  add("f32_bias", {2, 3, 5, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 1, true, true});
  add("grouped_f32_bias", {2, 6, 9, {6, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 3, true, true});
  add("volume_f32_bias", {1, 2, 3, {5, 4, 3}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1, true, true});
  add("blocks_pointwise_f32_bias", {2, 32, 16, {5, 6}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 1, true, true});
  add("blocks_volume", {1, 32, 16, {5, 6, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 1, true});
  const auto refuse = [&](const char* what, auto change) {
    table.Refuse<sy_convolution_attributes>(
        {"convolution", "convolution_backward_data", "convolution_backward_weights"}, what, change);
  };
  refuse("0 groups", [](auto& a) { a.groups = 0; });
  refuse("7 groups of other channels", [](auto& a) { a.groups = 7; });
  refuse("stride 0", [](auto& a) { a.stride[0] = 0; });
  refuse("dilation 0", [](auto& a) { a.dilation[0] = 0; });
  refuse("7 spatial axes", [](auto& a) { a.spatial_rank = 7; });
}

void AddPooling(Table& table) {
  const auto add = [&](const char* name, bool average, bool include, int64_t c, Dims image, std::vector<int> kernel,
                       std::vector<int> stride, int pad) {
    sy_pool_attributes a{};
    a.spatial_rank = static_cast<int32_t>(image.size());
    a.average = average;
    a.count_include_pad = include;
    Dims x = {2}, y = {2};
    for (size_t i = 0; i < image.size(); ++i) {
      a.kernel[i] = kernel[i];
      a.stride[i] = stride[i];
      a.before[i] = a.after[i] = pad;
      x.push_back(image[i]);
      y.push_back((image[i] + 2 * pad - kernel[i]) / stride[i] + 1);
    }
    x.push_back(c);
    y.push_back(c);
    table.Add("pool", name, a, {T(x)}, {T(y)}).exact = !average;
    table.Gradient("pool_backward", {"i0", "g0"}, {0});
  };
  add("max", false, false, 5, {7, 9}, {3, 3}, {2, 2}, 1);
  add("max_overlap", false, false, 3, {6, 5}, {3, 2}, {1, 1}, 0);
  add("max_volume", false, false, 2, {4, 5, 6}, {2, 2, 2}, {2, 2, 2}, 0);
  add("average", true, false, 5, {7, 9}, {3, 3}, {2, 2}, 1);
  add("average_with_padding", true, true, 1, {5, 5}, {3, 3}, {1, 1}, 1);
  add("global", true, false, 17, {7, 7}, {7, 7}, {1, 1}, 0);
  add("max_blocks", false, false, 72, {7, 6}, {3, 3}, {2, 2}, 1);
  add("average_blocks_volume", true, false, 67, {5, 4, 4}, {3, 2, 2}, {2, 2, 1}, 0);
  const auto refuse = [&](const char* what, auto change) {
    table.Refuse<sy_pool_attributes>({"pool", "pool_backward"}, what, change);
  };
  refuse("an empty window", [](auto& a) { a.kernel[0] = 0; });
  refuse("stride 0", [](auto& a) { a.stride[0] = 0; });
  refuse("7 spatial axes", [](auto& a) { a.spatial_rank = 7; });
}

void AddResize(Table& table) {
  const auto add = [&](const char* name, int mode, bool align, Dims from, Dims to, int64_t c = 3) {
    sy_resize_attributes a{};
    a.spatial_rank = static_cast<int32_t>(from.size());
    a.mode = mode;
    a.align_corners = align;
    Dims x = {2}, y = {2};
    x.insert(x.end(), from.begin(), from.end());
    y.insert(y.end(), to.begin(), to.end());
    x.push_back(c);
    y.push_back(c);
    table.Add("resize", name, a, {T(x)}, {T(y)}).exact = mode == SY_RESIZE_NEAREST;
    table.Gradient("resize_backward", {"g0"}, {0});
  };
  add("nearest", SY_RESIZE_NEAREST, false, {3, 5}, {7, 4});
  add("linear_up", SY_RESIZE_LINEAR, false, {3, 5}, {6, 10});
  add("linear_down", SY_RESIZE_LINEAR, false, {9, 7}, {4, 3});
  add("align_corners", SY_RESIZE_LINEAR, true, {4, 5}, {7, 9});
  add("trilinear", SY_RESIZE_LINEAR, false, {2, 3, 4}, {4, 6, 7});
  add("one_element", SY_RESIZE_LINEAR, true, {1, 1}, {3, 3});
  add("nearest_blocks", SY_RESIZE_NEAREST, false, {6, 5}, {9, 3}, 72);
  add("trilinear_blocks", SY_RESIZE_LINEAR, true, {4, 3, 4}, {7, 5, 8}, 68);
  const auto refuse = [&](const char* what, auto change) {
    table.Refuse<sy_resize_attributes>({"resize", "resize_backward"}, what, change);
  };
  refuse("mode 9", [](auto& a) { a.mode = 9; });
  refuse("7 spatial axes", [](auto& a) { a.spatial_rank = 7; });
}

}  // namespace

void AddConvolution(Table& table) {
  AddConvolutions(table);
  AddPooling(table);
  AddResize(table);
}

}  // namespace switchyard::conform
