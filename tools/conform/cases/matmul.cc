// Cases of core/graph/ops/matmul.cc.
#include "tools/conform/op_table.h"

namespace switchyard::conform {

void AddMatmul(Table& table) {
  table.RowsApart({"matmul"});
  sy_matmul_attributes plain{};
  plain.alpha = 1;
  const auto add = [&](const char* name, sy_matmul_attributes a, Dims lead, int64_t m, int64_t k, int64_t n,
                       bool f32_bias = false) -> OpCase& {
    const auto with = [&](Dims tail) {
      Dims dims = lead;
      dims.insert(dims.end(), tail.begin(), tail.end());
      return dims;
    };
    std::vector<Operand> inputs = {T(a.transpose_a ? with({k, m}) : with({m, k})),
                                   T(a.transpose_b ? with({n, k}) : with({k, n}))};
    if (a.bias) inputs.push_back(f32_bias ? F({n}) : T({n}));
    if (a.activation_gradient) inputs.push_back(T(with({m, n})));
    if (a.residual) inputs.push_back(T(with({m, n})));
    std::vector<Operand> outputs = {T(with({m, n}))};
    if (a.save_preactivation) outputs.push_back(T(with({m, n})));
    if (a.bias_gradient) outputs.push_back(F({m}));
    if (a.column_sums) outputs.push_back(F({n}));
    return table.Add("matmul", name, a, std::move(inputs), std::move(outputs));
  };
  add("odd", plain, {}, 13, 17, 19);
  add("one_element", plain, {}, 1, 1, 1);
  add("row_vector", plain, {}, 1, 257, 3);
  add("outer_product", plain, {}, 31, 1, 29);
  add("batch", plain, {2, 3}, 5, 7, 11);
  add("large", plain, {}, 129, 193, 131);
  table.Add("matmul", "integers_exact", plain, {T({9, 33}, Fill::kIntegers), T({33, 5}, Fill::kIntegers)}, {T({9, 5})})
      .exact = true;
  sy_matmul_attributes a = plain;
  a.transpose_a = 1;
  add("transpose_a", a, {}, 13, 17, 19);
  a.transpose_b = 1;
  add("transpose_both", a, {3}, 5, 17, 2);
  a.transpose_a = 0;
  a.alpha = 0.125f;
  add("transpose_b_alpha", a, {2}, 7, 16, 7);
  a.alpha = 1;
  a.bias = 1;
  add("linear", a, {}, 37, 24, 41);
  add("linear_f32_bias", a, {}, 37, 24, 40, true);  // as mixed precision has it: f32 beside halves
  constexpr const char* kNames[] = {"", "linear_gelu", "linear_gelu_tanh", "linear_relu", "linear_silu"};
  constexpr const char* kF32Names[] = {"", "linear_gelu_f32_bias", "linear_gelu_tanh_f32_bias", "linear_relu_f32_bias",
                                       "linear_silu_f32_bias"};
  constexpr const char* kGradients[] = {"", "gelu_gradient", "gelu_tanh_gradient", "relu_gradient", "silu_gradient"};
  for (const int activation : {SY_ACTIVATION_GELU, SY_ACTIVATION_GELU_TANH, SY_ACTIVATION_RELU, SY_ACTIVATION_SILU}) {
    sy_matmul_attributes b = a;
    b.activation = activation;
    b.save_preactivation = activation != SY_ACTIVATION_RELU;
    add(kNames[activation], b, {}, 11, 24, 23);
    add(kF32Names[activation], b, {}, 11, 24, 40, true);  // in eights, which library epilogues want
    b = plain;
    b.activation = activation;
    b.activation_gradient = 1;
    add(kGradients[activation], b, {}, 11, 23, 24);
    b.column_sums = 1;
    if (activation == SY_ACTIVATION_RELU) add("relu_gradient_and_sums", b, {2}, 9, 11, 13);
    if (activation == SY_ACTIVATION_GELU) {  // eights, and rows in several parts
      add("gelu_gradient_and_sums", b, {}, 11, 23, 24);
      add("gelu_gradient_and_sums_of_many_rows", b, {}, 403, 8, 264);
    }
  }
  sy_matmul_attributes not_numbers = a;
  not_numbers.activation = SY_ACTIVATION_RELU;
  add("linear_relu_not_numbers", not_numbers, {}, 23, 1, 24).inputs[0].fill = Fill::kExtreme;  // each sum has one term
  a.residual = 1;
  add("linear_residual", a, {}, 21, 48, 16);
  add("linear_residual_f32_bias", a, {}, 128, 64, 16, true);
  a = plain;
  a.transpose_a = 1;
  a.bias_gradient = 1;
  add("weight_and_bias_gradient", a, {}, 15, 64, 24);
  // As mixed precision has it: f32 from halves, not rounded to half first.
  a.bias_gradient = 0;
  add("weight_gradient_f32", a, {}, 40, 129, 24).outputs[0].type = Type::kF32;
  a.bias_gradient = 1;
  add("weight_and_bias_gradient_f32", a, {}, 40, 129, 24).outputs[0].type = Type::kF32;
  OpCase& strided = add("strided", plain, {2}, 6, 10, 14);
  for (Operand& operand : strided.inputs) operand.transposed = true;
  table.Refuse<sy_matmul_attributes>({"matmul"}, "activation 99", [](auto& a) { a.activation = 99; });
}

}  // namespace switchyard::conform
