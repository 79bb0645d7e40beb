// Ten steps of every optimizer on several tensors against what was recorded with PyTorch
// (tools/fixtures/record_optimizers.py): weights after each step, moments after the last.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/optim/optimizer.h"
#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr const char* kFile = "optimizers.safetensors";
constexpr double kTolerance = 1e-6;  // of a tensor's norm
constexpr int kSteps = 10;

using Json = nlohmann::json;

OptimizerOptions OptionsOf(const Json& options) {
  OptimizerOptions o;
  const auto kind = ParseOptimizer(options["kind"]);
  EXPECT_TRUE(kind.ok()) << Message(kind.status());
  o.kind = kind.ok() ? *kind : o.kind;
  o.weight_decay = options["weight_decay"];
  o.momentum = options.value("momentum", o.momentum);
  o.dampening = options.value("dampening", o.dampening);
  o.nesterov = options.value("nesterov", o.nesterov);
  o.beta1 = options.value("beta1", o.beta1);
  o.beta2 = options.value("beta2", o.beta2);
  o.eps = options.value("eps", o.eps);
  o.adam_w_mode = options.value("adam_w_mode", o.adam_w_mode);
  o.grad_averaging = options.value("grad_averaging", o.grad_averaging);
  o.use_nvlamb = options.value("use_nvlamb", o.use_nvlamb);
  o.max_grad_norm = options.value("max_grad_norm", o.max_grad_norm);
  o.trust_coefficient = options.value("trust_coefficient", o.trust_coefficient);
  return o;
}

std::vector<float> Part(const HostTensor& all, int step) {
  const auto size = static_cast<std::ptrdiff_t>(all.values.size()) / kSteps;
  return {all.values.begin() + step * size, all.values.begin() + (step + 1) * size};
}

// ‖found − expected‖ over ‖expected‖.
double Error(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double error = 0, squares = 0;
  for (size_t i = 0; i < expected.size() && i < found.size(); ++i) {
    error += std::pow(double{found[i]} - expected[i], 2);
    squares += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / squares);
}

class RecordedOptimizers : public ::testing::TestWithParam<const char*> {
 protected:
  // The weights after each step, one tensor behind the other.
  std::vector<std::vector<float>> Compare(const std::string& name, const OptimizerOptions& options, TestDevice& test) {
    HostTensors recorded = ReadFixture(kFile, name + "/");
    const std::vector<float> rates = ReadFixture(kFile).at("lr").values;
    Graph graph;
    std::vector<std::string> names;
    std::vector<ParameterGradient> pairs;
    for (const auto& [path, tensor] : recorded) {
      if (!path.ends_with("/p0")) continue;
      names.push_back(path.substr(0, path.size() - 3));
      const Value p = graph.Input(names.back(), {DType::kF32, tensor.shape}, {Role::kParameter, {}, true});
      pairs.push_back({p, graph.Input("g/" + names.back(), p.type(), {})});
    }
    AddOptimizer(graph, pairs, {}, options, kSteps);
    std::vector<std::vector<float>> after;
    const auto compiled = Compiled::Make(graph, test);
    EXPECT_TRUE(compiled.ok()) << Message(compiled.status());
    if (!compiled.ok()) return after;
    (*compiled)->Set("lr_table", rates);
    for (const std::string& tensor : names) (*compiled)->Set(tensor, recorded.at(tensor + "/p0").values);
    for (int step = 0; step < kSteps; ++step) {
      for (const std::string& tensor : names) (*compiled)->Set("g/" + tensor, Part(recorded.at(tensor + "/g"), step));
      const Status status = (*compiled)->instance->Run((*compiled)->stream);
      EXPECT_TRUE(status.ok()) << Message(status);
      std::vector<float>& all = after.emplace_back();
      for (const std::string& tensor : names) {
        const std::vector<float> found = (*compiled)->Get(tensor);
        EXPECT_LE(Error(found, Part(recorded.at(tensor + "/p"), step)), kTolerance) << tensor << ", step " << step;
        all.insert(all.end(), found.begin(), found.end());
      }
    }
    for (const std::string& tensor : names) {
      for (const char* moment : {"moment1", "moment2"}) {
        const auto found = recorded.find(tensor + "/" + moment);
        const bool there = (*compiled)->layout->Find(std::string(moment) + "/" + tensor) != nullptr;
        EXPECT_EQ(there, found != recorded.end()) << moment << "/" << tensor;
        if (!there || found == recorded.end()) continue;
        EXPECT_LE(Error((*compiled)->Get(std::string(moment) + "/" + tensor), found->second.values), kTolerance)
            << moment << "/" << tensor;
      }
    }
    return after;
  }
};

TEST_P(RecordedOptimizers, EqualPyTorchAndThePapersForTenStepsFusedOrNot) {
  const auto test = OpenOrNull(GetParam());
  if (test == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
  const auto file = TensorFile::Open(std::string(SWITCHYARD_FIXTURES) + "/" + kFile);
  ASSERT_TRUE(file.ok()) << Message(file.status());
  const Json cases = Json::parse(file->metadata().at("cases"));
  EXPECT_EQ(cases.size(), 16u);
  for (const auto& [name, options] : cases.items()) {
    SCOPED_TRACE(name);
    OptimizerOptions o = OptionsOf(options);
    const auto fused = Compare(name, o, *test);
    o.fused = false;
    EXPECT_EQ(Compare(name, o, *test), fused) << "one update for each tensor must give the same bits";
  }
}

// ema = ema + (1 − min(decay, (1 + t)/(10 + t)))·(p − ema), t the updates made; a step that is left out changes
// nothing.
TEST_P(RecordedOptimizers, AveragesFollowTheWeightsAndSkipWhatIsLeftOut) {
  const auto test = OpenOrNull(GetParam());
  if (test == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
  constexpr float kDecay = 0.3f;  // reached at t = 3
  const Shape shape = {3, 4};
  Graph graph;
  const Value p = graph.Input("p", {DType::kF32, shape}, {Role::kParameter}), g = graph.Input("g", p.type(), {});
  OptimizerOptions options;
  options.kind = SY_OPTIMIZER_SGD;
  options.ema_decay = kDecay;
  AddOptimizer(graph, {{p, g}}, {}, options, 1);
  const auto compiled = Compiled::Make(graph, *test);
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  const std::vector<float> start = Symmetric("start", 12);
  (*compiled)->Set("lr_table", std::vector<float>{0.1f});
  (*compiled)->Set("p", start);
  (*compiled)->Set("ema/p", start);
  std::vector<double> expected(start.begin(), start.end());
  int made = 0;
  for (int step = 0; step < 6; ++step) {
    std::vector<float> gradient = Symmetric(fmt::format("gradient{}", step), 12);
    const bool finite = step != 2;
    if (!finite) gradient[5] = std::numeric_limits<float>::infinity();
    (*compiled)->Set("g", gradient);
    ASSERT_TRUE((*compiled)->instance->Run((*compiled)->stream).ok());
    const std::vector<float> weights = (*compiled)->Get("p"), found = (*compiled)->Get("ema/p");
    made += finite;
    const double kept = std::min<double>(kDecay, (1.0 + made) / (10.0 + made));
    for (size_t i = 0; i < expected.size(); ++i) {
      if (finite) expected[i] += (1 - kept) * (weights[i] - expected[i]);
      EXPECT_NEAR(found[i], expected[i], 1e-6) << "step " << step << ", element " << i;
    }
  }
  EXPECT_EQ(made, 5);
}

// What f32 bits are in bf16, rounded to nearest, ties to even.
uint16_t ToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

TEST_P(RecordedOptimizers, HalfCopiesAreTheNewParametersRounded) {
  const auto test = OpenOrNull(GetParam());
  if (test == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
  for (const char* kind : {"sgd", "adamw", "lamb", "lars"}) {
    SCOPED_TRACE(kind);
    Graph graph;
    const TensorType type = {DType::kF32, {37, 3}};
    const Value p = graph.Input("p", type, {Role::kParameter}), g = graph.Input("g", type, {});
    const Value half = graph.Input("half/p", {DType::kBF16, type.shape}, {Role::kState});
    OptimizerOptions options;
    options.kind = *ParseOptimizer(kind);
    AddOptimizer(graph, {{p, g, half}}, {}, options, 1);
    const auto compiled = Compiled::Make(graph, *test);
    ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
    (*compiled)->Set("lr_table", std::vector<float>{0.1f});
    (*compiled)->Set("p", Symmetric("p", 111));
    std::vector<float> gradient = Symmetric("g", 111);
    for (int step = 0; step < 3; ++step) {
      if (step == 2) gradient[5] = std::numeric_limits<float>::infinity();
      (*compiled)->Set("g", gradient);
      ASSERT_TRUE((*compiled)->instance->Run((*compiled)->stream).ok());
      const std::vector<float> weights = (*compiled)->Get("p");
      std::vector<uint16_t> found(weights.size());
      ASSERT_TRUE((*compiled)->memory->Download("half/p", found.data(), found.size() * sizeof(uint16_t)).ok());
      for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], ToBf16(weights[i])) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, RecordedOptimizers, ::testing::ValuesIn(TestDevices({"cpu", "reference", "opencl", "null"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard
