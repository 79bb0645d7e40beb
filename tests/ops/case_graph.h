// A case of the one table (tools/conform/op_cases.h) as a node of a graph, and that graph run on a device. What the
// tests of type rules, gradient rules, decompositions and parity share.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/host_tensor.h"
#include "tests/plan/world.h"
#include "tools/conform/op_cases.h"

namespace switchyard {

// The types of a case's inputs or outputs, with `tested` for the dtype under test.
std::vector<TensorType> TypesOf(const std::vector<conform::Operand>& operands, DType tested);
Attributes AttributesOf(const conform::OpCase& one);
// What the case asks of the type rule: its results' dtypes and the shape of the first.
Wanted WantedOf(const conform::OpCase& one, DType tested);

// The case's node in f32, with its inputs as graph inputs i0, i1, …
struct CaseNode {
  std::vector<Value> inputs, results;
};
CaseNode AddCase(Graph& graph, const conform::OpCase& one);

// The inputs that a case is differentiated by and the results that have an incoming gradient: what its gradient cases
// name, or all floating inputs and result 0 where it has none.
struct Differentiated {
  std::vector<int> inputs, results;
  bool named;  // by gradient cases
};
Differentiated DifferentiatedBy(const conform::OpCase& one);

// Adds incoming gradients g0, … for the results, and the gradients d0, … of Σ g·result as outputs; for each input
// whether the op's rule gives one.
std::vector<bool> AddGradients(Graph& graph, const CaseNode& node, const Differentiated& by);
std::string NameOf(char kind, int index);  // "i0", "o1", "g0", "d2"

// Values by the name of an input or output; integers are converted to and from the tensor's dtype.
using NamedValues = std::map<std::string, std::vector<double>>;
// Compiles `graph` and runs it once for every set of inputs; the outputs of each run. A test failure and fewer results
// where that fails.
std::vector<NamedValues> RunGraph(const Graph& graph, TestDevice& test, const std::vector<NamedValues>& inputs);

}  // namespace switchyard
