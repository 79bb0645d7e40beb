// The graph's type rules on every case of the table: what a kernel takes, the rule takes and gives the same types for;
// what makes no sense, both refuse.
#include <set>

#include "core/graph/op.h"
#include "gtest/gtest.h"
#include "tests/ops/case_graph.h"

namespace switchyard {
namespace {

using conform::OpCase;

bool Refuses(const OpCase& one) {
  try {
    InferTypes(one.op, TypesOf(one.inputs, DType::kF32), AttributesOf(one), WantedOf(one, DType::kF32));
  } catch (const TypeMismatch&) {
    return true;
  }
  return false;
}

TEST(OpTypes, TheTableHasCasesOfEveryOpThatKernelsRunAndOfNoOther) {
  std::set<std::string> ops;
  for (const auto& [name, op] : AllOps()) {
    if (!op.traits.structural && !op.traits.collective) ops.insert(name);
  }
  const std::vector<std::string> names = conform::OpNames();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), ops);
}

TEST(OpTypes, TheRuleGivesTheTypesOfEveryCase) {
  for (const OpCase& one : conform::OpCases()) {
    SCOPED_TRACE(one.id());
    for (const DType tested : {DType::kF32, DType::kBF16}) {
      const std::vector<TensorType> expected = TypesOf(one.outputs, tested);
      std::vector<TensorType> found;
      EXPECT_NO_THROW(found =
                          InferTypes(one.op, TypesOf(one.inputs, tested), AttributesOf(one), WantedOf(one, tested)));
      ASSERT_EQ(found.size(), expected.size());
      for (size_t o = 0; o < found.size(); ++o) {
        EXPECT_EQ(found[o].shape, expected[o].shape) << "output " << o;
        if (tested == DType::kF32) {
          EXPECT_EQ(found[o].dtype, expected[o].dtype) << "output " << o;
        }
      }
    }
  }
}

TEST(OpTypes, TheRuleRefusesWhatMakesNoSense) {
  for (const conform::Nonsense& nonsense : conform::NonsenseCases()) {
    OpCase planted = conform::FirstCase(nonsense.op);
    EXPECT_FALSE(Refuses(planted)) << nonsense.op;
    nonsense.plant(planted);
    EXPECT_TRUE(Refuses(planted)) << nonsense.op << ": " << nonsense.what;
  }
}

TEST(OpTypes, TheRuleRefusesAnotherNumberOfInputs) {
  const std::set<std::string> any_number = {"squared_norm", "pointwise", "concat", "orthonormalize"};
  for (const std::string& op : conform::OpNames()) {
    OpCase one = conform::FirstCase(op);
    if (any_number.contains(op)) continue;
    one.inputs.push_back(one.inputs.back());
    EXPECT_TRUE(Refuses(one)) << op << " takes an input too many";
    one.inputs.resize(one.inputs.size() - 2);
    EXPECT_TRUE(Refuses(one)) << op << " takes an input too few";
  }
}

}  // namespace
}  // namespace switchyard
