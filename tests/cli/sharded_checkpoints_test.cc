// Checkpoints that ranks of a mesh write together, as a user meets them: taken up on any other mesh with the bits of
// one that rank 0 gathered, evaluated and exported as any other; files that are not as they were written are named.
#include <fstream>

#include "core/train/file_calls.h"
#include "core/train/shards.h"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ShardedCheckpoints : public ProgramTest {
 protected:
  CommandResult Launch(int ranks, const std::string& arguments) const {
    const std::string start = ranks > 1 ? fmt::format("launch --nproc_per_node={} ", ranks) : "";
    return RunCommand(fmt::format("bash -c 'cd {} && {} {}{}'", folder_.path(), Program(), start, arguments), 120);
  }
  static std::string Training(const std::string& suffix, const std::string& more) {
    return "train --model=vit_micro --dataset=shapes --image_size=28 --width=16 --depth=2 --heads=2 --train_size=64 "
           "--validation_size=16 --global_batch_size=16 --optimizer=adamw --ema_decay=0.9 --steps=4 --save_every=2 "
           "--eval_every=0 --keep=0 --device=cpu --threads=1 --workers=1 --output=run --suffix=" +
           suffix + " " + more;
  }
  std::string Checkpoint(const std::string& suffix, int step) const {
    return In(fmt::format("run/vit_micro/shapes/{}/run/checkpoints/step-{:08}", suffix, step));
  }
  static std::string Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.good()) << path;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A run goes on from its second update in a copy of its folder, and rank 0 gathers what it saves: its files.
  std::string GoneOn(const std::string& from, const std::string& to, int ranks, const std::string& mesh) {
    fs::copy(In("run/vit_micro/shapes/" + from), In("run/vit_micro/shapes/" + to),
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    ExpectSuccess(Launch(ranks, fmt::format("train --device=cpu --threads=1 --workers=1 {} "
                                            "--resume={}",
                                            mesh, Checkpoint(to, 2))));
    return Text(Checkpoint(to, 4) + "/state.safetensors") + Text(Checkpoint(to, 4) + "/model.safetensors");
  }
};

TEST_F(ShardedCheckpoints, GoOnOnAnyMeshWithTheBitsOfOneFile) {
  const std::string mesh = "--parallel=dp2,tp2,pp2,zero1 --accumulation=2";
  ExpectSuccess(Launch(8, Training("sharded", mesh + " --sharded_checkpoints")));
  ExpectSuccess(Launch(8, Training("gathered", mesh)));
  for (const int step : {2, 4}) {
    EXPECT_TRUE(Text(Checkpoint("sharded", step) + "/model.safetensors") ==
                Text(Checkpoint("gathered", step) + "/model.safetensors"));
    for (int file = 0; file < 8; ++file)
      EXPECT_TRUE(fs::exists(Checkpoint("sharded", step) + "/" + ShardName(file, 8))) << file;
    EXPECT_FALSE(fs::exists(Checkpoint("sharded", step) + "/state.safetensors"));
    EXPECT_FALSE(fs::exists(Checkpoint("gathered", step) + "/" + kShardIndex));
  }
  const std::string shared = "--tp=1 --pp=1 --zero=3 --accumulation=1",
                    alone = "--tp=1 --pp=1 --zero=0 --accumulation=1";
  EXPECT_TRUE(GoneOn("sharded", "sharded8", 8, "") == GoneOn("gathered", "gathered8", 8, "")) << "the same mesh";
  EXPECT_TRUE(GoneOn("sharded", "sharded4", 4, shared) == GoneOn("gathered", "gathered4", 4, shared));
  EXPECT_TRUE(GoneOn("sharded", "sharded1", 1, alone) == GoneOn("gathered", "gathered1", 1, alone));
  // From four ranks that have pieces of the parameters to one.
  ExpectSuccess(Launch(4, Training("pieces", "--zero=3 --sharded_checkpoints")));
  ExpectSuccess(Launch(4, Training("whole", "--zero=3")));
  EXPECT_TRUE(GoneOn("pieces", "pieces1", 1, alone) == GoneOn("whole", "whole1", 1, alone));
}

TEST_F(ShardedCheckpoints, AreEvaluatedAndExportedAsOthers) {
  ExpectSuccess(Launch(2, Training("sharded", "--zero=3 --sharded_checkpoints")));
  ExpectSuccess(Launch(2, Training("gathered", "--zero=3")));
  const std::string sharded = Checkpoint("sharded", 4), gathered = Checkpoint("gathered", 4);
  for (const char* ema : {"", " --ema"}) {
    for (const auto& [folder, checkpoint] : {std::pair("a", sharded), std::pair("b", gathered)})
      ExpectSuccess(
          Run(fmt::format("export {}{} --checkpoint={}{}", folder, ema[0] == '\0' ? "" : "_ema", checkpoint, ema)));
  }
  EXPECT_TRUE(Text(In("a/model.safetensors")) == Text(In("b/model.safetensors")));
  EXPECT_TRUE(Text(In("a_ema/model.safetensors")) == Text(In("b_ema/model.safetensors")));
  EXPECT_FALSE(Text(In("a/model.safetensors")) == Text(In("a_ema/model.safetensors")));
  const auto evaluated = [&](const std::string& checkpoint) {
    const CommandResult result = Run("eval --device=cpu --ema --json --checkpoint=" + checkpoint);
    ExpectSuccess(result);
    return result.output.substr(result.output.find("\"loss\""), 24);
  };
  EXPECT_EQ(evaluated(sharded), evaluated(gathered));
}

TEST_F(ShardedCheckpoints, WhatIsWrongWithAFileIsNamed) {
  ExpectSuccess(Launch(2, Training("a", "--zero=1 --sharded_checkpoints")));
  const std::string checkpoint = Checkpoint("a", 4), name = ShardName(1, 2), path = checkpoint + "/" + name;
  const std::string content = Text(path), resume = "train --device=cpu --threads=1 --steps=6 --resume=" + checkpoint;
  const auto refused = [&](const std::string& changed, const std::vector<std::string>& words) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << changed;
    for (const int ranks : {1, 2}) ExpectRefused(Launch(ranks, resume + (ranks == 1 ? " --zero=0" : "")), words);
  };
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  refused(flipped, {name, "the payload has checksum"});
  refused(content.substr(0, content.size() - 1), {name, "bytes, but state.json records"});
  refused(Text(Checkpoint("a", 2) + "/" + name), {name, "header_crc32"});
  fs::remove(path);
  ExpectRefused(Launch(1, resume + " --zero=0"), {name, "No such file"});
}

}  // namespace
}  // namespace switchyard
