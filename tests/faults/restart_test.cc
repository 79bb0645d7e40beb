// Ranks that fail are started again, and the run ends with the bits of one that was never interrupted.
#include <filesystem>
#include <fstream>

#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class Restart : public ProgramTest {
 protected:
  // `launch` of two ranks, of which rank 1 does `first`, shell text, when it is started for the first time.
  CommandResult Launch(const std::string& flags, const std::string& first, const std::string& arguments) const {
    std::ofstream(In("start.sh")) << "if [ \"$RANK\" = 1 ] && [ -z \"$SWITCHYARD_RESTARTED_RUN\" ]; then\n"
                                  << first << "\nelse\nexec " << Program() << " \"$@\"\nfi\n";
    return Run("launch --nproc_per_node=2 " + flags + " sh start.sh " + arguments);
  }
  static std::string Training(const std::string& suffix, const std::string& more) {
    return SmallTraining("--collective=shm --suffix=" + suffix + " " + more);
  }
  std::string RunOf(const std::string& suffix) const { return In("run/mlp/shapes/" + suffix + "/run"); }
  std::string WeightsOf(const std::string& suffix) const {
    std::ifstream file(RunOf(suffix) + "/checkpoints/latest/model.safetensors", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void ExpectBitsOfAnUninterruptedRun(const std::string& suffix, const std::string& more) const {
    ExpectSuccess(Run("launch --nproc_per_node=2 " + Program() + " " + Training("whole", more)));
    EXPECT_NE(WeightsOf("whole"), "");
    EXPECT_EQ(WeightsOf(suffix), WeightsOf("whole"));
  }
};

const std::string kOneSave = "--steps=12 --save_every=12 --train_size=512";  // at the end, and an epoch is longer
const std::string kFault = "exec " + Program() + " \"$@\" --interpose=fault:";

TEST_F(Restart, GoesOnFromTheLatestCheckpointWithTheBitsOfAnUninterruptedRun) {
  const std::string more = "--steps=60 --save_every=2";  // a save waits for the one before: by call 100 some are there
  const CommandResult result = Launch("--max_restarts=2", kFault + "collective@100:fail", Training("a", more));
  ExpectSuccess(result, {"restart 1 of 2", "run/mlp/shapes/a/run", "trained"});
  EXPECT_THAT(result.output, Not(HasSubstr("restart 2 of 2")));
  EXPECT_THAT(result.output, Not(HasSubstr("begins anew")));
  EXPECT_THAT(result.output, Not(HasSubstr("has no effect")));
  std::stringstream settings;
  settings << std::ifstream(RunOf("a") + "/settings.txt").rdbuf();
  EXPECT_THAT(settings.str(), testing::ContainsRegex("\n  suffix +a +flag\n"));
  ExpectBitsOfAnUninterruptedRun("a", more);
}

TEST_F(Restart, TakesPlaceAfterARankWasKilled) {
  const std::string more = "--steps=2000 --save_every=20 --keep=2";
  const std::string first = Program() + " \"$@\" & pid=$!\nuntil [ -e " + RunOf("a") +
                            "/checkpoints/latest ]; do sleep 0.01; done\nkill -9 $pid\nwait $pid";
  ExpectSuccess(Launch("--max_restarts=1", first, Training("a", more)), {"restart 1 of 1", "exit code 137", "trained"});
  ExpectBitsOfAnUninterruptedRun("a", more);
}

TEST_F(Restart, BeginsAnewWhereTheRunHasNoCheckpointAndKeepsWhatItWrote) {
  ExpectSuccess(Launch("--max_restarts=1", kFault + "collective@20:fail", Training("a", kOneSave)),
                {"restart 1 of 1", "has no checkpoint yet and begins anew", "run/mlp/shapes/a/run-interrupted"});
  EXPECT_TRUE(std::filesystem::exists(RunOf("a") + "-interrupted/config.json"));
  ExpectBitsOfAnUninterruptedRun("a", kOneSave);
}

TEST_F(Restart, EndsWithTheErrorWhereEveryStartFails) {
  const std::string arguments = Training("a", kOneSave + " --interpose=fault:collective@20:fail");
  const CommandResult result = Run("launch --nproc_per_node=2 --max_restarts=2 " + Program() + " " + arguments);
  ExpectRefused(result, {"restart 1 of 2", "restart 2 of 2", "fault:collective@20:fail"});
  EXPECT_THAT(result.output, testing::EndsWith("launch: not started again: --max_restarts=2 is used up\n"));
  const CommandResult once = Launch("", kFault + "collective@20:fail", Training("b", kOneSave));
  ExpectRefused(once, {"fault:collective@20:fail"});
  EXPECT_THAT(once.output, Not(HasSubstr("restart")));
}

// A run that ends, and whose weights are of no use, has ended.
TEST_F(Restart, DoesNotRepeatARunWhoseLossIsNotFinite) {
  const std::string diverging = "--lr=2e9 --clip=0 --optimizer=sgd --momentum=0 --warmup=0 --schedule=constant";
  const auto run = [&](const std::string& suffix, const std::string& more) {
    return Run("launch --nproc_per_node=2 --max_restarts=2 " + Training(suffix, diverging + more));
  };
  for (const auto& [result, said] : {std::pair(run("a", " --on_nonfinite=skip"), "is not finite with these weights"),
                                     std::pair(run("b", ""), "the norm of the gradients is")}) {
    ExpectRefused(result, {said});
    EXPECT_EQ(result.code, 2) << said;
    EXPECT_THAT(result.output, Not(HasSubstr("restart 1")));
  }
}

// What is refused before a run begins would be refused again.
TEST_F(Restart, DoesNotRepeatARefusal) {
  const CommandResult refused = Run("launch --nproc_per_node=2 --max_restarts=3 train --bach_size=3");
  ExpectRefused(refused, {"did you mean --batch_size?"});
  EXPECT_THAT(refused.output, Not(HasSubstr("restart 1")));
  EXPECT_EQ(refused.code, 2);
  std::ofstream(In("again.sh")) << "[ -n \"$SWITCHYARD_RESTARTED_RUN\" ] && set -- \"$@\" --lr=-1 || set -- \"$@\" "
                                << "--interpose=fault:collective@100:fail\nexec " << Program() << " \"$@\"\n";
  const CommandResult later =
      Run("launch --nproc_per_node=2 --max_restarts=3 sh again.sh " + Training("a", "--steps=60 --save_every=2"));
  ExpectRefused(later, {"restart 1 of 3", "--lr: expected at least 0"});
  EXPECT_EQ(later.code, 2);
  EXPECT_THAT(later.output, testing::EndsWith("not started again: the same command would end like this again\n"));
  EXPECT_THAT(later.output, Not(HasSubstr("restart 2")));
  ExpectRefused(Run("launch --max_restarts=-1 train"), {"--max_restarts of at least 0"});
  for (const char* nodes : {"0", "3:2", "1:", "x", "1-2"})
    ExpectRefused(Run(std::string("launch --master_port=2345 --max_restarts=1 --nnodes=") + nodes + " train"),
                  {"expected --nnodes=M, or --nnodes=MIN:MAX", nodes});
}

}  // namespace
}  // namespace switchyard
