#include "core/parallel/power_sgd.h"

#include <optional>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/orthonormalize.h"
#include "core/graph/ops/pointwise.h"
#include "core/nn/initialize.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr char kErrorOf[] = "power_sgd_error/", kFactorOf[] = "power_sgd_factor/";

Shape MatrixOf(const Shape& shape) { return {shape[0], Elements(shape) / shape[0]}; }

// What stands in for rows of zeros of Qᵀ of a parameter, as all are at first.
Value DrawnFor(const std::string& parameter, const Value& factor, uint64_t seed) {
  const std::string name = "power_sgd_start/" + parameter;
  const TensorType type = factor.type();
  return factor.graph().Constant(name, type, nn::InitialValues(name, type, {Initializer::kNormal, 1}, seed));
}

// `parts` one behind the other, and out of such a value.
Value Joined(const std::vector<Value>& parts) {
  std::vector<Value> flat;
  for (const Value& part : parts) flat.push_back(ops::Reshape(part, {part.type().elements()}));
  return flat.size() > 1 ? ops::Concat(flat, 0) : flat[0];
}
std::vector<Value> CutAs(const Value& flat, const std::vector<Value>& parts) {
  std::vector<Value> result;
  int64_t start = 0;
  for (const Value& part : parts) {
    const int64_t elements = part.type().elements();
    result.push_back(ops::Reshape(parts.size() > 1 ? ops::Slice(flat, 0, start, elements) : flat, part.shape()));
    start += elements;
  }
  return result;
}

// Qᵀ of a divided parameter among those of the other parts.
Part PartOfFactor(const Part& parameter, int rank, TensorPlace place) {
  const Shape& whole = parameter.whole;
  if (parameter.axis.dimension == 0) {
    Part part =
        PartOf({int64_t{rank} * place.ranks, MatrixOf(whole)[1]}, {0, 1, place.ranks, rank}, place.rank, place.ranks);
    part.group = parameter.group;
    return part;
  }
  Part part = parameter;
  const auto dimension = static_cast<size_t>(parameter.axis.dimension);
  part.whole = {rank, MatrixOf(whole)[1]};
  part.axis.dimension = 1;
  for (size_t d = 1; d < dimension; ++d) part.axis.outer *= whole[d];
  for (size_t d = dimension + 1; d < whole.size(); ++d) part.axis.inner *= whole[d];
  return part;
}

}  // namespace

std::vector<LowRankState> LowRankStatesOf(const Node& parameter, int rank, TensorPlace place) {
  const std::optional<Part>& part = parameter.input->part;
  const Shape& shape = parameter.outputs[0].shape;
  if (!IsCompressed(part ? WholeShape(*part) : shape, rank)) return {};
  LowRankState error{kErrorOf + parameter.name, {DType::kF32, shape}, {Role::kState, {}, false}};
  error.info.of_rank = true;
  error.info.part = part;
  LowRankState factor{kFactorOf + parameter.name, {DType::kF32, {rank, MatrixOf(shape)[1]}}, {Role::kState, {}, false}};
  if (part) factor.info.part = PartOfFactor(*part, rank, place);
  return {error, factor};
}

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
    Value error, factor;
  };
  const auto x = [&](const LowRankGradient& g, const State& state) {
    Value own = sums.factor != 1 ? ops::Scale(g.gradient, sums.factor) : g.gradient;
    if (inverse) own = ops::Mul(own, inverse);
    return ops::Add(own, state.error);
  };
  const auto matrix = [](const Value& value) { return ops::Reshape(value, MatrixOf(value.shape())); };
  std::vector<std::vector<State>> states(buckets.size());
  std::vector<Value> factors, drawn;  // of all buckets
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (const LowRankGradient& g : buckets[b]) {
      const Node& parameter = graph.node(g.parameter.ref().node);
      const std::string name = parameter.name;
      const std::vector<LowRankState> own = LowRankStatesOf(parameter, sums.rank, sums.place);
      const auto input = [&](const LowRankState& state) { return graph.Input(state.name, state.type, state.info); };
      State& state = states[b].emplace_back(State{input(own[0]), input(own[1])});
      factors.push_back(state.factor);
      drawn.push_back(DrawnFor(name, state.factor, sums.seed));
    }
  }
  std::vector<std::vector<Value>> xs(buckets.size()), p(buckets.size()), means(buckets.size());
  if (factors.empty()) return means;
  const std::vector<Value> starts = ops::Orthonormalize(factors, drawn);
  auto start = starts.begin();
  const auto send_p = [&](size_t b) {
    for (size_t i = 0; i < buckets[b].size(); ++i) {
      xs[b].push_back(x(buckets[b][i], states[b][i]));
      p[b].push_back(ops::Matmul(*start++, matrix(xs[b][i]), {.transpose_b = true}));
    }
    p[b] = ops::Orthonormalize(CutAs(sums.sum(Joined(p[b]), fmt::format("power_sgd_p/{}", b)), p[b]));
  };
  const auto send_q = [&](size_t b) {
    std::vector<Value> q;
    for (size_t i = 0; i < buckets[b].size(); ++i)
      q.push_back(ops::Matmul(p[b][i], matrix(xs[b][i]), {.alpha = 1 / static_cast<float>(sums.world)}));
    const Value sum = sums.sum(Joined(q), fmt::format("power_sgd_q/{}", b));
    const std::vector<Value> next = CutAs(sum, q), scaled = sums.scale ? CutAs(ops::Mul(sum, sums.scale), q) : next;
    for (size_t i = 0; i < buckets[b].size(); ++i) {
      const State& state = states[b][i];
      const Value product = ops::Matmul(p[b][i], scaled[i], {.transpose_a = true});
      const Value mean = ops::Reshape(product, state.error.shape());
      means[b].push_back(mean);
      moves->push_back({state.error.ref(), ops::Sub(xs[b][i], inverse ? ops::Mul(mean, inverse) : mean).ref()});
      moves->push_back({state.factor.ref(), next[i].ref()});
    }
  };
  // Collectives keep this order: while the P of a bucket travel, the Q of the one before are computed.
  std::optional<size_t> waiting;
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].empty()) continue;
    send_p(b);
    if (waiting) send_q(*waiting);
    waiting = b;
  }
  send_q(*waiting);
  return means;
}

}  // namespace switchyard
