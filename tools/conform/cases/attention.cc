// Cases of core/graph/ops/attention.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddAttention(Table& table) {
  table.RowsApart({"attention"});
  const auto add = [&](const char* name, int64_t b, int64_t t, int64_t h, int64_t d, int64_t bias, int64_t groups) {
    sy_attention_attributes a{};
    a.scale = 1.0f / static_cast<float>(d);
    a.bias = bias != 0;
    a.mask = groups != 0;
    std::vector<Operand> inputs = {T({b, t, 3, h, d})};
    std::vector<std::string> backward = {"i0", "o0", "o1", "g0"};
    std::vector<int> gradients = {0};
    if (bias) {
      backward.push_back("i" + std::to_string(inputs.size()));
      gradients.push_back(static_cast<int>(inputs.size()));
      inputs.push_back(T({h, t, t}));
    }
    if (groups) {
      backward.push_back("i" + std::to_string(inputs.size()));
      inputs.push_back(T({groups, t, t}, Fill::kMask));
    }
    table.Add("attention", name, a, std::move(inputs), {T({b, t, h, d}), F({b, h, t})});
    table.Gradient("attention_backward", backward, gradients, {1});
  };
  add("odd", 2, 13, 3, 7, 0, 0);
  add("one_token", 3, 1, 2, 8, 0, 0);
  add("one_element", 1, 1, 1, 1, 0, 0);
  add("vit", 2, 17, 3, 16, 0, 0);
  add("long", 1, 131, 1, 32, 0, 0);
  add("bias", 2, 9, 2, 8, 1, 0);
  add("window", 4, 16, 2, 8, 1, 2);
  add("mask", 2, 5, 2, 4, 0, 2);
  add("swin", 24, 49, 3, 32, 1, 4);  // more windows than parts that dbias is summed in
  add("odd_window", 24, 21, 3, 32, 1, 4);
}

}  // namespace switchyard::conform
