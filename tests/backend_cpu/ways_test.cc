// Products and point convolutions may be computed in several ways (backends/cpu/ways.h): each gives what the default
// one gives, which one is measured is kept for later processes, and where bits are to repeat nothing is measured.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/registry.h"
#include "tests/backends/backend.h"
#include "tests/data/files_for_tests.h"
#include "tools/conform/op_run.h"

namespace switchyard::test {
namespace {

using conform::BoundOp;
using conform::Problem;
using Outputs = std::vector<std::vector<double>>;

struct Case {
  Problem problem;
  std::set<std::string> ways;  // on every CPU with AVX2
  bool adds = false;           // to its first output
};

const std::set<std::string> kProduct = {"matmul", "inner_product"}, kGradient = {"matmul", "weight_gradient"},
                            kPoint = {"convolution", "matmul"};

template <typename Attributes>
Case Of(const std::set<std::string>& ways, const char* op, const Attributes& attributes,
        const std::vector<std::vector<int64_t>>& inputs, const std::vector<std::vector<int64_t>>& outputs,
        sy_dtype dtype = SY_F32, bool adds = false) {
  Case made{.problem = {.op = op}, .ways = ways, .adds = adds};
  const auto* bytes = reinterpret_cast<const uint8_t*>(&attributes);
  made.problem.attributes.assign(bytes, bytes + sizeof attributes);
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const auto& dims : inputs) {
    made.problem.inputs.push_back(Describe(Tensor{dtype, dims, {}}));
    auto& values = made.problem.values.emplace_back();
    for (int64_t i = 0; i < Count(dims); ++i) values.push_back(uniform(generator));
  }
  for (const auto& dims : outputs) made.problem.outputs.push_back(Describe(Tensor{SY_F32, dims, {}}));
  return made;
}

std::vector<Case> Cases() {
  constexpr int64_t kRows = 600, kK = 96, kN = 200;
  const sy_convolution_attributes point = {.spatial_rank = 2, .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .groups = 1};
  return {
      Of(kProduct, "matmul", sy_matmul_attributes{.alpha = 1}, {{kRows, kK}, {kK, kN}}, {{kRows, kN}}),
      Of(kProduct, "matmul",
         sy_matmul_attributes{.transpose_b = 1, .alpha = 1, .bias = 1, .activation = SY_ACTIVATION_GELU},
         {{kRows, kK}, {kN, kK}, {kN}}, {{kRows, kN}}),
      Of(kProduct, "matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 0.5f, .bias = 1, .residual = 1},
         {{kRows, kK}, {kN, kK}, {kN}, {kRows, kN}}, {{kRows, kN}}),
      Of(kProduct, "matmul",
         sy_matmul_attributes{.alpha = 1, .bias = 1, .activation = SY_ACTIVATION_GELU, .save_preactivation = 1},
         {{kRows, kK}, {kK, kN}, {kN}}, {{kRows, kN}, {kRows, kN}}),
      Of(kProduct, "matmul",
         sy_matmul_attributes{.alpha = 1, .activation = SY_ACTIVATION_GELU, .activation_gradient = 1},
         {{kRows, kK}, {kK, kN}, {kRows, kN}}, {{kRows, kN}}),
      Of(kProduct, "matmul", sy_matmul_attributes{.alpha = 1}, {{kRows, kK}, {kK, kN}}, {{kRows, kN}}, SY_F32, true),
      Of(kGradient, "matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1, .bias_gradient = 1},
         {{kRows, kK}, {kRows, kN}}, {{kK, kN}, {kK}}),
      Of(kGradient, "matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1}, {{kRows, kK}, {kRows, kN}},
         {{kK, kN}}, SY_F32, true),
      Of(kGradient, "matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1}, {{64, 1600}, {64, 80}}, {{1600, 80}}),
      Of({}, "matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 1, .bias = 1}, {{kRows, kK}, {kN, kK}, {kN}},
         {{kRows, kN}}, SY_BF16),
      Of({}, "matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1}, {{kRows, kK}, {kRows, kN}}, {{kK, kN}},
         SY_BF16),
      Of({"matmul"}, "matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 1}, {{3, 40, 24}, {3, 56, 24}},
         {{3, 40, 56}}),
      Of(kPoint, "convolution", point, {{2, 14, 14, 64}, {48, 1, 1, 64}}, {{2, 14, 14, 48}}),
      Of(kPoint, "convolution_backward_data", point, {{2, 14, 14, 48}, {48, 1, 1, 64}}, {{2, 14, 14, 64}}),
      Of(kPoint, "convolution_backward_weights", point, {{2, 14, 14, 64}, {2, 14, 14, 48}}, {{48, 1, 1, 64}}),
  };
}

class CpuWays : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1), 0); }

  // On a device of its own, which reads the cache anew.
  static Outputs Run(const Case& given, uint32_t tuning, uint32_t determinism) {
    const auto run = [&]() -> StatusOr<Outputs> {
      SY_ASSIGN_OR_RETURN(const auto plugin, Registry::Get().Find(PluginKind::kBackend, "cpu"));
      OpenOptions options;
      options.threads = 1;
      SY_ASSIGN_OR_RETURN(const auto device, Device::Open(*plugin, 0, options));
      conform::PrepareMode mode;
      mode.tuning = tuning;
      mode.determinism = determinism;
      BoundOp::Mode held;
      if (given.adds) {
        mode.accumulate = {1};
        for (const sy_tensor& output : given.problem.outputs)
          held.initial_outputs.emplace_back(static_cast<size_t>(conform::Elements(output)), 3.0);
      }
      SY_ASSIGN_OR_RETURN(const Kernel kernel, conform::PrepareOp(*device, given.problem, mode));
      SY_ASSIGN_OR_RETURN(const auto bound, BoundOp::Make(*device, given.problem, kernel, held));
      return bound->Run();
    };
    auto outputs = run();
    EXPECT_TRUE(outputs.ok()) << Message(outputs.status());
    return outputs.ok() ? std::move(*outputs) : Outputs();
  }
  static Outputs Default(const Case& given) { return Run(given, SY_TUNING_HEURISTIC, SY_DETERMINISM_ANY); }
  static Outputs Tuned(const Case& given) { return Run(given, SY_TUNING_MEASURE, SY_DETERMINISM_ANY); }

  static void ExpectAlike(const Case& given, const Outputs& found, const Outputs& expected) {
    const bool half = given.problem.inputs[0].dtype != SY_F32;
    ASSERT_EQ(found.size(), expected.size());
    for (size_t o = 0; o < expected.size(); ++o) {
      ASSERT_EQ(found[o].size(), expected[o].size());
      for (size_t i = 0; i < expected[o].size(); ++i)
        ASSERT_NEAR(found[o][i], expected[o][i], half ? 1e-3 : 2e-4) << "output " << o << ", element " << i;
    }
  }
  // There are others in that folder.
  std::vector<std::string> CacheFiles() const {
    std::vector<std::string> found;
    if (!std::filesystem::is_directory(folder_.path() + "/switchyard")) return found;
    for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/switchyard"))
      if (file.path().filename().string().starts_with("cpu-ways-")) found.push_back(file.path());
    return found;
  }
  std::string Cache() const {
    std::ostringstream text;
    for (const std::string& file : CacheFiles()) text << std::ifstream(file).rdbuf();
    return text.str();
  }
  // As if another way had been the fastest, everywhere.
  void ChooseEverywhere(const std::string& way) const {
    std::istringstream lines(Cache());
    std::set<std::string> keys;
    for (std::string key, rest; lines >> key && std::getline(lines, rest);) keys.insert(key);
    ASSERT_EQ(CacheFiles().size(), 1u);
    std::ofstream changed(CacheFiles()[0]);
    for (const std::string& key : keys) changed << key << ' ' << way << '\n';
  }
  TemporaryFolder folder_;
};

TEST_F(CpuWays, AllComputeTheSame) {
  const std::vector<Case> cases = Cases();
  std::vector<Outputs> expected;
  for (const Case& given : cases) {
    SCOPED_TRACE(expected.size());
    expected.push_back(Default(given));
    ExpectAlike(given, Tuned(given), expected.back());
  }
  const auto lines = [&] {
    const std::string all = Cache();
    return std::count(all.begin(), all.end(), '\n');
  };
  EXPECT_GE(lines(), 12) << Cache();
  for (const char* way : {"tiles", "weight_gradient", "matmul", "inner_product", "convolution", "unheard_of"}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(testing::Message() << way << ", case " << i);
      ChooseEverywhere(way);
      const auto before = lines();
      ExpectAlike(cases[i], Tuned(cases[i]), expected[i]);
      if (cases[i].ways.contains(way)) {
        EXPECT_EQ(lines(), before) << "another was measured in its place";
      }
    }
  }
}

// Eight at once, each with a device and a cache of its own, as ranks are.
TEST_F(CpuWays, AreChosenByOneForAllWhoShareTheFolder) {
  const std::vector<Case> cases = Cases();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank)
    ranks.emplace_back([&cases] {
      for (const Case& given : cases) Tuned(given);
    });
  for (std::thread& rank : ranks) rank.join();
  std::istringstream lines(Cache());
  std::set<std::string> keys;
  for (std::string key, way; lines >> key >> way;) EXPECT_TRUE(keys.insert(key).second) << key << " was measured twice";
  EXPECT_GE(keys.size(), 12u);
}

TEST_F(CpuWays, AreNotMeasuredWhereBitsAreToRepeat) {
  for (const Case& given : Cases())
    EXPECT_EQ(Run(given, SY_TUNING_MEASURE, SY_DETERMINISM_RUN), Default(given)) << given.problem.op;
  EXPECT_EQ(Cache(), "");
}

TEST_F(CpuWays, NeedNoFolderToBeKeptIn) {
  const Case given = Cases()[0];
  const Outputs expected = Default(given);
  std::ofstream(folder_.path() + "/switchyard") << "a file where the folder should be";
  ExpectAlike(given, Tuned(given), expected);
}

}  // namespace
}  // namespace switchyard::test
