// Gradients of f32 weights in half models: what makes one, a product of halves or a sum over them, writes it in f32, as
// its bucket holds it. So it is rounded once, at the end of its sum, not to a half before; no pass casts it; and with a
// loss scale less of it overflows. A backend that has such sums in half alone rounds and casts as before
// (ops::CastSums). A gradient that an op gives in f32, as attention gives its bias's, stays f32 on its way through what
// only moves or adds up its elements.
//
// Runs behind "gradients", before what adds up gradients over ranks and micro-batches.
#include <set>

#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"
#include "core/parallel/passes.h"

namespace switchyard {
namespace {

// The nodes that become f32 for a gradient, from its last one back: what moves it, the casts that are left out, what
// makes the sums or had them in f32. Empty where the gradient is none, or where others read them in half too.
std::vector<int> WideGradientsNodes(const Graph& graph, const IdLists& users, Ref gradient) {
  std::vector<int> nodes;
  for (Ref ref = gradient;;) {
    const Node& node = graph.node(ref.node);
    if (users[ref.node].size() > (ref == gradient ? 0u : 1u)) return {};
    nodes.push_back(ref.node);
    const bool half = SizeOf(graph.type(ref).dtype) == 2, cast = ops::IsCast(graph, node);
    if (TraitsOf(node.op).wide_sums && ref.output == 0 && half) return nodes;
    if (cast && half) return graph.type(node.inputs[0]).dtype == DType::kF32 ? nodes : std::vector<int>{};
    const int moved = cast && graph.type(ref).dtype == DType::kF32 ? 0 : TraitsOf(node.op).moves;
    if (moved < 0) return {};
    ref = node.inputs[static_cast<size_t>(moved)];
    if (ref.node < 0) return {};
  }
}

Status WideGradientsLegal(const ProgramOptions&) { return OkStatus(); }

void ApplyWideGradients(Program& program, const ProgramOptions& options) {
  if (options.precision == DType::kF32) return;
  for (NamedGraph& plan : program.plans) {
    const Graph& source = plan.graph;
    const auto users = source.Users();
    std::set<int> wide;
    for (const GradientOf& pair : plan.gradients) {
      const std::vector<int> nodes = WideGradientsNodes(source, users, pair.gradient);
      wide.insert(nodes.begin(), nodes.end());
    }
    RewritePlan(plan, "wide_gradients", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
      if (!wide.contains(id)) return std::nullopt;
      const Node& node = source.node(id);
      const std::vector<Value> inputs = r.Map(node.inputs);
      if (ops::IsCast(source, node)) return inputs;
      Wanted wanted = WantedOf(node);
      wanted.dtypes[0] = DType::kF32;
      return r.result.Clone(node, inputs, wanted);
    });
  }
}

}  // namespace

Pass WideGradientsPass() { return {"wide_gradients", WideGradientsLegal, ApplyWideGradients}; }

}  // namespace switchyard
