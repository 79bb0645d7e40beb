// What becomes of ops that a backend lacks: the engine takes them apart, or runs them on the reference plugin and says
// so; --max_fallback=0 makes an error of the second that lists them. The backend is the faulty plugin without matmul,
// layer_norm and attention: a matmul has no decomposition, attention none without matmul.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/run_command.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
constexpr char kViT[] = "--model=vit_tiny";
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class FallbackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "fallback-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    fs::copy_file(ProgramFolder() + "/faulty_plugin.so", folder_ + "/switchyard_backend_faulty.so");
    std::ofstream(folder_ + "/switchyard_backend_faulty.json")
        << R"({"name": "faulty", "kind": "backend", "abi": 2, "priority": 0, "library": "switchyard_backend_faulty.so"})";
  }
  void TearDown() override { fs::remove_all(folder_); }

  CommandResult Explain(const std::string& fault, const std::string& more) const {
    const auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
    EXPECT_TRUE(reference.ok()) << reference.status();
    return RunCommand(
        fmt::format(
            "env SWITCHYARD_PLUGIN_PATH={} SWITCHYARD_FAULT={} SWITCHYARD_FAULT_BASE={} XDG_CACHE_HOME={}/cache "
            "{}/../bin/switchyard explain --batch_size=2 --steps=100 --device=faulty {}",
            folder_, fault, (*reference)->path(), folder_, ProgramFolder(), more),
        60);
  }

  std::string folder_;
};

TEST_F(FallbackTest, ViTTinyIsExplainedWithItsFallbacks) {
  const CommandResult result = Explain("lacks_ops", kViT);
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("matmul is not one of the ops here"));
}

TEST_F(FallbackTest, NoFallbackAllowedIsAnErrorThatListsTheOps) {
  const CommandResult result = Explain("lacks_ops", fmt::format("{} --max_fallback=0", kViT));
  EXPECT_NE(result.code, 0);
  EXPECT_LT(result.code, 124) << result.output;
  EXPECT_THAT(result.output,
              ContainsRegex("[0-9]+ nodes would run on the reference plugin, more than --max_fallback=0 allows"));
  EXPECT_THAT(result.output, HasSubstr("the faulty plugin lacks"));
  EXPECT_THAT(result.output, HasSubstr("matmul is not one of the ops"));
  EXPECT_THAT(result.output, HasSubstr("attention is not one of the ops"));
  EXPECT_THAT(result.output, Not(HasSubstr("layer_norm is not one of the ops")));  // it is taken apart
}

// Also of nodes whose refusal was remembered while other ops were asked for, and where an op has several reasons.
TEST_F(FallbackTest, EveryFallbackHasTheReasonThatThePluginGaveForIt) {
  for (const char* allowed : {"", "--max_fallback=0"}) {
    const CommandResult result = Explain("refuses_in_different_words", fmt::format("{} {}", kViT, allowed));
    EXPECT_EQ(result.code == 0, *allowed == '\0') << result.output;
    EXPECT_THAT(result.output, ContainsRegex("  matmul × [0-9]+ .first: [^\n]*no product of 192 columns"));
    EXPECT_THAT(result.output, ContainsRegex("  matmul × [0-9]+ .first: [^\n]*no product of 768 columns"));
    EXPECT_THAT(result.output, ContainsRegex("  pointwise × [0-9]+ .first: [^\n]*no element by element"));
    EXPECT_THAT(result.output, Not(ContainsRegex("  matmul × [^\n]*element by element")));
    EXPECT_THAT(result.output, Not(ContainsRegex("  pointwise × [^\n]*product of")));
  }
}

// What the engine counts and looks up for itself is f32; labels are the data's, and i32.
TEST_F(FallbackTest, ACardThatKnowsOnlyF32LacksTheLossOfLabelsAlone) {
  for (const char* trained :
       {kViT, "--model=mlp --optimizer=lamb", "--model=resnet18 --optimizer=sgd --fused_optimizer=0",
        "--model=vit_tiny --clip=1 --ema_decay=0.999 --layer_decay=0.75 --accumulation=2"}) {
    const CommandResult result = Explain("knows_only_f32", trained);
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("fallbacks to the reference plugin: 2 nodes")) << trained;
    EXPECT_THAT(result.output, HasSubstr("  cross_entropy × 1 ")) << trained;
    EXPECT_THAT(result.output, HasSubstr("  cross_entropy_backward × 1 ")) << trained;
  }
}

// Kernels that the plugin did not want, each with its reason, in which nothing acts on a terminal; they are refused
// only where they are to be counted.
TEST_F(FallbackTest, SecondChoicesAreReportedAndRefusedOnRequest) {
  for (const char* allowed : {"", "--max_fallback=0", "--count_second_choice"}) {
    const CommandResult result = Explain("lacks_a_library", fmt::format("{} {}", kViT, allowed));
    EXPECT_EQ(result.code, 0) << result.output;
    EXPECT_THAT(result.output, ContainsRegex("kernels that are the backend's second choice: [0-9]+ nodes"));
    EXPECT_THAT(result.output, ContainsRegex("  matmul × [0-9]+ .first: [^\n]*; libfast is not installed[\\\\]x1b"));
    EXPECT_THAT(result.output, ContainsRegex("  attention × 12 .first: [^\n]*; libfast 1.0 is too old"));
    EXPECT_THAT(result.output, HasSubstr("fallbacks to the reference plugin: none"));
  }
  const CommandResult refused =
      Explain("lacks_a_library", fmt::format("{} --max_fallback=0 --count_second_choice", kViT));
  EXPECT_NE(refused.code, 0);
  EXPECT_LT(refused.code, 124) << refused.output;
  EXPECT_THAT(refused.output,
              ContainsRegex("0 nodes would run on the reference plugin and [0-9]+ in a second choice of the faulty "
                            "plugin, more than --max_fallback=0 with --count_second_choice allows"));
  EXPECT_THAT(refused.output, HasSubstr("libfast 1.0 is too old"));
}

TEST_F(FallbackTest, NoFallbackAllowedIsNoErrorWhereNothingIsLacking) {
  const CommandResult result = Explain("none", fmt::format("{} --max_fallback=0", kViT));
  EXPECT_EQ(result.code, 0) << result.output;
}

}  // namespace
}  // namespace switchyard
