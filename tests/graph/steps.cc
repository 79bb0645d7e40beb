#include "tests/graph/steps.h"

#include <algorithm>

#include "core/graph/gradients.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/optimizer.h"
#include "gtest/gtest.h"

namespace switchyard {

ResolvedModel Resolved(const ModelOptions& options) {
  auto model = ResolveModel(options);
  if (!model.ok()) {
    ADD_FAILURE() << Message(model.status());
    return *ResolveModel({.name = "mlp"});
  }
  return *model;
}

namespace {
Value Logits(Graph& graph, const ResolvedModel& model, int batch, bool training) {
  nn::Context context(graph, training);
  const Value images =
      graph.Input("images", {DType::kF32, {batch, model.image_size, model.image_size, model.channels}}, {});
  return BuildModel(model, context, images);
}
}  // namespace

Graph ForwardGraph(const ModelOptions& options, int batch, bool training) {
  Graph graph;
  graph.Output("logits", Logits(graph, Resolved(options), batch, training));
  return graph;
}

Graph TrainingGraph(const ModelOptions& options, int batch) {
  Graph graph;
  const Value logits = Logits(graph, Resolved(options), batch, true);
  const Value labels = graph.Input("labels", {DType::kI32, {batch}}, {});
  const Value loss = ops::Mean(ops::CrossEntropy(logits, labels));
  graph.Output("loss", loss);
  std::vector<Value> parameters;
  for (const int id : graph.Inputs(Role::kParameter)) parameters.push_back(graph.value({id, 0}));
  const std::vector<Value> gradients = Gradients(loss, parameters);
  std::vector<ParameterGradient> pairs;
  for (size_t i = 0; i < parameters.size(); ++i) pairs.push_back({parameters[i], gradients[i]});
  AddOptimizer(graph, pairs, {}, {.clip = 1}, 100);
  return graph;
}

std::string ErrorOf(const std::function<void()>& build) {
  try {
    build();
  } catch (const BuildError& error) {
    return error.what();
  }
  return "no error";
}

int Count(const Graph& graph, const std::string& op) {
  return static_cast<int>(
      std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.op == op; }));
}

}  // namespace switchyard
