#include "tests/ops/case_graph.h"

#include <set>

#include "core/graph/gradients.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

using conform::OpCase;
using conform::Operand;

DType DTypeOf(conform::Type type, DType tested) {
  switch (type) {
    case conform::Type::kTested:
      return tested;
    case conform::Type::kF32:
      return DType::kF32;
    case conform::Type::kI32:
      return DType::kI32;
    case conform::Type::kI64:
      return DType::kI64;
    default:
      return DType::kU8;
  }
}

template <typename T>
void Upload(Compiled& compiled, const std::string& name, const std::vector<double>& values) {
  compiled.Set(name, std::vector<T>(values.begin(), values.end()));
}

void SetInput(Compiled& compiled, const std::string& name, DType dtype, const std::vector<double>& values) {
  if (dtype == DType::kF32) Upload<float>(compiled, name, values);
  if (dtype == DType::kI32) Upload<int32_t>(compiled, name, values);
  if (dtype == DType::kI64) Upload<int64_t>(compiled, name, values);
  if (dtype == DType::kU8) Upload<uint8_t>(compiled, name, values);
}

std::vector<double> GetOutput(Compiled& compiled, const std::string& name, DType dtype) {
  const std::vector<float> values = compiled.Get("output/" + name);
  if (dtype == DType::kF32) return {values.begin(), values.end()};
  std::vector<int32_t> integers(values.size());
  std::memcpy(integers.data(), values.data(), values.size() * sizeof(float));
  return {integers.begin(), integers.end()};
}

}  // namespace

std::vector<TensorType> TypesOf(const std::vector<Operand>& operands, DType tested) {
  std::vector<TensorType> types;
  for (const Operand& operand : operands)
    types.push_back({DTypeOf(operand.type, tested), {operand.dims.begin(), operand.dims.end()}});
  return types;
}

Attributes AttributesOf(const OpCase& one) { return {one.attributes.data(), one.attributes.size()}; }

Wanted WantedOf(const OpCase& one, DType tested) {
  Wanted wanted;
  for (const TensorType& type : TypesOf(one.outputs, tested)) wanted.dtypes.push_back(type.dtype);
  wanted.shape.emplace(one.outputs[0].dims.begin(), one.outputs[0].dims.end());
  return wanted;
}

CaseNode AddCase(Graph& graph, const OpCase& one) {
  CaseNode node;
  for (const TensorType& type : TypesOf(one.inputs, DType::kF32))
    node.inputs.push_back(graph.Input("i" + std::to_string(node.inputs.size()), type, {}));
  node.results = graph.Add(one.op, node.inputs, AttributesOf(one), WantedOf(one, DType::kF32));
  return node;
}

Differentiated DifferentiatedBy(const OpCase& one) {
  const std::vector<OpCase>& cases = conform::OpCases();
  const auto index = static_cast<int>(&one - cases.data());
  std::set<int> inputs, results;
  for (const OpCase& gradient : cases) {
    if (gradient.forward != index) continue;
    for (const Operand& output : gradient.outputs) inputs.insert(output.gradient_of);
    for (const Operand& input : gradient.inputs) {
      if (input.gradient_of >= 0) results.insert(input.gradient_of);
    }
  }
  const bool named = !results.empty();
  if (!named) {
    const std::vector<TensorType> types = TypesOf(one.inputs, DType::kF32);
    for (size_t i = 0; i < types.size(); ++i) {
      if (IsFloating(types[i].dtype)) inputs.insert(static_cast<int>(i));
    }
    results = {0};
  }
  return {{inputs.begin(), inputs.end()}, {results.begin(), results.end()}, named};
}

std::string NameOf(char kind, int index) { return kind + std::to_string(index); }

std::vector<bool> AddGradients(Graph& graph, const CaseNode& node, const Differentiated& by) {
  Value loss;
  for (const int o : by.results) {
    const Value dy = graph.Input(NameOf('g', o), node.results[o].type(), {});
    const Value part = ops::Sum(ops::Reshape(ops::Mul(node.results[o], dy), {-1}));
    loss = loss ? ops::Add(loss, part) : part;
  }
  std::vector<Value> wanted;
  for (const int i : by.inputs) wanted.push_back(node.inputs[i]);
  const std::vector<Value> gradients = Gradients(loss, wanted);
  std::vector<bool> given;
  for (size_t k = 0; k < wanted.size(); ++k) {
    if (gradients[k]) graph.Output(NameOf('d', by.inputs[k]), gradients[k]);
    given.push_back(static_cast<bool>(gradients[k]));
  }
  return given;
}

std::vector<NamedValues> RunGraph(const Graph& graph, TestDevice& test, const std::vector<NamedValues>& inputs) {
  std::vector<NamedValues> runs;
  const auto compiled = Compiled::Make(graph, test);
  EXPECT_TRUE(compiled.ok()) << Message(compiled.status());
  if (!compiled.ok()) return runs;
  for (const NamedValues& values : inputs) {
    for (const Node& node : graph.nodes()) {
      if (node.input && (*compiled)->layout->Find(node.name) != nullptr)  // an input that nothing reads has no place
        SetInput(**compiled, node.name, node.outputs[0].dtype, values.at(node.name));
    }
    const Status status = (*compiled)->instance->Run((*compiled)->stream);
    EXPECT_TRUE(status.ok()) << Message(status);
    if (!status.ok()) return runs;
    NamedValues& outputs = runs.emplace_back();
    for (const Node& node : graph.nodes()) {
      if (node.op == "output") outputs[node.name] = GetOutput(**compiled, node.name, graph.type(node.inputs[0]).dtype);
    }
  }
  return runs;
}

}  // namespace switchyard
