// The kit must find what is wrong: each test plants one fault in the reference plugin and names the check that has to
// fail.
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/environment.h"
#include "core/runtime/plugins/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/conform/conform.h"
#include "tools/conform/name_filter.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/rounding.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Self() { return {ProgramFolder() + "/conform_kit_test", "conform"}; }
std::string FaultyPlugin() { return ProgramFolder() + "/faulty_plugin.so"; }

std::string PathOf(PluginKind kind, const char* name) {
  const auto plugin = Registry::Get().Find(kind, name);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  return plugin.ok() ? (*plugin)->path() : "";
}

Report Conform(const std::string& fault, const std::string& only, const std::string& expected = "",
               const char* base = "reference") {
  setenv("SWITCHYARD_FAULT", fault.c_str(), 1);
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kBackend, base).c_str(), 1);
  const auto report = RunConformance({.plugin = FaultyPlugin(),
                                      .only = only,
                                      .expected_failures = expected,
                                      .check_timeout_s = fault == "hangs_in_fill" ? 4 : 60,
                                      .self = Self()});
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? *report : Report{};
}

struct PlantedFault {
  const char* fault;
  const char* only;
  const char* words;  // of the failure
};
std::ostream& operator<<(std::ostream& out, const PlantedFault& planted) { return out << planted.fault; }

// Sound without the fault, found with it.
void ExpectFound(const PlantedFault& planted, const char* base) {
  const auto& [fault, only, words] = planted;
  const Report sound = Conform("none", only, "", base);
  EXPECT_TRUE(sound.passed()) << sound.Text(true);
  EXPECT_GT(sound.checks.size(), 1u) << "nothing was tried\n" << sound.Text(true);
  const Report report = Conform(fault, only, "", base);
  ASSERT_FALSE(report.passed()) << report.Text(true);
  EXPECT_THAT(report.Text(false), HasSubstr(words));
}

std::string NameOf(const ::testing::TestParamInfo<PlantedFault>& info) {
  return std::string(info.param.fault) + "_" + std::to_string(info.index);
}

class PlantedFaultTest : public ::testing::TestWithParam<PlantedFault> {};
TEST_P(PlantedFaultTest, IsFound) { ExpectFound(GetParam(), "reference"); }

INSTANTIATE_TEST_SUITE_P(
    Ops, PlantedFaultTest,
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
        PlantedFault{"other_bits_in_place", "op/softmax/odd/f32", "other bits where it shares an input's place"},
        PlantedFault{"spills_over_rows", "op/softmax/odd/f32", "beside a row with inf and one with NaN"},
        PlantedFault{"ignores_determinism", "op/gather/*/f32", "asked for determinism 1, the kernel has 0"},
        PlantedFault{"ignores_the_workspace_limit", "op/gather/*/f32", "workspace; the limit was 0"},
        PlantedFault{"keeps_all_there_is", "op/softmax/odd/f32", "asked for 18446744073709551615 persistent bytes"},
        PlantedFault{"invents_a_determinism_class", "op/softmax/odd/f32", "the unknown determinism class 77"},
        PlantedFault{"takes_unknown_ops", "struct/refuses_unknown_op", "expected status 1, found 0"},
        PlantedFault{"calls_the_unknown_invalid", "struct/refuses_unknown_dtype", "expected status 1, found 2"},
        PlantedFault{"calls_the_unknown_invalid", "argument/matmul/other_editions", "an input of dtype 99: expected"},
        PlantedFault{"ignores_longer_attributes", "argument/matmul/other_editions", "something unknown behind them"},
        PlantedFault{"reads_beyond_attributes", "argument/matmul/other_editions", "without the zeros at their end"},
        PlantedFault{"ignores_extensions", "struct/prepare_request_extensions", "expected status 1, found 0"},
        PlantedFault{"refuses_optional_extensions", "struct/prepare_request_extensions", "expected status 0, found 1"},
        PlantedFault{"mixes_up_threads", "threads/kernels", "threads/kernels: "},
        PlantedFault{"takes_nonsense", "argument/reduce", "expected SY_INVALID or SY_UNSUPPORTED, found success"},
        PlantedFault{"crashes_on_nonsense", "argument/pool*", "argument/pool: the process was killed by signal 11"},
        PlantedFault{"cuts_off", "op/pointwise/rounding_from_f32/bf16", "are not rounded to nearest even"},
        PlantedFault{"norms_another_sum", "op/layer_norm/rounding_of_sum/bf16", "the norm of the sum as it was kept"},
        PlantedFault{"leans_towards_zero", "op/layer_norm/odd/bf16", "units of the last place towards zero on average"},
        PlantedFault{"leans_down", "op/layer_norm/odd/bf16", "units of the last place too low on average"},
        PlantedFault{"ignores_strides", "strides/softmax/odd", "input 0 with reversed axes: output 0 ("},
        PlantedFault{"fills_gaps", "strides/softmax/odd", "wrote between the elements of a strided tensor"},
        PlantedFault{"takes_any_determinism", "refusal/unknown_determinism",
                     "of determinism class 99: expected SY_UNSUPPORTED"},
        PlantedFault{"refuses_unknown_tuning", "refusal/nearest_levels", "at tuning level 99"},
        PlantedFault{"calls_the_broken_unsupported", "refusal/prepare/softmax", "rank 9: expected SY_INVALID"},
        PlantedFault{"binds_anywhere", "refusal/bind",
                     "bind of pointwise with place 0 at offset 64: expected status 2"},
        PlantedFault{"trains_wrongly", "train/mlp", "on the reference"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Devices, PlantedFaultTest,
    ::testing::Values(
        PlantedFault{"writes_beyond_a_struct", "struct/device_info_smaller", "was written"},
        PlantedFault{"reads_beyond_a_struct", "struct/open_options_smaller_and_larger", "open_options of 16 bytes"},
        PlantedFault{"ignores_extensions_of_infos", "struct/device_info_extensions", "query with an unknown required"},
        PlantedFault{"ignores_extensions_of_infos", "struct/kernel_info_extensions",
                     "prepare with an unknown required"},
        PlantedFault{"ignores_extensions", "struct/alloc_options_extensions", "unknown required extension"},
        PlantedFault{"writes_errors_on_success", "struct/error_untouched", "though the status is 0"},
        PlantedFault{"has_no_devices_and_no_words", "load/count", "status 1 came without a message"},
        PlantedFault{"is_made_once", "instance/two_at_once", "another sy_plugin_create"},
        PlantedFault{"hides_interfaces_of_the_second", "instance/two_at_once", "another instance lacks kernel/2"},
        PlantedFault{"closes_every_device", "instance/two_at_once", "after another instance closed its device"},
        PlantedFault{"mixes_hosts", "instance/two_at_once", "called with the context of another"},
        PlantedFault{"crashes_at_the_end", "device/info",
                     "was killed by signal 11 (Segmentation fault) after its last"},
        PlantedFault{"writes_lines_of_libraries", "device/libraries", "no line of printable UTF-8"},
        PlantedFault{"forgets_what_it_said", "device/libraries", "and has become"},
        PlantedFault{"answers_nonsense_indices", "struct/no_error_wanted", "expected status 2, found 0"},
        PlantedFault{"misnames_out_of_memory", "device/out_of_memory", "expected out of memory"},
        PlantedFault{"leaks_on_the_host", "device/host_leaks", "kept"},
        PlantedFault{"leaks_descriptors", "device/reopening", "file descriptors"},
        PlantedFault{"leaks_threads", "device/reopening", "8 threads"},
        PlantedFault{"copies_whole_words", "device/copies", "arrived changed"},
        PlantedFault{"copies_nothing", "device/copies", "a copy of 32 bytes from the device wrote nothing"},
        PlantedFault{"aligns_host_addresses", "memory/unaligned_host", "beyond alignment arrived changed"},
        PlantedFault{"has_two_addresses", "memory/native_address", "two addresses"},
        PlantedFault{"imports_a_copy", "memory/import", "did not reach its owner"},
        PlantedFault{"hangs_in_fill", "device/fill", "the process had not moved for 4 s in this check"},
        PlantedFault{"crashes_in_fill", "device/fill",
                     "device/fill: the process was killed by signal 11 (Segmentation fault) in this check"},
        PlantedFault{"exits_in_fill", "device/fill", "device/fill: the process ended with exit status 0 in this check"},
        PlantedFault{"ends_in_fill", "device/fill", "device/fill: the process ended with exit status 0 in this check"},
        PlantedFault{"throws_in_fill", "device/fill",
                     "device/fill: it threw a C++ exception across the plugin interface: out of \\x1b[31mpaint"},
        PlantedFault{"writes_into_the_results", "device/fill", "device/fill: its result is not in the file of results"},
        PlantedFault{"crashes_on_a_copy_too_long", "device/sticky_error",
                     "device/sticky_error: the process was killed by signal 11 (Segmentation fault)"},
        PlantedFault{"claims_what_is_not_convex", "region/fork", "is not convex"},
        PlantedFault{"claims_more_nodes_than_there_are", "region/mlp", "more claims than there are nodes"},
        PlantedFault{"skips_a_region", "region/mlp", "relative error"},
        PlantedFault{"ignores_strides_in_regions", "region/mlp", "region of 1 nodes, input 0 with reversed axes"},
        PlantedFault{"allocates_nothing", "refusal/places", "alloc of 0 bytes: expected status 2, found 0"},
        PlantedFault{"copies_between_host_memory", "refusal/places", "a copy from host to host: expected status 2"},
        PlantedFault{"fills_what_there_is", "refusal/places", "a fill of more bytes than the buffer has: expected"},
        PlantedFault{"imports_any_kind", "refusal/unknown_memory_kind", "expected status 1, found 0"},
        PlantedFault{"answers_every_name", "refusal/unknown_interfaces", "get_interface(\"device/3\"): expected NULL"},
        PlantedFault{"never_frees", "device/freeing", "out of memory"}),
    NameOf);

// The faults of streams, in the null plugin, whose delay makes them show on a machine of any speed.
class PlantedStreamFaultTest : public ::testing::TestWithParam<PlantedFault> {};
TEST_P(PlantedStreamFaultTest, IsFound) {
  setenv("SWITCHYARD_NULL_DELAY_US", "3000", 1);
  ExpectFound(GetParam(), "null");
  unsetenv("SWITCHYARD_NULL_DELAY_US");
}

INSTANTIATE_TEST_SUITE_P(
    Streams, PlantedStreamFaultTest,
    ::testing::Values(PlantedFault{"forgets_the_order", "async/stream_order", "did not run in order"},
                      PlantedFault{"waits_for_no_event", "async/events", "stream_wait did not wait"},
                      PlantedFault{"refuses_events_without_a_record", "async/events", "stream_wait of round 0"},
                      PlantedFault{"keeps_the_first_record", "async/events_recorded_anew",
                                   "stream_wait did not wait for the latest record"},
                      PlantedFault{"gives_no_stream", "async/stream_order", "stream_create succeeded without a stream"},
                      PlantedFault{"gives_no_event", "async/events", "event_create succeeded without an event"},
                      PlantedFault{"gives_no_event", "struct/error_untouched", "succeeded without an event"},
                      PlantedFault{"blocks_the_host", "async/non_blocking", "the calls blocked the host"},
                      PlantedFault{"returns_too_early", "async/copy_without_stream",
                                   "had not finished when it returned"},
                      PlantedFault{"forgets_errors", "device/sticky_error", "forgot its error"},
                      PlantedFault{"replays_twice", "capture/replay", "after 4 launches of 3 runs"},
                      PlantedFault{"calls_the_unknown_invalid", "strides/softmax/odd",
                                   "expected SY_UNSUPPORTED where it is not taken"},
                      PlantedFault{"waits_in_captures", "capture/spoiled", "that is being captured: expected status 1"},
                      PlantedFault{"captures_in_captures", "capture/spoiled", "second begin on a stream"},
                      PlantedFault{"loses_spans", "profiler/spans", "10 launches left"},
                      PlantedFault{"turns_time_round", "profiler/spans", "before it starts"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Semaphores, PlantedStreamFaultTest,
    ::testing::Values(
        PlantedFault{"ignores_extensions", "struct/semaphore_options_extensions", "unknown required extension"},
        PlantedFault{"raises_twice", "semaphore/host", "expected status 2, found 0"},
        PlantedFault{"forgets_time_limits", "semaphore/timeout", "expected status 4, found 0"},
        PlantedFault{"signals_at_once", "semaphore/stream_to_host", "before the work in front of the signal"},
        PlantedFault{"waits_for_no_count", "semaphore/host_to_stream", "before anybody raised the count"},
        PlantedFault{"waits_for_no_count", "semaphore/between_streams", "semaphore/between_streams: "},
        PlantedFault{"goes_on_too_soon", "semaphore/host_to_stream", "at a count of 1 or 2"},
        PlantedFault{"wakes_everybody", "semaphore/several_waiters", "a thread that waits for 2 went on at 1"},
        PlantedFault{"lets_counts_fall", "semaphore/never_falls", "expected a count of 5, found"},
        PlantedFault{"raises_without_a_lock", "semaphore/threads", "to each of 300 numbers"},
        PlantedFault{"keeps_semaphores", "semaphore/destroy", "file descriptors"},
        PlantedFault{"is_deaf_to_failures", "semaphore/failed_stream", "nobody lets go"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Peers, PlantedStreamFaultTest,
    ::testing::Values(
        PlantedFault{"describes_in_too_little_room", "peer/export", "expected status 2, found 0"},
        PlantedFault{"imports_something_else", "peer/import_here", "what the owner wrote, read by the importer"},
        PlantedFault{"imports_something_else", "peer/other_device", "what the owner wrote, read by the importer"},
        PlantedFault{"imports_something_else", "peer/threads", "imported memory is not the owner's"},
        PlantedFault{"imports_something_else", "peer/two_processes", "what its owner wrote into imported memory"},
        PlantedFault{"frees_the_owners_memory", "peer/references", "after another import was freed"},
        PlantedFault{"takes_any_description", "peer/forged", "import_memory of 0 bytes of 48: expected status 2"},
        PlantedFault{"keeps_imports", "peer/leaks", "file descriptors"},
        PlantedFault{"needs_its_owner_alive", "peer/owner_dies", "was killed by signal 11 (Segmentation fault)"}),
    NameOf);

// Of shm, with the fewest ranks that show it.
struct PlantedCollectiveFault {
  const char* fault;
  const char* only;
  int ranks;
  const char* words;
};
std::ostream& operator<<(std::ostream& out, const PlantedCollectiveFault& planted) { return out << planted.fault; }
class PlantedCollectiveFaultTest : public ::testing::TestWithParam<PlantedCollectiveFault> {};

TEST_P(PlantedCollectiveFaultTest, IsFound) {
  const auto& [fault, only, ranks, words] = GetParam();
  if (!Registry::Get().Find(PluginKind::kCollective, "shm").ok()) GTEST_SKIP() << "it needs the shm collective";
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kCollective, "shm").c_str(), 1);
  for (const bool sound : {true, false}) {
    setenv("SWITCHYARD_FAULT", sound ? "none" : fault, 1);
    const auto report = RunConformance(
        {.plugin = ProgramFolder() + "/faulty_collective.so", .only = only, .ranks = {ranks}, .self = Self()});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->passed(), sound) << report->Text(true);
    EXPECT_GT(report->checks.size(), 1u) << "nothing was tried";
    EXPECT_THAT(report->Text(false), HasSubstr(sound ? " 0 FAIL" : words));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Collectives, PlantedCollectiveFaultTest,
    ::testing::Values(
        PlantedCollectiveFault{"gives_no_communicator", "barrier", 2, "init succeeded without a communicator"},
        PlantedCollectiveFault{"gives_no_memory", "owned_memory", 2, "bytes succeeded without memory"},
        PlantedCollectiveFault{"wrong_sum", "collective/all_reduce/f32/*", 2, "byte 256 of"},
        PlantedCollectiveFault{"cuts_off_the_last_bit", "all_reduce/bf16/sum", 2, "sum_rounding/2_ranks"},
        PlantedCollectiveFault{"writes_too_far", "all_gather/f64", 2, "wrote outside of a buffer"},
        PlantedCollectiveFault{"has_one_root", "broadcast/f32", 2, "elements from rank 1"},
        PlantedCollectiveFault{"leaves_early", "collective/barrier", 2, "a rank left the barrier before rank"},
        PlantedCollectiveFault{"exchanges_messages", "collective/send_recv_batch", 3, "send_recv_batch/3_ranks"},
        PlantedCollectiveFault{"crashes", "all_reduce/f32/sum", 2,
                               "the process was killed by signal 9 (Killed) in this check"},
        PlantedCollectiveFault{"mixes_communicators", "two_communicators", 2, "call 1 in flight"},
        PlantedCollectiveFault{"splits_in_wrong_order", "split", 3, "the order of the ranks of a split by key"},
        PlantedCollectiveFault{"leaks_descriptors", "leaks", 2, "file descriptors"},
        PlantedCollectiveFault{"takes_nonsense", "arguments", 2, "expected SY_INVALID, found success"},
        PlantedCollectiveFault{"calls_the_unknown_invalid", "arguments", 2, "reduces of dtype 99"},
        PlantedCollectiveFault{"ignores_extensions_of_init", "extensions", 2, "init with an unknown required"},
        PlantedCollectiveFault{"ignores_extensions_of_info", "structs", 2, "query with an unknown required extension"},
        PlantedCollectiveFault{"ignores_extensions_of_calls", "extensions", 2, "all_gather with an unknown required"},
        PlantedCollectiveFault{"writes_errors_on_success", "structs", 2, "though the status is 0"},
        PlantedCollectiveFault{"writes_in_latin_1", "structs", 2, "libraries is no line of printable UTF-8"},
        PlantedCollectiveFault{"aborts_every_instance", "instances", 2, "after another instance was aborted"},
        PlantedCollectiveFault{"forgets_answers", "requests/polled_again", 2, "polled again: expected status 0"},
        PlantedCollectiveFault{"waits_in_release", "requests/dropped", 2, "it waited"},
        PlantedCollectiveFault{"drops_nothing", "requests/dropped", 2, "a call beside one that was dropped"},
        PlantedCollectiveFault{"goes_on_after_release", "requests/dropped", 2,
                               "killed by signal 11 (Segmentation fault)"},
        PlantedCollectiveFault{"hides_who_disagrees", "mismatch/op", 2, "the disagreement is not named"},
        PlantedCollectiveFault{"deaf_to_abort", "abort/call", 2, "a call aborted by another thread ended with"},
        PlantedCollectiveFault{"has_no_deadline", "deadline/call", 2, "did not end by itself within"},
        PlantedCollectiveFault{"hangs_after_errors", "death/between_calls", 3,
                               "did not return within 2000 ms after that"}),
    [](const auto& info) { return info.param.fault; });

TEST(ConformKit, CollectivesOfSixFunctionsDieAsOthersDo) {
  if (!Registry::Get().Find(PluginKind::kCollective, "shm").ok()) GTEST_SKIP() << "it needs the shm collective";
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kCollective, "shm").c_str(), 1);
  setenv("SWITCHYARD_FAULT", "six_functions", 1);
  const auto report = RunConformance({.plugin = ProgramFolder() + "/faulty_collective.so",
                                      .only = "collective/death/in_call/*",
                                      .ranks = {2},
                                      .self = Self()});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->passed()) << report->Text(true);
  EXPECT_THAT(report->Text(true), HasSubstr("collective/death/in_call/2_ranks"));
}

// The ranks have told what there is to tell; a launcher that does not notice their end is no fault of the plugin.
TEST(ConformKit, DoesNotWaitForAnMpirunWhoseRanksHaveAllEnded) {
  if (!Registry::Get().Find(PluginKind::kCollective, "shm").ok()) GTEST_SKIP() << "it needs the shm collective";
  std::string folder = ::testing::TempDir() + "/launcher-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string mpirun = folder + "/mpirun";
  std::ofstream(mpirun) << R"(#!/usr/bin/env bash
while [[ $# -gt 0 && $1 != -n ]]; do shift; done
size=$2; shift 2
for ((rank = 0; rank < size; ++rank)); do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$size "$@" & done
sleep 300
)";
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PATH", (folder + ":" + path).c_str(), 1);
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kCollective, "shm").c_str(), 1);
  setenv("SWITCHYARD_FAULT", "wants_mpirun", 1);
  const auto report = RunConformance({.plugin = ProgramFolder() + "/faulty_collective.so",
                                      .only = "collective/death/in_init/*",
                                      .ranks = {2},
                                      .check_timeout_s = 60,
                                      .self = Self()});
  setenv("PATH", path.c_str(), 1);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->passed()) << report->Text(true);
  EXPECT_THAT(report->Text(true), HasSubstr("collective/death/in_init/2_ranks"));
}

TEST(ConformKit, GradesAWholePlugin) {
  const Report report = Conform("none", "");
  EXPECT_GE(report.level, Level::kDistributed) << report.Text(false);
  EXPECT_TRUE(report.missed.empty()) << report.Text(false);
  EXPECT_THAT(report.Text(false), HasSubstr("Async as a synchronous device, without streams"));
  EXPECT_THAT(report.Text(false), HasSubstr("ops have native kernels, 0 fall back"));
}

TEST(ConformKit, ThatNoCheckFitsIsNoSuccess) {
  const Report report = Conform("none", "nothingatall");
  EXPECT_THAT(report.Text(false), HasSubstr("MISSED            \"nothingatall\" of --only, which no check fits"));
  EXPECT_TRUE(Conform("none", "load/").missed.empty());
}

TEST(ConformKit, GoesOnBehindACheckThatCrashes) {
  const Report report = Conform("crashes_on_nonsense", "argument");
  EXPECT_EQ(report.Count(Outcome::kFail), 1) << report.Text(true);
  EXPECT_GT(report.Count(Outcome::kPass), 25) << report.Text(true);
}

TEST(ConformKit, WritesAReportThatProgramsRead) {
  const std::string path = ::testing::TempDir() + "/report.json";
  setenv("SWITCHYARD_FAULT", "wrong_number", 1);
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kBackend, "reference").c_str(), 1);
  EXPECT_EQ(ConformMain(Self(), {"--only=op/layer_norm/odd/*", "--json=" + path, FaultyPlugin()}), 1);
  std::ifstream file(path);
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["plugin"], "faulty");
  EXPECT_EQ(report["kind"], "backend");
  EXPECT_EQ(report["seed"], 42);
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["graded"], false);
  EXPECT_GT(report["counts"]["fail"], 0);
  bool found = false;
  for (const auto& check : report["checks"]) {
    EXPECT_TRUE(check["name"].get<std::string>().rfind("op/layer_norm/odd/", 0) == 0 || check["name"] == "load/plugin")
        << check;
    if (check["name"] != "op/layer_norm/odd/f32") continue;
    found = true;
    EXPECT_EQ(check["outcome"], "fail");
    EXPECT_THAT(check["detail"].get<std::string>(), HasSubstr("element 0: expected"));
    EXPECT_GT(check["milliseconds"].get<double>(), 0);
  }
  EXPECT_TRUE(found);
}

TEST(NameFilter, TakesPartsAndPatterns) {
  EXPECT_TRUE(NameFilter("").Matches("anything"));
  EXPECT_TRUE(NameFilter("matmul").Matches("op/matmul/odd/f32"));
  EXPECT_FALSE(NameFilter("matmul*").Matches("op/matmul/odd/f32"));
  EXPECT_TRUE(NameFilter("op/*/f32").Matches("op/matmul/odd/f32"));
  EXPECT_FALSE(NameFilter("op/*/f32").Matches("op/matmul/odd/bf16"));
  EXPECT_TRUE(NameFilter("struct,op/matmul/*").Matches("op/matmul/odd/bf16"));
  EXPECT_FALSE(NameFilter("struct,op/matmul/*").Matches("op/softmax/odd/f32"));
}

TEST(ConformKit, TellsExpectedFailuresFromUnexpectedPasses) {
  const std::string path = ::testing::TempDir() + "/expected_failures.json";
  std::ofstream(path) << R"({"op/layer_norm/odd/*": "known", "op/layer_norm/one_row/f16": "mended"})";
  const Report report = Conform("wrong_number", "op/layer_norm/o", path);
  EXPECT_TRUE(report.Count(Outcome::kExpectedFailure) >= 1 && report.Count(Outcome::kUnexpectedPass) >= 1)
      << report.Text(true);
  EXPECT_THAT(report.Text(false), HasSubstr("expected failure  op/layer_norm/odd/f32: known: result:"));
  EXPECT_EQ(nlohmann::json::parse(report.Json())["counts"]["unexpected_pass"], report.Count(Outcome::kUnexpectedPass));
  EXPECT_THAT(report.lacks, HasSubstr("not graded"));
}

// A plugin that offers less than was asked for has no failure, and is told.
TEST(ConformKit, TellsWhatWasAskedForAndIsNotThere) {
  setenv("SWITCHYARD_FAULT", "none", 1);
  setenv("SWITCHYARD_FAULT_BASE", PathOf(PluginKind::kBackend, "null").c_str(), 1);
  const auto report = RunConformance({.plugin = FaultyPlugin(),
                                      .only = "load,device/copies,op/matmul/strided/f32",
                                      .level = Level::kLoads,
                                      .whole = {"device/*", "op/matmul/*", "no_such_check"},
                                      .self = Self()});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->passed()) << report->Text(true);
  EXPECT_THAT(report->missed,
              ::testing::ElementsAre("level Loads", "op/matmul/strided/f32, of \"op/matmul/*\" (unsupported)",
                                     "\"no_such_check\", which was not tried"));  // no level is given to some checks
  EXPECT_THAT(report->Text(false), HasSubstr("MISSED            level Loads\n"));
  EXPECT_EQ(nlohmann::json::parse(report->Json())["missed"].size(), 3u);
  for (const auto& [argument, code] : std::vector<std::pair<std::string, int>>{
           {"--whole=load,device", 0}, {"--whole=load,op/matmul", 1}, {"--level=Loads", 1}}) {
    EXPECT_EQ(ConformMain(Self(), {"--only=load,device/copies,op/matmul/strided/f32", argument, FaultyPlugin()}), code)
        << argument;
  }
}

TEST(ConformKit, AnswersWrongCommandLines) {
  EXPECT_EQ(ConformMain(Self(), {}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--ranks=0", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--vebose", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--level=Faster", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--whole=load,", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--json=", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--device=", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--device=cuda:first", "x"}), 2);
  EXPECT_EQ(ConformMain(Self(), {"--device=shm", "reference"}), 1);  // a backend takes a number
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
  EXPECT_FALSE(OpNames().empty());
}

TEST(Rounding, HasAnAnswerForEveryKindOfNumber) {
  EXPECT_EQ(RoundedOnce(1 + 0x1p-8, SY_BF16), 1);
  EXPECT_EQ(RoundedOnce(1 + 3 * 0x1p-8, SY_BF16), 1 + 0x1p-6);
  EXPECT_EQ(RoundedOnce(1 + 0x1p-8 + 0x1p-20, SY_BF16), 1 + 0x1p-7);
  EXPECT_EQ(RoundedOnce(-0x1.FFp127, SY_BF16), -HUGE_VAL);
  EXPECT_EQ(RoundedOnce(0x1.FEFFp127, SY_BF16), 0x1.FEp127);
  EXPECT_EQ(RoundedOnce(0x1p-134, SY_BF16), 0);
  EXPECT_EQ(RoundedOnce(3 * 0x1p-134, SY_BF16), 0x1p-132);
  EXPECT_EQ(RoundedOnce(65519, SY_F16), 65504);
  EXPECT_EQ(RoundedOnce(65520, SY_F16), HUGE_VAL);
  EXPECT_EQ(RoundedOnce(0x1p-25, SY_F16), 0);
  EXPECT_EQ(RoundedOnce(0x1.8p-24, SY_F16), 0x1p-23);
  EXPECT_TRUE(std::isnan(RoundedOnce(NAN, SY_F16)));
}

// Every pair is of numbers that the dtype holds, and f32 holds what comes of it.
TEST(Rounding, PairsHaveExactResultsInF32) {
  for (const sy_dtype half : {SY_BF16, SY_F16}) {
    size_t ties = 0;
    const auto check = [&](const Pair& pair, double exact) {
      EXPECT_TRUE(std::isnan(pair.a) || RoundedOnce(pair.a, half) == pair.a) << pair.a;
      EXPECT_EQ(RoundedOnce(pair.b, half), pair.b);
      if (!std::isfinite(exact) || std::fabs(exact) > std::numeric_limits<float>::max()) return;
      EXPECT_EQ(static_cast<double>(static_cast<float>(exact)), exact);
      ties += std::fabs(exact - RoundedOnce(exact, half)) * 2 == UnitAt(exact, half);
    };
    for (const Pair& pair : PairsToAdd(half)) check(pair, pair.a + pair.b);
    EXPECT_GT(ties, 300u);
    ties = 0;
    for (const Pair& pair : PairsToMultiply(half)) check(pair, pair.a * pair.b);
    EXPECT_GT(ties, 10u);
  }
}

// Of backends and of collectives, each told by its name; the tests of the tables above are listed by GoogleTest.
TEST(PlantedFaults, AreEightyDifferentOnesOrMore) {
  std::set<std::string> faults;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    const std::string of = suite.name();
    if (of.find("Planted") == std::string::npos || suite.type_param() != nullptr) continue;
    for (int k = 0; k < suite.total_test_count(); ++k) {
      std::string name = suite.GetTestInfo(k)->name();
      if (name.find('/') == std::string::npos) continue;
      name = name.substr(name.find('/') + 1);
      if (const size_t row = name.rfind('_'); std::isdigit(name[row + 1])) name.resize(row);
      faults.insert((of.find("Collective") == std::string::npos ? "backend " : "collective ") + name);
    }
  }
  EXPECT_GE(faults.size(), 80u);
}

TEST(Rounding, TellsWhatWasDoneInstead) {
  const std::vector<double> exact = {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1.99};
  EXPECT_TRUE(ExpectRounded({1, 1 + 0x1p-6, 0x1.FEp0}, exact, SY_BF16).ok());
  EXPECT_THAT(Message(ExpectRounded({1, 1 + 0x1p-7, 0x1.FCp0}, exact, SY_BF16)), HasSubstr("ties go towards zero"));
  EXPECT_THAT(Message(ExpectRounded({1 + 0x1p-7, 1 + 0x1p-6, 0x1.FEp0}, exact, SY_BF16)),
              HasSubstr("ties do not go to even"));
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
