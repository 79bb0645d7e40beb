// Batch norms over the samples of all ranks of the data group. A rank gathers mean, biased variance and count of all,
// and takes them together as Chan et al. 1979: with δ = μ_r − μ, M2 = Σ n_r·(var_r + δ²), var = M2/n, and M2/(n − 1)
// goes into the running variance. Backwards, Σ dy and Σ dy·x̂ are summed over the ranks for dx alone: the gradients of
// weight and bias stay each rank's own, as those of all other parameters, which "buckets" adds up. Ranks may differ in
// how many samples they have.
//
// A batch norm that would see a single value for each channel is refused, with one rank too: its variance is 0, so that
// the result is the bias alone and the running variance decays to nothing.
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/parallel/passes.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

Status SyncBatchNormLegal(const ProgramOptions&) { return OkStatus(); }

uint32_t Places(const Value& x) { return (1u << (x.rank() - 1)) - 1; }  // all axes but the channels'

int64_t PlacesOf(const Shape& x) { return Elements(x) / x.back(); }

void CheckPlaces(const Graph& graph, const ProgramOptions& o) {
  if (o.sync_batchnorm && o.mesh.data > 1) return;
  for (const Node& node : graph.nodes()) {
    if (node.op != "batch_norm") continue;
    const Shape& x = graph.type(node.inputs[0]).shape;
    if (PlacesOf(x) > 1) continue;
    throw BuildError(fmt::format(
        "{}: expected more than one value per channel for the statistics of a batch norm in training, found one in {}; "
        "give a larger --batch_size{} or larger images",
        node.name, ToString(x), o.mesh.data > 1 ? " of each rank, --sync_batchnorm" : ""));
  }
}

class Synchronization {
 public:
  Synchronization(const Graph& source, int ranks) : source_(source), ranks_(ranks) {}

  std::optional<std::vector<Value>> Replace(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    if (node.op != "batch_norm" && node.op != "batch_norm_backward") return std::nullopt;
    const Graph::Scope scope(r.result, node.name);
    return node.op == "batch_norm" ? Forward(r, id) : Backward(r, node);
  }

 private:
  // x, gamma, beta, running_mean, running_var → y, mean, rstd, running_mean', running_var'
  std::vector<Value> Forward(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    const auto a = node.attributes.as<sy_batch_norm_attributes>();
    const std::vector<Value> in = r.Map(node.inputs);
    const Value x = ops::Cast(in[0], DType::kF32);
    const int64_t channels = x.dim(-1), places = PlacesOf(x.shape());
    const float share = 1 / static_cast<float>(places);
    const Value own_mean = ops::Reduce(x, SY_REDUCE_SUM, Places(x), share);
    const Value own_var = ops::Reduce(ops::Sub(x, own_mean), SY_REDUCE_SUM_OF_SQUARES, Places(x), share);
    const Value own = ops::Concat({own_mean, own_var, ops::Full(r.result, {1}, static_cast<float>(places))}, 0);
    const Value all = ops::AllGather(ops::Reshape(own, {1, -1}), ranks_, kDataGroup, "statistics");
    const Value means = ops::Slice(all, 1, 0, channels), vars = ops::Slice(all, 1, channels, channels),
                counts = ops::Slice(all, 1, 2 * channels, 1);
    const Value count = ops::Reduce(counts, SY_REDUCE_SUM, 0b11);
    const Value mean = ops::Div(ops::Reduce(ops::Mul(means, counts), SY_REDUCE_SUM, 0b1), count);
    const Value delta = ops::Sub(means, mean);
    const Value m2 = ops::Reduce(ops::Mul(ops::Add(vars, ops::Mul(delta, delta)), counts), SY_REDUCE_SUM, 0b1);
    const Value var = ops::Div(m2, count), rstd = ops::Unary(SY_PW_RSQRT, ops::AddScalar(var, a.eps));
    const Value one = ops::Full(r.result, {1}, 1);
    const Value unbiased = ops::Div(m2, ops::Binary(SY_PW_MAX, ops::Sub(count, one), one));
    const auto moved = [&](const Value& running, const Value& batch) {
      return ops::Add(ops::Scale(running, 1 - a.momentum), ops::Scale(batch, a.momentum));
    };
    counts_[id] = count;
    sy_batch_norm_attributes whole{};
    whole.eps = a.eps;
    const Value y = r.result.Add("batch_norm_inference", {in[0], in[1], in[2], mean, var}, Attributes(whole),
                                 {.dtypes = {node.outputs[0].dtype}}, node.where)[0];
    return {y, mean, rstd, moved(in[3], mean), moved(in[4], unbiased)};
  }

  // x, gamma, mean, rstd, dy → dx, dgamma, dbeta
  std::vector<Value> Backward(Rewriting& r, const Node& node) {
    const std::vector<Value> in = r.Map(node.inputs);
    const Value dy = ops::Cast(in[4], DType::kF32);
    const Value x = ops::Mul(ops::Sub(ops::Cast(in[0], DType::kF32), in[2]), in[3]);
    const int64_t channels = x.dim(-1);
    const Value dgamma = ops::Reduce(ops::Mul(dy, x), SY_REDUCE_SUM, Places(x)),
                dbeta = ops::Reduce(dy, SY_REDUCE_SUM, Places(x));
    const Value sums = ops::Div(ops::AllReduce(ops::Concat({dgamma, dbeta}, 0), SY_SUM, 1, kDataGroup, "sums"),
                                counts_.at(node.forward));
    const Value common =
        ops::Add(ops::Mul(x, ops::Slice(sums, 0, 0, channels)), ops::Slice(sums, 0, channels, channels));
    const Value dx = ops::Mul(ops::Mul(ops::Sub(dy, common), in[3]), in[1]);
    return {ops::Cast(dx, node.outputs[0].dtype), dgamma, dbeta};
  }

  const Graph& source_;
  int ranks_;
  std::map<int, Value> counts_;  // by forward node: samples times places, of all ranks
};

void ApplySyncBatchNorm(Program& program, const ProgramOptions& o) {
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    CheckPlaces(plan.graph, o);
    if (!o.sync_batchnorm || o.mesh.data == 1) continue;
    const Graph& source = plan.graph;
    Synchronization synchronization(source, o.mesh.data);
    RewritePlan(plan, "sync_batch_norm", [&](Rewriting& r, int id) { return synchronization.Replace(r, id); });
  }
}

}  // namespace

Pass SyncBatchNormPass() { return {"sync_batch_norm", SyncBatchNormLegal, ApplySyncBatchNorm}; }

}  // namespace switchyard
