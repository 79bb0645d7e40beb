// Cases of core/graph/ops/reduction.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddReduction(Table& table) {
  table.RowsApart({"reduce"});
  const auto add = [&](const char* name, int reduction, Dims dims, uint32_t axes, bool keep, float scale) -> OpCase& {
    sy_reduce_attributes a{};
    a.reduction = reduction;
    a.axes = axes;
    a.scale = scale;
    Dims reduced;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (!(axes & (1u << i))) {
        reduced.push_back(dims[i]);
      } else if (keep) {
        reduced.push_back(1);
      }
    }
    return table.Add("reduce", name, a, {T(dims)}, {T(reduced)});
  };
  add("rows", SY_REDUCE_SUM, {13, 37}, 2, true, 1);
  add("columns", SY_REDUCE_SUM, {37, 13}, 1, false, 1);
  add("mean_of_all", SY_REDUCE_SUM, {5, 7, 3}, 7, false, 1.0f / 105);
  add("outer_and_inner", SY_REDUCE_SUM, {5, 7, 3}, 5, true, 1);
  add("middle", SY_REDUCE_SUM, {4, 9, 6}, 2, false, 0.5f);
  add("max", SY_REDUCE_MAX, {6, 31}, 2, false, 1);
  add("min", SY_REDUCE_MIN, {31, 6}, 1, true, 1);
  add("max_of_extremes", SY_REDUCE_MAX, {9, 31}, 2, false, 1).inputs[0].fill = Fill::kExtreme;
  add("min_of_extremes", SY_REDUCE_MIN, {9, 31}, 2, false, 1).inputs[0].fill = Fill::kExtreme;
  add("all_to_one", SY_REDUCE_SUM, {5, 7}, 3, false, 1).outputs[0].dims = {1};
  add("sum_of_squares", SY_REDUCE_SUM_OF_SQUARES, {3, 129}, 2, false, 1);
  add("one_element", SY_REDUCE_SUM, {1}, 1, true, 1);
  add("long", SY_REDUCE_SUM, {100003}, 1, false, 1);
  add("columns_f32", SY_REDUCE_SUM, {4099, 3}, 1, false, 1).outputs[0].type = Type::kF32;
  OpCase& integers = add("integers", SY_REDUCE_SUM, {7, 513}, 2, false, 1);
  integers.inputs[0].fill = Fill::kIntegers;
  integers.outputs[0].type = Type::kF32;
  integers.exact = true;
  table.Add("squared_norm", "one", {T({1})}, {F({1})});
  table.Add("squared_norm", "many", {T({13, 7}), T({1}), T({4099}), T({2, 3, 5})}, {F({1})});
  table.Add("squared_norm", "integers", {T({255}, Fill::kIntegers), T({3, 3}, Fill::kIntegers)}, {F({1})}).exact = true;
  table.Add("squared_norm", "overflow", {T({33}), T({17}, Fill::kExtreme)}, {F({1})});
  table.Refuse<sy_reduce_attributes>({"reduce"}, "reduction 99", [](auto& a) { a.reduction = 99; });
  table.Refuse<sy_reduce_attributes>({"reduce"}, "axis 20", [](auto& a) { a.axes = 1u << 20; });
  table.Refuse<sy_reduce_attributes>({"reduce"}, "axis 7 beside its own", [](auto& a) { a.axes |= 1u << 7; });
}

}  // namespace switchyard::conform
