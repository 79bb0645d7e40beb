// Cases of core/graph/ops/attention.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

namespace {

// qkv (b, t, 3, h, d), with windows (0: none) the rows of as many, a bias or none, and a mask of `groups` planes (0:
// none).
void AddCase(Table& table, const char* name, int64_t b, int64_t t, int64_t h, int64_t d, int64_t windows, bool bias,
             int64_t groups) {
  sy_attention_attributes a{};
  a.scale = 1.0f / static_cast<float>(d);
  a.bias = bias;
  a.mask = groups != 0;
  std::vector<Operand> inputs = {T({b, t, 3, h, d})};
  std::vector<std::string> backward = {"i0", "o0", "o1", "g0"};
  std::vector<int> gradients = {0}, in_f32;
  const auto add = [&](Operand operand) {
    backward.push_back("i" + std::to_string(inputs.size()));
    inputs.push_back(std::move(operand));
  };
  if (windows) add(I({windows, t}, 0, Fill::kPermutation));
  if (bias) {
    in_f32 = {static_cast<int>(inputs.size())};
    gradients.push_back(in_f32[0]);
    add(T({h, t, t}));
  }
  if (groups) add(T({groups, t, t}, Fill::kMask));
  table.Add(windows ? "window_attention" : "attention", name, a, std::move(inputs), {T({b, t, h, d}), F({b, h, t})});
  table.Gradient(windows ? "window_attention_backward" : "attention_backward", backward, gradients, in_f32);
}

}  // namespace

void AddAttention(Table& table) {
  table.RowsApart({"attention"});
  const auto add = [&](const char* name, int64_t b, int64_t t, int64_t h, int64_t d, bool bias, int64_t groups) {
    AddCase(table, name, b, t, h, d, 0, bias, groups);
  };
  add("odd", 2, 13, 3, 7, false, 0);
  add("one_token", 3, 1, 2, 8, false, 0);
  add("one_element", 1, 1, 1, 1, false, 0);
  add("vit", 2, 17, 3, 16, false, 0);
  add("long", 1, 131, 1, 32, false, 0);
  add("bias", 2, 9, 2, 8, true, 0);
  add("window", 4, 16, 2, 8, true, 2);
  add("mask", 2, 5, 2, 4, false, 2);
  add("swin", 24, 49, 3, 32, true, 4);  // more windows than parts that dbias is summed in
  add("odd_window", 24, 21, 3, 32, true, 4);
}

void AddWindowAttention(Table& table) {
  table.MadeByFusion({"window_attention", "window_attention_backward"});
  AddCase(table, "odd", 6, 5, 3, 7, 3, false, 0);
  AddCase(table, "one_map", 4, 9, 2, 8, 4, true, 0);
  AddCase(table, "swin", 24, 49, 3, 32, 4, true, 4);
  AddCase(table, "other_planes", 12, 21, 3, 24, 6, true, 4);  // as many planes as no map has windows
  AddCase(table, "one_token", 4, 1, 1, 8, 2, false, 2);
}

}  // namespace switchyard::conform
