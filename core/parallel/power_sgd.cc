#include "core/parallel/power_sgd.h"

#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/initialize.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr char kErrorOf[] = "power_sgd_error/", kFactorOf[] = "power_sgd_factor/";
constexpr float kDependent = 1e-10f;  // share of a row's squares below which what is left of it is rounding

Shape MatrixOf(const Shape& shape) { return {shape[0], Elements(shape) / shape[0]}; }

// The rows of `a` (r, k) by Gram and Schmidt, each cleared twice of those before it ("twice is enough", Kahan and
// Parlett). What is not finite, or has squares that are not, makes NaN.
Value Orthonormal(const Value& a) {
  Graph& graph = a.graph();
  const Value one = ops::Full(graph, {1}, 1);
  std::vector<Value> rows;
  for (int64_t i = 0; i < a.dim(0); ++i) {
    const Value given = a.dim(0) > 1 ? ops::Slice(a, 0, i, 1) : a;
    Value row = given;
    if (i > 0) {
      const Value before = rows.size() > 1 ? ops::Concat(rows, 0) : rows[0];
      for (int round = 0; round < 2; ++round)
        row = ops::Sub(row, ops::Matmul(ops::Matmul(row, before, {.transpose_b = true}), before));
    }
    const Value left = ops::SquaredNorm({row});
    const Value depends = ops::Binary(SY_PW_LESS_EQUAL, left, ops::Scale(ops::SquaredNorm({given}), kDependent));
    rows.push_back(
        ops::Mul(row, ops::Select(depends, ops::Scale(left, 0), ops::Div(one, ops::Unary(SY_PW_SQRT, left)))));
  }
  return rows.size() > 1 ? ops::Concat(rows, 0) : rows[0];
}

// Qᵀ of a parameter, with rows of zeros drawn anew.
Value StartOf(const std::string& parameter, const Value& factor, uint64_t seed) {
  const std::string name = "power_sgd_start/" + parameter;
  const TensorType type = factor.type();
  const Value drawn =
      factor.graph().Constant(name, type, nn::InitialValues(name, type, {Initializer::kNormal, 1}, seed));
  const Value squares = ops::Reduce(ops::Mul(factor, factor), SY_REDUCE_SUM, 1u << 1, 1, true);
  return ops::Select(squares, factor, drawn);
}

// `parts` in one message, and back.
std::vector<Value> SumTogether(const std::vector<Value>& parts, const LowRankSums& sums, const std::string& name) {
  std::vector<Value> flat, result;
  for (const Value& part : parts) flat.push_back(ops::Reshape(part, {part.type().elements()}));
  const Value sum = sums.sum(flat.size() > 1 ? ops::Concat(flat, 0) : flat[0], name);
  int64_t start = 0;
  for (const Value& part : parts) {
    const int64_t elements = part.type().elements();
    result.push_back(ops::Reshape(flat.size() > 1 ? ops::Slice(sum, 0, start, elements) : sum, part.shape()));
    start += elements;
  }
  return result;
}

}  // namespace

bool IsCompressed(const Shape& shape, int rank) {
  if (rank < 1 || shape.empty() || shape[0] == 0) return false;
  const auto n = static_cast<double>(shape[0]), all = static_cast<double>(Elements(shape));
  return (n + all / n) * rank * 2 < all;
}

bool IsPowerSgdState(const std::string& name) { return name.starts_with(kErrorOf) || name.starts_with(kFactorOf); }

std::vector<std::vector<Value>> AddLowRankMeans(Graph& graph, const std::vector<std::vector<LowRankGradient>>& buckets,
                                                const LowRankSums& sums, std::vector<StateMove>* moves) {
  const Value inverse = sums.scale ? ops::Div(ops::Full(graph, {1}, 1), sums.scale) : Value();
  struct State {
    Value error, factor, x;
  };
  // x is made wherever it is read: it costs little, so that P can leave while the backward pass goes on, and the
  // gradient can be let go before the error is known to be kept.
  const auto x = [&](const LowRankGradient& g, const State& state) {
    Value own = sums.factor != 1 ? ops::Scale(g.gradient, sums.factor) : g.gradient;
    if (inverse) own = ops::Mul(own, inverse);
    return ops::Reshape(ops::Add(own, state.error), MatrixOf(g.parameter.shape()));
  };
  std::vector<std::vector<State>> states(buckets.size());
  std::vector<std::vector<Value>> p(buckets.size()), q(buckets.size()), means(buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const LowRankGradient& g : buckets[b]) {
      const std::string name = graph.node(g.parameter.ref().node).name;
      InputInfo of_rank{Role::kState, {}, false};
      of_rank.of_rank = true;
      State& state = states[b].emplace_back();
      state.error = graph.Input(kErrorOf + name, {DType::kF32, g.parameter.shape()}, of_rank);
      state.factor = graph.Input(kFactorOf + name, {DType::kF32, {sums.rank, MatrixOf(g.parameter.shape())[1]}},
                                 {Role::kState, {}, false});
      const Value start = Orthonormal(StartOf(name, state.factor, sums.seed));
      p[b].push_back(ops::Matmul(start, x(g, state), {.transpose_b = true}));
    }
    if (!p[b].empty()) p[b] = SumTogether(p[b], sums, fmt::format("power_sgd_p/{}", b));
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (size_t i = 0; i < buckets[b].size(); ++i) {
      p[b][i] = Orthonormal(p[b][i]);
      states[b][i].x = x(buckets[b][i], states[b][i]);
      q[b].push_back(ops::Matmul(p[b][i], states[b][i].x, {.alpha = 1 / static_cast<float>(sums.world)}));
    }
    if (!q[b].empty()) q[b] = SumTogether(q[b], sums, fmt::format("power_sgd_q/{}", b));
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (size_t i = 0; i < buckets[b].size(); ++i) {
      const State& state = states[b][i];
      const Value mean =
          ops::Matmul(sums.scale ? ops::Mul(p[b][i], sums.scale) : p[b][i], q[b][i], {.transpose_a = true});
      const Value left = ops::Sub(state.x, inverse ? ops::Mul(mean, inverse) : mean);
      means[b].push_back(ops::Reshape(mean, state.error.shape()));
      moves->push_back({state.error.ref(), ops::Reshape(left, state.error.shape()).ref()});
      moves->push_back({state.factor.ref(), q[b][i].ref()});
    }
  }
  return means;
}

}  // namespace switchyard
