// The kit must find what is wrong: each test plants one fault in the reference plugin and names the check that has to
// fail.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/environment.h"
#include "core/runtime/plugin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/conform/conform.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Self() { return {ProgramFolder() + "/conform_kit_test", "conform"}; }
std::string FaultyPlugin() { return ProgramFolder() + "/faulty_plugin.so"; }

Report Conform(const std::string& fault, const std::string& filter, const std::string& expected = "") {
  setenv("SWITCHYARD_FAULT", fault.c_str(), 1);
  const auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
  EXPECT_TRUE(reference.ok()) << reference.status();
  setenv("SWITCHYARD_FAULT_BASE", (*reference)->path().c_str(), 1);
  const auto report =
      RunConformance({.plugin = FaultyPlugin(), .filter = filter, .expected_failures = expected, .self = Self()});
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : Report{};
}

struct PlantedFault {
  const char* fault;
  const char* filter;
  const char* words;  // of the failure
};

class PlantedFaultTest : public ::testing::TestWithParam<PlantedFault> {};

TEST_P(PlantedFaultTest, IsFound) {
  const auto& [fault, filter, words] = GetParam();
#if defined(__SANITIZE_ADDRESS__)
  const std::string name = fault;
  if (name == "leaks_on_the_host" || name == "never_frees") GTEST_SKIP() << "LeakSanitizer would report the planted leak";
#endif
  EXPECT_TRUE(Conform("none", filter).passed());
  const Report report = Conform(fault, filter);
  ASSERT_FALSE(report.passed()) << report.Text(true);
  EXPECT_THAT(report.Text(false), HasSubstr(words));
}

INSTANTIATE_TEST_SUITE_P(
    Kit, PlantedFaultTest,
    ::testing::Values(
        PlantedFault{"skips_a_launch", "op/matmul/odd/f32", "is allowed"},
        PlantedFault{"wrong_number", "op/layer_norm/odd/f32", "element 0: expected"},
        PlantedFault{"wrong_gradient", "op/softmax_backward/odd/f32", "element 0: expected"},
        PlantedFault{"wrong_gradient", "gradient/softmax_backward/odd", "central differences"},
        PlantedFault{"wrong_second_output", "op/attention/odd/f32", "output 1 (2, 3, 13)"},
        PlantedFault{"writes_outside", "op/reduce/rows/f32", "wrote outside of a buffer of 52 bytes, at byte 52"},
        PlantedFault{"writes_before", "op/reduce/rows/f32", "at byte -1"},
        PlantedFault{"changes_an_input", "op/concat/rows/f32", "changed its input 1"},
        PlantedFault{"changes_on_relaunch", "op/pad/image/f32", "second launch has other bits"},
        PlantedFault{"forgets_other_bindings", "op/transpose/matrix/f32", "second of two bindings"},
        PlantedFault{"accumulates_twice", "op/squared_norm/many/f32", "accumulated"},
        PlantedFault{"wrong_in_place", "op/roll/forward/f32", "in place"},
        PlantedFault{"hides_strides", "op/matmul/strided/f32", "accepted strided inputs without saying so"},
        PlantedFault{"takes_unknown_ops", "struct/refuses_unknown_op", "expected status 1, found 0"},
        PlantedFault{"trains_wrongly", "train/mlp", "on the reference"},
        PlantedFault{"writes_beyond_a_struct", "struct/device_info_smaller", "was written"},
        PlantedFault{"answers_nonsense_indices", "struct/no_error_wanted", "expected status 2, found 0"},
        PlantedFault{"misnames_out_of_memory", "device/out_of_memory", "expected out of memory"},
        PlantedFault{"leaks_on_the_host", "device/host_leaks", "kept"},
        PlantedFault{"copies_whole_words", "device/copies", "arrived changed"},
        PlantedFault{"never_frees", "device/freeing", "out of memory"} /* last: the memory stays lost */),
    [](const auto& info) { return std::string(info.param.fault) + "_" + std::to_string(info.index); });

TEST(ConformKit, GradesAWholePlugin) {
  const Report report = Conform("none", "");
  EXPECT_EQ(report.level, Level::kTrains) << report.Text(false);
  EXPECT_THAT(report.lacks, HasSubstr("Async lacks async/stream_order"));
}

TEST(ConformKit, FindsFaultsOfCollectives) {
  const auto shm = Registry::Get().Find(PluginKind::kCollective, "shm");
  if (!shm.ok()) GTEST_SKIP() << "it needs the shm collective: " << shm.status();
  setenv("SWITCHYARD_FAULT_BASE", (*shm)->path().c_str(), 1);
  const std::pair<const char*, const char*> faults[] = {
      {"none", " 0 FAIL"},
      {"wrong_sum", "collective/all_reduce/f32/sum/2_ranks: rank"},
      {"leaves_early", "a rank left the barrier before rank"},
      {"crashes", "was killed by signal 9 before it could report"},
  };
  for (const auto& [fault, words] : faults) {
    setenv("SWITCHYARD_FAULT", fault, 1);
    const auto report =
        RunConformance({.plugin = ProgramFolder() + "/faulty_collective.so", .ranks = {2}, .self = Self()});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->Text(false), HasSubstr(words)) << fault;
  }
}

TEST(ConformKit, TellsExpectedFailuresFromUnexpectedPasses) {
  const std::string path = ::testing::TempDir() + "/expected_failures.json";
  std::ofstream(path) << R"({"op/layer_norm/odd/*": "known", "op/layer_norm/one_row/f16": "mended"})";
  const Report report = Conform("wrong_number", "op/layer_norm/o", path);
  EXPECT_TRUE(report.Count(Outcome::kExpectedFailure) >= 1 && report.Count(Outcome::kUnexpectedPass) >= 1)
      << report.Text(true);
  EXPECT_THAT(report.Text(false), HasSubstr("expected failure  op/layer_norm/odd/f32: known: result:"));
  EXPECT_EQ(nlohmann::json::parse(report.Json())["counts"]["unexpected pass"], report.Count(Outcome::kUnexpectedPass));
  EXPECT_THAT(report.lacks, HasSubstr("not graded"));
}

TEST(ConformKit, AnswersWrongCommandLines) {
  EXPECT_EQ(ConformMain(Self(), {}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--ranks=0", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--vebose", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"a", "b"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--help"}), 0);
  EXPECT_EQ(ConformMain(Self(), {"no_such_plugin"}), 1);
}

TEST(ConformKit, TriesEveryOpInSeveralCases) {
  for (const std::string& op : OpNames()) {
    int count = 0;
    for (const OpCase& one : OpCases()) count += one.op == op;
    EXPECT_GE(count, 3) << op;
  }
  EXPECT_EQ(OpNames().size(), 32u);
}

TEST(Values, SurviveEveryDtype) {
  const std::vector<double> values = {0, 1, -1, 0.5, 3, -200, 1.0 / 3};
  EXPECT_EQ(Rounded(values, SY_F64), values);
  EXPECT_EQ(Rounded({1 + 0x1p-8, 1 + 3 * 0x1p-8}, SY_BF16), (std::vector<double>{1, 1 + 0x1p-6}));  // ties to even
  EXPECT_EQ(Rounded({1 + 0x1p-11, 1 + 3 * 0x1p-11, 65519, 0x1p-24, 0x1p-26}, SY_F16),
            (std::vector<double>{1, 1 + 0x1p-9, 65504, 0x1p-24, 0}));
  EXPECT_EQ(Rounded({65520}, SY_F16)[0], HUGE_VAL);
  EXPECT_EQ(Rounded({200, 7}, SY_U8), (std::vector<double>{200, 7}));
}

}  // namespace
}  // namespace switchyard::conform
