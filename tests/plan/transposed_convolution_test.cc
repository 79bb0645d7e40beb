// The gradient of a transposed convolution, by what bilinear functions have exactly: ⟨dx, v⟩ = ⟨dy, T(v, w)⟩ for every
// v, and ⟨dw, u⟩ = ⟨dy, T(x, u)⟩ for every u. On integers, whose sums are exact.
#include "core/graph/gradients.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/mesh_interpreter.h"
#include "gtest/gtest.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

std::vector<float> SmallIntegers(const TensorType& type, int seed) {
  std::vector<float> values(static_cast<size_t>(type.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<int>(i) * seed + i / 7) % 7) - 3;
  return values;
}

void ExpectGradientsOfTransposedConvolution(const Shape& x_shape, const Shape& w_shape,
                                            const ops::WindowOptions& window, int output_padding) {
  const auto test = TestDevice::Open("reference", 1);
  ASSERT_TRUE(test.ok()) << Message(test.status());
  Graph g;
  const TensorType x_type = {DType::kF32, x_shape}, w_type = {DType::kF32, w_shape};
  const Value x = g.Input("x", x_type, {}), v = g.Input("v", x_type, {});
  const Value w = g.Input("w", w_type, {}), u = g.Input("u", w_type, {});
  const auto transposed = [&](const Value& a, const Value& b) {
    return ops::TransposedConvolution(a, b, window, output_padding);
  };
  const Value y = transposed(x, w), dy = g.Input("dy", y.type(), {});
  const std::vector<Value> gradients = Gradients(ops::Sum(ops::Mul(y, dy)), {x, w});
  g.Output("dx_v", ops::Sum(ops::Mul(gradients[0], v)));
  g.Output("dw_u", ops::Sum(ops::Mul(gradients[1], u)));
  g.Output("dy_Tv", ops::Sum(ops::Mul(dy, transposed(v, w))));
  g.Output("dy_Tu", ops::Sum(ops::Mul(dy, transposed(x, u))));
  MeshInterpreter one({}, *(*test)->device);
  int seed = 2;
  for (const auto& [name, value] :
       {std::pair("x", x), std::pair("v", v), std::pair("w", w), std::pair("u", u), std::pair("dy", dy)}) {
    const std::vector<float> values = SmallIntegers(value.type(), ++seed);
    one.Set(0, name, values.data(), values.size() * sizeof(float));
  }
  const Status ran = one.Run({&g});
  ASSERT_TRUE(ran.ok()) << Message(ran);
  const auto number = [&](const char* name) {
    float value = 0;
    const auto bytes = one.Get(0, name);
    EXPECT_TRUE(bytes.ok() && bytes->size() == sizeof value) << name;
    std::copy_n(bytes->data(), sizeof value, reinterpret_cast<char*>(&value));
    return value;
  };
  EXPECT_NE(number("dx_v"), 0);
  EXPECT_EQ(number("dx_v"), number("dy_Tv"));
  EXPECT_NE(number("dw_u"), 0);
  EXPECT_EQ(number("dw_u"), number("dy_Tu"));
}

TEST(TransposedConvolution, HasTheGradientsOfABilinearFunction) {
  ExpectGradientsOfTransposedConvolution({2, 3, 4, 5}, {5, 2, 2, 3}, {.stride = 2}, 0);
  ExpectGradientsOfTransposedConvolution({1, 4, 3, 2}, {2, 3, 3, 4}, {.stride = 2, .padding = 1}, 1);
  ExpectGradientsOfTransposedConvolution({2, 2, 3, 2, 3}, {3, 2, 2, 2, 2}, {.stride = 2}, 0);
}

}  // namespace
}  // namespace switchyard
