// Every op of the cpu plugin against the reference plugin on random tensors of odd shapes, in f32 and halves, into
// poisoned outputs. Skipped where SWITCHYARD_CPU_ISA asks for an instruction set that this CPU lacks.
// SWITCHYARD_TEST_CPU_PLUGIN: another file that is the plugin.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

float FromBits(sy_dtype dtype, double value) {
  const uint16_t bits = dtype == SY_BF16 || dtype == SY_F16 ? static_cast<uint16_t>(value) : 0;
  if (dtype == SY_BF16) {
    const uint32_t word = uint32_t{bits} << 16;
    float result;
    std::memcpy(&result, &word, sizeof result);
    return result;
  }
  if (dtype == SY_F16) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                            : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                            : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
  }
  return static_cast<float>(value);
}

// The bits of a value that the dtype holds exactly enough for a test.
double ToBits(sy_dtype dtype, float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  if (dtype == SY_BF16) return (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
  if (dtype == SY_F16) {
    const double magnitude = std::fabs(value), sign = value < 0 ? 0x8000 : 0;
    if (magnitude < 0x1p-14) return sign + std::nearbyint(magnitude * 0x1p24);
    const int exponent = static_cast<int>(std::floor(std::log2(magnitude)));
    return sign + (exponent + 15) * 1024 + std::nearbyint(std::ldexp(magnitude, 10 - exponent)) - 1024;
  }
  return value;
}

// The numbers of libstdc++'s std::normal_distribution<float>, which clang lets take two logarithms of long doubles for
// each word that it draws: a sixth of the time of these tests where they are sanitized.
class Normals {
 public:
  explicit Normals(std::mt19937& generator) : generator_(generator) {}
  float operator()() {
    has_second_ = !has_second_;
    if (!has_second_) return second_;
    float x, y, square;
    do {  // a place in the unit circle
      x = 2 * Uniform() - 1;
      y = 2 * Uniform() - 1;
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const float factor = std::sqrt(-2 * std::log(square) / square);
    second_ = x * factor;
    return y * factor;
  }

 private:
  float Uniform() {  // below 1
    const float drawn = static_cast<float>(generator_()) / 0x1p32f;
    return drawn < 1 ? drawn : std::nextafter(1.0f, 0.0f);
  }
  std::mt19937& generator_;
  float second_ = 0;
  bool has_second_ = false;
};

class CpuOps : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    try {
      const char* plugin = std::getenv("SWITCHYARD_TEST_CPU_PLUGIN");
      cpu_ = new Backend(plugin ? plugin : "cpu");
    } catch (const std::runtime_error& error) {
      lacking_ = error.what();
      if (lacking_.find("but this CPU has only") == std::string::npos) throw;
    }
    reference_ = new Backend("reference");
  }
  void SetUp() override {
    if (cpu_ == nullptr) GTEST_SKIP() << lacking_;
  }
  static void TearDownTestSuite() {
    delete cpu_;
    delete reference_;
  }

  Tensor Random(std::vector<int64_t> dims, sy_dtype dtype = SY_F32, double mean = 0, double deviation = 1) {
    Normals normal(generator_);
    Tensor t{dtype, dims, {}};
    t.values.resize(static_cast<size_t>(Count(dims)));
    for (double& value : t.values)
      value = ToBits(dtype, normal() * static_cast<float>(deviation) + static_cast<float>(mean));
    return t;
  }
  Tensor Indices(std::vector<int64_t> dims, int lowest, int highest) {
    std::uniform_int_distribution<int> uniform(lowest, highest);
    Tensor t{SY_I32, dims, {}};
    for (int64_t i = 0; i < Count(dims); ++i) t.values.push_back(uniform(generator_));
    return t;
  }
  void ExpectConvolutionsAgree(sy_convolution_attributes t, const std::vector<int64_t>& x, int64_t kernel, sy_dtype in,
                               sy_dtype out, uint8_t adds);
  static Tensor Empty(std::vector<int64_t> dims, sy_dtype dtype = SY_F32) { return {dtype, std::move(dims), {}}; }

  // Both plugins compute the op; every output agrees within `tolerance` of its own size (or the dtype's rounding).
  // Returns the cpu plugin's results; `expected`: gets the reference plugin's.
  std::vector<Tensor> Agree(const Op& op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                            double tolerance = 2e-5, std::vector<Tensor>* expected = nullptr) {
    const Result got = cpu_->Run(op, inputs, outputs), want = reference_->Run(op, inputs, outputs);
    EXPECT_EQ(got.status, SY_OK) << op.name << ": " << got.message;
    EXPECT_EQ(want.status, SY_OK) << op.name << ": " << want.message;
    if (got.status != SY_OK || want.status != SY_OK) return {};
    for (size_t o = 0; o < outputs.size(); ++o) {
      const sy_dtype dtype = outputs[o].dtype;
      double size = 0;
      int finite = 0;
      for (const double v : want[o]) {
        const double x = FromBits(dtype, v);
        if (std::isfinite(x)) size += x * x, ++finite;
      }
      size = std::sqrt(size / std::max(1, finite));
      const double relative = dtype == SY_BF16 ? 1.0 / 64 : dtype == SY_F16 ? 1.0 / 512 : tolerance;
      for (size_t i = 0; i < want[o].size(); ++i) {
        const double w = FromBits(dtype, want[o][i]), g = FromBits(dtype, got[o][i]);
        const bool same = (std::isnan(w) && std::isnan(g)) || w == g;
        if (!same && !(std::fabs(w - g) <= relative * (std::fabs(w) + size) + 1e-30)) {
          ADD_FAILURE() << op.name << " output " << o << " element " << i << ": " << g << ", expected " << w;
          break;
        }
      }
    }
    if (expected != nullptr) *expected = want.outputs;
    return got.outputs;
  }

  std::mt19937 generator_{7};
  static inline Backend *cpu_ = nullptr, *reference_ = nullptr;
  static inline std::string lacking_;
};

constexpr sy_dtype kBoth[] = {SY_F32, SY_BF16}, kFloats[] = {SY_F32, SY_BF16, SY_F16};

TEST_F(CpuOps, MatmulAgreesForEveryTransposition) {
  for (const sy_dtype dtype : kFloats)
    for (const int ta : {0, 1})
      for (const int tb : {0, 1})
        for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {7, 5, 3}, {33, 17, 65}, {64, 48, 128}}) {
          const Op op("matmul", sy_matmul_attributes{.transpose_a = ta, .transpose_b = tb, .alpha = 1});
          const auto a = ta ? Random({k, m}, dtype) : Random({m, k}, dtype);
          const auto b = tb ? Random({n, k}, dtype) : Random({k, n}, dtype);
          Agree(op, {a, b}, {Empty({m, n}, dtype)});
          Agree(op, {a, b}, {Empty({m, n})});
        }
}

TEST_F(CpuOps, MatmulOfABatchAgrees) {
  for (const sy_dtype dtype : kFloats)
    for (const int tb : {0, 1}) {
      const Op op("matmul", sy_matmul_attributes{.transpose_b = tb, .alpha = 0.25f});
      const auto b = tb ? Random({2, 3, 5, 8}, dtype) : Random({2, 3, 8, 5}, dtype);
      Agree(op, {Random({2, 3, 9, 8}, dtype), b}, {Empty({2, 3, 9, 5}, dtype)});
    }
}

// Products of whole numbers have exact sums, however they are ordered, so that the one rounding is all that there is.
// The sizes make several blocks of rows, of columns, and of K.
TEST_F(CpuOps, MatmulRoundsTheWholeSumOnce) {
  std::uniform_int_distribution<int> whole(-8, 8);
  const auto draw = [&](std::vector<int64_t> dims, sy_dtype dtype) {
    Tensor t = Empty(std::move(dims), dtype);
    for (int64_t i = 0; i < Count(t.dims); ++i)
      t.values.push_back(ToBits(dtype, static_cast<float>(whole(generator_))));
    return t;
  };
  for (const sy_dtype dtype : {SY_BF16, SY_F16})
    for (const int transposed : {0, 1, 2, 3})
      for (const auto& [m, n, k] :
           {std::tuple{3, 5, 4000},
            {1600, 4, 300},
            {4, 1600, 300},
            {75, 40, 320},      // rows that lie as tiles want them, and some that are less than a panel
            {2100, 34, 64},     // more rows …
            {40, 3100, 64}}) {  // … and more columns than are packed at a time
        const int ta = transposed & 1, tb = transposed >> 1;
        Op op("matmul", sy_matmul_attributes{.transpose_a = ta, .transpose_b = tb, .alpha = 1});
        const auto a = ta ? draw({k, m}, dtype) : draw({m, k}, dtype);
        const auto b = tb ? draw({n, k}, dtype) : draw({k, n}, dtype);
        for (const sy_dtype out : {dtype, sy_dtype{SY_F32}}) {
          EXPECT_EQ(cpu_->Run(op, {a, b}, {Empty({m, n}, out)})[0],
                    reference_->Run(op, {a, b}, {Empty({m, n}, out)})[0])
              << m << " x " << n << " x " << k;
        }
        op.accumulate = {1};
        const auto c = draw({m, n}, SY_F32);
        EXPECT_EQ(cpu_->Run(op, {a, b}, {c})[0], reference_->Run(op, {a, b}, {c})[0]);
      }
}

// What no primitive of oneDNN takes: operands of different dtypes, halves from f32, an own pass before more addends.
TEST_F(CpuOps, MatmulOfMixedDtypesAgrees) {
  const int m = 9, n = 24, k = 16;
  for (const sy_dtype left : kFloats)
    for (const sy_dtype right : kFloats)
      for (const sy_dtype out : kFloats) {
        Op op("matmul",
              sy_matmul_attributes{
                  .alpha = 0.5f, .bias = 1, .activation = SY_ACTIVATION_GELU, .save_preactivation = 1, .residual = 1});
        const std::vector<Tensor> inputs = {Random({m, k}, left), Random({k, n}, right), Random({n}, left),
                                            Random({m, n}, right)};
        Agree(op, inputs, {Empty({m, n}, out), Empty({m, n}, left)});
        op.accumulate = {1, 0};
        Agree(op, inputs, {Random({m, n}, out), Empty({m, n}, left)});
      }
}

TEST_F(CpuOps, MatmulEpiloguesAgree) {
  for (const sy_dtype dtype : kFloats)
    for (const auto& [m, n] : {std::pair{5, 24}, {700, 24}, {70, 100}})
      for (int activation = SY_ACTIVATION_NONE; activation <= SY_ACTIVATION_SILU; ++activation)
        for (const float alpha : {1.0f, 0.5f}) {
          const int k = 16;
          const auto a = Random({m, k}, dtype), b = Random({n, k}, dtype, 0, 0.3), bias = Random({n});
          const auto full = Random({m, n}, dtype);
          sy_matmul_attributes t{.transpose_b = 1, .alpha = alpha, .bias = 1, .activation = activation};
          Agree(Op("matmul", t), {a, b, bias}, {Empty({m, n}, dtype)});
          t.residual = 1;
          Agree(Op("matmul", t), {a, b, bias, full}, {Empty({m, n}, dtype)});
          t.residual = 0;
          t.save_preactivation = 1;
          Agree(Op("matmul", t), {a, b, bias}, {Empty({m, n}, dtype), Empty({m, n}, dtype)});
          t = {.transpose_b = 1, .alpha = alpha, .activation = activation, .activation_gradient = 1};
          Agree(Op("matmul", t), {a, b, full}, {Empty({m, n}, dtype)});
        }
}

// However the inner dimension is cut: what is saved is the whole sum, scaled.
TEST_F(CpuOps, MatmulOfALongInnerDimensionSavesTheWholeSum) {
  for (const sy_dtype dtype : kFloats)
    Agree(Op("matmul", sy_matmul_attributes{.alpha = 0.5f, .save_preactivation = 1}),
          {Random({40, 2080}, dtype), Random({2080, 40}, dtype)}, {Empty({40, 40}), Empty({40, 40})});
}

// Neither a product that is scaled, has a bias, or is saved is a weight gradient for being of a transposed factor.
TEST_F(CpuOps, MatmulOfATransposedFactorTakesWhatOthersTake) {
  for (const sy_dtype dtype : kFloats) {
    const auto a = Random({301, 37}, dtype), b = Random({301, 20}, dtype), bias = Random({20}, dtype);
    sy_matmul_attributes t{.transpose_a = 1, .alpha = 1, .save_preactivation = 1};
    Agree(Op("matmul", t), {a, b}, {Empty({37, 20}), Empty({37, 20})});
    t = {.transpose_a = 1, .alpha = 1, .bias = 1};
    Agree(Op("matmul", t), {a, b, bias}, {Empty({37, 20})});
    t = {.transpose_a = 1, .alpha = 0.5f};
    Agree(Op("matmul", t), {a, b}, {Empty({37, 20})});
    t = {.transpose_a = 1, .transpose_b = 1, .alpha = 1};
    Agree(Op("matmul", t), {a, Random({20, 301}, dtype)}, {Empty({37, 20})});
  }
}

TEST_F(CpuOps, MatmulWeightGradientsAccumulateBesideTheBiasGradient) {
  for (const sy_dtype dtype : kFloats)
    for (const int ta : {0, 1}) {
      Op op("matmul", sy_matmul_attributes{.transpose_a = ta, .alpha = 1, .bias_gradient = 1});
      const auto a = ta ? Random({301, 37}, dtype) : Random({37, 301}, dtype), b = Random({301, 20}, dtype);
      Agree(op, {a, b}, {Empty({37, 20}), Empty({37})});
      op.accumulate = {1, 1};
      Agree(op, {a, b}, {Random({37, 20}), Random({37})});
    }
}

// Wide products are made of blocks of columns, of two widths here, and of blocks of rows.
TEST_F(CpuOps, WideMatmulAgrees) {
  const int m = 514, n = 1600, k = 3;
  const auto a = Random({m, k}), b = Random({k, n}), bias = Random({n}), full = Random({m, n});
  sy_matmul_attributes t{.alpha = 0.5f, .bias = 1, .activation = SY_ACTIVATION_RELU, .residual = 1};
  Agree(Op("matmul", t), {a, b, bias, full}, {Empty({m, n})});
  t = {.alpha = 1, .bias = 1, .activation = SY_ACTIVATION_RELU, .save_preactivation = 1};
  Agree(Op("matmul", t), {a, b, bias}, {Empty({m, n}), Empty({m, n})});
  t = {.alpha = 1, .activation = SY_ACTIVATION_RELU, .activation_gradient = 1};
  Agree(Op("matmul", t), {a, b, full}, {Empty({m, n})});
  Op gradient("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1, .bias_gradient = 1});
  gradient.accumulate = {1, 1};
  Agree(gradient, {Random({k, 7}), b}, {Random({7, n}), Random({7})});
}

TEST_F(CpuOps, AttentionAgrees) {
  for (const sy_dtype dtype : kFloats)
    for (const auto& [batch, tokens, heads, dim] : {std::tuple{1, 1, 1, 2},
                                                    {2, 5, 3, 8},
                                                    {1, 50, 2, 16},
                                                    {2, 197, 2, 64},
                                                    {1, 256, 1, 32},
                                                    {1, 401, 1, 24},
                                                    {1, 33, 1, 80},
                                                    {1, 70, 2, 7}})
      for (const int extra : {0, 1, 2, 3}) {
        const int bias = extra & 1, mask = extra >> 1;
        const sy_attention_attributes t{.scale = 1 / std::sqrt(static_cast<float>(dim)), .bias = bias, .mask = mask};
        const auto qkv = Random({batch, tokens, 3, heads, dim}, dtype),
                   dout = Random({batch, tokens, heads, dim}, dtype);
        std::vector<Tensor> addends;
        if (bias) addends.push_back(Random({heads, tokens, tokens}, dtype));
        if (mask) addends.push_back(Random({batch == 2 ? 2 : 1, tokens, tokens}));
        std::vector<Tensor> inputs = {qkv};
        inputs.insert(inputs.end(), addends.begin(), addends.end());
        const auto out = Empty({batch, tokens, heads, dim}, dtype), logsumexp = Empty({batch, heads, tokens});
        std::vector<Tensor> forward;
        Agree(Op("attention", t), inputs, {out, logsumexp}, dtype == SY_BF16 ? 1e-3 : 2e-5, &forward);
        ASSERT_EQ(forward.size(), 2u);
        inputs = {qkv, forward[0], forward[1], dout};
        inputs.insert(inputs.end(), addends.begin(), addends.end());
        std::vector<Tensor> gradients = {Empty({batch, tokens, 3, heads, dim}, dtype)};
        if (bias) gradients.push_back(Empty({heads, tokens, tokens}));
        Agree(Op("attention_backward", t), inputs, gradients, dtype == SY_BF16 ? 2e-2 : 5e-5);
      }
}

TEST_F(CpuOps, AttentionIgnoresWhatAMaskForbids) {
  auto mask = Random({1, 20, 20});
  for (size_t i = 0; i < mask.values.size(); ++i)
    if (i % 3 == 0 || i / 20 == 4) mask.values[i] = -std::numeric_limits<float>::infinity();
  for (size_t i = 4 * 20; i < 5 * 20; i += 7) mask.values[i] = 0;
  for (const sy_dtype dtype : {SY_F32, SY_BF16})
    Agree(Op("attention", sy_attention_attributes{.scale = 0.2f, .mask = 1}), {Random({2, 20, 3, 2, 16}, dtype), mask},
          {Empty({2, 20, 2, 16}, dtype), Empty({2, 2, 20})}, dtype == SY_BF16 ? 1e-3 : 2e-5);
}

// Rows whose every key is masked with a large number weigh all alike.
TEST_F(CpuOps, AttentionOfRowsThatAreMaskedOutIsTheMean) {
  for (const float masked : {-1e4f, -1e9f, -1e30f, std::numeric_limits<float>::lowest()})
    for (const sy_dtype dtype : {SY_F32, SY_BF16}) {
      auto mask = Random({1, 20, 20});
      for (size_t i = 4 * 20; i < 5 * 20; ++i) mask.values[i] = masked;
      const sy_attention_attributes t{.scale = 0.2f, .mask = 1};
      auto qkv = Random({1, 20, 3, 1, 16}, dtype);
      const auto dout = Random({1, 20, 1, 16}, dtype);
      // Beside such numbers f32 would lose the digits of scores that are not 0.
      std::fill_n(qkv.values.begin() + 4 * 3 * 16, 16, ToBits(dtype, 0.0f));
      std::vector<Tensor> expected;
      const auto forward = Agree(Op("attention", t), {qkv, mask}, {Empty({1, 20, 1, 16}, dtype), Empty({1, 1, 20})},
                                 dtype == SY_BF16 ? 1e-3 : 2e-5, &expected);
      ASSERT_EQ(forward.size(), 2u);
      Agree(Op("attention_backward", t), {qkv, expected[0], expected[1], dout, mask}, {Empty({1, 20, 3, 1, 16}, dtype)},
            5e-5);
    }
}

// As windows of Swin are masked: what such scores weigh, exp(-100), is a subnormal number, and its products are, which
// some CPUs compute many times as slowly.
TEST_F(CpuOps, AttentionMakesNoSubnormalNumbersOfMasks) {
  const sy_attention_attributes t{.scale = 0.2f, .mask = 1};
  for (const sy_dtype dtype : {SY_F32, SY_BF16})
    for (const float masked : {-100.0f, -85.0f, -75.0f}) {
      auto mask = Random({1, 49, 49}, SY_F32, 0, 0.1);
      for (size_t i = 0; i < mask.values.size(); ++i)
        if (i % 49 < 20 || i / 49 % 2 == 0) mask.values[i] = i % 49 < 20 ? masked : 0;
      const auto qkv = Random({2, 49, 3, 2, 32}, dtype), dout = Random({2, 49, 2, 32}, dtype, 0, 1e-3);
      const double tolerance = dtype == SY_BF16 ? 2e-2 : 5e-5;
      const auto forward =
          Agree(Op("attention", t), {qkv, mask}, {Empty({2, 49, 2, 32}, dtype), Empty({2, 2, 49})}, tolerance);
      ASSERT_EQ(forward.size(), 2u);
      const auto gradients = Agree(Op("attention_backward", t), {qkv, forward[0], forward[1], dout, mask},
                                   {Empty({2, 49, 3, 2, 32}, dtype)}, tolerance);
      ASSERT_EQ(gradients.size(), 1u);
      for (const float value : gradients[0].values)
        EXPECT_NE(std::fpclassify(value), FP_SUBNORMAL) << "mask " << masked;
    }
}

TEST_F(CpuOps, LayerNormAndItsGradientAgree) {
  for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16})
    for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 7}, {40, 192}, {197, 384}, {5, 1000}})
      for (const int residual : {0, 1}) {
        const sy_layer_norm_attributes t{.eps = 1e-3f, .residual = residual};
        const auto x = Random({rows, columns}, dtype, 0.5, 2), gamma = Random({columns}, SY_F32, 1, 0.2),
                   beta = Random({columns});
        std::vector<Tensor> inputs = {x, gamma, beta},
                            outputs = {Empty({rows, columns}, dtype), Empty({rows}), Empty({rows})};
        if (residual) {
          inputs.insert(inputs.begin() + 1, Random({rows, columns}, dtype));
          outputs.push_back(Empty({rows, columns}, dtype));
        }
        Agree(Op("layer_norm", t), inputs, outputs);
        const auto mean = Random({rows}, SY_F32, 0.5, 0.1), rstd = Random({rows}, SY_F32, 1, 0.1);
        inputs = {x, gamma, mean, rstd, Random({rows, columns}, dtype)};
        if (residual) inputs.push_back(Random({rows, columns}, dtype));
        Op backward("layer_norm_backward", t);
        Agree(backward, inputs, {Empty({rows, columns}, dtype), Empty({columns}), Empty({columns})});
        backward.accumulate = {0, 1, 1};
        Agree(backward, inputs, {Empty({rows, columns}, dtype), Random({columns}), Random({columns})});
      }
}

// Few places and many, few channels and many; values around a mean far from 0, of which f32 keeps what it can.
TEST_F(CpuOps, BatchNormAndItsGradientAgree) {
  for (const sy_dtype dtype : kFloats)
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{3, 5, 7, 19}, {2, 90, 91, 16}, {4, 3, 3, 2048}})
      for (const int32_t relu : {SY_ACTIVATION_NONE, SY_ACTIVATION_RELU})
        for (const int32_t residual : {0, 1}) {
          const sy_batch_norm_attributes t{.eps = 1e-5f, .momentum = 0.1f, .activation = relu, .residual = residual};
          const int64_t c = dims.back();
          const auto x = Random(dims, dtype, dtype == SY_F32 ? 100 : 1), channels = Random({c}, SY_F32, 1, 0.1);
          std::vector<Tensor> inputs = {x, channels, channels, channels, channels};
          if (residual) inputs.push_back(Random(dims, dtype));
          const auto forward = Agree(Op("batch_norm", t), inputs,
                                     {Empty(dims, dtype), Empty({c}), Empty({c}), Empty({c}), Empty({c})}, 1e-4);
          Agree(Op("batch_norm_inference", t), inputs, {Empty(dims, dtype)}, 1e-4);
          ASSERT_FALSE(forward.empty());
          inputs = {x, channels, forward[1], forward[2], Random(dims, dtype)};
          if (relu) inputs.push_back(forward[0]);
          std::vector<Tensor> outputs = {Empty(dims, dtype), Random({c}), Random({c})};
          if (residual) outputs.push_back(Empty(dims, dtype));
          Op op("batch_norm_backward", t);
          Agree(op, inputs, outputs, 1e-4);
          op.accumulate = {0, 1, 1, 0};
          op.accumulate.resize(outputs.size());
          Agree(op, inputs, outputs, 1e-4);
        }
}

// The mean and variance of values whose distance from 0 is a thousand times their spread.
TEST_F(CpuOps, BatchNormOfALargeMeanKeepsTheVariance) {
  const auto x = Random({4, 33, 35, 24}, SY_F32, 1000), channels = Random({24}, SY_F32, 1, 0.1);
  const auto outputs = cpu_->Run(Op("batch_norm", sy_batch_norm_attributes{.eps = 0, .momentum = 1}),
                                 {x, channels, channels, channels, channels},
                                 {Empty({4, 33, 35, 24}), Empty({24}), Empty({24}), Empty({24}), Empty({24})});
  ASSERT_EQ(outputs.status, SY_OK) << outputs.message;
  const double rows = 4 * 33 * 35;
  for (size_t c = 0; c < 24; ++c) {
    double mean = 0, squares = 0;
    for (size_t i = c; i < x.values.size(); i += 24) mean += static_cast<float>(x.values[i]) / rows;
    for (size_t i = c; i < x.values.size(); i += 24) squares += std::pow(static_cast<float>(x.values[i]) - mean, 2);
    EXPECT_NEAR(outputs[1][c], mean, 1e-4);
    EXPECT_NEAR(outputs[4][c], squares / (rows - 1), 2e-5 * squares / rows);
  }
}

sy_convolution_attributes Square(int32_t groups) {
  return {.spatial_rank = 2,
          .stride = {1, 1, 1},
          .dilation = {1, 1, 1},
          .before = {1, 1, 1},
          .after = {1, 1, 1},
          .groups = groups};
}

// A convolution with a bias, and its gradients: x (N, H, W, C), 16 filters that keep H and W. adds: to what outputs
// hold.
void CpuOps::ExpectConvolutionsAgree(sy_convolution_attributes t, const std::vector<int64_t>& x, int64_t kernel,
                                     sy_dtype in, sy_dtype out, uint8_t adds) {
  const std::vector<int64_t> w = {16, kernel, kernel, x[3] / t.groups}, y = {x[0], x[1], x[2], 16};
  const auto image = Random(x, in), weights = Random(w, in), gradient = Random(y, in);
  Op data("convolution_backward_data", t), gradients("convolution_backward_weights", t);
  t.bias = 1;
  Op forward("convolution", t);
  forward.accumulate = data.accumulate = gradients.accumulate = {adds};
  Agree(forward, {image, weights, Random({16}, out)}, {Random(y, out)});
  Agree(data, {gradient, weights}, {Random(x, out)});
  Agree(gradients, {image, gradient}, {Random(w, out)});
}

// Whole vectors of channels and not, into outputs of other dtypes too, and added to what outputs hold.
TEST_F(CpuOps, ConvolutionAndItsGradientsAgree) {
  for (const sy_dtype in : kFloats)
    for (const sy_dtype out : kFloats)
      for (const int32_t groups : {1, 2})
        for (const int64_t channels : {32, 6})
          for (const uint8_t adds : {0, 1})
            ExpectConvolutionsAgree(Square(groups), {2, 7, 6, channels}, 3, in, out, adds);
}

// Filters of one place with many weights beside the places, and with few.
TEST_F(CpuOps, PointwiseConvolutionAndItsGradientsAgree) {
  sy_convolution_attributes t = Square(1);
  for (int i = 0; i < 3; ++i) t.before[i] = t.after[i] = 0;
  for (const sy_dtype in : kFloats)
    for (const sy_dtype out : kFloats)
      for (const int64_t side : {2, 12})
        for (const int64_t channels : {32, 6})
          for (const uint8_t adds : {0, 1}) ExpectConvolutionsAgree(t, {2, side, 3, channels}, 1, in, out, adds);
}

// oneDNN's kernel for filters of one place must not be taken for these: it writes beyond its memory.
TEST_F(CpuOps, GradientsOfStridedPointwiseFiltersWithFewChannelsAgree) {
  for (const sy_dtype dtype : kBoth)
    for (const int32_t stride : {2, 4})
      for (const int64_t channels : {1, 3, 8, 12, 15}) {
        const sy_convolution_attributes t = {
            .spatial_rank = 2, .stride = {stride, stride, 1}, .dilation = {1, 1, 1}, .groups = 1};
        const auto image = Random({1, 112, 112, channels}, dtype);
        const auto gradient = Random({1, 112 / stride, 112 / stride, 16}, dtype);
        Agree(Op("convolution_backward_weights", t), {image, gradient}, {Empty({16, 1, 1, channels})}, 1e-4);
      }
}

// Halves that have no arithmetic are converted some images at a time: what several such parts give is what the f32
// convolution gives.
TEST_F(CpuOps, ConvolutionInPartsAgreesWithTheWhole) {
  const std::vector<int64_t> x = {5, 96, 96, 160}, w = {16, 1, 1, 160}, y = {5, 96, 96, 16};
  sy_convolution_attributes t = Square(1);
  for (int i = 0; i < 3; ++i) t.before[i] = t.after[i] = 0;
  const auto image = Random(x, SY_F16), weights = Random(w, SY_F16), gradient = Random(y, SY_F16);
  const auto widened = [](Tensor tensor) {
    for (double& value : tensor.values) value = FromBits(SY_F16, value);
    tensor.dtype = SY_F32;
    return tensor;
  };
  const auto compare = [&](const char* name, const Tensor& a, const Tensor& b, const std::vector<int64_t>& dims) {
    const auto parts = cpu_->Run(Op(name, t), {a, b}, {Empty(dims)});
    const auto whole = cpu_->Run(Op(name, t), {widened(a), widened(b)}, {Empty(dims)});
    ASSERT_EQ(parts.status, SY_OK) << parts.message;
    ASSERT_EQ(whole.status, SY_OK) << whole.message;
    for (size_t i = 0; i < parts[0].size(); ++i)
      ASSERT_NEAR(parts[0][i], whole[0][i], 2e-3 + 1e-5 * std::fabs(whole[0][i])) << name << " element " << i;
  };
  compare("convolution", image, weights, y);
  compare("convolution_backward_data", gradient, weights, x);
  compare("convolution_backward_weights", image, gradient, w);
}

TEST_F(CpuOps, PoolAndItsGradientAgree) {
  for (const sy_dtype dtype : kFloats)
    for (const int64_t c : {3, 70})
      for (const int32_t average : {0, 1})
        for (const int32_t include : {0, 1}) {
          const sy_pool_attributes t{.spatial_rank = 2,
                                     .average = average,
                                     .count_include_pad = include,
                                     .kernel = {3, 2},
                                     .stride = {2, 1},
                                     .before = {1, 0},
                                     .after = {0, 1}};
          // Few values, so that a window has several largest ones.
          Tensor x = Indices({2, 9, 8, c}, -2, 2);
          x.dtype = dtype;
          for (double& value : x.values) value = ToBits(dtype, static_cast<float>(value));
          Agree(Op("pool", t), {x}, {Empty({2, 4, 8, c}, dtype)});
          Agree(Op("pool_backward", t), {x, Random({2, 4, 8, c}, dtype)}, {Empty({2, 9, 8, c}, dtype)});
        }
}

TEST_F(CpuOps, PoolCarriesNotANumber) {
  const sy_pool_attributes t{.spatial_rank = 2, .kernel = {1, 3}, .stride = {1, 3}};
  const auto x = F32({1, 1, 9, 1}, {1, NAN, 3, NAN, 5, NAN, -INFINITY, -INFINITY, -INFINITY});
  Agree(Op("pool", t), {x}, {Empty({1, 1, 3, 1})});
  Agree(Op("pool_backward", t), {x, F32({1, 1, 3, 1}, {1, 2, 4})}, {Empty({1, 1, 9, 1})});
}

TEST_F(CpuOps, ResizeAndItsGradientAgree) {
  for (const sy_dtype dtype : kFloats)
    for (const int32_t mode : {SY_RESIZE_NEAREST, SY_RESIZE_LINEAR})
      for (const int32_t align : {0, 1}) {
        const sy_resize_attributes t{.spatial_rank = 3, .mode = mode, .align_corners = align};
        const std::vector<int64_t> coarse = {2, 3, 4, 2, 35}, fine = {2, 7, 5, 6, 35};
        for (const auto& [x, y] : {std::pair{coarse, fine}, {fine, coarse}}) {
          Agree(Op("resize", t), {Random(x, dtype)}, {Empty(y, dtype)});
          Agree(Op("resize_backward", t), {Random(y, dtype)}, {Empty(x, dtype)});
        }
      }
}

TEST_F(CpuOps, SoftmaxAndItsGradientAgree) {
  for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16})
    for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 10}, {65, 197}, {4, 1000}}) {
      Agree(Op("softmax"), {Random({rows, columns}, dtype, 3, 4)}, {Empty({rows, columns}, dtype)});
      Agree(Op("softmax_backward"), {Random({rows, columns}, dtype, 0.1, 0.05), Random({rows, columns}, dtype)},
            {Empty({rows, columns}, dtype)});
    }
}

TEST_F(CpuOps, CrossEntropyAndItsGradientAgree) {
  for (const sy_dtype dtype : kBoth)
    for (const float smoothing : {0.0f, 0.1f})
      for (const int soft : {0, 1})
        for (const auto& [rows, columns] : {std::pair{3, 10}, {130, 37}, {8, 1000}}) {
          const sy_cross_entropy_attributes t{.label_smoothing = smoothing, .ignore_index = 3, .soft_targets = soft};
          const auto logits = Random({rows, columns}, dtype, 0, 3);
          const auto y = soft ? Random({rows, columns}, dtype, 0.3, 0.1) : Indices({rows}, -1, columns - 1);
          const auto forward = Agree(Op("cross_entropy", t), {logits, y}, {Empty({rows}), Empty({rows})});
          Agree(Op("cross_entropy_backward", t), {logits, y, forward.at(1), Random({rows})},
                {Empty({rows, columns}, dtype)});
        }
}

TEST_F(CpuOps, LabelRankAgreesWithTies) {
  auto logits = Indices({50, 12}, -3, 3);
  logits.dtype = SY_F32;
  Agree(Op("label_rank"), {logits, Indices({50}, -1, 13)}, {Empty({50}, SY_I32)}, 0);
  for (size_t i = 0; i < logits.values.size(); i += 5) logits.values[i] = std::nan("");
  Agree(Op("label_rank"), {logits, Indices({50}, -1, 13)}, {Empty({50}, SY_I32)}, 0);
}

Op Program(std::vector<sy_instruction> instructions, std::vector<int32_t> outputs) {
  sy_pointwise_attributes t{.instruction_count = static_cast<uint32_t>(instructions.size()),
                            .output_count = static_cast<uint32_t>(outputs.size())};
  std::copy(instructions.begin(), instructions.end(), t.instructions);
  std::copy(outputs.begin(), outputs.end(), t.outputs);
  return Op("pointwise", t);
}

// Subnormal numbers take many times as long on some CPUs, here for values that are 0 to everybody.
TEST_F(CpuOps, GeluMakesNoSubnormalNumbersOfLargeOnes) {
  Tensor x = Empty({3000});
  for (int i = 0; i < 3000; ++i) x.values.push_back(ToBits(SY_F32, -0.01f * static_cast<float>(i)));
  const auto got = Agree(Program({{SY_PW_GELU, 0}}, {1}), {x}, {Empty({3000})});
  ASSERT_EQ(got.size(), 1u);
  for (const double value : got[0].values)
    EXPECT_NE(std::fpclassify(static_cast<float>(FromBits(SY_F32, value))), FP_SUBNORMAL);
}

// Of every bf16 up to 8, with the activation's cheaper form for results of bf16: at most the next number, and seldom,
// but for results of a few millionths.
TEST_F(CpuOps, GeluOfBf16IsTheNearestOrTheNext) {
  Tensor x = Empty({0, 1}, SY_BF16), one = Empty({1, 1}, SY_BF16);
  for (uint32_t sign : {0u, 0x8000u})
    for (uint32_t bits = 0x3A00; bits < 0x4100; ++bits) x.values.push_back(sign | bits);  // from 2^-11
  x.dims[0] = static_cast<int64_t>(x.values.size());
  one.values = {ToBits(SY_BF16, 1)};
  for (const int32_t gradient : {0, 1}) {
    const sy_matmul_attributes t{.alpha = 1, .activation = SY_ACTIVATION_GELU, .activation_gradient = gradient};
    Tensor ones = x;
    for (double& v : ones.values) v = one.values[0];
    const std::vector<Tensor> inputs = gradient ? std::vector{ones, one, x} : std::vector{x, one};
    const auto got = cpu_->Run(Op("matmul", t), inputs, {Empty(x.dims, SY_BF16)})[0];
    const auto expected = reference_->Run(Op("matmul", t), inputs, {Empty(x.dims, SY_BF16)})[0];
    int others = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double value = FromBits(SY_BF16, got[i]), right = FromBits(SY_BF16, expected[i]);
      others += value != right;
      EXPECT_LE(std::fabs(value - right), std::fabs(right) * 0x1p-7 + 4e-6)
          << "at " << FromBits(SY_BF16, x.values[i]) << (gradient ? ", gradient" : "");
    }
    EXPECT_LE(others, static_cast<int>(got.size()) / 20);
  }
}

TEST_F(CpuOps, EveryPointwiseInstructionAgrees) {
  for (int32_t op = SY_PW_CONSTANT; op < SY_PW_OP_COUNT; ++op) {
    SCOPED_TRACE(op);
    const bool positive = op == SY_PW_POW || op == SY_PW_LOG || op == SY_PW_SQRT || op == SY_PW_RSQRT;
    auto a = Random({3, 701}, SY_F32, 0, 3), b = Random({3, 701}, SY_F32, 0, 2), c = Random({3, 701});
    for (size_t i = 0; i < a.values.size(); i += 5) b.values[i] = a.values[i];
    for (double& v : a.values) v = positive ? std::fabs(v) + 0.01 : v;
    const auto out = Agree(Program({{op, 0, 1, 2, 1.5f}}, {3}), {a, b, c}, {Empty({3, 701})}, 1e-5);
  }
}

TEST_F(CpuOps, PointwiseExtremesAgree) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensor extremes = F32({14}, {0, 1e-30, 88, 89, 100, -87, -100, -110, 1e20, -1e20, 1e30, kInf, -kInf, kNan});
  for (const int32_t op : {SY_PW_EXP, SY_PW_LOG, SY_PW_TANH, SY_PW_SIGMOID, SY_PW_ERF, SY_PW_RELU, SY_PW_IS_FINITE,
                           SY_PW_ABS, SY_PW_SQRT, SY_PW_FLOOR, SY_PW_RECIPROCAL, SY_PW_NEG}) {
    SCOPED_TRACE(op);
    const auto got = cpu_->Run(Program({{op, 0, 0, 0, 0}}, {1}), {extremes}, {Empty({14})});
    const auto want = reference_->Run(Program({{op, 0, 0, 0, 0}}, {1}), {extremes}, {Empty({14})});
    for (size_t i = 0; i < 14; ++i) {
      const double g = got[0][i], w = want[0][i];
      EXPECT_TRUE((std::isnan(g) && std::isnan(w)) || g == w || std::fabs(g - w) <= 1e-5 * std::fabs(w) + 1e-37)
          << "at " << extremes.values[i] << ": " << g << ", expected " << w;
    }
  }
}

TEST_F(CpuOps, PointwiseProgramsBroadcastConvertAndAccumulate) {
  const std::vector<sy_instruction> program = {{SY_PW_MUL, 0, 1, 0, 0},         {SY_PW_ADD, 4, 2, 0, 0},
                                               {SY_PW_CONSTANT, 0, 0, 0, 0.7f}, {SY_PW_GELU, 5, 0, 0, 0},
                                               {SY_PW_MUL, 7, 6, 0, 0},         {SY_PW_SUB, 8, 3, 0, 0}};
  for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16}) {
    const std::vector<std::vector<std::vector<int64_t>>> shapes = {
        {{4, 5, 6}, {6}, {4, 1, 1}, {1, 5, 1}},
        {{2, 700}, {2, 700}, {1}, {700}},
        {{3, 1, 2, 130}, {130}, {2, 1}, {3, 4, 1, 1}},
        {{1}, {1}, {1}, {1}},
        // Short rows that an input repeats, in pieces that begin anywhere within them.
        {{50, 211, 3}, {3}, {1}, {50, 211, 3}},
        {{211, 50, 3}, {211, 50, 3}, {3}, {3}},
        {{3, 170, 7}, {170, 7}, {7}, {3, 1, 1}},
        {{90, 64}, {64}, {1}, {90, 64}},
        {{90, 65}, {65}, {90, 1}, {90, 65}},
        // Short rows of which an input has one value each.
        {{211, 50, 7}, {211, 50, 7}, {211, 50, 1}, {7}},
        {{3, 170, 49}, {3, 170, 49}, {170, 1}, {3, 170, 1}},
        {{600, 2}, {600, 1}, {600, 1}, {2}},
    };
    for (const auto& s : shapes) {
      std::vector<int64_t> out = s[0];
      if (out.size() == 4) out[1] = 4;
      Op op = Program(program, {9, 5, 0});
      const std::vector<Tensor> inputs = {Random(s[0], dtype), Random(s[1]), Random(s[2], dtype), Random(s[3])};
      Agree(op, inputs, {Empty(out), Empty(out, dtype), Empty(out, dtype)});
      op.accumulate = {1, 0, 1};
      Agree(op, inputs, {Random(out), Empty(out), Random(out, dtype)});
    }
  }
}

TEST_F(CpuOps, PointwiseWithoutInstructionsCopiesAndConverts) {
  Agree(Program({}, {0}), {Indices({3, 1, 5}, -1 << 30, 1 << 30)}, {Empty({3, 4, 5}, SY_I32)}, 0);
  Agree(Program({}, {0}), {Random({64, 65})}, {Empty({64, 65}, SY_BF16)});
  Agree(Program({}, {0}), {Random({64, 65}, SY_BF16)}, {Empty({64, 65})}, 0);
  Agree(Program({}, {0}), {Indices({70}, 0, 255)}, {Empty({70}, SY_U8)}, 0);
}

TEST_F(CpuOps, ReductionsAgreeOverEveryChoiceOfAxes) {
  for (const sy_dtype dtype : kBoth)
    for (int32_t reduction = SY_REDUCE_SUM; reduction <= SY_REDUCE_SUM_OF_SQUARES; ++reduction)
      for (uint32_t axes = 0; axes < 16; ++axes) {
        const std::vector<int64_t> dims = {3, 5, 4, 33};
        std::vector<int64_t> out;
        for (size_t d = 0; d < 4; ++d) out.push_back(axes & 1u << d ? 1 : dims[d]);
        Op op("reduce", sy_reduce_attributes{.reduction = reduction, .axes = axes, .scale = 0.5f});
        Agree(op, {Random(dims, dtype)}, {Empty(out)});
        op.accumulate = {1};
        if (reduction == SY_REDUCE_SUM) Agree(op, {Random(dims, dtype)}, {Random(out)});
      }
  for (const auto& dims : {std::vector<int64_t>{1000, 333}, {70, 5000}})
    for (uint32_t axes : {1u, 2u, 3u}) {
      const std::vector<int64_t> out = {axes & 1 ? 1 : dims[0], axes & 2 ? 1 : dims[1]};
      Agree(Op("reduce", sy_reduce_attributes{.axes = axes, .scale = 1}), {Random(dims, SY_F32, 0.1)}, {Empty(out)});
    }
}

TEST_F(CpuOps, SquaredNormAgreesAndCarriesInfinity) {
  Agree(Op("squared_norm"), {Random({70000}), Random({3, 5}, SY_BF16), Random({1})}, {Empty({1})});
  auto t = Random({500});
  t.values[123] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(std::isfinite(cpu_->Run(Op("squared_norm"), {t}, {Empty({1})})[0][0]));
}

TEST_F(CpuOps, LayoutOpsAgree) {
  for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_I32, SY_U8, SY_I64}) {
    const auto x = dtype == SY_F32 || dtype == SY_BF16 ? Random({6, 5, 4, 35}, dtype) : [&] {
      auto t = Indices({6, 5, 4, 35}, 0, 255);
      t.dtype = dtype;
      return t;
    }();
    const std::vector<int64_t> dims = x.dims;
    for (const auto& axes :
         {std::vector<int32_t>{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {0, 1, 3, 2}, {2, 3, 0, 1}, {1, 3, 0, 2}}) {
      sy_axes_attributes t{};
      std::vector<int64_t> out;
      for (size_t d = 0; d < 4; ++d) {
        t.values[d] = axes[d];
        out.push_back(dims[static_cast<size_t>(axes[d])]);
      }
      Agree(Op("transpose", t), {x}, {Empty(out, dtype)}, 0);
    }
    Agree(Op("slice", sy_slice_attributes{.start = {1, 4, 0, 3}, .step = {2, -1, 1, 4}}), {x},
          {Empty({2, 3, 4, 7}, dtype)}, 0);
    Agree(Op("pad", sy_pad_attributes{.before = {0, 2, 1, 3}, .after = {1, 0, 0, 2}, .value = 3}), {x},
          {Empty({7, 7, 5, 40}, dtype)}, 0);
    Agree(Op("roll", sy_axes_attributes{.values = {2, -1, 0, 40}}), {x}, {Empty(dims, dtype)}, 0);
    Agree(Op("concat", sy_axes_attributes{.values = {2}}), {x, x}, {Empty({6, 5, 8, 35}, dtype)}, 0);
    Agree(Op("concat", sy_axes_attributes{.values = {0}}), {x, x}, {Empty({12, 5, 4, 35}, dtype)}, 0);
  }
  Agree(Op("transpose", sy_axes_attributes{.values = {1, 0}}), {Random({300, 257})}, {Empty({257, 300})}, 0);
}

TEST_F(CpuOps, GatherAndScatterAddAgree) {
  for (const sy_dtype dtype : kBoth) {
    Agree(Op("gather"), {Random({9, 3, 7}, dtype), Indices({4, 5}, -2, 11)}, {Empty({4, 5, 3, 7}, dtype)}, 0);
    Op scatter("scatter_add");
    Agree(scatter, {Indices({40}, 0, 8), Random({40, 21}, dtype)}, {Empty({9, 21}, dtype)});
    scatter.accumulate = {1};
    Agree(scatter, {Indices({40}, 0, 8), Random({40, 21}, dtype)}, {Random({9, 21})});
  }
}

TEST_F(CpuOps, DropoutDrawsTheSpecifiedWords) {
  for (const sy_dtype dtype : kBoth)
    for (const int per_sample : {0, 1})
      for (const float p : {0.0f, 0.3f, 1.0f})
        Agree(Op("dropout", sy_dropout_attributes{.key = 0x123456789ABCDEFull, .p = p, .per_sample = per_sample}),
              {Random({5, 3, 791}, dtype), I32({5}, {7, 0, -3, 100, 2}), I32({2}, {11, 5})},
              {Empty({5, 3, 791}, dtype)}, 1e-6);
}

TEST_F(CpuOps, OptimizersAgree) {
  for (const sy_optimizer_attributes& t :
       {sy_optimizer_attributes{.kind = SY_OPTIMIZER_SGD, .weight_decay = 0.1f},
        {.kind = SY_OPTIMIZER_SGD, .momentum = 0.9f, .dampening = 0.2f, .weight_decay = 0.1f},
        {.kind = SY_OPTIMIZER_SGD, .momentum = 0.9f, .nesterov = 1},
        {.kind = SY_OPTIMIZER_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f},
        {.kind = SY_OPTIMIZER_ADAMW,
        .beta1 = 0.9f,
        .beta2 = 0.999f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .half_copies = 1},
        {.kind = SY_OPTIMIZER_LAMB, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.1f},
        {.kind = SY_OPTIMIZER_LAMB,
        .beta1 = 0.9f,
        .beta2 = 0.99f,
        .eps = 1e-6f,
        .weight_decay = 0.1f,
        .adam_w_mode = 1,
        .grad_averaging = 1,
        .half_copies = 1},
        {.kind = SY_OPTIMIZER_LAMB, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-6f, .use_nvlamb = 1},
        {.kind = SY_OPTIMIZER_LAMB, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-6f},
        {.kind = SY_OPTIMIZER_LARS, .momentum = 0.9f, .eps = 1e-8f, .weight_decay = 0.1f, .trust_coefficient = 0.02f},
        {.kind = SY_OPTIMIZER_LARS,
        .momentum = 0.9f,
        .nesterov = 1,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .trust_coefficient = 0.02f,
        .half_copies = 1},
        {.kind = SY_OPTIMIZER_LARS, .trust_coefficient = 0.02f}})
    for (const double update : {0, 1, 999})
      for (const double finite : {0, 1})
        for (const sy_dtype dtype : kBoth) {
          const bool has_momentum = t.kind == SY_OPTIMIZER_SGD || t.kind == SY_OPTIMIZER_LARS;
          const size_t moments = !has_momentum ? 2 : t.momentum != 0 ? 1 : 0;
          std::vector<Tensor> inputs = {F32({1}, {0.01}), F32({1}, {update}), F32({1}, {0.5}), F32({1}, {finite})},
                              outputs;
          for (const int64_t n : {1, 37, 40000}) {
            inputs.push_back(Random({n}));
            inputs.push_back(Random({n}, dtype));
            outputs.push_back(Empty({n}));
            for (size_t m = 0; m < moments; ++m) {
              inputs.push_back(Random({n}, SY_F32, m ? 1.0 : 0.0, 0.1));
              outputs.push_back(Empty({n}));
            }
            if (t.half_copies) outputs.push_back(Empty({n}, SY_BF16));
          }
          Agree(Op("optimizer_update", t), inputs, outputs);
        }
}

TEST_F(CpuOps, MatmulRepeatsBitForBit) {
  for (const sy_dtype dtype : kBoth) {
    const auto x = Random({500, 384}, dtype), y = Random({500, 384}, dtype);
    const Op op("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1, .bias_gradient = 1});
    const auto once = cpu_->Run(op, {x, y}, {Empty({384, 384}), Empty({384})});
    for (int i = 0; i < 3; ++i) {
      const auto again = cpu_->Run(op, {x, y}, {Empty({384, 384}), Empty({384})});
      EXPECT_EQ(once[0], again[0]);
      EXPECT_EQ(once[1], again[1]);
    }
  }
}

TEST_F(CpuOps, WhatIsNotOfferedIsRefusedWithAReason) {
  const auto convolution =
      cpu_->Run(Op("convolution", sy_convolution_attributes{.spatial_rank = 2}), {Random({1})}, {Empty({1})});
  EXPECT_EQ(convolution.status, SY_UNSUPPORTED);
  EXPECT_NE(convolution.message.find("convolution"), std::string::npos);
  const auto mismatch =
      cpu_->Run(Op("matmul", sy_matmul_attributes{.alpha = 1}), {Random({2, 3}), Random({4, 2})}, {Empty({2, 2})});
  EXPECT_EQ(mismatch.status, SY_UNSUPPORTED);
}

}  // namespace
}  // namespace switchyard::test
