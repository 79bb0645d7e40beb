#include "tests/graph/steps.h"

#include <algorithm>

#include "core/graph/gradients.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/optimizer.h"
#include "fmt/format.h"
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
  Shape shape = InputShape(model);
  shape.insert(shape.begin(), batch);
  const Value images = graph.Input("images", {DType::kF32, shape}, {});
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

Graph ResidualBlocksGraph(bool training) {
  Graph graph;
  std::vector<Value> wanted;
  std::vector<std::string> names;
  const auto input = [&](const std::string& name, const Shape& shape, bool differentiate) {
    const Value value = graph.Input(name, {DType::kF32, shape}, {});
    if (differentiate) wanted.push_back(value), names.push_back("d" + name);
    return value;
  };
  const auto norm = [&](int i, const Value& x) {
    const Shape channel = {x.dim(-1)};
    const Value gamma = input(fmt::format("gamma{}", i), channel, true);
    const Value beta = input(fmt::format("beta{}", i), channel, true);
    const Value mean = input(fmt::format("mean{}", i), channel, false);
    const Value variance = input(fmt::format("variance{}", i), channel, false);
    if (!training) return ops::BatchNormInference(x, gamma, beta, mean, variance, 1e-5f);
    const auto normed = ops::BatchNorm(x, gamma, beta, mean, variance, 1e-5f, 0.1f);
    graph.Output(fmt::format("next_mean{}", i), normed.running_mean);
    graph.Output(fmt::format("next_variance{}", i), normed.running_var);
    return normed.y;
  };
  const auto relu = [](const Value& x) { return ops::Unary(SY_PW_RELU, x); };
  const Value x = input("x", {2, 4, 4, 3}, true);
  const Value first = relu(ops::Add(norm(1, relu(norm(0, x))), x));
  const Value branch = norm(3, relu(norm(2, first)));
  const Value y = relu(ops::Add(branch, norm(4, first)));
  if (!training) {
    graph.Output("y", y);
    return graph;
  }
  const Value loss = ops::Mean(ops::Mul(y, y));
  graph.Output("loss", loss);
  const std::vector<Value> gradients = Gradients(loss, wanted);
  for (size_t i = 0; i < gradients.size(); ++i) graph.Output(names[i], gradients[i]);
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
