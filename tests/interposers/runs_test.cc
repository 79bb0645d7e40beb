// Interposers around whole runs of the program: what they must not change, what they write, and what the engine says to
// each fault.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <set>

#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class InterposedRun : public ProgramTest {
 protected:
  InterposedRun() {
    for (const char* name : {"SWITCHYARD_INTERPOSE", "SWITCHYARD_TRACE"}) unsetenv(name);
  }
  static std::string Training(const std::string& device, const std::string& name, const std::string& more = "") {
    return "train --model=mlp --dataset=shapes --width=16 --train_size=64 --validation_size=20 --batch_size=4 "
           "--steps=4 "
           "--output=run --device=" +
           device + " --suffix=" + name + " " + more;
  }
  std::string RunFolder(const std::string& name) const { return In("run/mlp/shapes/" + name + "/run"); }
  std::string Bytes(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  nlohmann::json Trace(const std::string& path) const {
    const nlohmann::json trace = nlohmann::json::parse(Bytes(path), nullptr, false);
    EXPECT_TRUE(trace.is_object() && trace["traceEvents"].is_array()) << path;
    return trace;
  }
  // What `plugin` ends up with is the same to the last bit.
  void ExpectSameWeights(const std::string& one, const std::string& other) const {
    for (const char* file : {"model.safetensors", "state.safetensors"}) {
      const std::string place = std::string("/checkpoints/latest/") + file;
      EXPECT_EQ(Bytes(RunFolder(one) + place), Bytes(RunFolder(other) + place)) << file;
    }
  }
};

class InterposedRunOn : public InterposedRun, public testing::WithParamInterface<const char*> {};

TEST_P(InterposedRunOn, ValidateAndTraceChangeNoBitAndFindNothingWrong) {
  ExpectSuccess(Run(Training(GetParam(), "plain")));
  const CommandResult watched = Run(Training(GetParam(), "watched", "--interpose=validate,trace"));
  ExpectSuccess(watched, {"/run/trace.json"});
  EXPECT_THAT(watched.output, Not(HasSubstr("validate:")));
  ExpectSameWeights("plain", "watched");
}

INSTANTIATE_TEST_SUITE_P(Device, InterposedRunOn, testing::Values("cpu", "null", "reference"),
                         [](const auto& info) { return info.param; });

TEST_F(InterposedRun, TheTraceHoldsCallsAndDeviceSpansInPerfettosFormat) {
  ExpectSuccess(Run(Training("null", "a", "--interpose=trace")));
  const nlohmann::json trace = Trace(RunFolder("a") + "/trace.json");
  std::set<std::string> tracks, names, device_spans;
  for (const auto& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["pid"] == 1 && event["tid"].is_number_integer() && event["tid"] >= 1) << event;
    if (event["ph"] == "M") {
      tracks.insert(event["args"]["name"].get<std::string>());
      continue;
    }
    ASSERT_EQ(event["ph"], "X") << event;
    ASSERT_TRUE(event["ts"].is_number() && event["dur"].is_number()) << event;
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_LT(event["dur"].get<double>(), 60e6) << event;  // μs: a span that ends before it begins would wrap around
    (event["cat"] == "device" ? device_spans : names).insert(event["name"].get<std::string>());
  }
  EXPECT_THAT(tracks, Contains("rank 0"));
  EXPECT_THAT(tracks, Contains("host thread 0"));
  EXPECT_THAT(tracks, Contains("null device 0 stream 0"));
  for (const char* name : {"open", "alloc", "copy", "prepare", "bind", "launch", "close"})
    EXPECT_THAT(names, Contains(name));
  for (const char* name : {"matmul", "optimizer_update"}) EXPECT_THAT(device_spans, Contains(name));
}

// With wait, what runs on the device lies inside the call that queued it, and nothing is captured; without, launches
// return while earlier ones run.
TEST_F(InterposedRun, ATraceThatWaitsTimesEachKernelAlone) {
  ExpectSuccess(Run(Training("null", "plain", "--interpose=trace")));
  ExpectSuccess(Run(Training("null", "wait", "--interpose=trace:wait")));
  ExpectSuccess(Run(Training("null", "named", "--interpose=trace:wait:spans.json")));
  const auto outside = [](const nlohmann::json& trace) {
    std::map<double, double> launches;  // begin, end
    std::vector<std::pair<double, double>> device;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const double begin = event["ts"].get<double>(), end = begin + event["dur"].get<double>();
      if (event["name"] == "launch" && event["cat"] == "kernel/2") launches[begin] = end;
      if (event["cat"] == "device") device.emplace_back(begin, end);
    }
    EXPECT_GT(device.size(), 20u);
    return std::count_if(device.begin(), device.end(), [&](const auto& span) {
      const auto next = launches.upper_bound(span.first);
      return next == launches.begin() || std::prev(next)->second < span.second;
    });
  };
  EXPECT_EQ(outside(Trace(RunFolder("wait") + "/trace.json")), 0);
  EXPECT_EQ(outside(Trace(In("spans.json"))), 0);
  EXPECT_GT(outside(Trace(RunFolder("plain") + "/trace.json")), 0);
  ExpectSameWeights("plain", "wait");
}

TEST_F(InterposedRun, EachRankWritesItsOwnTraceWhereTheUserSays) {
  ExpectSuccess(Run(Training("cpu", "a", "--interpose=trace:spans.json"), Start::kLaunch));
  for (const int rank : {0, 1}) {
    const nlohmann::json trace = Trace(In(rank == 0 ? "spans.json" : "spans.1.json"));
    std::set<std::string> names, tracks;
    for (const auto& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], rank + 1);
      names.insert(event["name"].get<std::string>());
      if (event["ph"] != "M") continue;
      const std::string track = event["args"]["name"];
      tracks.insert(track);
      if (track == "host thread 0") {
        EXPECT_EQ(event["tid"], rank + 1) << "Perfetto's main thread";
      }
    }
    EXPECT_THAT(names, Contains("all_reduce"));
    EXPECT_THAT(tracks, Contains(HasSubstr("communicator world")));
  }
}

TEST_F(InterposedRun, TwoRanksAreTheSameBehindValidate) {
  ExpectSuccess(Run(Training("cpu", "plain"), Start::kLaunch));
  const CommandResult watched = Run(Training("cpu", "watched", "--interpose=validate"), Start::kLaunch);
  ExpectSuccess(watched);
  EXPECT_THAT(watched.output, Not(HasSubstr("validate:")));
  ExpectSameWeights("plain", "watched");
}

TEST_F(InterposedRun, EveryAllocationMayFailAndLeavesNothingBehind) {
  ExpectSuccess(Run(Training("null", "run0_whole")));
  int failed = 0, spared = 0;
  for (;; ++failed) {
    ASSERT_LT(failed, 64) << "a run of an MLP makes more allocations than expected";
    const std::string fault = fmt::format("fault:alloc@{}", failed + 1);
    const CommandResult result = Run(Training("null", fmt::format("run{}", failed), "--interpose=validate," + fault));
    EXPECT_THAT(result.output, Not(HasSubstr("validate:"))) << fault;
    if (result.output.find(fault + " strikes") == std::string::npos) {
      ExpectSuccess(result);
      break;
    }
    // The one allocation that a run can do without: each checkpoint then holds up a step.
    if (result.code == 0) {
      ExpectSuccess(result, {"each checkpoint holds up a step while it is copied, for lack of"});
      ExpectSameWeights("run0_whole", fmt::format("run{}", failed));
      ++spared;
      continue;
    }
    ExpectRefused(result, {fault, "error: ", "out of memory"});
  }
  EXPECT_EQ(spared, 1);
  EXPECT_GE(failed, 3);
}

struct FaultCase {
  const char *name, *fault;
  std::vector<std::string> words;
};
void PrintTo(const FaultCase& fault, std::ostream* out) { *out << fault.fault; }

class Faulted : public InterposedRun, public testing::WithParamInterface<FaultCase> {};

// A call that fails ends the run with the call's own words and no contract broken on the way out.
TEST_P(Faulted, EndsTheRunClearly) {
  const std::string fault = std::string("fault:") + GetParam().fault;
  const CommandResult result = Run(Training("null", "a", "--interpose=validate," + fault));
  ExpectRefused(result, GetParam().words);
  EXPECT_THAT(result.output, HasSubstr(fault + " strikes null"));
  EXPECT_THAT(result.output, Not(HasSubstr("validate:")));
}

INSTANTIATE_TEST_SUITE_P(
    Fault, Faulted,
    testing::Values(FaultCase{"Open", "device_lost@1", {"open of device 0"}},
                    FaultCase{"DeviceLostWhilePreparing", "device_lost@30", {"preparing"}},
                    FaultCase{"DeviceLostWhileTraining", "device_lost@200", {"fails because --interpose asks for it"}},
                    FaultCase{"Prepare", "prepare@2", {"preparing", "built at"}},
                    FaultCase{"Bind", "bind@3", {"bind fails"}}, FaultCase{"Launch", "launch@5:fail", {"launch fails"}},
                    FaultCase{"CopyOfState", "copy@12:fail", {"copy of", "copy fails"}},
                    FaultCase{"CopyInAStep", "copy@22:fail", {"copy fails", "built at"}},
                    FaultCase{"Synchronize", "synchronize@8", {"synchronize fails"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(InterposedRun, ADelayedCopyOnlyTakesLonger) {
  ExpectSuccess(Run(Training("null", "plain")));
  const auto start = std::chrono::steady_clock::now();
  ExpectSuccess(Run(Training("null", "late", "--interpose=fault:copy@3:delay=1500")), {"strikes null"});
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
  ExpectSameWeights("plain", "late");
}

TEST_F(InterposedRun, ALostLaunchChangesTheWeights) {
  ExpectSuccess(Run(Training("reference", "plain")));
  ExpectSuccess(Run(Training("reference", "lost", "--interpose=fault:launch@9")), {"strikes reference: launch"});
  EXPECT_NE(Bytes(RunFolder("plain") + "/checkpoints/latest/model.safetensors"),
            Bytes(RunFolder("lost") + "/checkpoints/latest/model.safetensors"));
}

TEST_F(InterposedRun, ACollectiveThatFailsOnOneRankEndsBoth) {
  const std::string train = Training("cpu", "a", "--interpose=trace:spans.json");
  const std::string mpirun = "mpirun --bind-to none --oversubscribe --allow-run-as-root ";
  const std::string command = fmt::format("cd {0} && {1} -n 1 {2} {3} : -n 1 {2} {3},fault:collective@6",
                                          folder_.path(), mpirun, Program(), train);
  const auto start = std::chrono::steady_clock::now();
  ExpectRefused(RunCommand("bash -c '" + command + "'", 60),
                {"fails because --interpose asks for it: fault:collective@6"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  for (const char* name : {"spans.json", "spans.1.json"})
    Trace(In(name));  // there, though neither process came to its end
}

// The kit calls everything in every legal way: validate must find nothing to object to.
TEST_F(InterposedRun, TheConformanceKitPassesBehindValidate) {
  for (const char* arguments : {"--limit=Async null", "--only=refusal/,semaphore/,op/matmul/* cpu", "--ranks=2 shm"}) {
    const std::string line = CommandLineOf(Start::kAlone, std::string("conform ") + arguments);
    // Half a minute of processor time, more than a run's minute beside busy neighbours.
    const std::string whole = fmt::format("bash -c 'cd {} && SWITCHYARD_INTERPOSE=validate {}'", folder_.path(), line);
    ExpectSuccess(RunCommand(whole, 200), {" 0 FAIL"});
  }
}

TEST_F(InterposedRun, ConformSeesWrongResults) {
  const std::string conform = "conform --only=op/softmax/ reference";
  ExpectSuccess(Run(conform));
  const CommandResult wrong = Run(conform, Start::kAlone, "SWITCHYARD_INTERPOSE=fault:launch@3+:wrong");
  EXPECT_EQ(wrong.code, 1) << wrong.output;
  EXPECT_THAT(wrong.output, HasSubstr("softmax"));
}

TEST_F(InterposedRun, WhatIsMistypedIsAnsweredBeforeAnythingRuns) {
  ExpectRefused(Run(Training("null", "a", "--interpose=vaildate")), {"no interposer", "did you mean validate?"});
  ExpectRefused(Run(Training("null", "a", "--interpose=trace,fault:lunch@1")),
                {"did you mean launch?", "CALL@N[+][:EFFECT]"});
  ExpectRefused(Run(Training("null", "a"), Start::kAlone, "SWITCHYARD_INTERPOSE=fault:alloc@x"), {"found \"x\""});
  ExpectRefused(Run(Training("null", "a", "--interpose=trace:/dev/full")), {"/dev/full: expected a file on a disk"});
  ExpectRefused(Run(Training("null", "a", "--interpose=trace:nowhere/a.json")), {"nowhere/a.json: No such file"});
  ExpectRefused(Run(Training("null", "a", "--interpose=trace"), Start::kAlone, "SWITCHYARD_TRACE=nowhere/b.json"),
                {"nowhere/b.json: No such file"});
}

}  // namespace
}  // namespace switchyard
