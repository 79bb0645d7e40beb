// Cases of core/graph/ops/normalization.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

void AddLayerNorm(Table& table) {
  table.RowsApart({"layer_norm", "group_norm"});
  const auto add_layer = [&](const char* name, Dims dims, bool residual, float eps) {
    sy_layer_norm_attributes a{};
    a.eps = eps;
    a.residual = residual;
    const Dims channels = {dims.back()}, rows(dims.begin(), dims.end() - 1);
    std::vector<Operand> inputs = {T(dims)}, outputs = {T(dims), F(rows), F(rows)};
    if (residual) {
      inputs.push_back(T(dims));
      outputs.push_back(T(dims));
    }
    inputs.push_back(F(channels, Fill::kPositive));
    inputs.push_back(F(channels));
    table.Add("layer_norm", name, a, inputs, outputs);
    const int gamma = residual ? 2 : 1;
    std::vector<std::string> backward = {residual ? "o3" : "i0", residual ? "i2" : "i1", "o1", "o2", "g0"};
    if (residual) backward.push_back("g3");
    table.Gradient("layer_norm_backward", backward, {0, gamma, gamma + 1});
  };
  add_layer("odd", {3, 5, 37}, false, 1e-6f);
  add_layer("one_row", {1, 192}, false, 1e-6f);
  add_layer("two_channels", {7, 2}, false, 1e-2f);
  add_layer("long_rows", {2, 4099}, false, 1e-5f);
  add_layer("residual", {2, 9, 48}, true, 1e-6f);
  // The gradient with its own sums, in rows of eights in one part and in several, and in others.
  const auto add_sums = [&](const char* name, Dims dims, int32_t residual) {
    sy_layer_norm_attributes a{};
    a.eps = 1e-6f;
    a.residual = residual;
    a.column_sums = 1;
    const Dims channels = {dims.back()}, rows(dims.begin(), dims.end() - 1);
    std::vector<Operand> inputs = {T(dims), F(channels, Fill::kPositive), F(rows), F(rows, Fill::kPositive), T(dims)};
    if (residual) inputs.push_back(T(dims));
    table.Add("layer_norm_backward", name, a, inputs, {T(dims), F(channels), F(channels), F(channels)});
  };
  table.Refuse<sy_layer_norm_attributes>({"layer_norm"}, "sums of a gradient's columns, forward",
                                         [](auto& a) { a.column_sums = 1; });
  add_sums("sums", {2, 9, 48}, 1);
  add_sums("sums_of_many_rows", {37, 83, 16}, 0);
  add_sums("sums_of_long_rows", {5, 520}, 1);
  add_sums("sums_odd", {3, 5, 37}, 1);
}

// Sizes that take paths of their own: few channels, eights of channels, groups across a vector, many rows in parts.
void AddGroupNorm(Table& table) {
  const auto add = [&](const char* name, Dims dims, int32_t groups, float eps, Fill fill = Fill::kNormal) {
    sy_group_norm_attributes a{};
    a.eps = eps;
    a.groups = groups;
    const Dims channels = {dims.back()}, statistics = {dims.front(), groups};
    constexpr double kDrift = 16;
    table.Add("group_norm", name, a, {T(dims, fill, kDrift), F(channels, Fill::kPositive), F(channels)},
              {T(dims), F(statistics), F(statistics)});
    table.Gradient("group_norm_backward", {"i0", "i1", "o1", "o2", "g0"}, {0, 1, 2});
  };
  add("image", {2, 5, 3, 6}, 3, 1e-5f);
  add("volume", {2, 3, 2, 4, 8}, 2, 1e-5f);
  add("one_group", {3, 4, 5}, 1, 1e-6f);
  add("a_channel_each", {2, 7, 3, 5}, 5, 1e-5f);
  add("no_places", {4, 12}, 3, 1e-3f);
  add("eights", {2, 9, 5, 48}, 4, 1e-5f);
  add("many_places", {2, 67, 61, 8}, 2, 1e-5f, Fill::kDrifting);
  add("many_channels", {1, 3, 2, 2088}, 8, 1e-5f);
  table.Refuse<sy_group_norm_attributes>({"group_norm", "group_norm_backward"},
                                         "groups that do not divide the channels", [](auto& a) { a.groups = 4; });
  table.Refuse<sy_group_norm_attributes>({"group_norm", "group_norm_backward"}, "0 groups",
                                         [](auto& a) { a.groups = 0; });
}

void AddBatchNorm(Table& table) {
  const auto add_batch = [&](const char* name, Dims dims, int activation = SY_ACTIVATION_NONE, bool residual = false,
                             Fill fill = Fill::kNormal) {
    sy_batch_norm_attributes a{};
    a.eps = 1e-5f;
    a.momentum = 0.1f;
    a.activation = activation;
    a.residual = residual;
    const Dims c = {dims.back()};
    constexpr double kDrift = 16;
    std::vector<Operand> inputs = {T(dims, fill, kDrift), F(c, Fill::kPositive), F(c), F(c), F(c, Fill::kPositive)};
    if (residual) inputs.push_back(T(dims));
    table.Add("batch_norm_inference", name, a, inputs, {T(dims)});
    table.Add("batch_norm", name, a, inputs, {T(dims), F(c), F(c), F(c), F(c)});
    std::vector<std::string> given = {"i0", "i1", "o1", "o2", "g0"};
    if (activation != SY_ACTIVATION_NONE) given.push_back("o0");
    std::vector<int> gradients = {0, 1, 2};
    if (residual) gradients.push_back(5);
    table.Gradient("batch_norm_backward", given, gradients);
  };
  add_batch("image", {2, 5, 3, 7});
  add_batch("volume", {1, 2, 3, 5, 4});
  add_batch("rows", {33, 1});
  add_batch("relu", {2, 4, 3, 8}, SY_ACTIVATION_RELU);
  add_batch("residual", {1, 5, 3, 6}, SY_ACTIVATION_NONE, true);
  add_batch("residual_relu", {3, 7, 5, 17}, SY_ACTIVATION_RELU, true);
  // Rows in several parts, and whole vectors of channels beside a rest.
  add_batch("many_places", {2, 67, 61, 8}, SY_ACTIVATION_NONE, false, Fill::kDrifting);
  add_batch("many_channels", {3, 19, 23, 131}, SY_ACTIVATION_RELU, true, Fill::kDrifting);
  table.Refuse<sy_batch_norm_attributes>({"batch_norm", "batch_norm_inference", "batch_norm_backward"},
                                         "an activation that is not relu",
                                         [](auto& a) { a.activation = SY_ACTIVATION_GELU; });
}

}  // namespace

void AddNormalization(Table& table) {
  AddLayerNorm(table);
  AddGroupNorm(table);
  AddBatchNorm(table);
}

}  // namespace switchyard::conform
