#include "core/graph/graph.h"

#include "core/graph/op.h"
#include "core/graph/ops/transfer.h"
#include "fmt/format.h"

namespace switchyard {

const TensorType& Value::type() const { return graph_->type(ref_); }

int64_t Value::dim(int axis) const {
  const Shape& s = shape();
  return s.at(axis < 0 ? s.size() + axis : axis);
}

void ThrowBuildError(const std::string& op, const std::string& problem, const std::vector<Value>& inputs,
                     std::source_location where) {
  std::string text = fmt::format("{}: {}", op, problem);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i])
      text += fmt::format("\n  input {}: {} {}", i, ToString(inputs[i].type()),
                          inputs[i].graph().node(inputs[i].ref().node).name);
  }
  text += fmt::format("\n  built at {}:{}", where.file_name(), where.line());
  throw BuildError(text);
}

std::string Graph::ScopedName(const std::string& name) const { return scope_.empty() ? name : scope_ + "." + name; }

// Taken at once, for the node that is appended next.
std::string Graph::UniqueName(const std::string& wanted) {
  if (names_.try_emplace(wanted, size()).second) return wanted;
  for (;;) {
    const std::string name = fmt::format("{}_{}", wanted, ++suffixes_[wanted]);
    if (names_.try_emplace(name, size()).second) return name;
  }
}

Value Graph::Input(const std::string& name, const TensorType& type, const InputInfo& info, Location where) {
  const std::string full = ScopedName(name);
  if (!names_.try_emplace(full, size()).second)
    ThrowBuildError("input", fmt::format("the name {} is taken", full), {}, where);
  Node node;
  node.op = "input";
  node.name = full;
  node.outputs.push_back(type);
  node.input = info;
  node.host = info.host;
  if (info.block < 0) node.input->block = block_;
  node.where = where;
  nodes_.push_back(std::move(node));
  verified_ = false;
  return {this, {size() - 1, 0}};
}

Value Graph::ConstantOfBytes(const std::string& name, const TensorType& type, std::vector<std::byte> content,
                             Location where) {
  if (static_cast<int64_t>(content.size()) != type.bytes()) {
    ThrowBuildError("constant", fmt::format("{}: {} bytes do not make {}", name, content.size(), ToString(type)), {},
                    where);
  }
  InputInfo info;
  info.role = Role::kConstant;
  info.content = std::make_shared<const std::vector<std::byte>>(std::move(content));
  return Input(name, type, info, where);
}

void Graph::CheckOwn(const std::string& op, const std::vector<Value>& inputs, Location where) const {
  for (const Value& input : inputs) {
    if (!input || &input.graph() != this)
      ThrowBuildError(op, "an input is missing or belongs to another graph", inputs, where);
  }
}

std::vector<Value> Graph::Append(Node node, const std::vector<Value>& inputs) {
  node.inputs.reserve(inputs.size());
  for (const Value& input : inputs) node.inputs.push_back(input.ref());
  node.host = RunsOnHost(*this, node);
  nodes_.push_back(std::move(node));
  verified_ = false;
  std::vector<Value> values;
  values.reserve(nodes_.back().outputs.size());
  for (size_t o = 0; o < nodes_.back().outputs.size(); ++o) values.push_back({this, {size() - 1, static_cast<int>(o)}});
  return values;
}

std::vector<Value> Graph::Add(const std::string& op, const std::vector<Value>& inputs, const Attributes& attributes,
                              const Wanted& wanted, Location where, const std::string& name) {
  CheckOwn(op, inputs, where);
  Node node;
  node.op = op;
  node.attributes = attributes;
  std::vector<TensorType> types;
  types.reserve(inputs.size());
  for (const Value& input : inputs) types.push_back(input.type());
  try {
    node.outputs = InferTypes(op, types, attributes, wanted);
  } catch (const TypeMismatch& mismatch) {
    ThrowBuildError(op, mismatch.what(), inputs, where);
  }
  node.name = UniqueName(name.empty() ? ScopedName(op) : name);
  node.phase = phase_;
  node.block = block_;
  node.where = where;
  return Append(std::move(node), inputs);
}

std::vector<Value> Graph::Region(const std::vector<Value>& inputs, const std::vector<TensorType>& results,
                                 Location where, const std::string& name) {
  CheckOwn("region", inputs, where);
  Node node;
  node.op = "region";
  node.name = UniqueName(name);
  node.outputs = results;
  node.phase = phase_;
  node.where = where;
  return Append(std::move(node), inputs);
}

void Graph::Assign(const Value& state, const Value& value, Location where) {
  if (!node(state.ref().node).input)
    ThrowBuildError("assign", "the target is not a named input", {state, value}, where);
  Add("assign", {state, value}, {}, {}, where, "assign/" + node(state.ref().node).name);
}

void Graph::Output(const std::string& name, const Value& value, Location where) {
  Add("output", {value}, {}, {}, where, name);
}

Value Graph::FindInput(const std::string& name) {
  const auto found = names_.find(name);
  if (found == names_.end() || !nodes_[found->second].input) return {};
  return {this, {found->second, 0}};
}

std::vector<int> Graph::Inputs(Role role) const {
  std::vector<int> ids;
  for (int id = 0; id < size(); ++id) {
    if (nodes_[id].input && nodes_[id].input->role == role) ids.push_back(id);
  }
  return ids;
}

std::vector<std::vector<int>> Graph::Users() const {
  std::vector<std::vector<int>> users(nodes_.size());
  for (int id = 0; id < size(); ++id) {
    for (const Ref& input : nodes_[id].inputs) users[input.node].push_back(id);
  }
  return users;
}

Graph::Scope::Scope(Graph& graph, const std::string& name) : graph_(graph), before_(graph.scope_) {
  graph.scope_ = graph.ScopedName(name);
}
Graph::Scope::Scope(Graph& graph) : graph_(graph), before_(graph.scope_) { graph.scope_.clear(); }
Graph::Scope::~Scope() { graph_.scope_ = before_; }

std::vector<Value> Graph::Clone(const Node& source, const std::vector<Value>& inputs) {
  return Clone(source, inputs, WantedOf(source));
}

std::vector<Value> Graph::Clone(const Node& source, const std::vector<Value>& inputs, const Wanted& wanted) {
  const Phase before = phase_;
  phase_ = source.phase;
  const std::vector<Value> values = HasInference(source.op)
                                        ? Add(source.op, inputs, source.attributes, wanted, source.where, source.name)
                                        : Region(inputs, source.outputs, source.where, source.name);
  phase_ = before;
  nodes_.back().block = source.block;
  nodes_.back().bucket = source.bucket;
  return values;
}

Wanted WantedOf(const Node& node) {
  Wanted wanted;
  wanted.dtypes.reserve(node.outputs.size());
  for (const TensorType& output : node.outputs) wanted.dtypes.push_back(output.dtype);
  if (!node.outputs.empty()) wanted.shape = node.outputs[0].shape;
  return wanted;
}

std::string Graph::ToText() const {
  std::string text;
  for (int id = 0; id < size(); ++id) {
    const Node& n = nodes_[id];
    text += fmt::format("%{} {} {} (", id, n.op, n.name);
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      text += fmt::format("{}%{}", i ? ", " : "", n.inputs[i].node);
      if (n.inputs[i].output > 0) text += fmt::format(".{}", n.inputs[i].output);
    }
    text += ")";
    for (size_t o = 0; o < n.outputs.size(); ++o) text += (o ? ", " : " -> ") + ToString(n.outputs[o]);
    text += "\n";
  }
  return text;
}

}  // namespace switchyard
