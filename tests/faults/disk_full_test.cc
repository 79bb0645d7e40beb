// A disk that fills up while a checkpoint is saved: the run stops and says so, and the checkpoint before is whole.
#include <fstream>

#include "tests/cli/program.h"

namespace switchyard {
namespace {

class DiskFull : public ProgramTest {
 protected:
  // Weights of 2352 x 256 values: 2.4 MB, and 7.2 MB of state.
  static std::string Training(const std::string& more) {
    return "train --model=mlp --dataset=shapes --width=256 --train_size=64 --validation_size=20 --batch_size=16 "
           "--device=cpu --output=run --suffix=a "
           "--eval_every=0 --save_every=4 --keep=0 " +
           more;
  }
  void ExpectOldCheckpointIsWhole(const std::string& where) {
    ExpectSuccess(
        Run(fmt::format("train --device=cpu --resume={}/mlp/shapes/a/run --steps=50 --save_every=100", where)),
        {"trained 50 updates"});
  }
};

TEST_F(DiskFull, AFileThatMayNotGrowIsAnErrorAndNoCrash) {
  ExpectSuccess(Run(Training("--steps=4")));
  ExpectRefused(Run("train --device=cpu --resume=run/mlp/shapes/a/run --steps=8", Start::kAlone, "ulimit -f 1000;"),
                {"safetensors", "File too large"});
  ExpectOldCheckpointIsWhole("run");
}

TEST_F(DiskFull, AFullFileSystemStopsTheRunOnEveryRankAndKeepsWhatWasSaved) {
  // A small file system in a mount namespace of its own; what must outlive it is copied out.
  const std::string inside = "mkdir -p small && mount -t tmpfs -o size=16m tmpfs small && cd small";
  if (RunCommand(fmt::format("unshare -r -m bash -c \"cd {} && {}\"", folder_.path(), inside)).code != 0) {
    GTEST_SKIP() << "a file system cannot be mounted here (unshare -r -m)";
  }
  for (const Start start : {Start::kAlone, Start::kLaunch}) {
    std::filesystem::remove_all(In("run"));
    const CommandResult result =
        RunCommand(fmt::format("unshare -r -m bash -c \"cd {} && {} && {}; status=\\$?; cp -a run ..; exit \\$status\"",
                               folder_.path(), inside, CommandLineOf(start, Training("--steps=40"))),
                   60);
    ExpectRefused(result, {"No space left on device"});
    ExpectOldCheckpointIsWhole("run");
  }
}

// Rank 1 writes a part of each checkpoint; the disk of its host is full, that of rank 0 is not.
TEST_F(DiskFull, OnTheHostOfOneRankStopsAllAndKeepsWhatWasSaved) {
  std::ofstream(In("start.sh")) << "[ \"$RANK\" = 1 ] && ulimit -f 1000\nexec " << Program() << " \"$@\"\n";
  ExpectSuccess(Run(Training("--zero=1 --optimizer=adamw --threads=1 --steps=4"), Start::kLaunch));
  const std::string on = "train --device=cpu --threads=1 --zero=1 --steps=8 --resume=run/mlp/shapes/a/run";
  ExpectRefused(Run("launch --nproc_per_node=2 sh start.sh " + on),
                {"rank 1", "state-00002-of-00002.safetensors", "File too large"});
  const std::string checkpoints = In("run/mlp/shapes/a/run/checkpoints/");
  EXPECT_EQ(std::filesystem::read_symlink(checkpoints + "latest"), "step-00000004");
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "step-00000008"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints + ".step-00000008.tmp"));
  ExpectSuccess(Run(on, Start::kLaunch), {"trained 8 updates"});
}

// A run that goes on after its folder is gone would train for nothing that anybody could find.
TEST_F(DiskFull, ARunWhoseFolderIsRemovedEndsAndSaysSo) {
  const std::string line = fmt::format(
      "cd {} && ({} & pid=$!; for i in $(seq 100); do [ -s run/mlp/shapes/a/run/0/log/metrics.jsonl ] && break; sleep "
      "0.1; done; rm -rf run; wait $pid)",
      folder_.path(), CommandLineOf(Start::kAlone, Training("--steps=1000000 --log_every=1 --save_every=100000")));
  ExpectRefused(RunCommand("bash -c '" + line + "'", 60),
                {"cannot write run/mlp/shapes/a/run/0/log/", "it was removed or moved while the run wrote"});
}

}  // namespace
}  // namespace switchyard
