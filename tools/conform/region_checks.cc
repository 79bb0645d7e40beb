#include "tools/conform/region_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/base/random.h"
#include "tools/conform/op_data.h"
#include "tools/conform/stride_checks.h"

namespace switchyard::conform {
namespace {

// A graph of a few nodes over f32 tensors, with data for its inputs.
class SmallGraph {
 public:
  uint32_t Input(Dims dims) {
    inputs_.push_back(static_cast<uint32_t>(tensors_.size()));
    return Tensor(std::move(dims));
  }
  template <typename A>
  std::vector<uint32_t> Node(const char* op, A attributes, std::vector<uint32_t> inputs,
                             const std::vector<Dims>& outputs) {
    OneNode node{op, std::vector<uint8_t>(sizeof(A)), std::move(inputs), {}};
    std::memcpy(node.attributes.data(), &attributes, sizeof(A));
    for (const Dims& dims : outputs) node.outputs.push_back(Tensor(dims));
    nodes_.push_back(node);
    return node.outputs;
  }
  uint32_t Linear(uint32_t x, uint32_t weight, uint32_t bias, int activation = SY_ACTIVATION_NONE) {
    sy_matmul_attributes a{};
    a.transpose_b = 1;
    a.alpha = 1;
    a.bias = 1;
    a.activation = activation;
    Dims dims(tensors_[x].dims, tensors_[x].dims + tensors_[x].rank);
    dims.back() = tensors_[weight].dims[0];
    return Node("matmul", a, {x, weight, bias}, {dims})[0];
  }
  uint32_t Pointwise(int32_t operation, uint32_t x) {
    sy_pointwise_attributes a{};
    a.instruction_count = a.output_count = 1;
    a.instructions[0] = {operation, 0, 0, 0, 0};
    a.outputs[0] = 1;
    return Node("pointwise", a, {x}, {Dims(tensors_[x].dims, tensors_[x].dims + tensors_[x].rank)})[0];
  }
  void Output(uint32_t tensor) { outputs_.push_back(tensor); }

  Status Check(Device& device, Device& reference, uint64_t seed) const;

 private:
  struct OneNode {
    std::string op;
    std::vector<uint8_t> attributes;
    std::vector<uint32_t> inputs, outputs;
  };
  using Values = std::vector<std::vector<double>>;  // of every tensor
  // Some of the nodes, as the plugin sees them.
  struct View {
    std::vector<sy_tensor> tensors;
    std::vector<std::vector<uint32_t>> operands;  // inputs, then outputs, of each node
    std::vector<sy_region_node> nodes;
    std::vector<uint32_t> inputs, outputs;        // numbers in `tensors`
    std::vector<uint32_t> input_ids, output_ids;  // the same in the whole graph
    sy_region region{};
  };

  uint32_t Tensor(Dims dims) {
    tensors_.push_back(Contiguous(SY_F32, dims));
    return static_cast<uint32_t>(tensors_.size()) - 1;
  }
  View ViewOf(const std::vector<size_t>& members) const;
  StatusOr<Values> RunOnReference(Device& reference, uint64_t seed) const;
  Status CheckConvex(const std::vector<size_t>& members) const;
  Status CheckRegion(Device& device, const std::vector<size_t>& members, const Values& values) const;
  static Status CheckResults(Device& device, const View& view, const Values& values, const std::string& what);

  std::vector<sy_tensor> tensors_;
  std::vector<OneNode> nodes_;
  std::vector<uint32_t> inputs_, outputs_;
};

SmallGraph::View SmallGraph::ViewOf(const std::vector<size_t>& members) const {
  View view;
  std::map<uint32_t, uint32_t> numbers;
  std::set<uint32_t> made;
  const auto number = [&](uint32_t tensor) {
    const auto [entry, fresh] = numbers.emplace(tensor, static_cast<uint32_t>(view.tensors.size()));
    if (fresh) view.tensors.push_back(tensors_[tensor]);
    return entry->second;
  };
  for (const size_t n : members) made.insert(nodes_[n].outputs.begin(), nodes_[n].outputs.end());
  for (const size_t n : members) {
    for (const bool is_input : {true, false}) {
      view.operands.emplace_back();
      for (const uint32_t tensor : is_input ? nodes_[n].inputs : nodes_[n].outputs) {
        view.operands.back().push_back(number(tensor));
        if (!is_input || made.count(tensor)) continue;
        if (std::find(view.input_ids.begin(), view.input_ids.end(), tensor) != view.input_ids.end()) continue;
        view.input_ids.push_back(tensor);
        view.inputs.push_back(number(tensor));
      }
    }
  }
  // What leaves the region: outputs of the graph, and what other nodes read.
  for (const uint32_t tensor : made) {
    bool leaves = std::find(outputs_.begin(), outputs_.end(), tensor) != outputs_.end();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const bool inside = std::find(members.begin(), members.end(), n) != members.end();
      const auto& reads = nodes_[n].inputs;
      leaves = leaves || (!inside && std::find(reads.begin(), reads.end(), tensor) != reads.end());
    }
    if (!leaves) continue;
    view.output_ids.push_back(tensor);
    view.outputs.push_back(number(tensor));
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const OneNode& node = nodes_[members[i]];
    view.nodes.push_back({node.op.c_str(), node.attributes.data(), static_cast<uint32_t>(node.attributes.size()),
                          static_cast<uint32_t>(node.inputs.size()), static_cast<uint32_t>(node.outputs.size()),
                          view.operands[2 * i].data(), view.operands[2 * i + 1].data()});
  }
  view.region = {SY_HEADER(sy_region),
                 static_cast<uint32_t>(view.tensors.size()),
                 static_cast<uint32_t>(view.nodes.size()),
                 static_cast<uint32_t>(view.inputs.size()),
                 static_cast<uint32_t>(view.outputs.size()),
                 view.tensors.data(),
                 view.nodes.data(),
                 view.inputs.data(),
                 view.outputs.data()};
  return view;
}

StatusOr<SmallGraph::Values> SmallGraph::RunOnReference(Device& reference, uint64_t seed) const {
  Values values(tensors_.size());
  for (const uint32_t input : inputs_) values[input] = Random(Fill::kNormal, 0, tensors_[input], Key(seed, input));
  for (const OneNode& node : nodes_) {
    Problem problem{node.op, node.attributes, {}, {}, {}};
    for (const uint32_t tensor : node.inputs) {
      problem.inputs.push_back(tensors_[tensor]);
      problem.values.push_back(values[tensor]);
    }
    for (const uint32_t tensor : node.outputs) problem.outputs.push_back(tensors_[tensor]);
    auto results = RunOp(reference, InDoubles(problem));
    if (!results.ok()) return Annotate(results.status(), "reference");
    for (size_t o = 0; o < node.outputs.size(); ++o) values[node.outputs[o]] = (*results)[o];
  }
  return values;
}

// No path leaves the region and comes back into it.
Status SmallGraph::CheckConvex(const std::vector<size_t>& members) const {
  std::set<uint32_t> after;  // tensors outside that depend on the region
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const bool inside = std::find(members.begin(), members.end(), n) != members.end();
    bool depends = inside;
    for (const uint32_t tensor : nodes_[n].inputs) {
      if (inside && after.count(tensor))
        return Internal("a claimed region is not convex: node {} reads what depends on it", n);
      if (!inside && (after.count(tensor))) depends = true;
      for (const size_t member : members) {
        const auto& made = nodes_[member].outputs;
        if (!inside && std::find(made.begin(), made.end(), tensor) != made.end()) depends = true;
      }
    }
    if (!inside && depends) after.insert(nodes_[n].outputs.begin(), nodes_[n].outputs.end());
  }
  return OkStatus();
}

Status SmallGraph::CheckRegion(Device& device, const std::vector<size_t>& members, const Values& values) const {
  const std::string what = fmt::format("region of {} nodes", members.size());
  const View view = ViewOf(members);
  SY_RETURN_IF_ERROR(CheckResults(device, view, values, what));
  // What goes in and out, one tensor and all, may lie in another way, or be refused.
  for (const Layout& layout : Layouts()) {
    const auto check = [&](size_t first, size_t last, const std::string& which) -> Status {
      View laid = ViewOf(members);
      std::vector<uint32_t> edges = laid.inputs;
      edges.insert(edges.end(), laid.outputs.begin(), laid.outputs.end());
      bool any = false;
      for (size_t e = first; e < last; ++e) any |= layout.apply(laid.tensors[edges[e]]);
      const std::string name = fmt::format("{}, {} with {}", what, which, layout.name);
      const Status status = any ? CheckResults(device, laid, values, name) : OkStatus();
      if (status.ok() || status.code() == absl::StatusCode::kUnimplemented) return OkStatus();
      return status.code() == absl::StatusCode::kInternal ? status : Annotate(status, name);
    };
    const size_t inputs = view.inputs.size(), outputs = view.outputs.size();
    for (size_t i = 0; i < inputs; ++i) SY_RETURN_IF_ERROR(check(i, i + 1, fmt::format("input {}", i)));
    for (size_t o = 0; o < outputs; ++o)
      SY_RETURN_IF_ERROR(check(inputs + o, inputs + o + 1, fmt::format("output {}", o)));
    SY_RETURN_IF_ERROR(check(0, inputs + outputs, "every tensor"));
  }
  return OkStatus();
}

Status SmallGraph::CheckResults(Device& device, const View& view, const Values& values, const std::string& what) {
  constexpr double kLimit = 1e-5;  // of the root of the normalised squared error
  auto prepared = device.PrepareRegion(view.region, kWorkspaceLimit);
  if (!prepared.ok()) return prepared.status();  // it may refuse what it claimed: the nodes then run one by one
  Problem problem{"region", {}, {}, {}, {}};
  for (const uint32_t tensor : view.inputs) problem.inputs.push_back(view.tensors[tensor]);
  for (const uint32_t tensor : view.input_ids) problem.values.push_back(values[tensor]);
  for (const uint32_t tensor : view.outputs) problem.outputs.push_back(view.tensors[tensor]);
  SY_ASSIGN_OR_RETURN(const auto bound, BoundOp::Make(device, problem, *prepared, {}));
  for (int round = 0; round < 2; ++round) {
    SY_ASSIGN_OR_RETURN(const auto found, bound->Run());
    for (size_t o = 0; o < found.size(); ++o) {
      const std::vector<double>& expected = values[view.output_ids[o]];
      double error = 0, scale = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        error += (found[o][i] - expected[i]) * (found[o][i] - expected[i]);
        scale += expected[i] * expected[i];
      }
      if (!(std::sqrt(error) <= kLimit * std::sqrt(scale))) {
        return Internal("{}, output {} of run {}: relative error {:.2g}, at most {:.2g} is allowed", what, o, round,
                        std::sqrt(error / scale), kLimit);
      }
    }
  }
  return OkStatus();
}

Status SmallGraph::Check(Device& device, Device& reference, uint64_t seed) const {
  std::vector<size_t> everything(nodes_.size());
  for (size_t n = 0; n < everything.size(); ++n) everything[n] = n;
  const View whole = ViewOf(everything);
  std::vector<uint32_t> claims(nodes_.size() + 1, 0);
  claims.back() = 0xCDCDCDCD;  // not the plugin's to write
  SY_RETURN_IF_ERROR(device.Partition(whole.region, claims));
  if (claims.back() != 0xCDCDCDCD) return Internal("partition wrote more claims than there are nodes");
  claims.pop_back();
  std::map<uint32_t, std::vector<size_t>> regions;
  for (size_t n = 0; n < claims.size(); ++n) {
    if (claims[n] != 0) regions[claims[n]].push_back(n);
  }
  if (regions.empty()) return Unimplemented("it claims nothing here");
  SY_ASSIGN_OR_RETURN(const Values values, RunOnReference(reference, seed));
  for (const auto& [id, members] : regions) {
    SY_RETURN_IF_ERROR(CheckConvex(members));
    SY_RETURN_IF_ERROR(CheckRegion(device, members, values));
  }
  return OkStatus();
}

// The blocks of a transformer: two linear layers with an activation between, apart and fused; a norm before a linear
// layer; and a fork that comes together again, where a careless claim is not convex.
SmallGraph Mlp(bool fused) {
  SmallGraph graph;
  const uint32_t x = graph.Input({10, 12}), w1 = graph.Input({20, 12}), b1 = graph.Input({20}),
                 w2 = graph.Input({12, 20}), b2 = graph.Input({12});
  uint32_t hidden = graph.Linear(x, w1, b1, fused ? SY_ACTIVATION_GELU : SY_ACTIVATION_NONE);
  if (!fused) hidden = graph.Pointwise(SY_PW_GELU, hidden);
  graph.Output(graph.Linear(hidden, w2, b2));
  return graph;
}

SmallGraph NormThenLinear() {
  SmallGraph graph;
  const uint32_t x = graph.Input({10, 12}), gamma = graph.Input({12}), beta = graph.Input({12}),
                 w = graph.Input({36, 12}), b = graph.Input({36});
  sy_layer_norm_attributes norm{};
  norm.eps = 1e-6f;
  const auto normed = graph.Node("layer_norm", norm, {x, gamma, beta}, {{10, 12}, {10}, {10}});
  graph.Output(graph.Linear(normed[0], w, b));
  graph.Output(normed[1]);
  graph.Output(normed[2]);
  return graph;
}

SmallGraph Fork() {
  SmallGraph graph;
  const uint32_t x = graph.Input({7, 12}), w = graph.Input({12, 12}), b = graph.Input({12});
  const uint32_t hidden = graph.Pointwise(SY_PW_GELU, graph.Linear(x, w, b));
  const uint32_t left = graph.Linear(hidden, w, b), right = graph.Pointwise(SY_PW_TANH, hidden);
  sy_pointwise_attributes add{};
  add.instruction_count = add.output_count = 1;
  add.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
  add.outputs[0] = 2;
  const uint32_t sum = graph.Node("pointwise", add, {left, right}, {{7, 12}})[0];
  graph.Output(graph.Linear(graph.Pointwise(SY_PW_GELU, sum), w, b));
  graph.Output(hidden);
  return graph;
}

}  // namespace

void CheckRegions(Recorder& recorder, Device& device, Device& reference, uint64_t seed) {
  const auto run = [&](const char* name, const SmallGraph& graph) {
    recorder.Run(std::string("region/") + name, [&]() -> Status {
      return device.claims_regions() ? graph.Check(device, reference, seed)
                                     : Unimplemented("no region/2: nodes run one by one");
    });
  };
  run("mlp", Mlp(false));
  run("fused_mlp", Mlp(true));
  run("norm_and_linear", NormThenLinear());
  run("fork", Fork());
}

}  // namespace switchyard::conform
