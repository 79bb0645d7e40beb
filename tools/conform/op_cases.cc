#include "tools/conform/op_cases.h"

#include <algorithm>

#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

const Table& Whole() {
  static const auto* const whole = [] {
    auto* table = new Table;
    for (const auto family :
         {AddMatmul, AddAttention, AddNormalization, AddSoftmax, AddLoss, AddPointwise, AddReduction, AddLayout,
          AddRandom, AddOptimizer, AddConvolution, AddOrthonormalize, AddWindowAttention}) {
      family(*table);
    }
    return table;
  }();
  return *whole;
}

}  // namespace

const std::vector<OpCase>& OpCases() { return Whole().cases(); }
const std::vector<Nonsense>& NonsenseCases() { return Whole().nonsense(); }
bool RowsApart(const std::string& op) { return Whole().rows_apart().contains(op); }
bool MadeByFusion(const std::string& op) { return Whole().made_by_fusion().contains(op); }

const OpCase& FirstCase(const std::string& op) {
  const std::vector<OpCase>& cases = OpCases();
  return *std::find_if(cases.begin(), cases.end(), [&](const OpCase& one) { return one.op == op; });
}

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const OpCase& one : OpCases()) {
    if (std::find(names.begin(), names.end(), one.op) == names.end()) names.push_back(one.op);
  }
  return names;
}

}  // namespace switchyard::conform
