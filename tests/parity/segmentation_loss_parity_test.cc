// The losses of segmentation against what PyTorch computed for the same logits and labels, values and gradients; and of
// several ranks against one (tests/fixtures/README.md).
#include <cmath>

#include "core/graph/ops/pointwise.h"
#include "core/nn/segmentation_loss.h"
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/passes.h"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

struct LossCase {
  const char* name;
  int64_t classes;
  nn::SegmentationLossOptions options;
  double ignored;  // share of the places
};
// As record_segmentation_loss.py has them.
const std::vector<LossCase> kCases = {
    {"binary", 1, {true, 1, 1, kDataGroup}, 0},
    {"binary_ignoring", 1, {true, 0.25f, 0.75f, kDataGroup}, 0.3},
    {"binary_dice", 1, {true, 0, 1, kDataGroup}, 0.3},
    {"multilabel", 3, {true, 0.5f, 2, kDataGroup}, 0.3},
    {"softmax", 3, {false, 1, 1, kDataGroup}, 0},
    {"softmax_ignoring", 4, {false, 0.25f, 0.75f, kDataGroup}, 0.3},
    {"cross_entropy", 4, {false, 1, 0, kDataGroup}, 0.3},
};
const Shape kPlaces = {3, 4, 5};  // of a sample

struct LossData {
  std::vector<float> logits;
  std::vector<int32_t> labels;
};

LossData DataOf(const LossCase& one, int64_t samples) {
  const int64_t count = samples * Elements(kPlaces);
  const std::string name = one.name;
  LossData data;
  for (const float u : Symmetric(name + "/logits", count * one.classes)) data.logits.push_back(3 * u);
  const auto classes = static_cast<double>(std::max<int64_t>(one.classes, 2));
  for (const float u : Symmetric(name + "/labels", count))
    data.labels.push_back(static_cast<int32_t>((double{u} + 1) / 2 * classes));
  const std::vector<float> draw = Symmetric(name + "/ignored", count);
  for (size_t i = 0; i < draw.size(); ++i) {
    if (draw[i] < 2 * one.ignored - 1) data.labels[i] = -1;
  }
  return data;
}

// Outputs "loss" and "gradient": that of the mean of the ranks' losses, times the ranks.
Graph LossGraph(const LossCase& one, int64_t samples, int ranks) {
  Program program;
  NamedGraph& plan = program.plans.emplace_back(NamedGraph{"update", {}, {false, true}, true, {}, {}});
  Shape places = kPlaces;
  places.insert(places.begin(), samples);
  Shape with_classes = places;
  with_classes.push_back(one.classes);
  const Value logits = plan.graph.Input("logits", {DType::kF32, with_classes}, {Role::kParameter, {}, false});
  const Value labels = plan.graph.Input("labels", {DType::kI32, places}, {});
  plan.graph.Output("loss", nn::SegmentationLoss(logits, labels, one.options));
  ProgramOptions options;
  options.mesh.data = ranks;
  RankSumsPass().apply(program, options);
  GradientsPass().apply(program, options);
  plan.graph.Output("gradient", plan.graph.value(plan.gradients[0].gradient));
  return std::move(plan.graph);
}

class SegmentationLosses : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Plugins, SegmentationLosses, ::testing::ValuesIn(TestDevices({"reference", "cpu"})),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SegmentationLosses, EqualPyTorch) {
  const HostTensors recorded = ReadFixture("segmentation_loss.safetensors");
  EXPECT_EQ(recorded.size(), 2 * kCases.size());
  for (const LossCase& one : kCases) {
    SCOPED_TRACE(one.name);
    const Graph graph = LossGraph(one, 2, 1);
    EXPECT_EQ(Count(graph, "all_reduce"), 0);
    auto run = Compiled::Make(graph, *test_);
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const LossData data = DataOf(one, 2);
    (*run)->Set("logits", data.logits);
    (*run)->Set("labels", data.labels);
    ASSERT_TRUE((*run)->instance->Run((*run)->stream).ok());
    const double loss = recorded.at(std::string(one.name) + "/loss").values[0];
    EXPECT_NEAR((*run)->Get("output/loss")[0], loss, 1e-5 * loss);
    EXPECT_LE(RelativeError(one.name, (*run)->Get("output/gradient"),
                            recorded.at(std::string(one.name) + "/gradient").values),
              1e-5);
  }
}

// W ranks of B samples, on which foreground and ignored places are spread unevenly, compute what one rank does on W·B.
TEST(SegmentationLoss, IsThatOfTheSamplesOfAllRanks) {
  auto reference = TestDevice::Open("reference", 1);
  ASSERT_TRUE(reference.ok()) << Message(reference.status());
  for (const LossCase& one : kCases) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", one.name, ranks));
      LossData data = DataOf(one, ranks);
      const auto labels = data.labels.size() / static_cast<size_t>(ranks);
      const auto logits = data.logits.size() / static_cast<size_t>(ranks);
      std::fill_n(data.labels.begin(), labels / 2, -1);
      std::fill_n(data.labels.end() - static_cast<ptrdiff_t>(labels), labels, 1);
      MeshInterpreter alone({}, *(*reference)->device), many({.data = ranks}, *(*reference)->device);
      const Graph whole = LossGraph(one, ranks, 1), part = LossGraph(one, 1, ranks);
      EXPECT_EQ(Count(part, "all_reduce"), 2);
      alone.Set(0, "logits", data.logits.data(), data.logits.size() * sizeof(float));
      alone.Set(0, "labels", data.labels.data(), data.labels.size() * sizeof(int32_t));
      for (int rank = 0; rank < ranks; ++rank) {
        const auto r = static_cast<size_t>(rank);
        many.Set(rank, "logits", data.logits.data() + r * logits, logits * sizeof(float));
        many.Set(rank, "labels", data.labels.data() + r * labels, labels * sizeof(int32_t));
      }
      ASSERT_TRUE(alone.Run({&whole}).ok());
      const Status ran = many.Run(std::vector<const Graph*>(static_cast<size_t>(ranks), &part));
      ASSERT_TRUE(ran.ok()) << Message(ran);
      const auto floats = [](const MeshInterpreter& mesh, int rank, const std::string& name) {
        const auto bytes = mesh.Get(rank, name);
        EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
        std::vector<float> values(bytes.ok() ? bytes->size() / sizeof(float) : 0);
        if (bytes.ok()) std::memcpy(values.data(), bytes->data(), bytes->size());
        return values;
      };
      const float loss = floats(alone, 0, "loss").at(0);
      std::vector<float> joined;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_NEAR(floats(many, rank, "loss").at(0), loss, 1e-6 * loss);
        const std::vector<float> own = floats(many, rank, "gradient");
        joined.insert(joined.end(), own.begin(), own.end());
      }
      EXPECT_LE(RelativeError("gradient", joined, floats(alone, 0, "gradient")), 1e-6);
    }
  }
}

TEST(SegmentationLoss, RefusesLabelsOfOtherPlacesAndASoftmaxOverOneClass) {
  Graph graph;
  const Value logits = graph.Input("logits", {DType::kF32, {1, 2, 2, 2, 1}}, {});
  const Value labels = graph.Input("labels", {DType::kI32, {1, 2, 2, 2}}, {});
  const Value other = graph.Input("other", {DType::kI32, {1, 2, 2, 1}}, {});
  EXPECT_NE(ErrorOf([&] { nn::SegmentationLoss(logits, other, {}); }), "no error");
  EXPECT_NE(ErrorOf([&] { nn::SegmentationLoss(logits, labels, {.sigmoid = false}); }), "no error");
  EXPECT_EQ(ErrorOf([&] { nn::SegmentationLoss(logits, labels, {}); }), "no error");
}

}  // namespace
}  // namespace switchyard
