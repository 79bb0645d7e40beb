#include "core/train/step.h"

#include "core/graph/gradients.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/passes/autocast.h"

namespace switchyard {
namespace {

// What the output node `name` shows.
Value Shown(Graph& graph, const std::string& name) {
  for (const Node& node : graph.nodes()) {
    if (node.op == "output" && node.name == name) return graph.value(node.inputs[0]);
  }
  throw BuildError("the graph has no output " + name);
}

Value Images(Graph& graph, const StepOptions& o) {
  return graph.Input("images", {DType::kF32, {o.batch, o.height, o.width, o.channels}}, {Role::kBatch, {}, false});
}

Value Labels(Graph& graph, const StepOptions& o) {
  return graph.Input("labels", {DType::kI32, {o.batch}}, {Role::kBatch, {}, false});
}

// The model as the run's precision wants it. Parameters are made first, so that plans of all kinds name them alike.
template <typename Tail>
Graph BuildForward(const ModelFunction& model, const StepOptions& o, bool training, const Tail& tail) {
  Graph graph;
  nn::Context context(graph, training, o.seed);
  const Value images = Images(graph, o);
  tail(graph, model(context, images));
  return o.precision == DType::kF32 ? std::move(graph) : Autocast(graph, o.precision);
}

}  // namespace

Graph BuildTrainingStep(const ModelFunction& model, const StepOptions& o, MicroStep micro_step,
                        std::vector<GradientPlace>* places) {
  Graph graph = BuildForward(model, o, true, [&](Graph& g, const Value& logits) {
    g.Output("loss", ops::Mean(ops::CrossEntropy(logits, Labels(g, o), o.label_smoothing)));
  });
  const Value loss = Shown(graph, "loss");
  std::vector<Value> parameters;
  for (const int id : graph.Inputs(Role::kParameter)) parameters.push_back(graph.value({id, 0}));

  graph.SetPhase(Phase::kBackward);
  const Value seed = ops::Scale(loss, 1.0f / static_cast<float>(o.accumulation * o.parallel.world));
  const std::vector<Value> gradients = Gradients(seed, parameters);
  std::vector<ParameterGradient> pairs;
  for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});

  const Buckets buckets = AddDataParallel(graph, pairs, o.parallel, micro_step, o.find_unused_parameters);
  if (places != nullptr) *places = buckets.places;
  if (micro_step == MicroStep::kOnly || micro_step == MicroStep::kLast)
    AddOptimizer(graph, buckets.gradients, buckets.flat, o.optimizer, o.table_length);
  return graph;
}

Graph BuildEvaluation(const ModelFunction& model, const StepOptions& o) {
  return BuildForward(model, o, false, [&](Graph& g, const Value& logits) {
    const Value labels = Labels(g, o);
    g.Output("eval_loss", ops::CrossEntropy(logits, labels));
    g.Output("eval_rank", ops::LabelRank(logits, labels));
    g.Output("eval_logits", ops::Cast(logits, DType::kF32));
  });
}

}  // namespace switchyard
