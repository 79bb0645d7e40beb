// Running the built program for a test: alone, or as two ranks under `switchyard launch` or mpirun; always with a time
// limit, in a folder of the test's own, and without the settings of whoever runs the tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/data/files_for_tests.h"
#include "tests/parallel/run_command.h"

namespace switchyard {

enum class Start { kAlone, kLaunch, kMpirun };

inline std::ostream& operator<<(std::ostream& out, Start start) {
  return out << (start == Start::kAlone ? "alone" : start == Start::kLaunch ? "launch" : "mpirun");
}

inline std::string Program() {
  return std::filesystem::weakly_canonical(ProgramFolder() + "/../bin/switchyard").string();
}

// The command line that starts `arguments` of the program.
inline std::string CommandLineOf(Start start, const std::string& arguments) {
  if (start == Start::kAlone) return Program() + " " + arguments;
  if (start == Start::kLaunch) return fmt::format("{} launch --nproc_per_node=2 {}", Program(), arguments);
  // Without hwloc's OpenCL component: through it PoCL's compiler comes into mpirun and takes the signals that mpirun
  // would pass on.
  setenv("HWLOC_COMPONENTS", "-opencl", 1);
  return fmt::format("mpirun --bind-to none --oversubscribe --allow-run-as-root -n 2 {} {}", Program(), arguments);
}

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    // What whoever runs the tests chose for trainings of their own.
    for (const char* name : {"SWITCHYARD_DATA", "SWITCHYARD_PLUGIN_PATH", "SWITCHYARD_CPU_DEVICES", "SWITCHYARD_DEVICE",
                             "SWITCHYARD_COLLECTIVE"})
      unsetenv(name);
    setenv("XDG_CACHE_HOME", (folder_.path() + "/cache").c_str(), 1);  // no data set of the user's
  }
  std::string In(const std::string& name) const { return folder_.path() + "/" + name; }

  // In the test's folder; `prefix` is shell text in front, such as "RANK=3".
  CommandResult Run(const std::string& arguments, Start start = Start::kAlone, const std::string& prefix = "") const {
    const std::string line = fmt::format("cd {} && {} {}", folder_.path(), prefix, CommandLineOf(start, arguments));
    return RunCommand("bash -c '" + line + "'", 60);
  }
  // Ended by itself with an error, and said each of `words`.
  static void ExpectRefused(const CommandResult& result, const std::vector<std::string>& words) {
    EXPECT_NE(result.code, 0) << result.output;
    EXPECT_NE(result.code, 124) << "the run hung\n" << result.output;
    EXPECT_LT(result.code, 128) << "the run crashed\n" << result.output;
    for (const std::string& word : words) EXPECT_THAT(result.output, testing::HasSubstr(word));
  }
  static void ExpectSuccess(const CommandResult& result, const std::vector<std::string>& words = {}) {
    EXPECT_EQ(result.code, 0) << result.output;
    for (const std::string& word : words) EXPECT_THAT(result.output, testing::HasSubstr(word));
  }
  // A run of a second: an MLP on data that needs no file, in the folder run/mlp/shapes/a/run.
  static std::string SmallTraining(const std::string& more = "") {
    return "train --model=mlp --dataset=shapes --width=16 --train_size=64 --validation_size=20 --batch_size=4 "
           "--steps=6 "
           "--device=cpu --output=run --suffix=a " +
           more;
  }
  std::string SmallRun() const { return In("run/mlp/shapes/a/run"); }

  TemporaryFolder folder_;
};

}  // namespace switchyard
