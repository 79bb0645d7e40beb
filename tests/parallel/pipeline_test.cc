// One process plays the ranks of a pipeline, where a message waits until it is received: they compute, bit for bit,
// what one rank computes that adds up the same micro-batches in their order.
#include "core/parallel/pipeline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/part.h"
#include "core/nn/layers.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/resnet.h"
#include "models/vit.h"
#include "tests/plan/happens_before.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr int kBatch = 2, kClasses = 5;
using Model = std::function<Value(nn::Context&, const Value&)>;

Workload Classifier(const Model& model, int image_size) {
  const auto logits = [=](nn::Context& context) {
    return model(context, context.graph.Input("images", {DType::kF32, {kBatch, image_size, image_size, 1}}, {}));
  };
  return {"classifier",
          [=](nn::Context& context) {
            const Value labels = context.graph.Input("labels", {DType::kI32, {kBatch}}, {});
            return ops::Mean(ops::CrossEntropy(logits(context), labels, 0));
          },
          [=](nn::Context& context) { context.graph.Output("logits", logits(context)); }};
}

Workload Transformer(int depth = 4, int heads = 2) {
  VisionTransformerConfig c = {
      .image_size = 14, .channels = 1, .classes = kClasses, .patch = 7, .width = 8 * heads, .depth = depth};
  c.heads = heads;
  c.mlp_ratio = 2;
  c.dropout = 0.1f;
  return Classifier([c](nn::Context& context, const Value& images) { return VisionTransformer(c, context, images); },
                    c.image_size);
}

Workload Residual() {
  ResNetConfig c = {.image_size = 8, .channels = 1, .classes = kClasses, .depth = 18, .width = 4};
  return Classifier([c](nn::Context& context, const Value& images) { return ResNet(c, context, images); },
                    c.image_size);
}

// Numbers in ±0.2 that depend on `seed` alone.
std::vector<float> Numbers(size_t seed, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  auto state = static_cast<uint32_t>(seed * 2654435761u + 12345u);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = (static_cast<float>(state >> 8) / static_cast<float>(1 << 24) - 0.5f) * 0.4f;
  }
  return values;
}

class Ranks {
 public:
  Ranks(const Workload& workload, const ProgramOptions& options, Device& reference)
      : options_(options), played_(options.mesh, reference) {
    for (int rank = 0; rank < options.mesh.size(); ++rank) {
      auto program = BuildProgram(workload, options, rank);
      if (!program.ok()) throw std::runtime_error(Message(program.status()));  // fails the test
      programs_.push_back(std::move(*program));
      for (const Node& node : Update(rank).nodes()) {
        if (!node.input) continue;
        const bool parameter = node.input->role == Role::kParameter;
        if (parameter || (node.input->role == Role::kState && node.input->average)) {
          const std::string of = parameter ? node.name : node.name.substr(node.name.find('/') + 1);
          const Part* const piece = PieceOf(node);
          const int64_t elements = piece != nullptr ? Elements(piece->whole) : node.outputs[0].elements();
          std::vector<float> numbers = Numbers(std::hash<std::string>()(of), elements);
          if (piece != nullptr) {
            numbers = {numbers.begin() + piece->begin, numbers.begin() + piece->end};
            numbers.resize(static_cast<size_t>(node.outputs[0].elements()));
          }
          Set(rank, node.name, numbers);
        } else if (node.input->of_model) {
          Set(rank, node.name, std::vector<float>(static_cast<size_t>(node.outputs[0].elements()), 0.5f));
        }
      }
      Set(rank, "lr_table", std::vector<float>(4, 0.05f));
      Set(rank, "loss_scale", std::vector<float>{options.loss_scale.initial});
    }
    RunPlan("halves");
  }

  // spoilt: a micro-batch whose images are beyond fp16; −1: none.
  void Run(int64_t update, int spoilt = -1) {
    for (const Action& action : programs_[0].schedule) {
      const bool all = options_.mesh.pipeline > 1;
      for (int m = all ? 0 : action.micro_batch; m <= action.micro_batch; ++m)
        Give(update, m, all ? m : 0, m == spoilt ? 1e6f : 1);
      RunPlan(action.plan);
      losses_.push_back(Scalar(0, "loss"));
    }
  }
  // Of rank 0, over the plans that have run.
  float MeanLoss() const {
    return std::accumulate(losses_.begin(), losses_.end(), 0.0f) / static_cast<float>(losses_.size());
  }
  void Evaluate(const std::string& plan) {
    Give(77, 0, 0, 1);
    RunPlan(plan);
  }
  std::set<std::string> Parameters(int rank) const {
    std::set<std::string> names;
    for (const int id : Update(rank).Inputs(Role::kParameter)) Insert(Update(rank).node(id), &names);
    return names;
  }
  // What is trained or counted, and half copies; not the gradients.
  std::set<std::string> States(int rank) const {
    std::set<std::string> names = Parameters(rank);
    for (const Role role : {Role::kState, Role::kCopy}) {
      for (const int id : Update(rank).Inputs(role)) Insert(Update(rank).node(id), &names);
    }
    return names;
  }
  std::vector<char> Bytes(int rank, const std::string& name) const {
    const auto bytes = played_.Get(rank, name);
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    return bytes.ok() ? *bytes : std::vector<char>();
  }
  // With the pieces of the data-parallel ranks that share it.
  std::vector<char> Shared(int rank, const std::string& name) const {
    const Node* const own = Find(rank, name);
    const Part* const piece = own == nullptr ? nullptr : PieceOf(*own);
    if (piece == nullptr) return Bytes(rank, name);
    std::vector<char> whole(static_cast<size_t>(Elements(piece->whole)) * sizeof(float));
    for (const int other : programs_[static_cast<size_t>(rank)].groups[kDataGroup].ranks) {
      const std::vector<char> held = Bytes(other, name);
      PutPart(*PieceOf(*Find(other, name)), sizeof(float), AsBytes(held), AsBytes(whole));
    }
    return whole;
  }
  float Scalar(int rank, const std::string& name) const {
    float value = NAN;
    const std::vector<char> bytes = Bytes(rank, name);
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  const Graph& Update(int rank) const { return programs_[static_cast<size_t>(rank)].Find("update")->graph; }

 private:
  // What a data-parallel rank has of a tensor that it shares; nullptr: all of it.
  static const Part* PieceOf(const Node& node) {
    const auto& part = node.input->part;
    return part && part->group == kDataGroup ? &*part : nullptr;
  }
  template <typename T>
  static const std::byte* AsBytes(const std::vector<T>& values) {
    return reinterpret_cast<const std::byte*>(values.data());
  }
  template <typename T>
  static std::byte* AsBytes(std::vector<T>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
  const Node* Find(int rank, const std::string& name) const {
    for (const Node& node : Update(rank).nodes()) {
      if (node.input && node.name == name) return &node;
    }
    return nullptr;
  }
  // Unless the stage has nothing of it.
  static void Insert(const Node& node, std::set<std::string>* names) {
    const Part* part = node.input->part ? &*node.input->part : nullptr;
    while (part != nullptr && part->group != kPipelineGroup) part = part->of.get();
    if (part == nullptr || part->end > 0) names->insert(node.name);
  }
  template <typename T>
  void Set(int rank, const std::string& name, const std::vector<T>& values) {
    played_.Set(rank, name, values.data(), values.size() * sizeof(T));
  }
  // The inputs of place `place` of a plan: micro-batch `m`, its images times `factor`.
  void Give(int64_t update, int m, int place, float factor) {
    for (int rank = 0; rank < options_.mesh.size(); ++rank) {
      const int data_rank = options_.mesh.DataRankOf(rank);
      const size_t seed = static_cast<size_t>((update * 100 + m) * 10 + data_rank);
      std::vector<int32_t> ids, labels;
      for (int i = 0; i < kBatch; ++i) {
        ids.push_back((m * kBatch + i) * options_.mesh.data + data_rank);
        labels.push_back(static_cast<int32_t>((seed + static_cast<size_t>(i)) % kClasses));
      }
      int64_t elements = 0;
      for (const Node& node : programs_[0].Find("evaluate")->graph.nodes()) {
        if (node.input && node.name == "images") elements = node.outputs[0].elements();
      }
      std::vector<float> images = Numbers(seed, elements);
      for (float& image : images) image *= factor;
      Set(rank, MicroBatchInput("images", place), images);
      Set(rank, MicroBatchInput("labels", place), labels);
      Set(rank, MicroBatchInput("sample_ids", place), ids);
      Set(rank, MicroBatchInput("step", place), std::vector<int32_t>{static_cast<int32_t>(update), 0});
    }
  }
  void RunPlan(int plan) {
    std::vector<const Graph*> graphs;
    for (const Program& program : programs_) graphs.push_back(&program.plans[static_cast<size_t>(plan)].graph);
    const Status ran = played_.Run(graphs);
    EXPECT_TRUE(ran.ok()) << Message(ran);
  }
  // That of this name, if there is one.
  void RunPlan(const std::string& name) {
    for (size_t i = 0; i < programs_[0].plans.size(); ++i) {
      if (programs_[0].plans[i].name == name) RunPlan(static_cast<int>(i));
    }
  }

  const ProgramOptions options_;
  MeshInterpreter played_;
  std::vector<Program> programs_;
  std::vector<float> losses_;
};

ProgramOptions Options(int micro_batches) {
  ProgramOptions options;
  options.accumulation = micro_batches;
  options.table_length = 4;
  options.bucket_bytes = 4096;
  return options;
}

class Pipeline : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }

  // Two updates and an evaluation with and without stages. spoilt: a micro-batch of the first; −1: none.
  void ExpectEqual(const Workload& workload, const ProgramOptions& options, int stages, int spoilt = -1) {
    SCOPED_TRACE(fmt::format("{} stages of {} ranks, {} micro-batches, {} data ranks", stages, options.mesh.tensor,
                             options.accumulation, options.mesh.data));
    const int tensor = options.mesh.tensor;
    ProgramOptions cut = options;
    cut.mesh.pipeline = stages;
    Ranks whole(workload, options, *test_->device), parts(workload, cut, *test_->device);
    const auto without_stages = [&](int rank) { return cut.mesh.DataRankOf(rank) * tensor + rank % tensor; };
    for (int update = 0; update < 2; ++update) {
      whole.Run(update, update == 0 ? spoilt : -1);
      parts.Run(update, update == 0 ? spoilt : -1);
      for (int rank = 0; rank < cut.mesh.size(); ++rank) {
        const float norm = parts.Scalar(rank, "grad_norm"), alone = whole.Scalar(without_stages(rank), "grad_norm");
        EXPECT_EQ(std::isfinite(norm), std::isfinite(alone)) << "rank " << rank << " of update " << update;
        EXPECT_EQ(std::isfinite(alone), update > 0 || spoilt < 0) << "a micro-batch that is spoilt spoils the update";
      }
    }
    std::vector<std::string> plans = {"evaluate"};
    if (options.optimizer.ema_decay > 0) plans.push_back("evaluate_ema");
    for (int rank = 0; rank < cut.mesh.size(); ++rank) {
      const int alone = without_stages(rank);
      // Ranks that share the update divide buckets, which stages do not have in common with the whole model.
      for (const std::string& name : options.zero > 0 ? parts.Parameters(rank) : parts.States(rank))
        EXPECT_TRUE(parts.Shared(rank, name) == whole.Shared(alone, name)) << "rank " << rank << ": " << name;
      EXPECT_NEAR(parts.Scalar(rank, "grad_norm") / whole.Scalar(alone, "grad_norm"), 1, 1e-6);
      EXPECT_EQ(parts.Scalar(rank, "grad_norm"), parts.Scalar(0, "grad_norm"));
    }
    for (int data = 0; data < cut.mesh.data; ++data) {
      std::multiset<std::string> held;
      for (int stage = 0; stage < stages; ++stage) {
        const auto names = parts.Parameters((data * stages + stage) * tensor);
        EXPECT_FALSE(names.empty());
        held.insert(names.begin(), names.end());
      }
      const auto all = whole.Parameters(data * tensor);
      EXPECT_EQ(held, std::multiset<std::string>(all.begin(), all.end()));
    }
    for (const std::string& plan : plans) {
      whole.Evaluate(plan);
      parts.Evaluate(plan);
      for (int rank = 0; rank < cut.mesh.size(); ++rank)
        EXPECT_TRUE(parts.Bytes(rank, "logits") == whole.Bytes(without_stages(rank), "logits")) << plan;
    }
  }
  std::unique_ptr<TestDevice> test_;
};

TEST_F(Pipeline, EqualsOneRankThatAddsUpTheMicroBatches) {
  ExpectEqual(Transformer(), Options(2), 2);
  ExpectEqual(Transformer(), Options(5), 3);
  ExpectEqual(Transformer(), Options(6), 4);
}

TEST_F(Pipeline, WithDataParallelRanksEqualsThoseAlone) {
  ProgramOptions options = Options(3);
  options.mesh.data = 2;
  ExpectEqual(Transformer(), options, 2);
  options.zero = 1;
  ExpectEqual(Transformer(), options, 3);
}

TEST_F(Pipeline, WithRecomputationAndAveragesEqualsOneRank) {
  ProgramOptions options = Options(4);
  options.recompute = 1;
  options.optimizer.ema_decay = 0.9f;
  ExpectEqual(Transformer(), options, 2);
}

// Stages have several runs of blocks each, between which lie those of others.
TEST_F(Pipeline, OfInterleavedStagesEqualsOneRank) {
  ProgramOptions options = Options(4);
  options.interleave = 2;
  ExpectEqual(Transformer(), options, 2);
  options.accumulation = 6;
  options.recompute = 1;
  options.optimizer.ema_decay = 0.9f;
  ExpectEqual(Transformer(7), options, 3);
  options.recompute.reset();
  ExpectEqual(Residual(), options, 2);
  options.mesh = {.data = 2, .tensor = 2};
  options.accumulation = 2;
  options.zero = 1;
  options.sequence = true;
  options.precision = DType::kF16;
  options.amp = AmpLevel::kO2;
  options.loss_scale = {.dynamic = true, .initial = 1024, .hysteresis = 1};
  ExpectEqual(Transformer(), options, 2, 1);
}

// Ranks of a stage divide its weights, also where these do not come out even.
TEST_F(Pipeline, OfTensorParallelStagesEqualsThoseRanksAlone) {
  ProgramOptions options = Options(3);
  options.mesh.tensor = 2;
  ExpectEqual(Transformer(), options, 2);
  options.sequence = true;
  options.recompute = 1;
  ExpectEqual(Transformer(), options, 3);
  options.mesh.data = 2;
  options.zero = 1;
  options.precision = DType::kF16;
  options.amp = AmpLevel::kO2;
  options.loss_scale = {.dynamic = true, .initial = 1024, .hysteresis = 1};
  ExpectEqual(Transformer(), options, 2);
  options.sequence = false;
  options.zero = 0;
  options.optimizer.kind = SY_OPTIMIZER_LAMB;
  options.optimizer.max_grad_norm = 0;
  options.optimizer.use_nvlamb = true;
  ExpectEqual(Transformer(4, 3), options, 2, 2);
}

// How deep a weight lies is counted over the whole model, not over its stage.
TEST_F(Pipeline, WithRatesByLayerEqualsOneRank) {
  ProgramOptions options = Options(3);
  options.optimizer.layer_decay = 0.5f;
  ExpectEqual(Transformer(), options, 3);
}

TEST_F(Pipeline, MovesRunningStatisticsFromMicroBatchToMicroBatch) {
  ExpectEqual(Residual(), Options(3), 3);
  ProgramOptions options = Options(2);
  options.mesh.data = 2;
  ExpectEqual(Residual(), options, 2);
}

// Statistics go round the data-parallel ranks of each stage, and nowhere else.
TEST_F(Pipeline, WithBatchNormsOverAllRanksEqualsThoseRanksAlone) {
  ProgramOptions options = Options(3);
  options.mesh.data = 2;
  options.sync_batchnorm = true;
  ExpectEqual(Residual(), options, 2);
  options.recompute = 1;
  options.zero = 1;
  ExpectEqual(Residual(), options, 3);
}

TEST_F(Pipeline, InHalfPrecisionEqualsOneRank) {
  ProgramOptions options = Options(3);
  options.precision = DType::kBF16;
  ExpectEqual(Transformer(), options, 2);
  options.amp = AmpLevel::kO2;
  options.precision = DType::kF16;
  options.loss_scale.initial = 1024;
  options.recompute = 1;
  ExpectEqual(Transformer(), options, 3);
  ExpectEqual(Residual(), options, 3);
}

TEST_F(Pipeline, LeavesOutAnUpdateOfWhichOneMicroBatchOverflows) {
  ProgramOptions options = Options(3);
  options.precision = DType::kF16;
  options.amp = AmpLevel::kO2;
  options.loss_scale = {.dynamic = true, .initial = 1024, .hysteresis = 1};
  for (const int spoilt : {-1, 0, 2}) ExpectEqual(Transformer(), options, 3, spoilt);
  options.mesh.data = 2;
  options.zero = 1;
  ExpectEqual(Transformer(), options, 2, 1);
}

// Where a weight lies the plan that updates says, also for plans that do not read it.
TEST_F(Pipeline, HoldsWeightsThatEvaluationDoesNotRead) {
  VisionTransformerConfig c = {
      .image_size = 14, .channels = 1, .classes = kClasses, .patch = 7, .width = 16, .depth = 4};
  c.heads = 2;
  const Workload with_extra = Classifier(
      [c](nn::Context& context, const Value& images) {
        const Value logits = VisionTransformer(c, context, images);
        if (context.training) return nn::Linear(context, "extra", logits, kClasses, {.bias = false});
        nn::Parameter(context, "extra.weight", {kClasses, kClasses}, {}, true);
        return logits;
      },
      c.image_size);
  ProgramOptions options = Options(2);
  options.mesh.data = 2;
  options.zero = 1;
  options.optimizer.ema_decay = 0.9f;
  options.precision = DType::kF16;
  options.amp = AmpLevel::kO2;
  options.loss_scale.initial = 1024;
  ExpectEqual(with_extra, options, 2);
}

TEST_F(Pipeline, SaysTheMeanLossOnAllStages) {
  ProgramOptions options = Options(4);
  options.mesh.pipeline = 2;
  Ranks parts(Transformer(), options, *test_->device);
  parts.Run(0);
  options.mesh.pipeline = 1;
  Ranks whole(Transformer(), options, *test_->device);
  whole.Run(0);
  EXPECT_NEAR(parts.Scalar(0, "loss"), whole.MeanLoss(), 1e-6);
  EXPECT_EQ(parts.Scalar(0, "loss"), parts.Scalar(1, "loss"));
}

// Read off the schedule: messages that nothing orders against some of the stage's computing.
TEST_F(Pipeline, MessagesRunBesideWhatStagesComputeWhereTheyMay) {
  ProgramOptions options = Options(4);
  options.mesh.pipeline = 2;
  for (const int rank : {0, 1}) {
    const auto program = BuildProgram(Transformer(), options, rank);
    ASSERT_TRUE(program.ok()) << Message(program.status());
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(fmt::format("rank {}, --overlap={}", rank, overlap ? 1 : 0));
      Layout layout(64);
      PlanOptions plan_options;
      plan_options.overlap = overlap;
      const auto plan = Plan::Compile(program->Find("update")->graph, *test_->kernels, test_->reference_kernels.get(),
                                      layout, plan_options, test_->reference_kernels.get());
      ASSERT_TRUE(plan.ok()) << Message(plan.status());
      const std::vector<Step>& steps = (*plan)->schedule().steps;
      const HappensBefore order = OrderOf((*plan)->schedule());
      std::map<std::string, int> beside;  // messages by op
      for (size_t i = 0; i < steps.size(); ++i) {
        const Node& node = (*plan)->graph().node(steps[i].node);
        if (!IsMessage(node)) continue;
        bool free = false;
        for (size_t j = 0; j < steps.size(); ++j)
          free = free || (steps[j].stream == kComputeStream && !order[std::max(i, j)][std::min(i, j)]);
        beside[node.op] += free ? 1 : 0;
      }
      if (rank == 0) {
        EXPECT_EQ(beside["send"] > 0, overlap) << "the first micro-batch's, beside the next one's forward pass";
        EXPECT_EQ(beside["receive"] > 0, overlap) << "the last one's gradient, beside the backward pass before it";
      } else {
        EXPECT_EQ(beside["receive"], overlap ? 4 : 0) << "of the micro-batches";
        EXPECT_EQ(beside["send"] == 4, overlap);
      }
    }
  }
}

TEST_F(Pipeline, IsRefusedWhereItCannotBe) {
  const auto refusal = [](const ProgramOptions& options, int depth = 4) {
    return Message(BuildProgram(Transformer(depth), options, 0).status());
  };
  ProgramOptions options = Options(4);
  options.mesh.pipeline = 3;
  EXPECT_THAT(refusal(options, 2), testing::AllOf(HasSubstr("3 pipeline stages of a model of 2 blocks"),
                                                  HasSubstr("; use at most --pp=2, or a deeper model")));
  options = Options(2);
  options.mesh.pipeline = 3;
  EXPECT_THAT(refusal(options),
              HasSubstr("--pp=3 with 2 micro-batches an update: expected at least as many as stages"));
  options = Options(3);
  options.mesh.pipeline = 2;
  options.interleave = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--pp_interleave=2 with 3 micro-batches an update: expected a multiple of "
                                          "the 2 stages"));
  options.accumulation = 4;
  EXPECT_THAT(refusal(options, 3), testing::AllOf(HasSubstr("4 pipeline stages of a model of 3 blocks"),
                                                  HasSubstr("; use at most --pp_interleave=1, a smaller --pp, or")));
  options.accumulation = 6;
  options.interleave = 3;
  EXPECT_THAT(refusal(options, 4), HasSubstr("; use at most --pp_interleave=2, a smaller --pp, or a deeper model"));
  options = Options(3);
  options.mesh.pipeline = 3;
  options.zero = 2;
  EXPECT_THAT(refusal(options), HasSubstr("--zero=2: not there yet; use --zero=1"));
}

}  // namespace
}  // namespace switchyard
