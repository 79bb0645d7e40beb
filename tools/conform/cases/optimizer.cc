// Cases of core/graph/ops/optimizer.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddOptimizer(Table& table) {
  const auto add = [&](const char* name, sy_optimizer_attributes a, int states, std::vector<Dims> shapes, bool finite,
                       bool first, double drift = 0) {
    std::vector<Operand> inputs = {F({1}, Fill::kConstant, 0.03), F({1}, Fill::kConstant, first ? 0 : 12),
                                   F({1}, Fill::kConstant, 0.25), F({1}, Fill::kConstant, finite ? 1 : 0)};
    std::vector<Operand> outputs;
    for (const Dims& dims : shapes) {
      inputs.push_back(F(dims, Fill::kDrifting, drift));
      inputs.push_back(T(dims));
      outputs.push_back(F(dims));
      for (int state = 0; state < states; ++state) {
        inputs.push_back(F(dims, state == 1 ? Fill::kPositive : Fill::kNormal));
        outputs.push_back(F(dims));
      }
      if (a.half_copies) outputs.push_back(T(dims));
    }
    table.Add("optimizer_update", name, a, inputs, outputs).exact = !finite;
  };
  const std::vector<Dims> shapes = {{13, 7}, {1}, {1031}};
  const std::vector<Dims> large = {{5}, {129, 311}};  // norms of what backends cut into parts, each part with its own
  sy_optimizer_attributes a{};
  a.kind = SY_OPTIMIZER_SGD;
  a.weight_decay = 0.01f;
  add("sgd", a, 0, shapes, true, false);
  a.momentum = 0.9f;
  add("momentum", a, 1, shapes, true, false);
  a.dampening = 0.5f;
  add("first_momentum", a, 1, shapes, true, true);
  a.dampening = 0;
  a.nesterov = 1;
  add("nesterov", a, 1, shapes, true, false);
  a = {};
  a.kind = SY_OPTIMIZER_ADAM;
  a.beta1 = 0.9f;
  a.beta2 = 0.999f;
  a.eps = 1e-8f;
  a.weight_decay = 0.05f;
  add("adam", a, 2, shapes, true, false);
  a.kind = SY_OPTIMIZER_ADAMW;
  add("adamw", a, 2, shapes, true, false);
  add("first_adamw", a, 2, {{5}}, true, true);
  add("skipped", a, 2, shapes, false, false);
  a.half_copies = 1;
  add("half_copies", a, 2, shapes, true, false);
  add("skipped_half_copies", a, 2, shapes, false, false);
  a = {};
  a.kind = SY_OPTIMIZER_LAMB;
  a.beta1 = 0.9f;
  a.beta2 = 0.999f;
  a.eps = 1e-8f;
  a.adam_w_mode = a.grad_averaging = 1;
  add("lamb_without_decay", a, 2, shapes, true, false);
  a.use_nvlamb = 1;
  add("nvlamb", a, 2, shapes, true, false);
  a.use_nvlamb = 0;
  a.weight_decay = 0.05f;
  add("lamb", a, 2, shapes, true, false);
  add("large_lamb", a, 2, large, true, false, 30);
  add("first_lamb", a, 2, {{5}, {2, 3}}, true, true);
  add("skipped_lamb", a, 2, shapes, false, false);
  a.eps = 0;
  add("lamb_without_eps", a, 2, shapes, true, false);
  a.eps = 1e-8f;
  a.half_copies = 1;
  add("lamb_half_copies", a, 2, shapes, true, false);
  a.half_copies = a.adam_w_mode = a.grad_averaging = 0;
  add("coupled_lamb", a, 2, shapes, true, false);
  a = {};
  a.kind = SY_OPTIMIZER_LARS;
  a.eps = 1e-8f;
  a.trust_coefficient = 0.02f;
  add("lars_without_decay_or_momentum", a, 0, shapes, true, false);
  a.momentum = 0.9f;
  a.weight_decay = 0.01f;
  add("lars", a, 1, shapes, true, false);
  add("large_lars", a, 1, large, true, false, 30);
  add("first_lars", a, 1, {{5}, {2, 3}}, true, true);
  add("skipped_lars", a, 1, shapes, false, false);
  a.nesterov = 1;
  add("nesterov_lars", a, 1, shapes, true, false);
  a.nesterov = 0;
  a.half_copies = 1;
  add("lars_half_copies", a, 1, shapes, true, false);
  table.Refuse<sy_optimizer_attributes>({"optimizer_update"}, "kind 9", [](auto& a) { a.kind = 9; });
}

}  // namespace switchyard::conform
