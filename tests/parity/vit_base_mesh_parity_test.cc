// ViT-B/16 at 224 pixels against PyTorch on eight ranks that one process plays: two tensor-parallel ranks in each of
// two pipeline stages, twice data-parallel with a shared update. Logits, loss and gradients of one step.
#include "core/parallel/mesh_interpreter.h"
#include "core/parallel/pipeline.h"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parallel/nested_part.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4;  // of a tensor's norm
constexpr const char* kBaseFile = "vit_base_parity.safetensors";
constexpr int64_t kPixels = 224 * 224 * 3;
constexpr int kImages = 2;  // of the fixture, and micro-batches of one image on each data-parallel rank

class BaseVitOnAMesh : public ::testing::Test {
 protected:
  void SetUp() override {
    test_ = OpenOrNull("cpu", 2);
    if (test_ == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
    const auto build = [this](nn::Context& context, const Value& x) { return BuildModel(model_, context, x); };
    ClassificationOptions images;
    images.batch = 1;
    images.height = images.width = model_.image_size;
    images.channels = model_.channels;
    ProgramOptions options;
    options.mesh = {.data = 2, .pipeline = 2, .tensor = 2};
    options.zero = 1;
    options.accumulation = kImages;
    for (int rank = 0; rank < options.mesh.size(); ++rank) {
      auto program = BuildProgram(ClassificationWorkload("vit_base", build, images), options, rank);
      ASSERT_TRUE(program.ok()) << Message(program.status());
      programs_.push_back(std::move(*program));
    }
    mesh_ = std::make_unique<MeshInterpreter>(options.mesh, *test_->device);
  }
  template <typename Use>
  void ForEachPart(int rank, const std::string& prefix, const HostTensors& tensors, const Use& use) const {
    for (const Node& node : programs_[static_cast<size_t>(rank)].Find("update")->graph.nodes()) {
      if (!node.input || !node.name.starts_with(prefix)) continue;
      const auto found = tensors.find(node.name.substr(prefix.size()));
      if (found != tensors.end()) use(node, found->first);
    }
  }
  void SetParameters(int rank, const HostTensors& weights) {
    ForEachPart(rank, "", weights, [&](const Node& node, const std::string& name) {
      ASSERT_TRUE(node.input->part) << name << " is a stage's";
      const Part& part = *node.input->part;
      std::vector<float> held(static_cast<size_t>(Elements(ShapeOf(part))));
      CutPart(part, sizeof(float), reinterpret_cast<const std::byte*>(weights.at(name).values.data()),
              reinterpret_cast<std::byte*>(held.data()));
      held.resize(static_cast<size_t>(node.outputs[0].elements()));  // a zero where a rank has nothing
      mesh_->Set(rank, node.name, held.data(), held.size() * sizeof(float));
    });
  }
  // The tensors called prefix + NAME, of whose elements each is on some rank.
  HostTensors Together(const std::string& prefix, HostTensors tensors) const {
    for (int rank = 0; rank < static_cast<int>(programs_.size()); ++rank) {
      ForEachPart(rank, prefix, tensors, [&](const Node& node, const std::string& name) {
        if (node.input->part->end == node.input->part->begin) return;  // the rank has nothing of it
        PutIntoWhole(*node.input->part, Floats(rank, node.name), &tensors.at(name).values);
      });
    }
    return tensors;
  }
  std::vector<float> Floats(int rank, const std::string& name) const {
    const auto bytes = mesh_->Get(rank, name);
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    std::vector<float> values(bytes.ok() ? bytes->size() / sizeof(float) : 0);
    if (bytes.ok()) std::memcpy(values.data(), bytes->data(), values.size() * sizeof(float));
    return values;
  }
  void Give(int rank, int micro_batch, int image) {
    const auto set = [&](const char* name, const auto* values, size_t count) {
      mesh_->Set(rank, MicroBatchInput(name, micro_batch), values, count * sizeof *values);
    };
    set("images", &images_[static_cast<size_t>(image * kPixels)], static_cast<size_t>(kPixels));
    set("labels", &labels_[static_cast<size_t>(image)], 1);
  }
  void RunPlan(const std::string& name) {
    std::vector<const Graph*> graphs;
    for (const Program& program : programs_) graphs.push_back(&program.Find(name)->graph);
    const Status ran = mesh_->Run(graphs);
    ASSERT_TRUE(ran.ok()) << Message(ran);
  }

  const ResolvedModel model_ = Resolved({.name = "vit_base"});
  const std::vector<float> images_ = Symmetric("images", kImages* kPixels);
  const std::vector<int32_t> labels_ = ReadLabels(kBaseFile, "labels");
  std::unique_ptr<TestDevice> test_;
  std::vector<Program> programs_;
  std::unique_ptr<MeshInterpreter> mesh_;
};

// Each data-parallel rank computes both images, in another order, so that the mean over all is that of the fixture.
TEST_F(BaseVitOnAMesh, EqualsTheRecordedLogitsLossAndGradients) {
  HostTensors tensors = FormulaWeights(model_);
  const float rate = 1e-3f;
  for (int rank = 0; rank < programs_[0].mesh.size(); ++rank) {
    SetParameters(rank, tensors);
    mesh_->Set(rank, "lr_table", &rate, sizeof rate);
    for (int m = 0; m < kImages; ++m) Give(rank, m, (m + programs_[0].mesh.DataRankOf(rank)) % kImages);
  }
  RunPlan("evaluate");
  std::vector<float> logits;
  for (const int rank : {0, 4}) {  // the first of each data-parallel coordinate
    const std::vector<float> own = Floats(rank, "eval_logits");
    logits.insert(logits.end(), own.begin(), own.end());
  }
  EXPECT_LE(RelativeError("logits", logits, ReadFixture(kBaseFile).at("logits").values), kTolerance);
  RunPlan("update");
  const std::vector<float> losses = ReadFixture(kBaseFile).at("losses").values;
  EXPECT_NEAR(Floats(0, "loss").at(0) / losses[0], 1, kTolerance);
  tensors = Together("moment1/", std::move(tensors));
  for (auto& [name, tensor] : tensors) {
    for (float& value : tensor.values) value /= 1 - 0.9f;  // beta1
  }
  ExpectCloseToSamples(kBaseFile, model_, std::move(tensors), "grad", kTolerance);
}

}  // namespace
}  // namespace switchyard
