// Cases of core/graph/ops/layout.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

template <typename A, typename V>
A Axes(const V& values) {
  A a{};
  std::copy(values.begin(), values.end(), a.values);
  return a;
}

}  // namespace

void AddLayout(Table& table) {
  const auto axes = [&](const char* op, const char* name, std::vector<int> values, std::vector<Operand> inputs,
                        Dims out) {
    table.Add(op, name, Axes<sy_axes_attributes>(values), std::move(inputs), {T(out)}).exact = true;
  };
  axes("transpose", "matrix", {1, 0}, {T({13, 29})}, {29, 13});
  axes("transpose", "three_axes", {2, 0, 1}, {T({3, 5, 7})}, {7, 3, 5});
  axes("transpose", "heads", {0, 2, 1, 3}, {T({2, 5, 3, 8})}, {2, 3, 5, 8});
  axes("transpose", "six_axes", {0, 1, 3, 2, 4, 5}, {T({1, 2, 3, 2, 3, 5})}, {1, 2, 2, 3, 3, 5});
  axes("transpose", "patches", {0, 1, 3, 2, 4, 5}, {T({2, 3, 4, 3, 4, 3})}, {2, 3, 3, 4, 4, 3});
  axes("transpose", "one_element", {0, 1}, {T({1, 1})}, {1, 1});
  axes("roll", "window", {0, -2, -2, 0}, {T({2, 5, 7, 3})}, {2, 5, 7, 3});
  axes("roll", "forward", {3, 1}, {T({5, 4})}, {5, 4});
  axes("roll", "beyond", {13}, {T({7})}, {7});
  axes("concat", "rows", {0}, {T({2, 7}), T({5, 7}), T({1, 7})}, {8, 7});
  axes("concat", "class_token", {1}, {T({3, 1, 8}), T({3, 4, 8})}, {3, 5, 8});
  axes("concat", "columns", {1}, {T({5, 3}), T({5, 1})}, {5, 4});
  const auto slice = [&](const char* name, Dims from, Dims start, Dims step, Dims out) {
    sy_slice_attributes a{};
    std::copy(start.begin(), start.end(), a.start);
    std::copy(step.begin(), step.end(), a.step);
    table.Add("slice", name, a, {T(from)}, {T(out)}).exact = true;
  };
  slice("middle", {9, 11}, {2, 3}, {1, 1}, {4, 5});
  slice("steps", {9, 11}, {1, 0}, {2, 3}, {4, 4});
  slice("class_token", {3, 5, 8}, {0, 0, 0}, {1, 1, 1}, {3, 1, 8});
  slice("last_element", {3, 5, 7}, {2, 4, 6}, {1, 1, 1}, {1, 1, 1});
  const auto pad = [&](const char* name, Dims from, Dims before, Dims after, float value) {
    sy_pad_attributes a{};
    Dims out = from;
    for (size_t i = 0; i < from.size(); ++i) {
      a.before[i] = before[i];
      a.after[i] = after[i];
      out[i] += before[i] + after[i];
    }
    a.value = value;
    table.Add("pad", name, a, {T(from)}, {T(out)}).exact = true;
  };
  pad("image", {2, 5, 3, 4}, {0, 1, 2, 0}, {0, 2, 0, 0}, 0);
  pad("value", {7}, {3}, {2}, -1.5f);
  pad("nothing", {3, 4}, {0, 0}, {0, 0}, 1);

  const auto gather = [&](const char* name, Dims table_dims, Dims index_dims, Fill fill) {
    Dims out = index_dims;
    out.insert(out.end(), table_dims.begin() + 1, table_dims.end());
    table.Add("gather", name, {T(table_dims), I(index_dims, static_cast<double>(table_dims[0]), fill)}, {T(out)})
        .exact = true;
    table.Gradient("scatter_add", {"i1", "g0"}, {0});
  };
  gather("rows", {11, 7}, {5}, Fill::kIndex);
  gather("bias_table", {25, 3}, {9, 9}, Fill::kIndex);
  gather("scalars", {13}, {4, 3}, Fill::kIndex);
  gather("clamped", {5, 3}, {17}, Fill::kSignedIndex);
  table.Add("scatter_add", "integers", {I({64}, 5), T({64, 3}, Fill::kIntegers)}, {T({5, 3})}).exact = true;
  const auto flip = [&](const char* name, Type type, Dims dims, int axis) {
    const Operand x = {type, dims, type == Type::kTested ? Fill::kNormal : Fill::kIndex, 256};
    table
        .Add("flip", name, Axes<sy_axes_attributes>(std::vector{axis}), {x, {Type::kU8, {dims[0]}, Fill::kIndex, 3}},
             {{type, dims}})
        .exact = true;
  };
  flip("images", Type::kU8, {5, 4, 7, 3}, 2);
  flip("grey_images", Type::kU8, {4, 3, 8, 1}, 2);
  flip("words", Type::kU8, {7, 3, 5, 4}, 2);
  flip("large_images", Type::kU8, {3, 40, 64, 3}, 2);
  flip("masks", Type::kI32, {5, 4, 7}, 2);
  flip("floats", Type::kTested, {6, 3, 5, 2}, 1);
  flip("rows", Type::kTested, {9, 4}, 1);
  flip("one_element", Type::kTested, {1, 1}, 1);
  using Axes = sy_axes_attributes;
  table.Refuse<Axes>({"flip"}, "axis 0", [](Axes& a) { a.values[0] = 0; });
  table.Refuse<Axes>({"flip"}, "axis 12", [](Axes& a) { a.values[0] = 12; });
  table.Refuse<Axes>({"transpose"}, "an axis twice", [](Axes& a) { a.values[1] = a.values[0]; });
  table.Refuse<Axes>({"transpose", "concat"}, "axis -1", [](Axes& a) { a.values[0] = -1; });
  table.Refuse<Axes>({"transpose", "concat"}, "axis 12", [](Axes& a) { a.values[0] = 12; });
  table.Refuse<sy_slice_attributes>({"slice"}, "a start beyond the end", [](auto& a) { a.start[0] = 1000000; });
  table.Refuse<sy_slice_attributes>({"slice"}, "a negative start", [](auto& a) { a.start[0] = -5; });
  table.Refuse<sy_slice_attributes>({"slice"}, "a step so large that the last index wraps to a valid one", [](auto& a) {
    a.start[0] = 4;  // the first case takes four rows, so that the last is 4 + 3·step
    a.step[0] = INT64_MIN / 3 * -2;
  });
}

}  // namespace switchyard::conform
