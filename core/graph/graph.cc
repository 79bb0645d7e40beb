#include "core/graph/graph.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "core/graph/op.h"
#include "core/graph/ops/transfer.h"
#include "fmt/format.h"

namespace switchyard {

// Otherwise a vector of graphs would copy them when it grows.
static_assert(std::is_nothrow_move_constructible_v<Graph>);

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

int NameTable::Find(const NodeList& nodes, std::string_view name) const {
  if (slots_.empty()) return -1;
  const size_t hash = std::hash<std::string_view>()(name);
  for (size_t at = hash;; ++at) {
    const Slot& slot = slots_[at & (slots_.size() - 1)];
    if (slot.id < 0 || (slot.hash == hash && nodes[slot.id].name == name)) return slot.id;
  }
}

void NameTable::Add(const NodeList& nodes, int id) {
  if (2 * static_cast<size_t>(id) + 2 > slots_.size()) {
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(std::max<size_t>(16, 2 * slots_.size())));
    for (const Slot& slot : before) {
      if (slot.id >= 0) Put(slot);
    }
  }
  Put({std::hash<std::string_view>()(nodes[id].name), id});
}

void NameTable::Put(Slot slot) {
  size_t at = slot.hash;
  while (slots_[at & (slots_.size() - 1)].id >= 0) ++at;
  slots_[at & (slots_.size() - 1)] = slot;
}

// For the node that is appended next.
std::string Graph::UniqueName(std::string wanted) {
  if (Find(wanted) < 0) return wanted;
  for (;;) {
    std::string name = fmt::format("{}_{}", wanted, ++suffixes_[wanted]);
    if (Find(name) < 0) return name;
  }
}

Value Graph::Input(const std::string& name, const TensorType& type, const InputInfo& info, Location where) {
  std::string full = ScopedName(name);
  if (Find(full) >= 0) ThrowBuildError("input", fmt::format("the name {} is taken", full), {}, where);
  Node node;
  node.op = "input";
  node.name = std::move(full);
  node.outputs.push_back(type);
  node.input = info;
  node.host = info.host;
  if (info.block < 0) node.input->block = block_;
  node.where = where;
  nodes_.push_back(std::move(node));
  names_.Add(nodes_, size() - 1);
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

std::vector<Value> Graph::Append(Node&& node, const std::vector<Value>& inputs, bool verified) {
  node.inputs.reserve(inputs.size());
  for (const Value& input : inputs) node.inputs.push_back(input.ref());
  node.host = RunsOnHost(*this, node);
  nodes_.push_back(std::move(node));
  names_.Add(nodes_, size() - 1);
  verified_ = false;
  if (!verified) changed_.push_back(size() - 1);
  std::vector<Value> values;
  values.reserve(nodes_.back().outputs.size());
  for (size_t o = 0; o < nodes_.back().outputs.size(); ++o) values.push_back({this, {size() - 1, static_cast<int>(o)}});
  return values;
}

std::vector<TensorType> Graph::Inferred(const std::string& op, const std::vector<Value>& inputs,
                                        const Attributes& attributes, const Wanted& wanted, Location where) const {
  CheckOwn(op, inputs, where);
  std::vector<TensorType> types;
  types.reserve(inputs.size());
  for (const Value& input : inputs) types.push_back(input.type());
  try {
    return InferTypes(op, types, attributes, wanted);
  } catch (const TypeMismatch& mismatch) {
    ThrowBuildError(op, mismatch.what(), inputs, where);
  }
}

std::vector<Value> Graph::Add(const std::string& op, const std::vector<Value>& inputs, const Attributes& attributes,
                              const Wanted& wanted, Location where, const std::string& name) {
  Node node;
  node.op = op;
  node.attributes = attributes;
  node.outputs = Inferred(op, inputs, attributes, wanted, where);
  node.name = UniqueName(name.empty() ? ScopedName(op) : name);
  node.phase = phase_;
  node.block = block_;
  node.where = where;
  return Append(std::move(node), inputs, false);
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
  return Append(std::move(node), inputs, false);
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
  const int id = Find(name);
  if (id < 0 || !nodes_[id].input) return {};
  return {this, {id, 0}};
}

std::vector<int> Graph::Inputs(Role role) const {
  std::vector<int> ids;
  for (int id = 0; id < size(); ++id) {
    if (nodes_[id].input && nodes_[id].input->role == role) ids.push_back(id);
  }
  return ids;
}

IdLists Graph::Users() const {
  return {size(), [this](const auto& add) {
            for (int id = 0; id < size(); ++id) {
              for (const Ref& input : nodes_[id].inputs) add(input.node, id);
            }
          }};
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
  if (!HasInference(source.op)) return Copy(source, source.outputs, inputs, false);
  return Copy(source, Inferred(source.op, inputs, source.attributes, wanted, source.where), inputs, false);
}

std::vector<Value> Graph::Clone(const Graph& source, int id, const std::vector<Value>& inputs) {
  const Node& node = source.node(id);
  bool same = source.verified() && inputs.size() == node.inputs.size();
  for (size_t i = 0; same && i < inputs.size(); ++i)
    same = inputs[i] && inputs[i].type() == source.type(node.inputs[i]);
  return same ? Copy(node, node.outputs, inputs, true) : Clone(node, inputs);
}

std::vector<Value> Graph::Copy(const Node& source, std::vector<TensorType> outputs, const std::vector<Value>& inputs,
                               bool verified) {
  CheckOwn(source.op, inputs, source.where);
  Node node;
  node.op = source.op;
  node.name = UniqueName(source.name);
  node.attributes = source.attributes;
  node.outputs = std::move(outputs);
  node.phase = source.phase;
  node.block = source.block;
  node.where = source.where;
  node.bucket = source.bucket;
  return Append(std::move(node), inputs, verified);
}

void Graph::AddControl(int id, int earlier) {
  verified_ = false;
  std::vector<int>& control = nodes_[id].control;
  if (std::find(control.begin(), control.end(), earlier) == control.end()) control.push_back(earlier);
}

void Graph::Keep(const std::vector<bool>& marked) {
  std::vector<int> moved(nodes_.size(), -1);  // old id → new id
  NodeList kept;
  for (const bool input : {true, false}) {
    for (int id = 0; id < size(); ++id) {
      if (!marked[id] || nodes_[id].input.has_value() != input) continue;
      moved[id] = static_cast<int>(kept.size());
      kept.push_back(std::move(nodes_[id]));
    }
  }
  const auto follow = [&](int& id) { id = id < 0 ? id : moved[id]; };
  for (size_t id = 0; id < kept.size(); ++id) {
    Node& node = kept[id];
    for (Ref& input : node.inputs) follow(input.node);
    for (int& earlier : node.control) follow(earlier);
    std::erase(node.control, -1);
    follow(node.forward);
    follow(node.repeats);
  }
  for (int& id : changed_) follow(id);
  std::erase(changed_, -1);
  nodes_ = std::move(kept);
  verified_ = false;
  names_ = {};
  for (int id = 0; id < size(); ++id) names_.Add(nodes_, id);
  suffixes_.clear();
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
