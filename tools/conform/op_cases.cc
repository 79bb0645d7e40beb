#include "tools/conform/op_cases.h"

#include <algorithm>
#include <tuple>

#include "tools/conform/op_table.h"

namespace switchyard::conform {
namespace {

void AddMatmul(Table& table) {
  sy_matmul_attributes plain{};
  plain.alpha = 1;
  const auto add = [&](const char* name, sy_matmul_attributes a, Dims lead, int64_t m, int64_t k,
                       int64_t n) -> OpCase& {
    const auto with = [&](Dims tail) {
      Dims dims = lead;
      dims.insert(dims.end(), tail.begin(), tail.end());
      return dims;
    };
    std::vector<Operand> inputs = {T(a.transpose_a ? with({k, m}) : with({m, k})),
                                   T(a.transpose_b ? with({n, k}) : with({k, n}))};
    if (a.bias) inputs.push_back(T({n}));
    if (a.activation_gradient) inputs.push_back(T(with({m, n})));
    if (a.residual) inputs.push_back(T(with({m, n})));
    std::vector<Operand> outputs = {T(with({m, n}))};
    if (a.save_preactivation) outputs.push_back(T(with({m, n})));
    if (a.bias_gradient) outputs.push_back(F({m}));
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
  constexpr const char* kNames[] = {"", "linear_gelu", "linear_gelu_tanh", "linear_relu", "linear_silu"};
  constexpr const char* kGradients[] = {"", "gelu_gradient", "gelu_tanh_gradient", "relu_gradient", "silu_gradient"};
  for (const int activation : {SY_ACTIVATION_GELU, SY_ACTIVATION_GELU_TANH, SY_ACTIVATION_RELU, SY_ACTIVATION_SILU}) {
    sy_matmul_attributes b = a;
    b.activation = activation;
    b.save_preactivation = activation != SY_ACTIVATION_RELU;
    add(kNames[activation], b, {}, 11, 24, 23);
    b = plain;
    b.activation = activation;
    b.activation_gradient = 1;
    add(kGradients[activation], b, {}, 11, 23, 24);
  }
  a.residual = 1;
  add("linear_residual", a, {}, 21, 48, 16);
  a = plain;
  a.transpose_a = 1;
  a.bias_gradient = 1;
  add("weight_and_bias_gradient", a, {}, 15, 64, 24);
  OpCase& strided = add("strided", plain, {2}, 6, 10, 14);
  for (Operand& operand : strided.inputs) operand.transposed = true;
}

void AddAttention(Table& table) {
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
}

void AddNormalization(Table& table) {
  const auto add_layer = [&](const char* name, Dims dims, bool residual, float eps) {
    sy_layer_norm_attributes a{};
    a.eps = eps;
    a.residual = residual;
    const Dims channels = {dims.back()}, rows(dims.begin(), dims.end() - 1);
    std::vector<Operand> inputs = {T(dims)}, outputs = {T(dims), F(rows), F(rows)};
    if (residual) {
      inputs.push_back(T(dims));
      outputs.push_back(T(dims));
    }
    inputs.push_back(F(channels, Fill::kPositive));
    inputs.push_back(F(channels));
    table.Add("layer_norm", name, a, inputs, outputs);
    const int gamma = residual ? 2 : 1;
    std::vector<std::string> backward = {residual ? "o3" : "i0", residual ? "i2" : "i1", "o1", "o2", "g0"};
    if (residual) backward.push_back("g3");
    table.Gradient("layer_norm_backward", backward, {0, gamma, gamma + 1});
  };
  add_layer("odd", {3, 5, 37}, false, 1e-6f);
  add_layer("one_row", {1, 192}, false, 1e-6f);
  add_layer("two_channels", {7, 2}, false, 1e-2f);
  add_layer("long_rows", {2, 4099}, false, 1e-5f);
  add_layer("residual", {2, 9, 48}, true, 1e-6f);
  table.Add("softmax", "odd", {T({5, 17})}, {T({5, 17})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
  table.Add("softmax", "one_class", {T({3, 1})}, {T({3, 1})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
  table.Add("softmax", "long_rows", {T({3, 2, 1031})}, {T({3, 2, 1031})});
  table.Gradient("softmax_backward", {"o0", "g0"}, {0});
}

void AddLosses(Table& table) {
  const auto add = [&](const char* name, int64_t n, int64_t c, float smoothing, int32_t ignore, bool soft) {
    sy_cross_entropy_attributes a{};
    a.label_smoothing = smoothing;
    a.ignore_index = ignore;
    a.soft_targets = soft;
    const Operand target = soft ? T({n, c}, Fill::kProbability) : I({n}, static_cast<double>(c));
    table.Add("cross_entropy", name, a, {T({n, c}), target}, {F({n}), F({n})});
    table.Gradient("cross_entropy_backward", {"i0", "i1", "o1", "g0"}, {0});
  };
  add("labels", 7, 10, 0, -100, false);
  add("ignored", 29, 3, 0, 2, false);
  add("smoothing", 5, 11, 0.1f, -100, false);
  add("soft", 6, 13, 0, -100, true);
  add("soft_smoothing", 3, 1000, 0.1f, -100, true);
  add("one_class", 2, 1, 0, -100, false);
  sy_cross_entropy_attributes a{};
  a.ignore_index = -100;
  table.Add("cross_entropy", "negative_labels", a, {T({9, 4}), I({9}, 3, Fill::kSignedIndex)}, {F({9}), F({9})});
  table.Add("cross_entropy", "labels_beyond", a, {T({9, 4}), I({9}, 4, Fill::kSignedIndex)}, {F({9}), F({9})});
  table.Add("label_rank", "odd", {T({11, 7}), I({11}, 7)}, {I({11}, 0)}).exact = true;
  table.Add("label_rank", "ties", {T({8, 5}, Fill::kConstant, 1), I({8}, 5, Fill::kSignedIndex)}, {I({8}, 0)}).exact =
      true;
  table.Add("label_rank", "imagenet", {T({3, 1000}), I({3}, 1000)}, {I({3}, 0)}).exact = true;
}

// A program of the form op(input 0, input 1, input 2), or a longer one.
sy_pointwise_attributes Program(std::vector<sy_instruction> instructions, std::vector<int32_t> outputs) {
  sy_pointwise_attributes a{};
  a.instruction_count = static_cast<uint32_t>(instructions.size());
  a.output_count = static_cast<uint32_t>(outputs.size());
  std::copy(outputs.begin(), outputs.end(), a.outputs);
  std::copy(instructions.begin(), instructions.end(), a.instructions);
  return a;
}

void AddPointwise(Table& table) {
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
    const sy_pointwise_attributes program = [&] {
      sy_pointwise_attributes a = Program({{gradient, 0, 0, 0, 0}, {SY_PW_MUL, 1, 2, 0, 0}}, {3});
      a.header = SY_HEADER(sy_pointwise_attributes);
      return a;
    }();
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
}

void AddReductions(Table& table) {
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
  OpCase& integers = add("integers", SY_REDUCE_SUM, {7, 513}, 2, false, 1);
  integers.inputs[0].fill = Fill::kIntegers;
  integers.outputs[0].type = Type::kF32;
  integers.exact = true;
  table.Add("squared_norm", "one", {T({1})}, {F({1})});
  table.Add("squared_norm", "many", {T({13, 7}), T({1}), T({4099}), T({2, 3, 5})}, {F({1})});
  table.Add("squared_norm", "integers", {T({255}, Fill::kIntegers), T({3, 3}, Fill::kIntegers)}, {F({1})}).exact = true;
  table.Add("squared_norm", "overflow", {T({33}), T({17}, Fill::kExtreme)}, {F({1})});
}

template <typename A, typename V>
A Axes(const V& values) {
  A a{};
  std::copy(values.begin(), values.end(), a.values);
  return a;
}

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
}

void AddDropout(Table& table) {
  const auto add = [&](const char* name, Dims dims, int64_t samples, float p, bool per_sample, uint64_t key) {
    sy_dropout_attributes a{};
    a.key = key;
    a.p = p;
    a.per_sample = per_sample;
    table.Add("dropout", name, a, {T(dims), I({samples}, 50000), I({2}, 1000)}, {T(dims)});
    table.Gradient("dropout", {"g0", "i1", "i2"}, {0}).name += "_gradient";
  };
  add("odd", {3, 5, 7}, 3, 0.3f, false, 0x123456789abcdef0ull);
  add("rows_of_samples", {12, 9}, 4, 0.5f, false, 7);
  add("drop_path", {6, 3, 5}, 6, 0.4f, true, 99);
  add("nothing_dropped", {2, 33}, 2, 0, false, 5);
  add("one_element", {1}, 1, 0.5f, false, 11);
}

void AddOptimizer(Table& table) {
  const auto add = [&](const char* name, sy_optimizer_attributes a, int states, std::vector<Dims> shapes, bool finite,
                       bool first) {
    std::vector<Operand> inputs = {F({1}, Fill::kConstant, 0.03), I({1}, 0), F({1}, Fill::kConstant, 0.25),
                                   F({1}, Fill::kConstant, finite ? 1 : 0)};
    inputs[1].fill = Fill::kConstant;
    inputs[1].value = first ? 0 : 12;
    std::vector<Operand> outputs;
    for (const Dims& dims : shapes) {
      inputs.push_back(F(dims));
      inputs.push_back(T(dims));
      outputs.push_back(F(dims));
      for (int state = 0; state < states; ++state) {
        inputs.push_back(F(dims, state == 1 ? Fill::kPositive : Fill::kNormal));
        outputs.push_back(F(dims));
      }
    }
    table.Add("optimizer_update", name, a, inputs, outputs).exact = !finite;
  };
  const std::vector<Dims> shapes = {{13, 7}, {1}, {1031}};
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
}

std::vector<OpCase> Build() {
  Table table;
  AddMatmul(table);
  AddAttention(table);
  AddNormalization(table);
  AddLosses(table);
  AddPointwise(table);
  AddReductions(table);
  AddLayout(table);
  AddDropout(table);
  AddOptimizer(table);
  AddImageOps(table);
  return table.Take();
}

}  // namespace

const std::vector<OpCase>& OpCases() {
  static const auto* const cases = new std::vector<OpCase>(Build());
  return *cases;
}

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const OpCase& one : OpCases()) {
    if (std::find(names.begin(), names.end(), one.op) == names.end()) names.push_back(one.op);
  }
  return names;
}

}  // namespace switchyard::conform
