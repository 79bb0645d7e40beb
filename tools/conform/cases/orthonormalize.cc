// Cases of core/graph/ops/orthonormalize.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddOrthonormalize(Table& table) {
  const auto add = [&](const char* name, std::vector<Operand> matrices, std::vector<Operand> drawn = {}) -> OpCase& {
    std::vector<Operand> results;
    for (const Operand& matrix : matrices) results.push_back(F(matrix.dims));
    const sy_orthonormalize_attributes a{drawn.empty() ? 0 : 1};
    matrices.insert(matrices.end(), drawn.begin(), drawn.end());
    return table.Add("orthonormalize", name, a, matrices, results);
  };
  add("one_row", {F({1, 37})});
  add("rows", {F({4, 129})});
  add("many", {F({2, 7}), F({1, 1}), F({5, 96}), F({3, 2051})});
  add("dependent", {F({3, 40}, Fill::kConstant, 2), F({2, 1})});
  add("zeros", {F({3, 20}, Fill::kConstant, 0)});
  add("drawn", {F({3, 24}, Fill::kConstant, 0), F({2, 33}), F({2, 1030}, Fill::kConstant, 0)},
      {F({3, 24}), F({2, 33}), F({2, 1030})});
  add("drawn_dependent", {F({2, 9}, Fill::kConstant, 0)}, {F({2, 9}, Fill::kConstant, -3)});
  add("overflow", {F({3, 60}, Fill::kExtreme), F({2, 5})});
  add("most_rows", {F({64, 200})});
  table.Refuse<sy_orthonormalize_attributes>({"orthonormalize"}, "drawn 2", [](auto& a) { a.drawn = 2; });
}

}  // namespace switchyard::conform
