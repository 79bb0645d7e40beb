#include "tools/conform/rounding_checks.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "core/abi/ops.h"
#include "core/runtime/collectives/composition.h"
#include "tools/conform/op_compare.h"
#include "tools/conform/op_run.h"
#include "tools/conform/rounding.h"

namespace switchyard::conform {
namespace {

template <typename A>
Problem Make(const char* op, A attributes, std::vector<sy_tensor> inputs, sy_tensor output,
             std::vector<std::vector<double>> values) {
  Problem problem;
  problem.op = op;
  problem.attributes.resize(sizeof(A));
  std::memcpy(problem.attributes.data(), &attributes, sizeof(A));
  problem.inputs = std::move(inputs);
  problem.outputs = {output};
  problem.values = std::move(values);
  return problem;
}

Status CheckOne(Device& device, const Problem& problem, const std::vector<double>& exact) {
  auto kernel = PrepareOp(device, problem);
  if (!kernel.ok()) return kernel.status();
  SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device, problem, *kernel, {}));
  SY_ASSIGN_OR_RETURN(const auto found, bound->Run());
  return ExpectRounded(found[0], exact, problem.outputs[0].dtype);
}

int64_t Count(const std::vector<double>& values) { return static_cast<int64_t>(values.size()); }

Status CheckConversion(Device& device, sy_dtype from, sy_dtype to) {
  // A number of the other half type is exact there; what is between two of `to` it may well be.
  const std::vector<double> numbers = from == SY_F32 ? NumbersToRound(to) : Rounded(NumbersToRound(from), from);
  sy_pointwise_attributes copy{};
  copy.output_count = 1;
  return CheckOne(
      device,
      Make("pointwise", copy, {Contiguous(from, {Count(numbers)})}, Contiguous(to, {Count(numbers)}), {numbers}),
      numbers);
}

Status CheckPointwise(Device& device, sy_dtype half, int32_t instruction) {
  std::vector<double> a, b, exact;
  for (const Pair& pair : instruction == SY_PW_MUL ? PairsToMultiply(half) : PairsToAdd(half)) {
    a.push_back(pair.a);
    b.push_back(instruction == SY_PW_SUB ? -pair.b : pair.b);
    exact.push_back(instruction == SY_PW_MUL ? pair.a * pair.b : pair.a + pair.b);
  }
  sy_pointwise_attributes program{};
  program.instruction_count = program.output_count = 1;
  program.instructions[0] = {instruction, 0, 1, 0, 0};
  program.outputs[0] = 2;
  const sy_tensor tensor = Contiguous(half, {Count(a)});
  return CheckOne(device, Make("pointwise", program, {tensor, tensor}, tensor, {a, b}), exact);
}

Status CheckReduce(Device& device, sy_dtype half) {
  std::vector<double> rows, exact;
  for (const Pair& pair : PairsToAdd(half)) {
    rows.insert(rows.end(), {pair.a, pair.b});
    exact.push_back(pair.a + pair.b);
  }
  sy_reduce_attributes sum{};
  sum.axes = 2;
  sum.scale = 1;
  return CheckOne(device,
                  Make("reduce", sum, {Contiguous(half, {Count(exact), 2})}, Contiguous(half, {Count(exact)}), {rows}),
                  exact);
}

// Every row has two elements that are not 0, and the other matrix is of ones: whatever the order, each sum is exact.
Status CheckMatmul(Device& device, sy_dtype half) {
  constexpr int64_t kInner = 32, kColumns = 16;
  std::vector<double> a, exact;
  for (const Pair& pair : PairsToAdd(half)) {
    const size_t row = a.size();
    a.resize(row + kInner);
    a[row + 3] = pair.a;
    a[row + 20] = pair.b;
    exact.insert(exact.end(), kColumns, pair.a + pair.b);
  }
  const int64_t rows = Count(a) / kInner;
  sy_matmul_attributes product{};
  product.alpha = 1;
  return CheckOne(device,
                  Make("matmul", product, {Contiguous(half, {rows, kInner}), Contiguous(half, {kInner, kColumns})},
                       Contiguous(half, {rows, kColumns}), {a, std::vector<double>(kInner * kColumns, 1.0)}),
                  exact);
}

// y is the norm of the sum that is kept, which recomputation reads in its place: x lies so far from 0 that the norm of
// the sum before it was rounded is another one.
Status CheckNormOfSum(Device& device, sy_dtype half) {
  constexpr int64_t kRows = 40, kColumns = 48;
  std::vector<double> x, residual, exact;
  for (int i = 0; i < kRows * kColumns; ++i) {
    x.push_back(96 + (i * 37 % 5 - 2) / 2.0);
    residual.push_back((i * 101 % 127 - 63) / 64.0);
    exact.push_back(x.back() + residual.back());
  }
  sy_layer_norm_attributes norm{};
  norm.eps = 1e-6f;
  norm.residual = 1;
  const sy_tensor rows = Contiguous(half, {kRows, kColumns}), channels = Contiguous(SY_F32, {kColumns}),
                  statistics = Contiguous(SY_F32, {kRows});
  const std::vector<double> ones(kColumns, 1.0), zeros(kColumns, 0.0);
  Problem problem = Make("layer_norm", norm, {rows, rows, channels, channels}, rows, {x, residual, ones, zeros});
  problem.outputs = {rows, statistics, statistics, rows};
  auto kernel = PrepareOp(device, problem);
  if (!kernel.ok()) return kernel.status();
  SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device, problem, *kernel, {}));
  SY_ASSIGN_OR_RETURN(const auto found, bound->Run());
  SY_RETURN_IF_ERROR(Annotate(ExpectRounded(found[3], exact, half), "sum"));
  std::vector<double> expected;
  for (auto row = found[3].begin(); row != found[3].end(); row += kColumns) {
    const double mean = std::accumulate(row, row + kColumns, 0.0) / kColumns;
    const double squares = std::inner_product(row, row + kColumns, row, 0.0) / kColumns;
    for (auto h = row; h != row + kColumns; ++h)
      expected.push_back((*h - mean) / std::sqrt(squares - mean * mean + double{norm.eps}));
  }
  return CompareNumbers(found[0], expected, half, 1, "the norm of the sum as it was kept");
}

}  // namespace

void CheckRounding(Recorder& recorder, Device& device) {
  for (const sy_dtype half : {SY_BF16, SY_F16}) {
    if (!(device.info().dtypes & (uint64_t{1} << half))) continue;
    const auto run = [&](const std::string& name, auto check) {
      recorder.Run(fmt::format("op/{}/{}", name, sy_dtype_name(half)), check);
    };
    run("pointwise/rounding_from_f32", [&] { return CheckConversion(device, SY_F32, half); });
    const sy_dtype other = half == SY_BF16 ? SY_F16 : SY_BF16;
    if (device.info().dtypes & (uint64_t{1} << other)) {
      run(fmt::format("pointwise/rounding_from_{}", sy_dtype_name(other)),
          [&] { return CheckConversion(device, other, half); });
    }
    run("pointwise/rounding_of_add", [&] { return CheckPointwise(device, half, SY_PW_ADD); });
    run("pointwise/rounding_of_sub", [&] { return CheckPointwise(device, half, SY_PW_SUB); });
    run("pointwise/rounding_of_mul", [&] { return CheckPointwise(device, half, SY_PW_MUL); });
    run("reduce/rounding", [&] { return CheckReduce(device, half); });
    run("matmul/rounding", [&] { return CheckMatmul(device, half); });
    run("layer_norm/rounding_of_sum", [&] { return CheckNormOfSum(device, half); });
  }
}

}  // namespace switchyard::conform
