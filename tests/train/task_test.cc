// A task that is no classification trains, is evaluated, kept and logged: the trainer asks it for everything that it
// knows about samples.
#include "core/train/task.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/layers.h"
#include "core/train/checkpoint.h"
#include "core/train/metrics.h"
#include "core/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

constexpr int64_t kBatch = 4, kWidth = 3;

// Points (3) with a height: the data set's images are never looked at.
struct Points : Dataset {
  std::string name() const override { return "points"; }
  int64_t size() const override { return 26; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return none; }
  Status Read(int64_t, Sample*) const override { return Internal("nobody reads images here"); }
  std::vector<std::string> none;
};

struct PointSource : SampleSource {
  std::string name() const override { return "points"; }
  int64_t size() const override { return 26; }
  std::string Path(int64_t index) const override { return fmt::format("point {}", index); }
  std::vector<SampleTensor> tensors() const override {
    return {{"points", {DType::kF32, {kWidth}}}, {"heights", {DType::kF32, {}}}};
  }
  Status Fill(int64_t, int64_t index, std::span<void* const> rows) const override {
    auto* const point = static_cast<float*>(rows[0]);
    for (int64_t i = 0; i < kWidth; ++i) point[i] = static_cast<float>((index * (i + 2)) % 7) / 7;
    *static_cast<float*>(rows[1]) = 1 + point[0] - 2 * point[1];
    return OkStatus();
  }
  void FillEmpty(std::span<void* const> rows) const override {
    std::fill_n(static_cast<float*>(rows[0]), kWidth, 1e6f);  // whoever counts padding notices
    *static_cast<float*>(rows[1]) = -1e6f;
  }
};

// Least squares; evaluation takes the mean absolute error, the less the better.
struct Heights : Task {
  StatusOr<std::unique_ptr<SampleSource>> Samples(const Dataset&, bool) const override {
    return std::make_unique<PointSource>();
  }
  std::vector<SampleTensor> tensors() const override { return PointSource().tensors(); }
  static Value Error(nn::Context& context) {
    const InputInfo batch = {Role::kBatch, {}, false};
    const Value points = context.graph.Input("points", {DType::kF32, {kBatch, kWidth}}, batch);
    const Value heights = context.graph.Input("heights", {DType::kF32, {kBatch}}, batch);
    return ops::Sub(ops::Reshape(nn::Linear(context, "plane", points, 1), {kBatch}), heights);
  }
  Workload workload() const override {
    return {"plane",
            [](nn::Context& context) {
              const Value error = Error(context);
              return ops::Mean(ops::Mul(error, error));
            },
            [](nn::Context& context) { context.graph.Output("error", ops::Unary(SY_PW_ABS, Error(context))); }};
  }
  std::vector<Metric> metrics() const override { return {{"mae", "mean error", "error", "mae", "Metrics/mae"}}; }
  std::vector<std::string> outputs() const override { return {"error"}; }
  int sums() const override { return 1; }
  void Count(std::span<const void* const> rows, std::span<double> sums) const override {
    sums[0] += *static_cast<const float*>(rows[0]);
  }
  std::vector<double> Metrics(std::span<const double> sums, int64_t count) const override {
    return {sums[0] / static_cast<double>(count)};
  }
  Metric best() const override { return metrics()[0]; }
  bool Better(double value, double than) const override { return value < than; }
  std::string prediction() const override { return "error"; }
  Prediction Predict(const void* row) const override { return {{*static_cast<const float*>(row)}, {}}; }
  StatusOr<nlohmann::json> Record(const Dataset&) const override { return nlohmann::json{{"plane", kWidth}}; }
  Status CheckRecord(const nlohmann::json& record, const Dataset&, const std::string& folder) const override {
    return record.value("plane", 0) == kWidth ? OkStatus() : InvalidArgument("{}: another plane", folder);
  }
};

TrainConfig Config(const std::string& output) {
  TrainConfig c;
  c.epochs = 5;
  c.batch_size = kBatch;
  c.lr = 0.3f;
  c.weight_decay = c.clip = c.label_smoothing = 0;
  c.warmup = "0";
  c.warmup_lr = c.min_lr = 0;
  c.device = "reference";
  c.output = output;
  return c;
}

TrainableModel Model() {
  TrainableModel model;
  model.name = "plane";
  model.architecture = {{"model", "plane"}};
  model.task = [](const TrainConfig&, const TrainableModel&, const CanPrepare&) -> StatusOr<std::unique_ptr<Task>> {
    return std::make_unique<Heights>();
  };
  return model;
}

using TaskTest = Scratch;

TEST_F(TaskTest, OfAnotherKindTrainsAndIsKept) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok()) << Message(world.status());
  const Points data;
  TrainConfig config = Config(In("runs"));
  auto trainer = Trainer::Create(config, Model(), data, data, **world);
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  const auto before = (*trainer)->Evaluate(data);
  ASSERT_TRUE(before.ok()) << Message(before.status());
  EXPECT_EQ(before->count, 26) << "of 28 rows";
  const auto result = (*trainer)->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  EXPECT_EQ(result->evaluation.count, 26);
  EXPECT_LT(result->evaluation.metrics.at("mae"), 0.5 * before->metrics.at("mae"));

  // By epoch: updates are logged with a loss, evaluations with the task's own metric.
  double lowest = 1e9;
  int evaluations = 0;
  const auto log = ReadMetrics(result->run_folder + "/0/log/metrics.jsonl");
  ASSERT_TRUE(log.ok()) << Message(log.status());
  for (const MetricsRecord& record : *log) {
    if (!record.contains("mae")) continue;
    ++evaluations;
    EXPECT_EQ(record["val_count"], 26);
    EXPECT_FALSE(record.contains("top1"));
    lowest = std::min(lowest, record["mae"].get<double>());
  }
  EXPECT_EQ(evaluations, 5);
  EXPECT_EQ(*result->best, lowest);
  const auto best = LoadCheckpoint(result->run_folder + "/checkpoints/best");
  ASSERT_TRUE(best.ok()) << Message(best.status());
  EXPECT_EQ(best->record["mae"], lowest);
  EXPECT_EQ(best->record["best_mae"], lowest);
  EXPECT_EQ(best->record["plane"], kWidth);
  EXPECT_FALSE(best->record.contains("classes"));

  double sum = 0;
  int64_t seen = 0;
  const Status predicted = (*trainer)->Predict(data, [&](int64_t index, const Prediction& prediction) {
    EXPECT_EQ(index, seen++);
    sum += prediction.probabilities.at(0);
    return OkStatus();
  });
  ASSERT_TRUE(predicted.ok()) << Message(predicted);
  EXPECT_EQ(seen, 26);
  const Status ended = (*trainer)->Predict(data, [](int64_t, const Prediction&) { return Aborted("enough"); });
  EXPECT_EQ(Message(ended), "enough");
  EXPECT_NEAR(sum / 26, result->evaluation.metrics.at("mae"), 1e-6);

  // It goes on, and its best stays the best.
  config.resume = result->run_folder;
  config.epochs = 6;
  trainer->reset();
  trainer = Trainer::Create(config, Model(), data, data, **world);
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  const auto on = (*trainer)->Train();
  ASSERT_TRUE(on.ok()) << Message(on.status());
  EXPECT_LE(*on->best, lowest);
}

}  // namespace
}  // namespace switchyard
