// Checkpoints that ranks of a mesh write together, as a user meets them: taken up on any other mesh with the bits of
// one that rank 0 gathered, evaluated and exported as any other; files that are not as they were written are named.
#include <fstream>
#include <map>
#include <set>

#include "core/train/shards.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class ShardedCheckpoints : public RunFilesTest {
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
  std::string RunOf(const std::string& suffix) const { return In("run/vit_micro/shapes/" + suffix + "/run"); }
  std::string Checkpoint(const std::string& suffix, int step) const {
    return fmt::format("{}/checkpoints/step-{:08}", RunOf(suffix), step);
  }
  // What a run goes on with, beside its checkpoint and its mesh.
  static std::string GoingOn(const std::string& from, const std::string& more = "") {
    return "train --device=cpu --threads=1 --workers=1 --resume=" + from + " " + more;
  }
  static std::set<std::string> NamesIn(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
  }
  // Of each update, the last that was logged.
  std::map<int, double> LossesOf(const std::string& suffix) const {
    std::map<int, double> losses;
    std::ifstream file(RunOf(suffix) + "/0/log/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.contains("loss")) losses[record["step"]] = record["loss"];
    }
    return losses;
  }
  // A run goes on from its second update in a copy of its folder, and rank 0 gathers what it saves: its files.
  std::string GoneOn(const std::string& from, const std::string& to, int ranks, const std::string& mesh) {
    fs::copy(In("run/vit_micro/shapes/" + from), In("run/vit_micro/shapes/" + to),
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    ExpectSuccess(Launch(ranks, GoingOn(Checkpoint(to, 2), "--sharded_checkpoints=0 " + mesh)));
    return Text(Checkpoint(to, 4) + "/state.safetensors") + Text(Checkpoint(to, 4) + "/model.safetensors");
  }
};

TEST_F(ShardedCheckpoints, GoOnOnAnyMeshWithTheBitsOfOneFile) {
  const std::string mesh = "--parallel=dp2,tp2,pp2,zero1 --accumulation=2";
  ExpectSuccess(Launch(8, Training("sharded", mesh)));
  ExpectSuccess(Launch(8, Training("gathered", mesh + " --sharded_checkpoints=0")));
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
  EXPECT_TRUE(GoneOn("sharded", "sharded8", 8, mesh) == GoneOn("gathered", "gathered8", 8, mesh)) << "the same mesh";
  EXPECT_TRUE(GoneOn("sharded", "sharded4", 4, shared) == GoneOn("gathered", "gathered4", 4, shared));
  EXPECT_TRUE(GoneOn("sharded", "sharded1", 1, alone) == GoneOn("gathered", "gathered1", 1, alone));
  // From four ranks that have pieces of the parameters to one.
  ExpectSuccess(Launch(4, Training("pieces", "--zero=3")));
  ExpectSuccess(Launch(4, Training("whole", "--zero=3 --sharded_checkpoints=0")));
  EXPECT_TRUE(GoneOn("pieces", "pieces1", 1, alone) == GoneOn("whole", "whole1", 1, alone));
}

TEST_F(ShardedCheckpoints, AreEvaluatedAndExportedAsOthers) {
  ExpectSuccess(Launch(2, Training("sharded", "--zero=3")));
  ExpectSuccess(Launch(2, Training("gathered", "--zero=3 --sharded_checkpoints=0")));
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
  // One of its files is no weights.
  ExpectRefused(Run(fmt::format("eval --checkpoint={}/{}", sharded, ShardName(1, 2))),
                {"what one rank holds of a checkpoint", "give the checkpoint, the folder " + sharded});
}

TEST_F(ShardedCheckpoints, GoFromMeshToMeshAsOneRankThatWasNotInterrupted) {
  const std::string run =
      "--global_batch_size=12 --train_size=72 --dropout=0.1 --drop_path=0.1 --steps=6 --log_every=1 --lr=1e-3 ";
  ExpectSuccess(Launch(1, Training("whole", run)));
  ExpectSuccess(Launch(8, Training("a", run + "--parallel=dp2,tp2,pp2,zero1 --accumulation=2")));
  const std::string mesh = In("mesh");
  fs::copy(Checkpoint("a", 2), mesh, fs::copy_options::recursive);
  ExpectSuccess(Launch(3, GoingOn(Checkpoint("a", 2), "--tp=1 --pp=1 --zero=3 --accumulation=1")));
  ExpectSuccess(Launch(1, GoingOn(Checkpoint("a", 4), "--zero=0")));
  for (const auto& [step, file] :
       {std::pair(2, ShardName(7, 8)), {4, ShardName(2, 3)}, {6, std::string("state.safetensors")}})
    EXPECT_TRUE(fs::exists(Checkpoint("a", step) + "/" + file)) << file;
  const auto found = LossesOf("a"), expected = LossesOf("whole");
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_EQ(found.size(), 6u);
  for (const auto& [step, loss] : expected) EXPECT_NEAR(found.at(step), loss, 1e-4) << "update " << step;

  // What eight ranks wrote, as files of others.
  const auto loss = [&](const std::string& weights) {
    const CommandResult result =
        Run("eval --device=cpu --threads=1 --batch_size=8 --dataset=shapes --validation_size=16 --json --checkpoint=" +
            weights);
    ExpectSuccess(result);
    const size_t begin = std::min(result.output.find('{'), result.output.size());
    const auto metrics = nlohmann::json::parse(result.output.substr(begin), nullptr, false);
    return metrics.is_object() ? metrics.value("loss", 0.0) : 0.0;
  };
  const double own = loss(mesh);
  EXPECT_GT(own, 0);
  ExpectSuccess(Run("export hub --checkpoint=" + mesh), {"under the names of Hugging Face"});
  ExpectSuccess(Run("export timm --names=timm --checkpoint=" + mesh), {"under the names of timm"});
  EXPECT_EQ(loss("hub"), own);
  EXPECT_EQ(loss("timm"), own);
}

// Two epochs of four updates.
TEST_F(ShardedCheckpoints, AreKeptPrunedAndLinkedAsOthers) {
  ExpectSuccess(Launch(2, Training("a", "--zero=1 --steps=8 --save_every=1 --keep=2 --eval_every=1")));
  const std::string checkpoints = RunOf("a") + "/checkpoints/";
  EXPECT_EQ(fs::read_symlink(checkpoints + "latest"), "step-00000008");
  const std::string best = fs::read_symlink(checkpoints + "best");
  std::set<std::string> expected = {"latest", "best", "step-00000007", "step-00000008"};
  expected.insert(best);
  EXPECT_EQ(NamesIn(checkpoints), expected);
  for (const std::string& name : expected) EXPECT_TRUE(fs::exists(checkpoints + name + "/" + ShardName(1, 2))) << name;
  EXPECT_EQ(NamesIn(RunOf("a")).count(".ranks"), 0u);
  // Going back to one of them sets the other aside, and what is saved then is pruned beside it.
  ExpectSuccess(Launch(2, GoingOn(checkpoints + "step-00000007", "--zero=1 --keep=1")), {"trained 8 updates"});
  EXPECT_TRUE(fs::exists(checkpoints + "abandoned/step-00000008/" + ShardName(1, 2)));
  EXPECT_EQ(fs::read_symlink(checkpoints + "latest"), "step-00000008");
  EXPECT_TRUE(fs::exists(checkpoints + "latest/" + ShardName(1, 2)));
  EXPECT_EQ(fs::exists(checkpoints + "step-00000007"), fs::read_symlink(checkpoints + "best") == "step-00000007");
}

TEST_F(ShardedCheckpoints, GoOnFromACopyInARunFolderOfItsOwn) {
  ExpectSuccess(Launch(2, Training("a", "--zero=1")));
  fs::create_directories(In("backup"));
  fs::copy(Checkpoint("a", 2), In("backup/step-00000002"), fs::copy_options::recursive);
  fs::remove_all(In("run"));
  for (const int ranks : {2, 1}) {
    const std::string into = fmt::format("--output=run --suffix=b{} --zero={}", ranks, ranks - 1);
    const CommandResult result = Launch(ranks, GoingOn("backup/step-00000002", into));
    ExpectSuccess(result, {"lies in no run folder of ours; the run goes on in a new one", "trained 4 updates"});
    EXPECT_EQ(fs::exists(Checkpoint(fmt::format("b{}", ranks), 4) + "/" + ShardName(1, 2)), ranks == 2);
  }
  EXPECT_EQ(NamesIn(In("backup")).size(), 1u);
}

// Threads of one process are ranks, too: what compression leaves over is each one's own.
TEST_F(ShardedCheckpoints, OfThreadsOfOneProcessAreThoseOfProcesses) {
  const std::string compressed = "--powersgd_compression --start_compress_iter=2 ";
  ExpectSuccess(Launch(2, Training("processes", compressed)));
  ExpectSuccess(Launch(1, Training("threads", compressed + "--mode=dp --devices=2")));
  for (const std::string& file :
       {ShardName(0, 2), ShardName(1, 2), std::string(kShardIndex), std::string("model.safetensors")})
    EXPECT_TRUE(Text(Checkpoint("threads", 4) + "/" + file) == Text(Checkpoint("processes", 4) + "/" + file)) << file;
}

// Ranks that have the same write what one writes, whatever is asked for.
TEST_F(ShardedCheckpoints, AreNoneWhereAllRanksHaveTheSame) {
  for (const char* sharded : {"0", "1"})
    ExpectSuccess(Launch(2, Training(sharded, std::string("--sharded_checkpoints=") + sharded)));
  EXPECT_EQ(NamesIn(Checkpoint("1", 4)), NamesIn(Checkpoint("0", 4)));
  for (const char* file : {"state.safetensors", "model.safetensors"})
    EXPECT_TRUE(Text(Checkpoint("1", 4) + "/" + file) == Text(Checkpoint("0", 4) + "/" + file)) << file;
}

TEST_F(ShardedCheckpoints, WhatIsWrongWithAFileIsNamed) {
  ExpectSuccess(Launch(2, Training("a", "--zero=1")));
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
