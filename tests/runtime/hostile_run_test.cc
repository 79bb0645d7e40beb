// A run that did not choose them is not hurt by any of the hostile plugins, though they come first in the search path
// and with the highest priority: it trains to the same losses as without them, and --device=auto passes them over.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>

#include "gmock/gmock.h"
#include "tests/parallel/run_command.h"
#include "tests/runtime/plugin_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class HostileRunTest : public PluginFolder {
 protected:
  CommandResult Run(const std::string& arguments, bool with_hostile, int probe_timeout = 2) const {
    return RunCommand(
        fmt::format("env -u SWITCHYARD_PLUGIN_PATH {} SWITCHYARD_PROBE_TIMEOUT={} {}/../bin/switchyard {}",
                    with_hostile ? "SWITCHYARD_PLUGIN_PATH=" + folder_ : "", probe_timeout, ProgramFolder(), arguments),
        60);
  }
  std::string Training(const std::string& output, int width = 16) const {
    return fmt::format(
        "train --model=mlp --dataset=shapes --width={} --train_size=64 --validation_size=20 --batch_size=8 --steps=5 "
        "--log_every=1 --seed=3 "
        "--output={}/{} --suffix=a",
        width, root_, output);
  }
  // "step 3 … loss 2.1": what the run printed of its losses and its accuracy.
  static std::string Results(const std::string& output) {
    std::string results;
    const std::regex result("(loss|accuracy +top-1) +[0-9.]+");
    for (std::sregex_iterator it(output.begin(), output.end(), result), end; it != end; ++it)
      results += it->str() + "\n";
    return results;
  }
};

TEST_F(HostileRunTest, TrainsAsIfTheyWereNotThere) {
  const CommandResult alone = Run(Training("alone") + " --device=cpu", false);
  ASSERT_EQ(alone.code, 0) << alone.output;
  ASSERT_THAT(Results(alone.output), HasSubstr("loss"));
  int index = 0;
  for (const char* fault : {"no_symbol",
                            "missing_library",
                            "throws",
                            "aborts",
                            "crashes",
                            "overflows_the_stack",
                            "exits",
                            "crashes_in_dlopen",
                            "exits_in_dlopen",
                            "wrong_magic",
                            "missing_function",
                            "interface_is_garbage",
                            "crashes_in_count",
                            "prints",
                            "forks",
                            "closes_everything",
                            "changes_the_folder",
                            "takes_signals",
                            "flushes_subnormals",
                            "hangs"}) {
    const std::string path = Install(fault, fault);
    WriteManifest(fault, {{"name", fault},
                          {"kind", "backend"},
                          {"abi", 2},
                          {"priority", 1000 + index++},
                          {"library", fs::path(path).filename()}});
  }
  std::ofstream(folder_ + "/switchyard_backend_broken.json") << "{";
  std::ofstream(folder_ + "/switchyard_backend_unnamed.so") << "no library";

  // If it tried the one that hangs, this would take an hour.
  const CommandResult chosen = Run(Training("chosen") + " --device=cpu", true, 3600);
  EXPECT_EQ(chosen.code, 0) << chosen.output;
  EXPECT_EQ(Results(chosen.output), Results(alone.output));

  const CommandResult automatic = Run(Training("automatic") + " --device=auto", true);
  EXPECT_EQ(automatic.code, 0) << automatic.output;
  EXPECT_THAT(automatic.output, HasSubstr("crashed in count"));  // why it was passed over
  EXPECT_EQ(Results(automatic.output), Results(alone.output));
}

TEST_F(HostileRunTest, ChoosingOneIsAnErrorWithItsReason) {
  Install("crashes", "crashes");
  const CommandResult result = Run(Training("refused") + " --device=crashes", true);
  EXPECT_NE(result.code, 0);
  EXPECT_LT(result.code, 124) << result.output;
  EXPECT_THAT(result.output, HasSubstr("crashed in sy_plugin_create (signal 11"));
}

// What only shows while it trains.
TEST_F(HostileRunTest, NoRunThatOneOfThemEndsIsASuccess) {
  const std::pair<const char*, const char*> faults[] = {
      {"exits_in_alloc", "ended by a call of exit() in mid-run"},
      {"throws_in_alloc", "ended by an exception: no memory today; either a plugin threw it"},
      {"throws_a_number_in_alloc", "ended by an exception that is no std::exception; either a plugin threw it"},
  };
  for (const auto& [fault, words] : faults) {
    const std::string path = Install(fault);
    const CommandResult result = Run(Training(fault) + " --device=" + path, true);
    EXPECT_EQ(result.code, 1) << fault << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr(words));
    EXPECT_THAT(result.output, HasSubstr("switchyard conform"));
  }
  // Where no exception can be caught.
  const CommandResult result = Run(Training("freed") + " --device=" + Install("throws_in_free"), true);
  EXPECT_EQ(result.code, 128 + SIGABRT) << result.output;
  EXPECT_THAT(result.output, HasSubstr("either a plugin threw it"));
  EXPECT_THAT(result.output, HasSubstr("no freedom today"));
}

TEST_F(HostileRunTest, MemoryInPiecesIsNotCalledOutOfMemory) {
  const std::string device = " --device=" + Install("gives_memory_in_pieces");
  const CommandResult result = Run(Training("pieces", 64) + device, true);
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("gives at most 262144 bytes in one allocation"));
  EXPECT_THAT(result.output, HasSubstr("no smaller batch helps: divide what is too large"));
}

}  // namespace
}  // namespace switchyard
