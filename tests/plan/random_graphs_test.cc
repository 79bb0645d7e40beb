// Random graphs: what ops, passes and the planner do to each other, which tests of one at a time do not see. Each graph
// is made of a seed: ops over values made before, some read several times, as views, slices and concatenations, as
// states, in mixed dtypes, and the gradients of a random loss. Its results are
//
// - those of its nodes run one by one on the reference plugin, from a plan of the reference and of the cpu plugin, with
//   fusion and without, where memory holds NaN before;
// - for a loss in f64, as central differences say;
// - the same bit for bit where random blocks are computed again in the backward pass;
// - those of ranks that divide random parameters along random axes.
//
// SWITCHYARD_RANDOM_GRAPHS=N tries N of each, from SWITCHYARD_RANDOM_GRAPHS_FROM on.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/environment.h"
#include "core/graph/gradients.h"
#include "core/graph/op.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/ops/softmax.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/passes.h"
#include "gtest/gtest.h"
#include "tests/plan/world.h"
#include "tools/conform/values.h"

namespace switchyard {
namespace {

using Numbers = std::map<std::string, std::vector<double>>;

// Draws that are the same everywhere: distributions of the standard library are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int Below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }
  bool Chance(int percent) { return Below(100) < percent; }
  double Number() { return static_cast<double>(engine_() >> 11) * 0x1p-52 - 1; }  // −1 … 1
  template <typename T>
  T Of(std::initializer_list<T> list) {
    return *(list.begin() + Below(static_cast<int>(list.size())));
  }

 private:
  std::mt19937_64 engine_;
};

// A graph and the values of its inputs.
struct RandomGraph {
  Graph graph;
  Numbers values;
  std::vector<Value> inputs;          // floating ones that may be differentiated by
  std::vector<GradientOf> gradients;  // of them
};

class Builder {
 public:
  Builder(RandomGraph& made, uint64_t seed, std::vector<DType> dtypes, bool states)
      : made_(made), g_(made.graph), dice_(seed), dtypes_(std::move(dtypes)), states_(states) {}

  void AddOps(int count) {
    for (int i = 0; i < count; ++i) AddOne();
  }
  // By node: blocks of the model begin at random places.
  void MarkBlocks() {
    int block = 0;
    for (int id = 0; id < g_.size(); ++id) {
      block += dice_.Chance(20);
      if (!g_.node(id).input) g_.mutable_node(id).block = block;
    }
  }
  // Ranks may divide random parameters, along random parts of an axis.
  void MarkDivisible() {
    for (const Value& input : made_.inputs) {
      if (input.rank() == 0 || dice_.Chance(40)) continue;
      DividedAxis axis = {dice_.Below(input.rank())};
      axis.extent = input.dim(axis.dimension);
      for (int64_t* const part : {&axis.outer, &axis.inner}) {
        const int64_t factor = dice_.Of<int64_t>({1, 1, 2, 3});
        if (axis.extent % factor != 0) continue;
        *part = factor;
        axis.extent /= factor;
      }
      g_.mutable_node(input.ref().node).input->divisible = axis;
    }
  }
  // Outputs "loss" and its gradients "d<input>".
  void AddLoss() {
    Value loss;
    for (int terms = 1 + dice_.Below(3); terms > 0; --terms) {
      const Value v = loss ? Any() : pool_.back();
      const Value weighted = ops::Mul(v, NewInput(v.shape(), v.dtype(), Role::kBatch));
      const Value part =
          ops::Cast(dice_.Chance(50) ? ops::Mean(weighted) : ops::Scale(ops::Sum(weighted), 0.1f), dtypes_[0]);
      loss = loss ? ops::Add(loss, part) : part;
    }
    g_.Output("loss", loss);
    const std::vector<Value> gradients = Gradients(loss, made_.inputs);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i]) continue;
      EXPECT_EQ(gradients[i].type(), made_.inputs[i].type());
      g_.Output("d" + NameOf(made_.inputs[i]), gradients[i]);
      made_.gradients.push_back({made_.inputs[i].ref(), gradients[i].ref()});
    }
  }
  void AddOutputs() {
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (i + 1 == pool_.size() || dice_.Chance(25)) g_.Output(fmt::format("o{}", i), pool_[i]);
    }
  }

 private:
  std::string NameOf(const Value& v) const { return g_.node(v.ref().node).name; }
  DType AnyDType() { return dtypes_[static_cast<size_t>(dice_.Below(static_cast<int>(dtypes_.size())))]; }
  int64_t Extent() { return dice_.Of<int64_t>({1, 2, 3, 4, 5, 8, 16}); }
  Shape AnyShape(int rank) {
    Shape shape;
    for (int i = 0; i < rank; ++i) shape.push_back(Extent());
    while (Elements(shape) > 1000) shape[static_cast<size_t>(dice_.Below(rank))] = 1;
    return shape;
  }
  Value NewInput(const Shape& shape, DType dtype, Role role, double least = -1) {
    InputInfo info;
    info.role = role;
    const Value v = g_.Input(fmt::format("i{}", g_.size()), {dtype, shape}, info);
    std::vector<double> values(static_cast<size_t>(v.type().elements()));
    for (double& value : values) value = least + 1 + dice_.Number();
    made_.values[NameOf(v)] = conform::Rounded(values, static_cast<sy_dtype>(dtype));
    if (role == Role::kParameter) made_.inputs.push_back(v);
    return v;
  }
  Value NewParameter(const Shape& shape, DType dtype) { return NewInput(shape, dtype, Role::kParameter); }
  Value Any() {
    if (pool_.empty() || dice_.Chance(5)) return NewParameter(AnyShape(1 + dice_.Below(4)), AnyDType());
    const int count = static_cast<int>(pool_.size());
    return pool_[static_cast<size_t>(dice_.Chance(50) ? count - 1 - dice_.Below(std::min(count, 3))
                                                      : dice_.Below(count))];
  }
  // A value of this type, if one of a few has as many elements; else a new parameter.
  Value Like(const Shape& shape, DType dtype) {
    for (int tries = 0; tries < 6; ++tries) {
      const Value v = Any();
      if (v.dtype() == dtype && v.type().elements() == Elements(shape)) return ops::Reshape(v, shape);
    }
    return NewParameter(shape, dtype);
  }
  // A value of this rank: the first axes of one of a higher rank are taken together.
  Value OfRank(int rank) {
    for (int tries = 0; tries < 6; ++tries) {
      const Value v = Any();
      if (v.rank() < rank) continue;
      Shape shape(v.shape().end() - rank, v.shape().end());
      shape[0] = -1;
      return ops::Reshape(v, shape);
    }
    return NewParameter(AnyShape(rank), AnyDType());
  }
  void Keep(const Value& v) {
    if (v.type().elements() <= 4000) pool_.push_back(v);
  }
  Value Channels(const Value& x) { return Like({x.dim(-1)}, dtypes_[0]); }

  void AddUnary() {
    const Value x = Any();
    switch (dice_.Below(5)) {
      case 0:
        return Keep(ops::AddScalar(ops::Scale(x, dice_.Of({0.5f, -1.0f, 0.0f})), 0.25f));
      case 1:
        return Keep(ops::Unary(SY_PW_RSQRT, ops::AddScalar(ops::Mul(x, x), 0.5f)));
      case 2:
        return Keep(ops::Cast(ops::Cast(x, AnyDType()), x.dtype()));
      default:
        return Keep(ops::Unary(dice_.Of<int>({SY_PW_TANH, SY_PW_SIGMOID, SY_PW_RELU, SY_PW_GELU, SY_PW_GELU_TANH,
                                              SY_PW_SILU, SY_PW_ABS, SY_PW_ERF}),
                               x));
    }
  }
  void AddBinary() {
    const Value a = Any();
    Shape shape = a.shape();
    if (dice_.Chance(20)) shape = {shape.back()};
    if (dice_.Chance(20)) shape[static_cast<size_t>(dice_.Below(static_cast<int>(shape.size())))] = 1;
    if (dice_.Chance(10)) shape = {};
    const Value b = dice_.Chance(10) ? a : Like(shape, dice_.Chance(80) ? a.dtype() : AnyDType());
    const bool turned = dice_.Chance(50);
    const Value x = turned ? b : a, y = turned ? a : b;
    switch (dice_.Below(4)) {
      case 0:
        return Keep(ops::Unary(SY_PW_TANH, ops::Mul(x, y)));
      case 1:
        return Keep(ops::Div(x, ops::AddScalar(ops::Mul(y, y), 1)));
      case 2:
        return Keep(ops::Sub(x, y));
      default:
        return Keep(ops::Add(x, y));
    }
  }
  // With what follows products in models.
  void AddProduct() {
    Value y;
    if (dice_.Chance(50)) {
      const Value x = OfRank(1 + dice_.Below(4));
      const int64_t width = Extent();
      y = ops::Linear(x, Like({width, x.dim(-1)}, x.dtype()), dice_.Chance(60) ? Like({width}, x.dtype()) : Value());
    } else {
      const Value a = OfRank(2 + dice_.Below(3));
      ops::MatmulOptions options;
      options.transpose_a = dice_.Chance(40);
      options.transpose_b = dice_.Chance(50);
      options.alpha = 0.5f;
      const int64_t inner = a.dim(options.transpose_a ? -2 : -1), width = Extent();
      Shape b(a.shape().begin(), a.shape().end() - 2);
      for (const bool first : {true, false}) b.push_back(first == options.transpose_b ? width : inner);
      if (dice_.Chance(50)) options.bias = Like({width}, a.dtype());
      y = ops::Matmul(a, Like(b, a.dtype()), options);
    }
    y = ops::Scale(y, 1);
    if (dice_.Chance(20)) Keep(y);
    if (dice_.Chance(30)) y = ops::Reshape(y, {-1, y.dim(-1)});
    if (dice_.Chance(40)) y = ops::Activation(y, 1 + dice_.Below(4));
    if (dice_.Chance(40)) y = ops::Add(y, dice_.Chance(20) ? y : Like(y.shape(), y.dtype()));
    Keep(y);
  }
  void AddNorm() {
    Value x = Any();
    if (dice_.Chance(50)) Keep(x = ops::Add(x, Like(x.shape(), x.dtype())));
    if (x.rank() == 0) return;
    if (dice_.Chance(60)) return Keep(ops::LayerNorm(x, Channels(x), Channels(x), 0.1f));
    if (x.type().elements() < 2 * x.dim(-1)) return;
    const Value mean = NewInput({x.dim(-1)}, dtypes_[0], Role::kState),
                variance = NewInput({x.dim(-1)}, dtypes_[0], Role::kState, 0.5);
    const ops::BatchNormed normed = ops::BatchNorm(x, Channels(x), Channels(x), mean, variance, 0.1f, 0.1f);
    if (states_) g_.Assign(mean, normed.running_mean);
    if (states_) g_.Assign(variance, normed.running_var);
    Value y = normed.y;
    if (dice_.Chance(50)) y = ops::Add(y, Like(y.shape(), y.dtype()));
    Keep(dice_.Chance(60) ? ops::Unary(SY_PW_RELU, y) : y);
  }
  void AddReduction() {
    const Value x = Any();
    if (x.rank() == 0) return;
    const auto axes = static_cast<uint32_t>(1 + dice_.Below((1 << x.rank()) - 1));
    const int reduction = dice_.Of<int>({SY_REDUCE_SUM, SY_REDUCE_MAX, SY_REDUCE_MIN, SY_REDUCE_SUM_OF_SQUARES});
    Keep(ops::Unary(SY_PW_TANH, ops::Reduce(x, reduction, axes, dice_.Of({1.0f, 0.3f}), dice_.Chance(50))));
  }
  void AddLayout() {
    const Value x = Any();
    if (x.rank() == 0) return;
    const int axis = dice_.Chance(50) ? 0 : dice_.Below(x.rank());
    switch (dice_.Below(6)) {
      case 0: {
        std::vector<int> axes(static_cast<size_t>(x.rank()));
        for (int i = 0; i < x.rank(); ++i) axes[static_cast<size_t>(i)] = (i + axis) % x.rank();
        return Keep(ops::Transpose(x, axes));
      }
      case 1: {
        const auto start = dice_.Below(static_cast<int>(x.dim(axis)));
        return Keep(ops::Slice(x, axis, start, 1 + dice_.Below(static_cast<int>(x.dim(axis)) - start)));
      }
      case 2: {
        std::vector<int> shift;
        for (int i = 0; i < x.rank(); ++i) shift.push_back(dice_.Below(5) - 2);
        return Keep(ops::Roll(x, shift));
      }
      case 3: {
        Shape before(x.shape().size(), 0), after = before;
        before[static_cast<size_t>(axis)] = dice_.Below(3);
        after[static_cast<size_t>(axis)] = 1;
        return Keep(ops::Pad(x, before, after, 0.25f));
      }
      case 4:
        return Keep(ops::Reshape(x, {-1, dice_.Chance(50) ? x.dim(-1) : 1}));
      default: {
        std::vector<Value> parts;
        for (const int at = dice_.Below(3); parts.size() < 3;) {
          Shape shape = x.shape();
          shape[static_cast<size_t>(axis)] = Extent();
          parts.push_back(static_cast<int>(parts.size()) == at || dice_.Chance(15) ? x : Like(shape, x.dtype()));
        }
        const Value joined = ops::Concat(parts, axis);
        Keep(joined);
        if (dice_.Chance(50)) Keep(ops::Slice(joined, axis, parts[0].dim(axis), parts[1].dim(axis)));
      }
    }
  }
  void AddAttention() {
    const int64_t samples = dice_.Of<int64_t>({1, 2}), tokens = dice_.Of<int64_t>({1, 4, 5}), heads = 2, width = 8;
    const DType dtype = AnyDType();
    const Value x = Like({samples, tokens, heads * width}, dtype);
    const Value qkv = ops::Linear(x, NewParameter({3 * heads * width, heads * width}, dtype), Value());
    const Value bias = dice_.Chance(50) ? Like({heads, tokens, tokens}, AnyDType()) : Value();
    Keep(ops::Reshape(ops::Attention(ops::Scale(ops::Reshape(qkv, {samples, tokens, 3, heads, width}), 0.3f), bias),
                      x.shape()));
  }
  void AddConvolution() {
    const DType dtype = AnyDType();
    const Value x = Like({dice_.Of<int64_t>({1, 2}), 4, 4, dice_.Of<int64_t>({2, 4})}, dtype);
    const Value bias = dice_.Chance(50) ? Like({4}, AnyDType()) : Value();
    Keep(ops::Unary(SY_PW_TANH, ops::Convolution(x, NewParameter({4, 3, 3, x.dim(-1)}, dtype), bias, {.padding = 1})));
  }
  // A state that becomes another value, perhaps another state's old one, and is read before and behind that.
  void AddState() {
    const Value x = Any(), state = NewInput(x.shape(), x.dtype(), Role::kState);
    if (!states_) return Keep(state);
    Value next = dice_.Chance(50) ? ops::Add(ops::Scale(state, 0.5f), x) : x;
    if (dice_.Chance(30)) {
      const Value other = NewInput(x.shape(), x.dtype(), Role::kState);
      g_.Assign(other, state);
      next = other;
    }
    g_.Assign(state, next);
    if (dice_.Chance(60)) Keep(state);
    if (dice_.Chance(30)) Keep(ops::Reshape(state, {-1}));
  }
  void AddOne() {
    using Add = void (Builder::*)();
    (this->*dice_.Of<Add>({&Builder::AddUnary, &Builder::AddUnary, &Builder::AddBinary, &Builder::AddBinary,
                           &Builder::AddProduct, &Builder::AddProduct, &Builder::AddNorm, &Builder::AddNorm,
                           &Builder::AddReduction, &Builder::AddLayout, &Builder::AddLayout, &Builder::AddAttention,
                           &Builder::AddConvolution, &Builder::AddState, &Builder::AddSoftmax}))();
  }
  void AddSoftmax() {
    const Value x = Any();
    if (x.rank() > 0) Keep(ops::Softmax(x));
  }

  RandomGraph& made_;
  Graph& g_;
  Dice dice_;
  const std::vector<DType> dtypes_;
  const bool states_;
  std::vector<Value> pool_;  // floating values
};

// What a run leaves: outputs, and states by the names of their inputs.
std::map<std::string, TensorType> ResultsOf(const Graph& graph) {
  std::map<std::string, TensorType> results;
  for (const Node& node : graph.nodes()) {
    if (IsOutput(node)) results["output/" + node.name] = graph.type(node.inputs[0]);
    if (IsAssign(node)) results[graph.node(node.inputs[0].node).name] = graph.type(node.inputs[0]);
  }
  return results;
}

conform::Bytes BytesOf(const Node& input, const Numbers& values) {
  return conform::Encode(values.at(input.name), static_cast<sy_dtype>(input.outputs[0].dtype));
}

class RandomGraphs : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"reference", "cpu"}) {
      auto opened = TestDevice::Open(name, 1);
      ASSERT_TRUE(opened.ok()) << Message(opened.status());
      devices_[name] = std::move(*opened);
    }
  }
  // Calls `check` with each seed.
  static void ForEach(int count, const std::function<void(uint64_t)>& check) {
    const auto number = [](const char* name, int otherwise) {
      int value = otherwise;
      if (const auto text = Environment(name)) {
        EXPECT_TRUE(absl::SimpleAtoi(*text, &value)) << name;
      }
      return value;
    };
    const int from = number("SWITCHYARD_RANDOM_GRAPHS_FROM", 0);
    for (int seed = from; seed < from + number("SWITCHYARD_RANDOM_GRAPHS", count); ++seed) {
      SCOPED_TRACE(fmt::format("SWITCHYARD_RANDOM_GRAPHS_FROM={} SWITCHYARD_RANDOM_GRAPHS=1", seed));
      check(static_cast<uint64_t>(seed));
    }
  }
  // Node by node on the reference plugin: a graph for each rank of a tensor group, and what the last one finds.
  StatusOr<Numbers> Interpret(const std::vector<const Graph*>& graphs, const Numbers& values) {
    const int last = static_cast<int>(graphs.size()) - 1;
    MeshInterpreter ranks(Mesh{.tensor = last + 1}, *devices_["reference"]->device);
    for (int rank = 0; rank <= last; ++rank) {
      for (const Node& node : graphs[static_cast<size_t>(rank)]->nodes()) {
        if (!node.input) continue;
        conform::Bytes bytes = BytesOf(node, values);
        if (const auto& part = node.input->part) {
          const conform::Bytes whole =
              std::exchange(bytes, conform::Bytes(static_cast<size_t>(node.outputs[0].bytes())));
          CutPart(*part, static_cast<size_t>(SizeOf(node.outputs[0].dtype)),
                  reinterpret_cast<const std::byte*>(whole.data()), reinterpret_cast<std::byte*>(bytes.data()));
        }
        ranks.Set(rank, node.name, bytes.data(), bytes.size());
      }
    }
    SY_RETURN_IF_ERROR(ranks.Run(graphs));
    Numbers results;
    for (const auto& [name, type] : ResultsOf(*graphs.back())) {
      const std::string plain = name.starts_with("output/") ? name.substr(7) : name;
      SY_ASSIGN_OR_RETURN(const std::vector<char> bytes, ranks.Get(last, plain));
      results[name] = conform::Decode({bytes.begin(), bytes.end()}, static_cast<sy_dtype>(type.dtype));
    }
    return results;
  }
  StatusOr<Numbers> Interpret(const Graph& graph, const Numbers& values) { return Interpret({{&graph}}, values); }
  // By a plan, in memory that is full of NaN.
  StatusOr<Numbers> Run(const Graph& graph, const Numbers& values, const std::string& device, bool fuse) {
    PlanOptions options;
    options.fuse = fuse;
    SY_ASSIGN_OR_RETURN(const auto c, Compiled::Make(graph, *devices_[device], options));
    for (const int arena : {kActivationsArena, kScratchArena, kIoArena}) {
      const Buffer& buffer = c->memory->buffer(arena);
      const std::vector<char> poison(buffer.bytes(), '\xFF');
      if (!poison.empty()) SY_RETURN_IF_ERROR(c->memory->device().Upload(buffer.at(0), poison.data(), poison.size()));
    }
    for (const Node& node : graph.nodes()) {
      if (!node.input || c->layout->Find(node.name) == nullptr) continue;
      const conform::Bytes bytes = BytesOf(node, values);
      SY_RETURN_IF_ERROR(c->memory->Upload(node.name, bytes.data(), bytes.size()));
    }
    SY_RETURN_IF_ERROR(c->instance->Run(c->stream));
    SY_RETURN_IF_ERROR(c->memory->device().Synchronize());
    Numbers results;
    for (const auto& [name, type] : ResultsOf(graph)) {
      conform::Bytes bytes(static_cast<size_t>(type.bytes()));
      SY_RETURN_IF_ERROR(c->memory->Download(name, bytes.data(), bytes.size()));
      results[name] = conform::Decode(bytes, static_cast<sy_dtype>(type.dtype));
    }
    return results;
  }
  // On every device, with fusion and without.
  void ForEachPlan(const std::function<void(const std::string& device, bool fuse)>& check) {
    for (const char* device : {"reference", "cpu"}) {
      for (const bool fuse : {true, false}) {
        SCOPED_TRACE(fmt::format("{}, fuse {}", device, fuse));
        check(device, fuse);
      }
    }
  }

  std::map<std::string, std::unique_ptr<TestDevice>> devices_;
};

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

TEST_F(RandomGraphs, GiveWhatTheirNodesGiveOneByOne) {
  ForEach(60, [&](uint64_t seed) {
    const DType narrow = seed % 3 == 0 ? (seed % 2 == 0 ? DType::kBF16 : DType::kF16) : DType::kF32;
    const double epsilon = narrow == DType::kBF16 ? 0x1p-7 : narrow == DType::kF16 ? 0x1p-10 : 1e-6;
    RandomGraph made;
    Builder builder(made, seed, {DType::kF32, narrow, narrow}, true);
    builder.AddOps(5 + static_cast<int>(seed % 16));
    builder.AddLoss();
    builder.AddOutputs();
    const auto expected = Interpret(made.graph, made.values);
    ASSERT_TRUE(expected.ok()) << Message(expected.status());
    // How much rounding may do: as much as inputs that are rounded otherwise.
    Numbers other = made.values;
    Dice dice(seed);
    for (auto& [name, values] : other) {
      for (double& value : values) value *= 1 + dice.Of({epsilon, -epsilon});
    }
    const auto moved = Interpret(made.graph, other);
    ASSERT_TRUE(moved.ok()) << Message(moved.status());
    ForEachPlan([&](const std::string& device, bool fuse) {
      const auto found = Run(made.graph, made.values, device, fuse);
      ASSERT_TRUE(found.ok()) << Message(found.status());
      for (const auto& [name, values] : *expected) {
        double movement = 0;
        for (size_t i = 0; i < values.size(); ++i)
          movement = std::max(movement, std::abs(values[i] - moved->at(name)[i]));
        const double allowed = 20 * epsilon * std::max(Largest(values), 0.1) + 30 * movement;
        for (size_t i = 0; i < values.size() && !HasFailure(); ++i)
          EXPECT_NEAR(found->at(name)[i], values[i], allowed) << name << " " << i << "\n" << made.graph.ToText();
      }
    });
  });
}

TEST_F(RandomGraphs, HaveTheGradientsThatDifferencesHave) {
  ForEach(20, [&](uint64_t seed) {
    RandomGraph made;
    Builder builder(made, seed, {DType::kF64}, false);
    builder.AddOps(4 + static_cast<int>(seed % 10));
    builder.AddLoss();
    const auto at = Interpret(made.graph, made.values);
    ASSERT_TRUE(at.ok()) << Message(at.status());
    Dice dice(seed);
    for (const Value& input : made.inputs) {
      const std::string& name = made.graph.node(input.ref().node).name;
      std::vector<double> direction(made.values.at(name).size());
      for (double& d : direction) d = dice.Of({1.0, -1.0});
      double expected = 0, size = 0;
      if (const auto gradient = at->find("output/d" + name); gradient != at->end()) {
        for (size_t i = 0; i < direction.size(); ++i) expected += gradient->second[i] * direction[i];
        for (const double value : gradient->second) size += std::abs(value);
      }
      // Statistics are f32, and extrema and relu have kinks: one of several steps suits.
      double least = std::numeric_limits<double>::infinity();
      for (const double step : {1e-5, 1e-4, 1e-6, 1e-3}) {
        double losses[2];
        for (const int side : {0, 1}) {
          Numbers moved = made.values;
          for (size_t i = 0; i < direction.size(); ++i) moved[name][i] += (side == 0 ? -step : step) * direction[i];
          const auto found = Interpret(made.graph, moved);
          ASSERT_TRUE(found.ok()) << Message(found.status());
          losses[side] = found->at("output/loss")[0];
        }
        least = std::min(least, std::abs((losses[1] - losses[0]) / (2 * step) - expected));
        if (least <= 1e-3 * size + 1e-6) break;
      }
      EXPECT_LE(least, 1e-3 * size + 1e-6) << name << "\n" << made.graph.ToText();
    }
  });
}

TEST_F(RandomGraphs, KeepEveryBitWhereBlocksAreComputedAgain) {
  ForEach(60, [&](uint64_t seed) {
    RandomGraph made;
    Builder builder(made, seed, {DType::kF32}, true);
    builder.AddOps(5 + static_cast<int>(seed % 16));
    builder.MarkBlocks();
    builder.AddLoss();
    builder.AddOutputs();
    Program program;
    program.plans.emplace_back().graph = made.graph;
    program.plans[0].gradients = made.gradients;
    ProgramOptions options;
    options.recompute = 1;
    RecomputePass().apply(program, options);
    ForEachPlan([&](const std::string& device, bool fuse) {
      const auto whole = Run(made.graph, made.values, device, fuse);
      ASSERT_TRUE(whole.ok()) << Message(whole.status());
      const auto again = Run(program.plans[0].graph, made.values, device, fuse);
      ASSERT_TRUE(again.ok()) << Message(again.status());
      EXPECT_EQ(*again, *whole) << made.graph.ToText();
    });
  });
}

TEST_F(RandomGraphs, AreTheSameOnRanksThatDivideParameters) {
  int divided = 0, tried = 0;
  ForEach(60, [&](uint64_t seed) {
    RandomGraph made;
    Builder builder(made, seed, {DType::kF64}, false);
    builder.AddOps(5 + static_cast<int>(seed % 16));
    builder.MarkDivisible();
    builder.AddLoss();
    builder.AddOutputs();
    ProgramOptions options;
    options.mesh.tensor = 2 + static_cast<int>(seed % 2);
    options.sequence = seed % 4 > 1;
    std::vector<Program> programs;
    std::vector<const Graph*> graphs;
    ++tried;
    try {
      for (int rank = 0; rank < options.mesh.tensor; ++rank) {
        Program& program = programs.emplace_back();
        program.mesh = options.mesh;
        program.rank = rank;
        program.plans.emplace_back().graph = made.graph;
        program.plans[0].gradients = made.gradients;
        TensorParallelPass().apply(program, options);
      }
    } catch (const BuildError&) {
      return;  // nothing to divide, or an op that cannot do without its bias
    }
    ++divided;
    for (const Program& program : programs) graphs.push_back(&program.plans[0].graph);
    const auto expected = Interpret(made.graph, made.values), found = Interpret(graphs, made.values);
    ASSERT_TRUE(expected.ok()) << Message(expected.status());
    ASSERT_TRUE(found.ok()) << Message(found.status());
    for (const auto& [name, values] : *expected) {
      for (size_t i = 0; i < values.size() && !HasFailure(); ++i)
        EXPECT_NEAR(found->at(name)[i], values[i], 1e-5 * std::max(Largest(values), 0.1)) << name << " " << i << "\n"
                                                                                          << made.graph.ToText();
    }
  });
  EXPECT_GE(divided, tried / 2);
}

}  // namespace
}  // namespace switchyard
