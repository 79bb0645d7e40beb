// The graph: what a training step computes, in SSA form, with static shapes and no word about devices. A model builds
// the forward part through the builders of core/graph/ops; passes (core/graph/passes) turn graphs into graphs;
// core/plan turns one into launches.
//
// Nodes are kept in an order in which every input comes before its use. Names are stable and unique: random numbers,
// fixtures, checkpoints and reports key on names, never on ids. Building a graph wrongly throws BuildError; nothing
// else here fails. Not thread-safe; a finished graph may be read from any thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph/part.h"
#include "core/graph/types.h"

namespace switchyard {

class Graph;

// A shape or dtype that does not fit, while a graph is built. what() names the op, the shapes and the source line.
class BuildError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One output of one node, by index. Stable while its graph only grows.
struct Ref {
  int node = -1, output = 0;
  bool operator==(const Ref&) const = default;
  auto operator<=>(const Ref&) const = default;
};

// A Ref together with its graph: what builders take and return. A default-constructed Value is "none".
class Value {
 public:
  Value() = default;
  Value(Graph* graph, Ref ref) : graph_(graph), ref_(ref) {}
  explicit operator bool() const { return graph_ != nullptr; }
  Graph& graph() const { return *graph_; }
  Ref ref() const { return ref_; }
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int64_t dim(int axis) const;  // negative counts from the end
  int rank() const { return static_cast<int>(shape().size()); }

 private:
  Graph* graph_ = nullptr;
  Ref ref_;
};

// The attribute struct of core/abi/ops.h that belongs to a node's op, as bytes that compare and hash. Copies share
// them.
class Attributes {
 public:
  Attributes() = default;
  template <typename T>
  explicit Attributes(const T& attributes)
      : Attributes(reinterpret_cast<const unsigned char*>(&attributes), sizeof(T)) {}
  // A struct that is at hand as bytes.
  Attributes(const unsigned char* bytes, size_t size)
      : bytes_(size == 0 ? nullptr : std::make_shared<const std::vector<unsigned char>>(bytes, bytes + size)) {}
  template <typename T>
  const T& as() const {
    if (size() != sizeof(T)) throw std::logic_error("attributes of another op");
    return *static_cast<const T*>(data());
  }
  const void* data() const { return bytes_ ? bytes_->data() : nullptr; }
  uint32_t size() const { return bytes_ ? static_cast<uint32_t>(bytes_->size()) : 0; }
  bool operator==(const Attributes& other) const {
    return bytes_ == other.bytes_ || (bytes_ && other.bytes_ && *bytes_ == *other.bytes_);
  }

 private:
  std::shared_ptr<const std::vector<unsigned char>> bytes_;  // null: none
};

// What a named input is for: where its memory lives and who fills it.
enum class Role {
  kParameter,  // trained; saved in checkpoints
  kState,      // optimizer moments, counters, running statistics; saved
  kCopy,       // the half-precision copy of a parameter (core/parallel/half_weights.h); made anew, not saved
  kConstant,   // uploaded once: tables
  kGradient,   // gradient accumulators; not saved
  kBatch       // filled for every step
};

// How a parameter starts; the seed fixes it, through its name.
struct Initializer {
  enum Kind { kZeros, kConstant, kNormal, kTruncatedNormal, kUniform } kind = kZeros;
  float value = 0;  // kConstant: the value; kNormal, kTruncatedNormal: the standard deviation (cut at ±2, absolute, as
                    // timm); kUniform: the bound
};

struct InputInfo {
  Role role = Role::kBatch;
  Initializer initializer;
  bool weight_decay = true;  // parameters only: false for biases, norms, position tables
  int block = -1;            // of the model, in which the input is made; Graph::Input sets it
  int layers_above = -1;     // parameters only: how many layers of the model lie above its own; −1: nobody said
  // State only: it is the model's own, as running statistics are. It starts with `initializer`, files of weights hold
  // it, and it is equal on all ranks after each update, unless a run keeps that of each (--broadcast_buffers=0).
  bool of_model = false;
  bool average = false;  // state only: it stands for the parameter of which it is the average
  bool host = false;     // parameters, their copies and state: it lies in host memory
  bool of_rank = false;  // state only: each rank of a data group has its own
  // Parameters and what follows them (averages, moments): the axis along which a group of tensor-parallel ranks may
  // divide it, and the part that this rank holds where they do.
  std::optional<DividedAxis> divisible;
  std::optional<Part> part;
  // Constants only: row-major elements, where the graph knows them (Graph::Constant); others are uploaded by whoever
  // runs the graph.
  std::shared_ptr<const std::vector<std::byte>> content;
};

enum class Phase { kForward, kBackward, kUpdate };

// What is asked of an op where its inputs and attributes leave a choice: the dtypes of its first results (f32 from a
// product of halves), the shape of result 0 (a reshape's target). An op takes from it what its definition says and
// refuses what it cannot give; empty asks for nothing.
struct Wanted {
  std::vector<DType> dtypes;
  std::optional<Shape> shape;
};

struct Node {
  std::string op;  // "matmul"; also "input", "assign", "output", "reshape", which no kernel runs
  std::string name;
  Attributes attributes;
  std::vector<Ref> inputs;
  std::vector<TensorType> outputs;
  std::vector<int> control;  // nodes that must run before, beside those of the inputs
  int forward = -1;          // for a backward op: the forward node it is paired with (may share residual bytes)
  int repeats = -1;  // the node, or the region with the node, of which this is a second computation, bit for bit
  Phase phase = Phase::kForward;
  int block = -1;  // of the model (Graph::Block), for gradients too; −1 where there is none, as of inputs
  std::source_location where;
  std::optional<InputInfo> input;  // op "input"
  std::string bucket;              // not "": output 0 lives in the gradients arena under this name
  // It runs on the host, and its results lie there: inferred, as their types are. What reads values of the host does; a
  // store and a fetch (ops/transfer.h) lead there and back.
  bool host = false;
};

// The nodes of a graph, by id. They lie in blocks and stay where they are while more are added.
class NodeList {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Node;
    using difference_type = ptrdiff_t;
    using pointer = const Node*;
    using reference = const Node&;
    Iterator() = default;
    Iterator(const NodeList* list, size_t id) : list_(list), id_(id) {}
    const Node& operator*() const { return (*list_)[id_]; }
    const Node* operator->() const { return &(*list_)[id_]; }
    Iterator& operator++() { return ++id_, *this; }
    Iterator operator++(int) { return {list_, id_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    const NodeList* list_ = nullptr;
    size_t id_ = 0;
  };

  NodeList() = default;
  NodeList(const NodeList& other) {
    for (const Node& node : other) push_back(node);
  }
  NodeList(NodeList&&) noexcept = default;
  NodeList& operator=(NodeList other) noexcept {
    blocks_ = std::move(other.blocks_);
    return *this;
  }

  size_t size() const { return blocks_.empty() ? 0 : (blocks_.size() - 1) * kBlock + blocks_.back().size(); }
  Node& operator[](size_t id) { return blocks_[id / kBlock][id % kBlock]; }
  const Node& operator[](size_t id) const { return blocks_[id / kBlock][id % kBlock]; }
  const Node& back() const { return blocks_.back().back(); }
  void push_back(Node node) {
    if (blocks_.empty() || blocks_.back().size() == kBlock) blocks_.emplace_back().reserve(kBlock);
    blocks_.back().push_back(std::move(node));
  }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  static constexpr size_t kBlock = 32;
  std::vector<std::vector<Node>> blocks_;  // all but the last are full, none grows beyond kBlock
};

// The nodes of a graph by their names, which they alone keep: ids in an open-addressed table.
class NameTable {
 public:
  // The id of the node with this name; −1: there is none.
  int Find(const NodeList& nodes, std::string_view name) const;
  // Node `id`, whose name is new; the nodes before it are there.
  void Add(const NodeList& nodes, int id);

 private:
  struct Slot {
    size_t hash = 0;
    int id = -1;  // −1: it is free
  };
  void Put(Slot slot);
  std::vector<Slot> slots_;  // none, or a power of two of them, at most half of which are taken
};

// A list of ids for each node, in one array.
class IdLists {
 public:
  IdLists() = default;
  // `visit` is called twice with a function add(node, id), and adds the same both times.
  template <typename Visit>
  IdLists(int nodes, const Visit& visit) : ends_(static_cast<size_t>(nodes) + 1, 0) {
    visit([&](int node, int) { ++ends_[static_cast<size_t>(node) + 1]; });
    for (size_t node = 1; node < ends_.size(); ++node) ends_[node] += ends_[node - 1];
    ids_.resize(ends_.back());
    std::vector<size_t> next(ends_.begin(), ends_.end() - 1);
    visit([&](int node, int id) { ids_[next[static_cast<size_t>(node)]++] = id; });
  }
  std::span<const int> operator[](int node) const {
    const size_t begin = ends_[static_cast<size_t>(node)];
    return {ids_.data() + begin, ends_[static_cast<size_t>(node) + 1] - begin};
  }

 private:
  std::vector<size_t> ends_;  // of the lists before each node, and of all
  std::vector<int> ids_;
};

class Graph {
 public:
  using Location = std::source_location;

  // A named input; the same name again is an error.
  Value Input(const std::string& name, const TensorType& type, const InputInfo& info,
              Location where = Location::current());
  // A table that the model knows when it is built: a named input with its elements, row-major. Memory::Allocate uploads
  // it; no checkpoint holds it.
  template <typename T>
  Value Constant(const std::string& name, const TensorType& type, const std::vector<T>& elements,
                 Location where = Location::current()) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(elements.data());
    return ConstantOfBytes(name, type, {bytes, bytes + elements.size() * sizeof(T)}, where);
  }
  // A node; the types of its results follow from the op's definition (core/graph/op.h). name "" derives one from the
  // scope and the op; a taken name gets a suffix _1, _2, …
  std::vector<Value> Add(const std::string& op, const std::vector<Value>& inputs, const Attributes& attributes = {},
                         const Wanted& wanted = {}, Location where = Location::current(), const std::string& name = "");
  // A part of the graph that a plugin compiled as one kernel (region/2), with the results that it computes.
  std::vector<Value> Region(const std::vector<Value>& inputs, const std::vector<TensorType>& results, Location where,
                            const std::string& name);
  // State `state` becomes `value` at the end of the step. Types must be equal.
  void Assign(const Value& state, const Value& value, Location where = Location::current());
  // Makes `value` readable by the host after each run under `name`.
  void Output(const std::string& name, const Value& value, Location where = Location::current());

  // The id of the node that was made with this name; −1: there is none.
  int Find(std::string_view name) const { return names_.Find(nodes_, name); }
  // The named input, or none.
  Value FindInput(const std::string& name);
  // Ids of the input nodes with this role, in order of creation.
  std::vector<int> Inputs(Role role) const;

  const NodeList& nodes() const { return nodes_; }
  const Node& node(int id) const { return nodes_[id]; }
  Node& mutable_node(int id) {
    verified_ = false;
    changed_.push_back(id);
    return nodes_[id];
  }
  // Ties between nodes, which change no types: see Node.
  void SetForward(int id, int forward) {
    verified_ = false;
    nodes_[id].forward = forward;
  }
  void SetRepeats(int id, int first) {
    verified_ = false;
    nodes_[id].repeats = first;
  }
  void AddControl(int id, int earlier);  // where it is not there yet
  int size() const { return static_cast<int>(nodes_.size()); }
  const TensorType& type(Ref ref) const { return nodes_[ref.node].outputs[ref.output]; }
  Value value(Ref ref) { return {this, ref}; }

  // For every node, the nodes that read each of its outputs: users()[node] = list of reader ids (with repeats for
  // repeated reads).
  IdLists Users() const;

  // Name prefix of what is built inside: { Scope scope(graph, "blocks.0"); … } gives "blocks.0.attn.qkv.weight". Nested
  // scopes join with '.'.
  class Scope {
   public:
    Scope(Graph& graph, const std::string& name);
    explicit Scope(Graph& graph);  // back at the root: no prefix, wherever it is opened
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    std::string before_;
  };
  // What is built while it lives belongs to block `index` of the model: one of those that repeat, counted from 0 in the
  // order in which data passes through them.
  class Block {
   public:
    Block(Graph& graph, int index) : graph_(graph), before_(graph.block_) { graph.block_ = index; }
    ~Block() { graph_.block_ = before_; }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    Graph& graph_;
    int before_;
  };
  // What is built from now on belongs to this phase.
  void SetPhase(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }
  std::string ScopedName(const std::string& name) const;

  // A copy of a node with other inputs, keeping name, attributes, phase, block and source line: what rewriting passes
  // use. Its results are inferred anew; dtypes and shape as before, unless `wanted` asks for others.
  std::vector<Value> Clone(const Node& node, const std::vector<Value>& inputs);
  std::vector<Value> Clone(const Node& node, const std::vector<Value>& inputs, const Wanted& wanted);
  // The same of a node of `source`: where inputs have the types that they have there, so do its results.
  std::vector<Value> Clone(const Graph& source, int id, const std::vector<Value>& inputs);

  // Takes out the nodes that are not marked, which none of the others reads; inputs come first then. Ids change.
  void Keep(const std::vector<bool>& marked);

  std::string ToText() const;  // one line a node

  // Whether Verify (core/graph/verify.h) has seen the graph since it last changed.
  bool verified() const { return verified_; }
  void SetVerified() {
    verified_ = true;
    changed_.clear();
  }
  // The nodes that were made or changed since then, but for copies of verified ones; some more than once.
  const std::vector<int>& changed() const { return changed_; }

 private:
  Value ConstantOfBytes(const std::string& name, const TensorType& type, std::vector<std::byte> content,
                        Location where);
  std::string UniqueName(std::string wanted);
  void CheckOwn(const std::string& op, const std::vector<Value>& inputs, Location where) const;
  // verified: as a node of a graph that was.
  std::vector<Value> Append(Node&& node, const std::vector<Value>& inputs, bool verified);
  // The types of an op's results; BuildError where it refuses the inputs.
  std::vector<TensorType> Inferred(const std::string& op, const std::vector<Value>& inputs,
                                   const Attributes& attributes, const Wanted& wanted, Location where) const;
  std::vector<Value> Copy(const Node& source, std::vector<TensorType> outputs, const std::vector<Value>& inputs,
                          bool verified);
  NodeList nodes_;
  NameTable names_;
  std::unordered_map<std::string, int> suffixes_;
  std::string scope_;
  Phase phase_ = Phase::kForward;
  int block_ = -1;
  bool verified_ = false;
  std::vector<int> changed_;
};

// What was asked for when `node` was made.
Wanted WantedOf(const Node& node);

[[noreturn]] void ThrowBuildError(const std::string& op, const std::string& problem, const std::vector<Value>& inputs,
                                  std::source_location where);

}  // namespace switchyard
