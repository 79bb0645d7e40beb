// Ranks that divide a model's weights train as one rank that holds it all: losses, gradient norms and weights of some
// updates, for models, meshes and divisions that do not come out even; and with as few collectives as there should be.
// Where rounding has no say, they have its bits.
#include <bit>
#include <cmath>

#include "core/base/random.h"
#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/layers.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/program.h"
#include "gmock/gmock.h"
#include "models/mlp.h"
#include "models/swin.h"
#include "models/vit.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using Floats = std::vector<float>;
using Build = std::function<Value(nn::Context&, const Value& images)>;

constexpr int kBatch = 4, kSide = 28, kUpdates = 2;  // samples of an update; pixels

VisionTransformerConfig SmallVit(int heads) {
  VisionTransformerConfig c = {.image_size = kSide, .channels = 1, .classes = 10, .patch = 7, .width = 24, .depth = 2};
  c.heads = heads;
  c.mlp_ratio = 2;
  return c;
}
Build Vit(const VisionTransformerConfig& config) {
  return [config](nn::Context& context, const Value& images) { return VisionTransformer(config, context, images); };
}

SwinTransformerConfig SmallSwin() {
  SwinTransformerConfig c = {.image_size = kSide, .channels = 1, .classes = 10};
  c.patch = 2;
  c.width = 16;
  c.depths = {"2", "2"};
  c.heads = 2;
  c.window = 7;
  c.drop_path = 0;
  return c;
}
Build Swin(const SwinTransformerConfig& config) {
  return [config](nn::Context& context, const Value& images) { return SwinTransformer(config, context, images); };
}

// The classifier of a batch of this many samples. exact: its loss is a sum of squares, which rounds nothing.
Workload Classifier(const Build& build, int64_t batch, bool exact = false) {
  const auto logits = [=](nn::Context& context) {
    return build(context, context.graph.Input("images", {DType::kF32, {batch, kSide, kSide, 1}}, {}));
  };
  return {"classifier",
          [=](nn::Context& context) {
            const Value labels = context.graph.Input("labels", {DType::kI32, {batch}}, {});
            const Value results = logits(context);
            if (exact) return ops::Sum(ops::Mul(results, results));
            return ops::Mean(ops::CrossEntropy(results, labels, 0));
          },
          [=](nn::Context& context) { context.graph.Output("logits", logits(context)); }};
}

Floats Values(const std::string& name, size_t count, float centre, float spread) {
  RandomStream random(Key(HashName(name), count));
  Floats values(count);
  for (float& v : values) v = centre + spread * random.Uniform(-1, 1);
  return values;
}

struct Outcome {
  Floats losses, norms;
  std::map<std::string, Floats> parameters;  // whole
  Floats logits;                             // of the first samples
};

class TensorParallel : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }

  Outcome Train(const Build& build, ProgramOptions options) {
    options.table_length = kUpdates;
    options.seed = 7;
    const Mesh& mesh = options.mesh;
    const int64_t batch = kBatch / mesh.data / options.accumulation;
    std::vector<Program> programs;
    MeshInterpreter ranks(mesh, *test_->device);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      auto program = BuildProgram(Classifier(build, batch, exact_), options, rank);
      EXPECT_TRUE(program.ok()) << Message(program.status());
      if (!program.ok()) return {};
      programs.push_back(std::move(*program));
      const Graph& graph = programs.back().Find("update")->graph;
      for (const int id : graph.Inputs(Role::kParameter)) Set(ranks, rank, graph.node(id), Start(graph.node(id)));
      const Floats rates = {0.5f, 0.25f};
      ranks.Set(rank, "lr_table", rates.data(), rates.size() * sizeof(float));
    }
    Outcome outcome;
    for (int update = 0; update < updates_; ++update) {
      double loss = 0;
      for (const Action& action : programs[0].schedule) {
        std::vector<const Graph*> graphs;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          const int64_t first = (int64_t{action.micro_batch} * mesh.data + rank / mesh.tensor) * batch;
          GiveBatch(ranks, rank, update, first, batch);
          graphs.push_back(&programs[static_cast<size_t>(rank)].plans[static_cast<size_t>(action.plan)].graph);
        }
        const Status ran = ranks.Run(graphs);
        EXPECT_TRUE(ran.ok()) << Message(ran);
        for (int rank = 0; rank < mesh.size(); rank += mesh.tensor) loss += Get(ranks, rank, "loss").at(0);
      }
      outcome.losses.push_back(static_cast<float>(loss / mesh.data / options.accumulation));
      outcome.norms.push_back(Get(ranks, mesh.size() - 1, "grad_norm").at(0));
    }
    std::vector<const Graph*> graphs;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      GiveBatch(ranks, rank, 0, 0, batch);
      graphs.push_back(&programs[static_cast<size_t>(rank)].Find("evaluate")->graph);
    }
    const Status ran = ranks.Run(graphs);
    EXPECT_TRUE(ran.ok()) << Message(ran);
    outcome.logits = Get(ranks, mesh.size() - 1, "logits");
    Collect(ranks, programs, &outcome);
    return outcome;
  }

  bool exact_ = false;  // images and weights are -1, 0 and 1
  int updates_ = kUpdates;

  static Floats Get(const MeshInterpreter& ranks, int rank, const std::string& name) {
    const auto bytes = ranks.Get(rank, name);
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    Floats values(bytes.ok() ? bytes->size() / sizeof(float) : 1);
    if (bytes.ok()) std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
    return values;
  }

 private:
  static const Shape& WholeShape(const Node& input) {
    return input.input->part ? switchyard::WholeShape(*input.input->part) : input.outputs[0].shape;
  }
  Floats Drawn(const std::string& name, size_t count, float centre, float spread) const {
    Floats values = Values(name, count, exact_ ? 0 : centre, exact_ ? 1.4f : spread);
    for (float& v : values) v = exact_ ? std::round(v) : v;
    return values;
  }
  Floats Start(const Node& input) const {
    const bool gain = input.name.find("norm") != std::string::npos && input.name.ends_with("weight");
    return Drawn(input.name, static_cast<size_t>(Elements(WholeShape(input))), gain ? 1 : 0, 0.2f);
  }
  static void Set(MeshInterpreter& ranks, int rank, const Node& input, const Floats& whole) {
    Floats held = whole;
    if (const auto& part = input.input->part) {
      held.resize(static_cast<size_t>(input.outputs[0].elements()));
      CutPart(*part, sizeof(float), reinterpret_cast<const std::byte*>(whole.data()),
              reinterpret_cast<std::byte*>(held.data()));
    }
    ranks.Set(rank, input.name, held.data(), held.size() * sizeof(float));
  }
  void GiveBatch(MeshInterpreter& ranks, int rank, int update, int64_t first, int64_t batch) const {
    Floats images;
    std::vector<int32_t> labels, ids;
    for (int64_t sample = first; sample < first + batch; ++sample) {
      const Floats pixels = Drawn(fmt::format("{}/{}", update, sample), kSide * kSide, 0, 1);
      images.insert(images.end(), pixels.begin(), pixels.end());
      labels.push_back(static_cast<int32_t>((sample * 3 + update) % 10));
      ids.push_back(static_cast<int32_t>(sample));
    }
    const std::vector<int32_t> step = {update, 0};
    ranks.Set(rank, "images", images.data(), images.size() * sizeof(float));
    ranks.Set(rank, "labels", labels.data(), labels.size() * sizeof(int32_t));
    ranks.Set(rank, "sample_ids", ids.data(), ids.size() * sizeof(int32_t));
    ranks.Set(rank, "step", step.data(), step.size() * sizeof(int32_t));
  }
  // The weights, put together from their parts; every rank of the same part must hold the same bits.
  static void Collect(const MeshInterpreter& ranks, const std::vector<Program>& programs, Outcome* outcome) {
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      const Graph& graph = programs[rank].Find("update")->graph;
      for (const int id : graph.Inputs(Role::kParameter)) {
        const Node& input = graph.node(id);
        Floats& whole = outcome->parameters[input.name];
        whole.resize(static_cast<size_t>(Elements(WholeShape(input))));
        const Floats held = Get(ranks, static_cast<int>(rank), input.name);
        const int twin = static_cast<int>(rank) % programs[0].mesh.tensor;
        EXPECT_EQ(held, Get(ranks, input.input->part ? twin : 0, input.name)) << input.name << " of rank " << rank;
        if (const auto& part = input.input->part) {
          PutPart(*part, sizeof(float), reinterpret_cast<const std::byte*>(held.data()),
                  reinterpret_cast<std::byte*>(whole.data()));
        } else {
          whole = held;
        }
      }
    }
  }

  std::unique_ptr<TestDevice> test_;
};

double Distance(const Floats& found, const Floats& expected) {
  double difference = 0, size = 1e-12;
  EXPECT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / size);
}

void ExpectEqual(const Outcome& found, const Outcome& one) {
  EXPECT_LT(Distance(found.losses, one.losses), 1e-6);
  EXPECT_LT(Distance(found.norms, one.norms), 1e-5);
  EXPECT_LT(Distance(found.logits,
                     Floats(one.logits.begin(), one.logits.begin() + static_cast<int64_t>(found.logits.size()))),
            1e-5);
  ASSERT_EQ(found.parameters.size(), one.parameters.size());
  for (const auto& [name, values] : one.parameters)
    EXPECT_LT(Distance(found.parameters.at(name), values), 1e-5) << name;
}

ProgramOptions Options(const Mesh& mesh) {
  ProgramOptions options;
  options.mesh = mesh;
  options.optimizer.kind = SY_OPTIMIZER_SGD;
  options.optimizer.momentum = 0.9f;
  options.optimizer.clip = 0.5f;
  return options;
}

TEST_F(TensorParallel, VisionTransformersTrainAsOnOneRank) {
  const Outcome one = Train(Vit(SmallVit(4)), Options({}));
  EXPECT_GT(std::abs(one.losses[1] - one.losses[0]), 1e-2);
  for (const Mesh& mesh : {Mesh{.tensor = 2}, Mesh{.tensor = 4}, Mesh{.tensor = 3}, Mesh{.data = 2, .tensor = 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}", mesh.data, mesh.tensor));
    ExpectEqual(Train(Vit(SmallVit(4)), Options(mesh)), one);  // 3: heads, hidden units and classes unevenly
  }
  ProgramOptions rounds = Options({.tensor = 2});
  rounds.accumulation = 2;
  ExpectEqual(Train(Vit(SmallVit(4)), rounds), one);
}

TEST_F(TensorParallel, DropoutIsThatOfOneRank) {
  VisionTransformerConfig config = SmallVit(4);
  config.dropout = config.drop_path = 0.2f;
  ExpectEqual(Train(Vit(config), Options({.tensor = 2})), Train(Vit(config), Options({})));
}

std::vector<uint32_t> Bits(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Small integers, which f32 multiplies, adds up and doubles without rounding, so that the order of sums tells nothing.
TEST_F(TensorParallel, DropoutOfIntegersHasTheBitsOfOneRank) {
  const Build layers = [](nn::Context& context, const Value& images) {
    nn::LinearOptions results, inputs, classes;
    results.sharing = {nn::Sharing::kResults, 12, 1};
    inputs.sharing = {nn::Sharing::kInputs, 12, 1};
    classes.sharing = {nn::Sharing::kResults, 10, 1};
    Value x = ops::Reshape(images, {images.dim(0), -1});
    x = ops::Unary(SY_PW_RELU, nn::Linear(context, "fc1", x, 12, results));
    x = nn::Linear(context, "fc2", nn::Dropout(context, "of_parts", x, 0.5f), 6, inputs);
    x = nn::Dropout(context, "of_sums", ops::Unary(SY_PW_RELU, x), 0.5f);
    return nn::Linear(context, "head", x, 10, classes);
  };
  exact_ = true;
  updates_ = 1;  // numbers grow
  const auto played = [&](const Mesh& mesh, bool sequence) {
    ProgramOptions options = Options(mesh);
    auto& o = options.optimizer;
    o.momentum = o.clip = o.weight_decay = 0;  // weights less half of their gradients remain
    options.sequence = sequence;
    return Train(layers, options);
  };
  const Outcome one = played({}, false);
  for (const auto& [tensor, sequence] : {std::pair{2, false}, {3, false}, {4, false}, {2, true}}) {
    SCOPED_TRACE(fmt::format("--tp={}{}", tensor, sequence ? " --sp" : ""));
    const Outcome found = played({.tensor = tensor}, sequence);
    EXPECT_EQ(Bits(found.losses), Bits(one.losses));
    for (const auto& [name, values] : one.parameters) {
      EXPECT_GT(std::abs(*std::min_element(values.begin(), values.end())), 1) << name << " should have learnt";
      EXPECT_EQ(Bits(found.parameters.at(name)), Bits(values)) << name;
    }
  }
}

// A result of a product is a sum over what it reads, whoever computes it.
TEST_F(TensorParallel, DividedResultsHaveTheBitsOfOneRank) {
  updates_ = 0;
  for (const auto& [name, results, units, packs] : {std::tuple{"qkv", 72, 4, 3}, {"head", 10, 10, 1}}) {
    const Build product = [&](nn::Context& context, const Value& images) {
      nn::LinearOptions options;
      options.sharing = {nn::Sharing::kResults, units, packs};
      return nn::Linear(context, name, ops::Reshape(images, {images.dim(0), -1}), results, options);
    };
    const Outcome one = Train(product, Options({}));
    ASSERT_EQ(one.logits.size(), static_cast<size_t>(kBatch * results));
    for (const int tensor : {2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} with --tp={}", name, tensor));
      EXPECT_EQ(Bits(Train(product, Options({.tensor = tensor})).logits), Bits(one.logits));
    }
  }
}

// Ranks of a model have parts of weights, ranks of the data group pieces of those.
TEST_F(TensorParallel, RanksThatShareTheUpdateTooTrainAsOneRank) {
  const Outcome one = Train(Vit(SmallVit(4)), Options({}));
  for (const int zero : {1, 2}) {
    for (const Mesh& mesh : {Mesh{.data = 2, .tensor = 2}, Mesh{.data = 4, .tensor = 3}}) {
      SCOPED_TRACE(fmt::format("{} x {}, zero {}", mesh.data, mesh.tensor, zero));
      ProgramOptions options = Options(mesh);
      options.zero = zero;
      options.bucket_bytes = 5000;
      ExpectEqual(Train(Vit(SmallVit(4)), options), one);
      options.accumulation = mesh.data == 2 ? 2 : 1;
      options.sequence = mesh.data == 2 && zero == 2;
      if (options.sequence) options.accumulation = 1;
      ExpectEqual(Train(Vit(SmallVit(4)), options), one);
    }
  }
}

// LAMB's and LARS's steps go by norms of whole tensors, of which ranks have parts, pieces or pieces of parts.
TEST_F(TensorParallel, TrustRatiosAreThoseOfWholeTensors) {
  for (const int kind : {SY_OPTIMIZER_LAMB, SY_OPTIMIZER_LARS}) {
    ProgramOptions options = Options({});
    options.optimizer.kind = kind;
    options.optimizer.weight_decay = 0.1f;
    options.optimizer.trust_coefficient = 0.1f;
    options.optimizer.max_grad_norm = 0.5f;
    options.optimizer.eps = 1e-3f;  // keys have no gradient by their bias: no step out of rounding noise
    const Outcome one = Train(Vit(SmallVit(4)), options);
    for (const Mesh& mesh : {Mesh{.tensor = 2}, Mesh{.data = 2, .tensor = 2}, Mesh{.data = 4}}) {
      for (const int zero : {0, 1, 2}) {
        SCOPED_TRACE(fmt::format("kind {}, {} x {}, zero {}", kind, mesh.data, mesh.tensor, zero));
        options.mesh = mesh;
        options.zero = zero;
        options.bucket_bytes = 5000;
        options.optimizer.fused = mesh.data < 4;
        ExpectEqual(Train(Vit(SmallVit(4)), options), one);
      }
    }
  }
}

TEST_F(TensorParallel, SwinAndMlpTrainAsOnOneRank) {
  const Build windows = Swin(SmallSwin());
  ExpectEqual(Train(windows, Options({.tensor = 2})), Train(windows, Options({})));
  for (const int depth : {1, 2}) {
    MultiLayerPerceptronConfig config = {.image_size = kSide, .channels = 1, .classes = 10};
    config.width = 20;
    config.depth = depth;
    const Build mlp = [config](nn::Context& c, const Value& images) { return MultiLayerPerceptron(config, c, images); };
    ExpectEqual(Train(mlp, Options({.tensor = 4})), Train(mlp, Options({})));
  }
}

// A bias that is divided where the sum that it is added to is not divides what follows.
TEST_F(TensorParallel, DividedBiasesOfSumsTrainAsOnOneRank) {
  const Build layers = [](nn::Context& context, const Value& images) {
    Value x = ops::Reshape(images, {images.dim(0), -1});
    nn::LinearOptions hidden, sums;
    hidden.sharing = {nn::Sharing::kResults, 8, 1};
    sums.sharing = {nn::Sharing::kInputs, 8, 1};
    x = nn::Linear(context, "fc2", nn::Linear(context, "fc1", x, 8, hidden), 6, sums);
    nn::MayDivide(context.graph.FindInput("fc2.bias"), {0, 1, 6, 1});
    return nn::Linear(context, "head", x, 10);
  };
  ExpectEqual(Train(layers, Options({.tensor = 2})), Train(layers, Options({})));
}

// Of the plan "update" on one of two ranks: its sums over both, by phase and block, and its gathers.
struct Exchanges {
  std::map<std::pair<Phase, int>, int> sums;
  int gathers = 0;
  std::map<std::string, int> gathered;  // by the op that had no factors for what ranks divide
};
Exchanges ExchangesOf(const Build& build) {
  const auto program = BuildProgram(Classifier(build, 2), Options({.tensor = 2}), 0);
  EXPECT_TRUE(program.ok()) << Message(program.status());
  if (!program.ok()) return {};
  Exchanges found{.gathered = program->gathered};
  for (const Node& node : program->Find("update")->graph.nodes()) {
    if (node.op == "all_reduce") ++found.sums[{node.phase, node.block}];
    found.gathers += node.op == "all_gather";
  }
  return found;
}

TEST(TensorParallelGraph, HasTwoSumsForwardAndTwoBackwardABlock) {
  for (const auto& [name, build, blocks] : {std::tuple{"vit", Vit(SmallVit(4)), 2}, {"swin", Swin(SmallSwin()), 4}}) {
    SCOPED_TRACE(name);
    const Exchanges found = ExchangesOf(build);
    std::map<std::pair<Phase, int>, int> expected = {
        {{Phase::kBackward, -1}, 1},  // what the classifier's product reads
        {{Phase::kUpdate, -1}, 1}};   // the norm
    for (int block = 0; block < blocks; ++block)
      expected[{Phase::kForward, block}] = expected[{Phase::kBackward, block}] = 2;
    EXPECT_EQ(found.sums, expected);
    EXPECT_EQ(found.gathers, 1);  // the classes' logits
    EXPECT_EQ(found.gathered, (std::map<std::string, int>{{"cross_entropy", 1}, {"cross_entropy_backward", 1}}));
  }
}

// The second of two layers sums what the first divides: forward its results, backward the gradient of what the first
// reads, which is the image for the first of all.
TEST(TensorParallelGraph, HasOneSumForwardAndOneBackwardForTwoLayersOfAnMlp) {
  MultiLayerPerceptronConfig config = {.image_size = kSide, .channels = 1, .classes = 10};
  config.width = 16;
  config.depth = 5;  // and the classifier
  const Exchanges found = ExchangesOf(
      [=](nn::Context& context, const Value& images) { return MultiLayerPerceptron(config, context, images); });
  EXPECT_EQ(found.sums, (std::map<std::pair<Phase, int>, int>{{{Phase::kForward, 1}, 1},
                                                              {{Phase::kForward, 3}, 1},
                                                              {{Phase::kForward, -1}, 1},
                                                              {{Phase::kBackward, 2}, 1},
                                                              {{Phase::kBackward, 4}, 1},
                                                              {{Phase::kUpdate, -1}, 1}}));
  EXPECT_EQ(found.gathers, 0);
}

ProgramOptions InSequence(const Mesh& mesh) {
  ProgramOptions options = Options(mesh);
  options.sequence = true;
  return options;
}

TEST_F(TensorParallel, SamplesBetweenDividedLayersAreDividedToo) {
  VisionTransformerConfig config = SmallVit(4);
  config.dropout = config.drop_path = 0.2f;
  const Outcome one = Train(Vit(config), Options({}));
  for (const Mesh& mesh : {Mesh{.tensor = 2}, Mesh{.tensor = 4}, Mesh{.data = 2, .tensor = 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}", mesh.data, mesh.tensor));
    ExpectEqual(Train(Vit(config), InSequence(mesh)), one);
  }
  ProgramOptions rounds = InSequence({.tensor = 2});
  rounds.accumulation = 2;
  rounds.recompute = 1;
  ExpectEqual(Train(Vit(config), rounds), one);
  SwinTransformerConfig swin = SmallSwin();
  swin.drop_path = 0.3f;
  ExpectEqual(Train(Swin(swin), InSequence({.tensor = 2})), Train(Swin(swin), Options({})));
}

TEST(TensorParallelGraph, InSequenceScattersSumsAndGathersForDividedLayers) {
  const auto program = BuildProgram(Classifier(Vit(SmallVit(4)), 2), InSequence({.tensor = 2}), 0);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  std::map<std::tuple<std::string, Phase, int>, int> nodes;
  for (const Node& node : program->Find("update")->graph.nodes()) {
    if (IsCollective(node.op)) ++nodes[{node.op, node.phase, node.block}];
    if (node.op == "layer_norm" && node.name.starts_with("blocks.1")) {
      EXPECT_EQ(node.outputs[0].shape[0], 1) << node.name;
    }
  }
  const auto count = [&](const char* op, Phase phase, int block) { return nodes[{op, phase, block}]; };
  for (const int block : {0, 1}) {
    EXPECT_EQ(count("reduce_scatter", Phase::kForward, block), 2);
    EXPECT_EQ(count("all_reduce", Phase::kForward, block), 0);
    EXPECT_EQ(count("reduce_scatter", Phase::kBackward, block), 2);
  }
  // The norms' and biases' gradients, which are sums over samples that ranks divide, together.
  EXPECT_EQ(count("all_reduce", Phase::kBackward, -1), 1 + 4);  // and of the embedding's tensors, which nodes read
  for (const int block : {0, 1}) EXPECT_EQ(count("all_reduce", Phase::kBackward, block), 0);
  EXPECT_EQ(count("all_gather", Phase::kForward, 0), 1);  // the first norm reads what all ranks have
  EXPECT_EQ(count("all_gather", Phase::kForward, 1), 2);
  EXPECT_EQ(count("all_gather", Phase::kBackward, 1), 4);  // gradients, and the layers' inputs once more
}

TEST(TensorParallelGraph, InSequenceNeedsRanksThatShareAModelAndSamplesForEach) {
  const auto alone = BuildProgram(Classifier(Vit(SmallVit(4)), 2), InSequence({}), 0);
  EXPECT_THAT(Message(alone.status()), testing::HasSubstr("give --tp=2 or more"));
  const auto odd = BuildProgram(Classifier(Vit(SmallVit(4)), 3), InSequence({.tensor = 2}), 0);
  EXPECT_THAT(Message(odd.status()), testing::HasSubstr("use a --batch_size that 2 divides"));
}

TEST(TensorParallelGraph, HoldsPartsOfWeightsAndMoments) {
  ProgramOptions options = Options({.tensor = 2});
  options.optimizer.kind = SY_OPTIMIZER_ADAMW;
  const auto program = BuildProgram(Classifier(Vit(SmallVit(4)), 2), options, 1);
  ASSERT_TRUE(program.ok()) << Message(program.status());
  Graph graph = program->Find("update")->graph;
  for (const char* name : {"blocks.0.attn.qkv.weight", "moment1/blocks.0.attn.qkv.weight"}) {
    const Value value = graph.FindInput(name);
    EXPECT_EQ(value.shape(), (Shape{36, 24})) << name;
    EXPECT_EQ(graph.node(value.ref().node).input->part->whole, (Shape{72, 24})) << name;
  }
  EXPECT_EQ(graph.FindInput("blocks.1.mlp.fc2.weight").shape(), (Shape{24, 24}));
  EXPECT_EQ(graph.FindInput("blocks.1.mlp.fc2.bias").shape(), (Shape{24}));
}

TEST(TensorParallelGraph, HoldsPiecesOfPartsWhereDataRanksShareTheUpdate) {
  ProgramOptions options = Options({.data = 2, .tensor = 2});
  options.zero = 2;
  Floats elements(72 * 24), found(36 * 24, -1);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  Floats part(36 * 24);
  for (const int rank : {1, 3}) {
    const auto program = BuildProgram(Classifier(Vit(SmallVit(4)), 2), options, rank);
    ASSERT_TRUE(program.ok()) << Message(program.status());
    Graph graph = program->Find("update")->graph;
    const auto held = [&](const char* name, Floats* values) -> const Part& {
      const Value value = graph.FindInput(name);
      const Part& held = *graph.node(value.ref().node).input->part;
      EXPECT_EQ(WholeShape(held), (Shape{72, 24}));
      values->resize(static_cast<size_t>(value.type().elements()));
      CutPart(held, sizeof(float), reinterpret_cast<const std::byte*>(elements.data()),
              reinterpret_cast<std::byte*>(values->data()));
      return held;
    };
    held("blocks.0.attn.qkv.weight", &part);
    Floats piece;
    const Part& of_part = held("moment1/blocks.0.attn.qkv.weight", &piece);
    EXPECT_EQ(of_part.whole, (Shape{36, 24}));
    PutPart(of_part, sizeof(float), reinterpret_cast<const std::byte*>(piece.data()),
            reinterpret_cast<std::byte*>(found.data()));
  }
  EXPECT_EQ(found, part) << "the pieces of both data ranks are the part";
}

TEST(TensorParallelGraph, RefusesAModelWithNothingToDivide) {
  const Build plain = [](nn::Context& context, const Value& images) {
    return nn::Linear(context, "head", ops::Reshape(images, {images.dim(0), kSide * kSide}), 10);
  };
  const auto program = BuildProgram(Classifier(plain, 2), Options({.tensor = 2}), 0);
  EXPECT_THAT(Message(program.status()), testing::HasSubstr("no weight that tensor-parallel ranks could divide"));
}

// As checkpoints and exports do: by 3 and 4 ranks neither heads nor classes come out even.
TEST(TensorParallelGraph, WeightsThatAreCutAndPutBackHaveTheirBits) {
  for (const int ranks : {2, 3, 4}) {
    std::map<std::string, std::vector<uint32_t>> wholes, backs;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto program = BuildProgram(Classifier(Vit(SmallVit(4)), 2), Options({.tensor = ranks}), rank);
      ASSERT_TRUE(program.ok()) << Message(program.status());
      const Graph& graph = program->Find("update")->graph;
      for (const int id : graph.Inputs(Role::kParameter)) {
        const Node& input = graph.node(id);
        const std::optional<Part>& part = input.input->part;
        if (!part) continue;
        const auto count = static_cast<size_t>(Elements(WholeShape(*part)));
        std::vector<uint32_t>& whole = wholes[input.name];
        RandomStream random(HashName(input.name));
        whole.resize(count);
        for (uint32_t& bits : whole) bits = random.Below(UINT32_MAX);
        std::vector<uint32_t> held(static_cast<size_t>(input.outputs[0].elements()));
        ASSERT_EQ(static_cast<int64_t>(held.size()), Elements(ShapeOf(*part))) << input.name;
        CutPart(*part, sizeof(uint32_t), reinterpret_cast<const std::byte*>(whole.data()),
                reinterpret_cast<std::byte*>(held.data()));
        backs[input.name].resize(count);
        PutPart(*part, sizeof(uint32_t), reinterpret_cast<const std::byte*>(held.data()),
                reinterpret_cast<std::byte*>(backs[input.name].data()));
      }
    }
    for (const char* name : {"blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.bias", "head.weight", "head.bias"})
      EXPECT_TRUE(wholes.contains(name)) << name;
    EXPECT_EQ(backs, wholes) << ranks << " ranks";
  }
}

TEST(Parts, AreCutAndPutBack) {
  const Shape whole = {2, 12};
  const DividedAxis axis = {1, 2, 3, 2};  // 12 is (2, 3, 2)
  Floats elements(24), back(24, -1);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  for (int rank = 0; rank < 2; ++rank) {
    const Part part = PartOf(whole, axis, rank, 2);
    EXPECT_EQ(ShapeOf(part), rank == 0 ? (Shape{2, 4}) : (Shape{2, 8}));
    Floats held(static_cast<size_t>(Elements(ShapeOf(part))));
    CutPart(part, sizeof(float), reinterpret_cast<const std::byte*>(elements.data()),
            reinterpret_cast<std::byte*>(held.data()));
    EXPECT_EQ(held.front(), rank == 0 ? 0 : 2);
    PutPart(part, sizeof(float), reinterpret_cast<const std::byte*>(held.data()),
            reinterpret_cast<std::byte*>(back.data()));
  }
  EXPECT_EQ(back, elements);
}

}  // namespace
}  // namespace switchyard
