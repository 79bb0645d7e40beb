// Cases of core/graph/ops/pointwise.cc.
#include <tuple>

#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

// A program of the form op(input 0, input 1, input 2), or a longer one.
sy_pointwise_attributes Program(std::vector<sy_instruction> instructions, std::vector<int32_t> outputs) {
  sy_pointwise_attributes a{};
  a.instruction_count = static_cast<uint32_t>(instructions.size());
  a.output_count = static_cast<uint32_t>(outputs.size());
  std::copy(outputs.begin(), outputs.end(), a.outputs);
  std::copy(instructions.begin(), instructions.end(), a.instructions);
  return a;
}

}  // namespace

void AddPointwise(Table& table) {
  table.RowsApart({"pointwise"});
  const Dims odd = {3, 5, 7};
  const std::pair<const char*, int> binary[] = {
      {"add", SY_PW_ADD},    {"sub", SY_PW_SUB}, {"mul", SY_PW_MUL},   {"div", SY_PW_DIV},
      {"max", SY_PW_MAX},    {"min", SY_PW_MIN}, {"less", SY_PW_LESS}, {"less_equal", SY_PW_LESS_EQUAL},
      {"equal", SY_PW_EQUAL}};
  for (const auto& [name, op] : binary) {
    const bool whole = op == SY_PW_EQUAL || op == SY_PW_LESS_EQUAL;
    table.Add("pointwise", name, Program({{op, 0, 1, 0, 0}}, {2}),
              {T(odd, whole ? Fill::kIntegers : Fill::kNormal), T(odd, whole             ? Fill::kIntegers
                                                                       : op == SY_PW_DIV ? Fill::kPositive
                                                                                         : Fill::kNormal)},
              {T(odd)});
  }
  table.Add("pointwise", "pow", Program({{SY_PW_POW, 0, 1, 0, 0}}, {2}), {T(odd, Fill::kPositive), T(odd)}, {T(odd)});
  const std::pair<const char*, int> unary[] = {{"neg", SY_PW_NEG},    {"abs", SY_PW_ABS},         {"exp", SY_PW_EXP},
                                               {"tanh", SY_PW_TANH},  {"sigmoid", SY_PW_SIGMOID}, {"erf", SY_PW_ERF},
                                               {"floor", SY_PW_FLOOR}};
  for (const auto& [name, op] : unary)
    table.Add("pointwise", name, Program({{op, 0, 0, 0, 0}}, {1}), {T(odd)}, {T(odd)});
  const std::pair<const char*, int> positive[] = {
      {"log", SY_PW_LOG}, {"sqrt", SY_PW_SQRT}, {"rsqrt", SY_PW_RSQRT}, {"reciprocal", SY_PW_RECIPROCAL}};
  for (const auto& [name, op] : positive)
    table.Add("pointwise", name, Program({{op, 0, 0, 0, 0}}, {1}), {T(odd, Fill::kPositive)}, {T(odd)});
  const std::tuple<const char*, int, int> activations[] = {{"relu", SY_PW_RELU, SY_PW_RELU_GRAD},
                                                           {"gelu", SY_PW_GELU, SY_PW_GELU_GRAD},
                                                           {"gelu_tanh", SY_PW_GELU_TANH, SY_PW_GELU_TANH_GRAD},
                                                           {"silu", SY_PW_SILU, SY_PW_SILU_GRAD}};
  for (const auto& [name, op, gradient] : activations) {
    table.Add("pointwise", name, Program({{op, 0, 0, 0, 0}}, {1}), {T(odd)}, {T(odd)});
    OpCase& backward = table.Gradient("pointwise", {"i0", "g0"}, {0});
    const sy_pointwise_attributes program = Program({{gradient, 0, 0, 0, 0}, {SY_PW_MUL, 1, 2, 0, 0}}, {3});
    std::memcpy(backward.attributes.data(), &program, sizeof program);
    backward.name = std::string(name) + "_gradient";
  }
  table.Add("pointwise", "select",
            Program({{SY_PW_CONSTANT, 0, 0, 0, 0.25f}, {SY_PW_LESS, 0, 3, 0, 0}, {SY_PW_SELECT, 4, 1, 2, 0}}, {5}),
            {T(odd), T(odd), T(odd)}, {T(odd)});
  table
      .Add("pointwise", "is_finite", Program({{SY_PW_IS_FINITE, 0, 0, 0, 0}}, {1}), {T({257}, Fill::kExtreme)},
           {T({257})})
      .exact = true;
  table.Add("pointwise", "copy", Program({}, {0}), {T({1023})}, {T({1023})}).exact = true;
  table.Add("pointwise", "one_element", Program({{SY_PW_ADD, 0, 0, 0, 0}}, {1}), {T({1})}, {T({1})});
  table.Add("pointwise", "no_axes", Program({{SY_PW_ADD, 0, 1, 0, 0}}, {2}), {T({}), T({})}, {T({})});
  table.Add("pointwise", "to_f32", Program({}, {0}), {T({17, 3})}, {F({17, 3})}).exact = true;
  table.Add("pointwise", "from_f32", Program({}, {0}), {F({17, 3})}, {T({17, 3})}).exact = true;
  table.Add("pointwise", "from_i32", Program({}, {0}), {I({41}, 200)}, {T({41})}).exact = true;
  table.Add("pointwise", "broadcast_i32", Program({}, {0}), {I({3, 1, 5}, 2000000000)}, {I({3, 7, 5}, 0)}).exact = true;
  table.Add("pointwise", "from_u8", Program({}, {0}), {{Type::kU8, {2, 5, 3}, Fill::kIndex, 256}}, {T({2, 5, 3})})
      .exact = true;
  table.Add("pointwise", "broadcast", Program({}, {0}), {T({1, 5, 1})}, {T({3, 5, 7})}).exact = true;
  table.Add("pointwise", "broadcast_row", Program({{SY_PW_ADD, 0, 1, 0, 0}}, {2}), {T({6, 4, 13}), T({13})},
            {T({6, 4, 13})});
  table.Add("pointwise", "broadcast_column", Program({{SY_PW_MUL, 0, 1, 0, 0}}, {2}), {T({6, 5, 13}), T({6, 1, 1})},
            {T({6, 5, 13})});
  table.Add("pointwise", "broadcast_both", Program({{SY_PW_SUB, 0, 1, 0, 0}}, {2}), {T({7, 1}), T({1, 11})},
            {T({7, 11})});
  table.Add("pointwise", "broadcast_scalar", Program({{SY_PW_MUL, 0, 1, 0, 0}}, {2}), {T({4099}), F({1})}, {T({4099})});
  table.Add("pointwise", "five_axes", Program({{SY_PW_ADD, 0, 1, 0, 0}}, {2}), {T({2, 3, 1, 5, 1}), T({1, 3, 4, 1, 3})},
            {T({2, 3, 4, 5, 3})});
  table.Add("pointwise", "two_outputs",
            Program({{SY_PW_MUL, 0, 1, 0, 0}, {SY_PW_TANH, 2, 0, 0, 0}, {SY_PW_ADD, 3, 0, 0, 0}}, {2, 4}),
            {T({19, 5}), T({19, 5})}, {T({19, 5}), F({19, 5})});
  std::vector<sy_instruction> chain = {{SY_PW_CONSTANT, 0, 0, 0, 0.5f}};
  for (int i = 1; i < SY_PW_MAX_INSTRUCTIONS; ++i)
    chain.push_back({i % 2 ? SY_PW_MUL : SY_PW_ADD, i, i % 2 ? 1 : 0, 0, 0});
  table.Add("pointwise", "longest_program", Program(chain, {SY_PW_MAX_INSTRUCTIONS}), {T({67})}, {T({67})});
  OpCase& strided = table.Add("pointwise", "strided", Program({{SY_PW_ADD, 0, 1, 0, 0}}, {2}), {T({9, 14}), T({9, 14})},
                              {T({9, 14})});
  strided.inputs[1].transposed = true;
  const auto refuse = [&](const char* what, auto change) {
    table.Refuse<sy_pointwise_attributes>({"pointwise"}, what, change);
  };
  refuse("1000 instructions", [](auto& a) { a.instruction_count = 1000; });
  refuse("9 outputs", [](auto& a) { a.output_count = SY_PW_MAX_OUTPUTS + 1; });
  refuse("output 99", [](auto& a) { a.outputs[0] = 99; });
  refuse("output -1", [](auto& a) { a.outputs[0] = -1; });
  refuse("operand 77", [](auto& a) { a.instructions[0] = {SY_PW_NEG, 77, 0, 0, 0}; });
  refuse("operand -3", [](auto& a) { a.instructions[0] = {SY_PW_NEG, -3, 0, 0, 0}; });
  refuse("an unknown instruction", [](auto& a) { a.instructions[0].op = SY_PW_OP_COUNT; });
}

}  // namespace switchyard::conform
