// The conformance kit: does a plugin keep the promises of core/abi? It takes any plugin by path and needs no source
// tree. A backend is tested for its device functions, every op of ops.h against the fp64 `reference` plugin, and a
// short training run; a collective with data on several ranks. Each check ends as pass, fail, unsupported, expected
// failure or unexpected pass; the last line names the level reached and what the next one lacks. Not thread-safe: it
// starts processes and owns the plugin while it runs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace switchyard::conform {

enum class Outcome { kPass, kFail, kUnsupported, kExpectedFailure, kUnexpectedPass };
enum class Level { kNone, kLoads, kTrains, kAsync, kDistributed, kFast };
const char* OutcomeName(Outcome outcome);
const char* LevelName(Level level);

struct Check {
  std::string name;  // "op/matmul/bias_gelu/f32", "device/copies", "collective/all_reduce/f32/sum/3_ranks"
  Outcome outcome = Outcome::kPass;
  std::string detail;  // what was expected and found, or why it is unsupported
  double milliseconds = 0;
};

struct Options {
  std::string plugin;         // path, or the name of an installed plugin
  int device = 0;             // of a backend; for a collective the first of the ranks, in memory of `device_plugin`
  std::string device_plugin;  // path or name of the backend whose memory a collective is given; "": host memory
  uint64_t seed = 42;
  Level limit = Level::kFast;                // checks of higher levels are left out
  std::string only;                          // NameFilter: which checks; "": all
  Level level = Level::kNone;                // a lower one is missed
  std::vector<std::string> whole;            // NameFilters: what fits no check, or one that did not pass, is missed
  std::string expected_failures;             // JSON file: {"op/softmax/*": "why", …}; * stands for anything
  std::vector<int> ranks = {1, 2, 3, 4, 8};  // of collective checks
  int check_timeout_s = 60;                  // a check that takes longer has failed, and its process is killed
  bool json = false;                         // on standard output, instead of the text
  std::string json_file;                     // the same into a file, beside the text
  bool verbose = false;                      // list the checks that passed, too
  // The command that starts ConformMain in a new process. Without it backends are tested in this process, where a crash
  // of the plugin ends everything, and collectives are not.
  std::vector<std::string> self;
};

struct Report {
  std::string plugin, kind, path, version;  // kind "backend", "collective" or "interposer"
  int device = 0;
  uint64_t seed = 0;
  std::vector<Check> checks;
  Level level = Level::kNone;
  bool graded = false;  // false: only some checks ran
  std::string lacks;    // "Async lacks async/events (…)": the next level and what it misses; "" at the highest
  std::vector<std::string> notes;  // what the level leaves open: "a synchronous device has no streams to try"
  std::vector<std::string> missed;  // what the options asked for in vain: "level Fast"

  int Count(Outcome outcome) const;
  bool passed() const { return Count(Outcome::kFail) == 0; }
  std::string Text(bool verbose) const;
  std::string Json() const;
};

// A status only where nothing could be tested: no such plugin, no reference plugin, a broken file of expected failures.
StatusOr<Report> RunConformance(const Options& options);

// `switchyard conform [options] PLUGIN`: arguments after "conform". `self` is the command that comes back here, for
// example {"/usr/bin/switchyard", "conform"}. Returns the exit status: 0 without failures, 1 with or where something is
// missed, 2 for a wrong command line.
int ConformMain(const std::vector<std::string>& self, const std::vector<std::string>& arguments);

}  // namespace switchyard::conform
