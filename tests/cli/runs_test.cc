// Runs as a user starts, stops, continues and copies them: what stays with a run, what a checkpoint may decide, and
// whose folder is whose.
#include <fstream>
#include <thread>

#include "core/train/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"
#include "tests/faults/running_program.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Runs : public RunFilesTest {
 protected:
  Runs() { setenv("SWITCHYARD_DEVICE", "cpu", 1); }  // a run that goes on does not take its device along
  ~Runs() override { unsetenv("SWITCHYARD_DEVICE"); }
  std::vector<std::string> NamesIn(const std::string& folder) const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(In(folder), none)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // Three epochs of 8 updates of 12 images, each saved.
  static std::string Epochs(const std::string& more) {
    return "train --model=mlp --dataset=shapes --width=16 --train_size=100 --validation_size=20 --epochs=3 "
           "--log_every=1 --save_every=1 --keep=0 --device=cpu --threads=1 --workers=1 --output=run --suffix=a " +
           more;
  }
  const std::string run_ = "run/mlp/shapes/a/run";
};

TEST_F(Runs, EachLoggedUpdateHasALineWhereTheUserSaysHowOften) {
  const std::string output = Run(Epochs("--batch_size=12")).output;
  int lines = 0;
  for (size_t at = 0; (at = output.find("/8  loss ", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 24) << output;
}

// The first of three epochs of four updates is the best so far, and saved between two that are due.
TEST_F(Runs, SavesAreDueAfterTheSameUpdatesWhateverElseIsSaved) {
  ExpectSuccess(
      Run("train --model=mlp --dataset=shapes --width=16 --train_size=48 --validation_size=20 --batch_size=12 "
          "--epochs=3 --save_every=3 --keep=0 --device=cpu --threads=1 --workers=1 --output=run --suffix=a"));
  EXPECT_THAT(NamesIn(run_ + "/checkpoints"),
              testing::IsSupersetOf({"step-00000003", "step-00000004", "step-00000006", "step-00000009"}));
}

TEST_F(Runs, WhatIsDoneOnceIsNotDoneAgain) {
  ExpectSuccess(Run(SmallTraining("--classes=12 --steps=20")));
  ExpectSuccess(Run(SmallTraining("--suffix=b --steps=100 --lr=0.01 --reset_head --pretrained=" + run_)));
  const std::string b = "run/mlp/shapes/b/run";
  for (const nlohmann::json& saved :
       {Saved(b + "/config.json"), Saved(b + "/checkpoints/latest/state.json")["config"]}) {
    EXPECT_EQ(saved["width"], 16);
    for (const char* act : {"pretrained", "reset_head", "resume"}) EXPECT_FALSE(saved.contains(act)) << act;
  }
  const CommandResult evaluation = Run("eval --checkpoint=" + b + " --json");
  ExpectSuccess(evaluation);
  const double loss = nlohmann::json::parse(evaluation.output, nullptr, false)["loss"];
  EXPECT_NEAR(loss, Logged(b, "val_loss")[100], 1e-5 * loss) << "the head that was trained";
  // Nor where the run goes on: the loss is that of the trained head from the first update on.
  ExpectSuccess(Run("train --log_every=1 --steps=101 --resume=" + b));
  EXPECT_NEAR(Logged(b, "loss")[101], Logged(b, "loss")[100], 0.5);
  ExpectRefused(Run("train --pretrained=" + run_ + " --resume=" + b), {"--pretrained begins a new run"});
  ExpectRefused(Run(SmallTraining("--suffix=c --reset_head")), {"--reset_head", "give them with --pretrained"});
}

// A run's config.json says how the run began, and does not begin another so by itself.
TEST_F(Runs, AConfigFileOfAFineTunedRunWarnsThatItLoadsNoWeights) {
  const std::string b = "run/mlp/shapes/b/run", flags = " --pretrained=" + run_ + " --reset_head";
  ExpectSuccess(Run(SmallTraining("--classes=12")));
  ExpectSuccess(Run(SmallTraining("--suffix=b --classes=10" + flags)));
  const auto says = [&](const std::string& more) {
    const CommandResult result = Run("train --suffix=c --show_settings --config=" + b + "/config.json" + more);
    ExpectSuccess(result);
    return result.output;
  };
  const std::string warning =
      "this one begins with random ones, since a config file loads none; to begin as that "
      "one did, give" +
      flags;
  EXPECT_THAT(says(""), HasSubstr(warning));
  EXPECT_THAT(says(flags), Not(HasSubstr("random ones")));
  ExpectSuccess(Run("train --steps=7 --resume=" + b));
  EXPECT_THAT(says(""), HasSubstr(warning)) << "a run that went on keeps how it began";
  EXPECT_THAT(says(" --resume=" + b), Not(HasSubstr("random ones")));
}

// A checkpoint may come from anybody; its checksum says nothing about its author.
TEST_F(Runs, ACheckpointNamesNoCodeAndNoPlaces) {
  ExpectSuccess(Run(SmallTraining()));
  const auto saved = LoadCheckpoint(In(run_));
  ASSERT_TRUE(saved.ok()) << Message(saved.status());
  CheckpointContents crafted;
  crafted.step = saved->record["step"];
  crafted.record = saved->record;
  crafted.config = saved->config;
  std::vector<std::vector<char>> bytes;
  const auto copy = [&](const auto& from, std::vector<NamedTensor>& to) {
    for (const TensorFile::Entry& entry : from.entries()) {
      ASSERT_TRUE(from.Read(entry, bytes.emplace_back(static_cast<size_t>(entry.bytes)).data()).ok());
      to.push_back({entry.name, entry.dtype, entry.shape, bytes.back().data()});
    }
  };
  copy(saved->weights, crafted.weights);
  copy(saved->state, crafted.state);
  const std::string evil = In("evil.so");  // loading it fails, and says its name
  std::ofstream(evil) << "no library";
  folder_.Write("a.png", PngBytes(Pattern(9, 11, 1)));
  const std::string from = "crafted/checkpoints/latest";
  const nlohmann::json honest = saved->record["config"];
  const std::vector<nlohmann::json> cases = {
      {{"device", evil}},
      {{"collective", evil}},
      {{"interpose", {evil}}},
      {{"data", In("theirs")}, {"output", In("theirs")}, {"tag", "../../theirs"}, {"suffix", "../../theirs"}},
      {{"pretrained", evil}, {"reset_head", true}, {"resume", evil}},
      {{"device_list", "7"}, {"debug", {"loud"}}, {"workers", 1025}, {"threads", 4097}, {"ranks_per_device", 3}}};
  for (const nlohmann::json& settings : cases) {
    SCOPED_TRACE(settings.dump());
    crafted.record["config"] = honest;
    crafted.record["config"].update(settings);
    ASSERT_TRUE(SaveCheckpoint(In("crafted"), crafted, {}).ok());
    for (const std::string& command :
         {"eval --checkpoint=" + from, "predict a.png --checkpoint=" + from, "train --steps=8 --resume=" + from}) {
      const CommandResult result = Run(command, command.starts_with("train") ? Start::kLaunch : Start::kAlone);
      ExpectSuccess(result);
      EXPECT_THAT(result.output, Not(HasSubstr("evil")));
    }
  }
  EXPECT_FALSE(fs::exists(In("theirs")));
  crafted.record["config"] = {{"lr", "fast"}};
  ASSERT_TRUE(SaveCheckpoint(In("crafted"), crafted, {}).ok());
  ExpectRefused(Run("eval --checkpoint=" + from), {"state.json: config: setting lr: \"fast\" has the wrong type"});
}

TEST_F(Runs, ARunFolderBelongsToOneRun) {
  ExpectSuccess(Run(SmallTraining()));
  const std::string metrics = Text(SmallRun() + "/0/log/metrics.jsonl");
  for (const Start start : {Start::kAlone, Start::kLaunch}) {
    ExpectRefused(Run(SmallTraining("--steps=8"), start),
                  {run_ + " is there already", "choose another --suffix", "--resume=" + run_});
  }
  fs::rename(In(run_ + "/checkpoints"), In("kept"));
  ExpectRefused(Run(SmallTraining("--steps=8")), {run_ + " is there already", "or remove that one, which has no"});
  fs::rename(In("kept"), In(run_ + "/checkpoints"));
  EXPECT_EQ(Text(SmallRun() + "/0/log/metrics.jsonl"), metrics);
  const CommandResult on = Run("train --steps=8 --suffix=other --output=elsewhere --resume=" + run_);
  ExpectSuccess(on, {"--suffix has no effect with --resume=", "--output has no effect with --resume=",
                     ": the run goes on in its own folder"});
  EXPECT_FALSE(fs::exists(In("elsewhere")));
  EXPECT_THAT(Text(SmallRun() + "/settings.txt"), testing::Not(testing::HasSubstr("elsewhere")));

  // Without a suffix the second gives them names: four at once get four.
  std::vector<std::thread> together;
  for (int i = 0; i < 4; ++i) {
    together.emplace_back([&, i] {
      ExpectSuccess(Run(SmallTraining("--suffix= --output=many"), i == 3 ? Start::kLaunch : Start::kAlone));
    });
  }
  for (std::thread& thread : together) thread.join();
  const std::vector<std::string> names = NamesIn("many/mlp/shapes");
  EXPECT_EQ(names.size(), 4u);
  for (const std::string& name : names) EXPECT_EQ(Logged("many/mlp/shapes/" + name + "/run", "val_loss").size(), 1u);
}

TEST_F(Runs, WhereSettingsCameFromIsSaidAlsoOfARunThatFails) {
  ExpectRefused(Run(SmallTraining("--optimizer=sgd --warmup=0 --lr=2e9")), {"the norm of the gradients is"});
  EXPECT_THAT(Text(SmallRun() + "/settings.txt"), testing::ContainsRegex("optimizer +sgd +flag"));
}

TEST_F(Runs, ARunIsContinuedOnceAtATime) {
  {
    RunningProgram first(folder_.path(), CommandLineOf(Start::kAlone, SmallTraining("--steps=2000000 --save_every=9")));
    ASSERT_GE(RunningProgram::WaitFor([&] { return fs::exists(SmallRun() + "/checkpoints/latest"); }, 30000), 0);
    ExpectRefused(Run("train --resume=" + run_), {"another process is training in the run folder"});
    first.Signal(SIGTERM);
    ASSERT_GE(RunningProgram::WaitFor([&] { return first.HasEnded(); }, 20000), 0) << first.Output();
  }
  const auto latest = LoadCheckpoint(In(run_));
  ASSERT_TRUE(latest.ok()) << Message(latest.status());
  ExpectSuccess(Run(fmt::format("train --steps={} --resume={}", latest->record["step"].get<int64_t>() + 2, run_)));
}

TEST_F(Runs, AStoppedRunSaysHowItGoesOnAsItWas) {
  RunningProgram run(folder_.path(),
                     CommandLineOf(Start::kLaunch, SmallTraining("--tp=2 --zero=1 --log_every=1 --steps=200000")));
  const auto trains = [&] { return run.Output().find("\nepoch ") != std::string::npos; };
  ASSERT_GE(RunningProgram::WaitFor(trains, 60000), 0) << run.Output();
  run.Signal(SIGTERM);
  ASSERT_GE(RunningProgram::WaitFor([&] { return run.HasEnded(); }, 30000), 0) << run.Output();
  EXPECT_THAT(run.Output(), testing::ContainsRegex("; go on with --resume=[^ ]+ --tp=2 --zero=1\n"));
}

TEST_F(Runs, AnotherNumberOfRanksKeepsBatchScheduleAndLength) {
  ExpectSuccess(Run(Epochs("--batch_size=6"), Start::kLaunch), {"12 images per update: 6 per rank, 2 ranks"});
  const auto losses = Logged(run_, "loss"), rates = Logged(run_, "lr");
  ASSERT_EQ(losses.size(), 24u);
  const std::string from = run_ + "/checkpoints/step-00000011";
  const std::string three = Program() + " launch --nproc_per_node=3 train --resume=" + from;
  for (const std::string& line :
       {Program() + " train --resume=" + from, three, Program() + " train --batch_size=2 --resume=" + from,
        Program() + " train --global_batch_size=12 --resume=" + from}) {
    SCOPED_TRACE(line);
    const CommandResult result = RunCommand(fmt::format("bash -c 'cd {} && {}'", folder_.path(), line), 60);
    ExpectSuccess(result, {"12 images per update", "3 epochs of 8 updates", "epoch 3/3  8/8", "trained 24 updates"});
    const auto found = Logged(run_, "loss");
    ASSERT_EQ(found.size(), 24u);
    for (const auto& [step, loss] : losses) EXPECT_NEAR(found.at(step), loss, 1e-4) << "update " << step;
    EXPECT_EQ(Logged(run_, "lr"), rates);
  }
  ExpectRefused(RunCommand(fmt::format("bash -c 'cd {} && {} launch --nproc_per_node=5 train --resume={}'",
                                       folder_.path(), Program(), from),
                           60),
                {"12 images cannot be divided over 5 data-parallel ranks", "1, 2, 3, 4, 6 or 12 of them",
                 "--global_batch_size=15"});
  ExpectRefused(Run("train --batch_size=5 --resume=" + from), {"--batch_size=5 on 1 rank ", "1, 2, 3, 4, 6 or 12"});
  ExpectRefused(Run("train --batch_size=auto --resume=" + from), {"keeps its global batch of 12"});

  // Another global batch only where it is asked for, and said.
  ExpectRefused(Run("train --global_batch_size=24 --resume=" + from), {"36 images into epoch 2", "=18 or 36"});
  ExpectSuccess(Run("train --global_batch_size=24 --resume=" + run_ + "/checkpoints/step-00000010"),
                {"warning: --global_batch_size=24 changes the run", "24 images per update: 6 per rank",
                 "epoch 3/3  4/4", "trained 17 updates"});
}

// What a refusal names is not refused in turn.
TEST_F(Runs, ARefusalToGoOnOnAnotherMeshNamesWhatDoes) {
  ExpectSuccess(
      Run("train --model=vit_micro --patch=4 --width=8 --heads=2 --depth=2 --dataset=shapes --image_size=12 "
          "--train_size=24 "
          "--validation_size=4 --batch_size=3 --steps=2 --threads=1 --device=cpu --output=run"));
  const std::string resume = "train --steps=3 --resume=run/vit_micro/shapes/" + NamesIn("run/vit_micro/shapes").at(0) +
                             "/run/checkpoints/step-00000002 ";
  ExpectRefused(Run(resume + "--pp=2 --accumulation=1", Start::kLaunch),
                {"--pp=2 with 1 micro-batch an update, of 3 images", "; use --accumulation=3"});
  ExpectRefused(Run(resume + "--tp=2 --sp", Start::kLaunch),
                {"3 images cannot be divided over 1 data-parallel rank in batches that are multiples of 2", "--sp=0",
                 "--global_batch_size=4 changes it"});
  ExpectSuccess(Run(resume + "--tp=2 --sp=0", Start::kLaunch), {"trained 3 updates"});
  ExpectSuccess(Run(resume + "--pp=2 --accumulation=3", Start::kLaunch), {"trained 3 updates"});
  ExpectSuccess(Run(resume + "--pp=2", Start::kLaunch), {"3 micro-batches", "trained 3 updates"});
}

// Who told them in updates meant those updates, whatever an epoch is.
TEST_F(Runs, MilestonesStayWhereTheyWereWhenTheGlobalBatchChanges) {
  ExpectSuccess(Run(Epochs("--batch_size=12 --schedule=multistep --milestones=4,12 --lr=0.01 --warmup=0")));
  const auto rates = Logged(run_, "lr");
  ASSERT_EQ(rates.size(), 24u);
  EXPECT_NEAR(rates.at(12), 1e-3, 1e-6);
  EXPECT_NEAR(rates.at(13), 1e-4, 1e-7);
  ExpectSuccess(Run(fmt::format("train --global_batch_size=24 --resume={}/checkpoints/step-00000008", run_)),
                {"epoch 3/3  4/4", "trained 16 updates"});
  const auto found = Logged(run_, "lr");
  ASSERT_EQ(found.size(), 16u);
  for (const auto& [step, rate] : found) EXPECT_EQ(rate, rates.at(step)) << "update " << step;
}

// The count of updates left out, and how many there were in a row, go on with the run.
TEST_F(Runs, SkippedUpdatesAreCountedOverAllPartsOfARun) {
  const std::string training = SmallTraining(
      "--optimizer=sgd --momentum=0 --clip=0 --warmup=0 --schedule=constant --lr=1e9 --on_nonfinite=skip --steps=300 "
      "--train_size=512 --log_every=1 --save_every=20");
  ExpectRefused(Run(training), {"the 100th in a row"});
  const auto whole = Logged(run_, "skipped_updates");
  const std::string from = run_ + "/checkpoints/latest";
  EXPECT_GT(Saved(from + "/state.json")["skipped_updates"]["in_a_row"], 50);
  ExpectRefused(Run("train --resume=" + run_), {"the 100th in a row"});
  EXPECT_EQ(Logged(run_, "skipped_updates"), whole);
}

// The gradients before the last update were finite, and so are the weights; what they make is not.
TEST_F(Runs, AnEvaluationThatIsNotFiniteIsAnErrorAndNeverTheBest) {
  for (const Start start : {Start::kAlone, Start::kLaunch}) {
    SCOPED_TRACE(start);
    ExpectRefused(Run("train --model=mlp --width=16 --dataset=shapes --train_size=16 --validation_size=16 "
                      "--global_batch_size=8 --threads=1 --device=cpu --output=run --suffix=a --clip=0 --warmup=0 "
                      "--schedule=constant --weight_decay=0 --optimizer=sgd --momentum=0 --lr=2147483647 --epochs=1",
                      start),
                  {"validation loss nan", "after update 2: the loss of 16 samples is not finite", "trained 2 updates"});
    EXPECT_FALSE(fs::is_symlink(In(run_ + "/best")));
    ExpectRefused(Run("eval --checkpoint=" + run_), {"16 images: loss nan", "is not finite with these weights"});
    folder_.Write("a.png", PngBytes(Pattern(32, 32, 1)));
    ExpectRefused(Run("predict a.png --checkpoint=" + run_), {"a.png: what the model makes of it is not finite"});
    fs::remove_all(In("run"));
  }
}

// What else there is to go on from is named where a checkpoint is damaged or its link is gone.
TEST_F(Runs, ADamagedCheckpointLeadsToTheOneBeforeIt) {
  ExpectSuccess(Run(SmallTraining("--save_every=2")));
  const std::string checkpoints = In(run_ + "/checkpoints");
  std::fstream state(checkpoints + "/step-00000006/state.safetensors", std::ios::in | std::ios::out | std::ios::ate);
  ASSERT_TRUE(state.is_open());
  state.seekp(-1, std::ios::end);
  state.put('\x7f');
  state.close();
  const std::string before = "; another checkpoint beside it: ";
  ExpectRefused(Run("train --steps=9 --resume=" + run_), {"is damaged", before, "checkpoints/step-00000004"});
  for (const std::string command : {"train --steps=9 --resume=", "eval --checkpoint="}) {
    for (const char* file : {"model.safetensors", "state.json"}) {
      const std::string path = checkpoints + "/step-00000006/" + file, whole = Text(path);
      fs::resize_file(path, fs::file_size(path) - 10);
      ExpectRefused(Run(command + run_), {file, before, "checkpoints/step-00000004"});
      if (file == std::string("model.safetensors")) {
        fs::remove(path);
        ExpectRefused(Run(command + run_), {file, before, "checkpoints/step-00000004"});
      }
      std::ofstream(path, std::ios::binary) << whole;
    }
  }
  std::filesystem::remove(checkpoints + "/latest");
  ExpectRefused(Run("train --steps=9 --resume=" + run_), {"no checkpoint at", before, "checkpoints/step-00000006"});
}

TEST_F(Runs, APictureThatCannotBeDrawnFailsNoTraining) {
  ExpectSuccess(Run(SmallTraining()));
  for (const char* picture : {"/loss.svg", "/loss.png"}) {
    std::filesystem::remove(In(run_ + picture));
    std::filesystem::create_directories(In(run_ + picture + "/in/the/way"));
  }
  ExpectSuccess(Run("train --steps=9 --resume=" + run_),
                {"warning: the loss curve was not drawn", "trained 9 updates"});
}

// Who stops a run gives it little time.
TEST_F(Runs, AnEvaluationThatWasDueAtAStopIsMadeUpFor) {
  RunningProgram program(folder_.path(), CommandLineOf(Start::kAlone, SmallTraining("--train_size=4 --steps=2000000")));
  ASSERT_TRUE(program.Trains(1)) << program.Output();
  program.Signal(SIGTERM);  // every update ends an epoch
  ASSERT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 20000), 0) << program.Output();
  const nlohmann::json state = Saved(run_ + "/checkpoints/latest/state.json");
  EXPECT_EQ(state["evaluation_pending"], true);
  const int64_t stopped = state["step"];
  EXPECT_EQ(Logged(run_, "val_loss").count(stopped), 0u);
  ExpectSuccess(Run(fmt::format("train --steps={} --resume={}", stopped + 1, run_)));
  const auto evaluated = Logged(run_, "val_loss");
  EXPECT_EQ(evaluated.count(stopped), 1u);
  EXPECT_EQ(evaluated.count(stopped + 1), 1u);
}

TEST_F(Runs, AnEvaluationEndsWhereTheRunIsStopped) {
  for (const Start start : {Start::kAlone, Start::kLaunch}) {
    std::filesystem::remove_all(In("run"));
    // The first update, whose line comes when a stop behind it has been asked for, ends an epoch.
    const int images = start == Start::kAlone ? 4 : 8;
    const std::string training =
        SmallTraining(fmt::format("--steps=40 --train_size={} --validation_size=2000000 --log_every=1", images));
    RunningProgram program(folder_.path(), CommandLineOf(start, training));
    ASSERT_TRUE(program.Trains(1)) << program.Output();
    program.Signal(SIGTERM);
    ASSERT_GE(RunningProgram::WaitFor([&] { return program.HasEnded(); }, 20000), 0) << program.Output();
    EXPECT_THAT(program.Output(), HasSubstr("stopped by a signal after update 1;"));
    EXPECT_EQ(Saved(run_ + "/checkpoints/latest/state.json")["evaluation_pending"], true);
  }
}

// Rank 0 alone has the run folder: what is wrong with it is its error.
TEST_F(Runs, TheRankWhoseErrorItIsIsNamed) {
  ExpectSuccess(Run(SmallTraining(), Start::kLaunch));
  for (int attempt = 0; attempt < 3; ++attempt) {  // ranks end in any order
    const CommandResult again = Run(SmallTraining(), Start::kLaunch);
    ExpectRefused(again, {"rank 0 (pid ", "is there already"});
    EXPECT_THAT(again.output, Not(HasSubstr("rank 1 (pid ")));
  }
}

TEST_F(Runs, StateOfAnotherOptimizerIsRefused) {
  ExpectSuccess(Run(SmallTraining("--optimizer=adamw")));
  for (const std::string other : {"sgd", "adam"}) {
    ExpectRefused(Run(fmt::format("train --steps=9 --optimizer={} --resume={}", other, run_)),
                  {"was saved with --optimizer=\"adamw\"", "this run has " + other});
  }
  ExpectSuccess(Run(SmallTraining("--optimizer=sgd --momentum=0.9 --suffix=b")));
  ExpectRefused(Run("train --steps=9 --momentum=0 --resume=run/mlp/shapes/b/run"),
                {"state moment1/fc1.bias is none of this run", "other settings of the optimizer"});
  ExpectSuccess(Run(SmallTraining("--optimizer=sgd --momentum=0 --suffix=c")));
  ExpectRefused(Run("train --steps=9 --momentum=0.9 --resume=run/mlp/shapes/c/run"),
                {"state moment1/fc1.bias is missing"});
}

TEST_F(Runs, ACopiedCheckpointGoesOnInARunFolderOfItsOwn) {
  ExpectSuccess(Run(SmallTraining()));
  fs::create_directories(In("home/backup"));
  fs::copy(SmallRun() + "/checkpoints/step-00000006", In("home/backup/step-00000006"), fs::copy_options::recursive);
  fs::create_directories(In("other/checkpoints"));
  fs::copy(SmallRun() + "/checkpoints/step-00000006", In("other/checkpoints/step-00000006"),
           fs::copy_options::recursive);
  std::ofstream(In("other/config.json")) << R"({"hidden_size": 768})";
  for (const std::string folder : {"home/backup", "other/checkpoints"}) {
    const CommandResult result = Run(fmt::format(
        "train --steps=8 --output=new --tag={} --suffix=b --resume={}/step-00000006", folder.substr(0, 4), folder));
    ExpectSuccess(result, {"lies in no run folder of ours; the run goes on in a new one", "trained 8 updates"});
    EXPECT_EQ(Logged("new/mlp/" + folder.substr(0, 4) + "/b/run", "val_loss").size(), 1u);
  }
  EXPECT_THAT(NamesIn("home"), ElementsAre("backup"));
  EXPECT_THAT(NamesIn("home/backup"), ElementsAre("step-00000006"));
  EXPECT_THAT(NamesIn("other"), ElementsAre("checkpoints", "config.json"));
  // A run that was moved as a whole is still a run.
  fs::rename(In("run/mlp/shapes/a"), In("moved"));
  ExpectSuccess(Run("train --steps=8 --resume=moved/run"), {"moved/run"});
  EXPECT_TRUE(fs::exists(In("moved/run/checkpoints/step-00000008")));
}

TEST_F(Runs, MixedImagesAreTheSameInARunThatGoesOn) {
  const std::string flags = "--mixup=0.8 --cutmix=1 --label_smoothing=0.1 --batch_size=12 --log_every=1";
  ExpectSuccess(Run(Epochs(flags)));
  const auto straight = Logged(run_, "loss");
  // Sums are divided over threads, whose number belongs to the machine, not to the run.
  ExpectSuccess(Run(fmt::format("train --threads=1 --resume={}/checkpoints/step-00000009", run_)));
  EXPECT_EQ(Logged(run_, "loss"), straight);
  ExpectSuccess(
      Run(fmt::format("eval --batch_size=3 --checkpoint={}", run_)));  // which mixes nothing: any batch will do
  // Mixed with a share of 1 they are the images themselves.
  ExpectSuccess(Run(Epochs("--suffix=none --batch_size=12 --log_every=1")));
  ExpectSuccess(
      Run(Epochs("--suffix=never --mixup=0.8 --mixup_prob=0 --label_smoothing=0 --batch_size=12 --log_every=1")));
  const auto none = Logged("run/mlp/shapes/none/run", "loss"), never = Logged("run/mlp/shapes/never/run", "loss");
  ASSERT_EQ(none.size(), never.size());
  ASSERT_FALSE(none.empty());
  for (const auto& [step, loss] : none) EXPECT_NEAR(never.at(step), loss, 1e-4) << step;
  EXPECT_NE(straight.begin()->second, none.begin()->second);
}

// Bit for bit, also on a device that computes beside the host, over ranks, micro-batches and stages.
TEST_F(Runs, ImagesMixedOnTheDeviceGiveTheWeightsOfThoseMixedByTheLoader) {
  int runs = 0;
  const auto weights = [&](const std::string& flags, Start start) {
    const std::string suffix = fmt::format("mixed{}", ++runs);
    ExpectSuccess(
        Run(fmt::format("train --dataset=shapes --image_size=12 --train_size=64 --validation_size=8 --steps=4 "
                        "--batch_size=4 --accumulation=2 --threads=1 --output=run --mixup=0.8 --cutmix=1 "
                        "--label_smoothing=0.1 --optimizer=sgd --suffix={} {}",
                        suffix, flags),
            start));
    const std::string model = flags.find("mlp") != std::string::npos ? "mlp" : "vit_micro";
    return Text(In(fmt::format("run/{}/shapes/{}/run/checkpoints/latest/model.safetensors", model, suffix)));
  };
  const std::string mlp = "--model=mlp --width=16 ", vit = "--model=vit_micro --patch=4 --width=8 --heads=2 --depth=2 ";
  for (const auto& [flags, start] : {std::pair{mlp + "--device=cpu --mixup_mode=elem", Start::kAlone},
                                     {mlp + "--device=null --amp=O2 --precision=bf16", Start::kAlone},
                                     {mlp + "--device=null --mixup_mode=pair", Start::kLaunch},
                                     {vit + "--device=cpu --pp=2", Start::kLaunch},
                                     {vit + "--device=cpu --tp=2 --sp", Start::kLaunch}}) {
    const std::string by_loader = weights(flags, start);
    EXPECT_FALSE(by_loader.empty());
    EXPECT_TRUE(weights(flags + " --mix_on=device", start) == by_loader) << flags;
  }
  ExpectSuccess(Run(SmallTraining("--suffix=c --mix_on=device")), {"--mix_on has no effect with --mixup=0 --cutmix=0"});
}

TEST_F(Runs, GoingBackGivesUpWhatCameLater) {
  ExpectSuccess(Run(Epochs("--batch_size=12")));
  ExpectSuccess(Run(fmt::format("train --epochs=2 --keep=2 --resume={}/checkpoints/step-00000009", run_)));
  EXPECT_THAT(NamesIn(run_ + "/checkpoints"), AllOf(Contains("step-00000015"), Contains("step-00000016"),
                                                    Not(Contains("step-00000009")), Not(Contains("step-00000017"))));
  EXPECT_EQ(NamesIn(run_ + "/checkpoints/abandoned").size(), 15u);
  EXPECT_EQ(Logged(run_, "loss").size(), 16u);
  // Nor are they drawn twice: TensorBoard's files end where the run went on.
  int files = 0;
  size_t losses = 0;
  for (const std::string& name : NamesIn(run_ + "/0/log")) {
    if (!name.starts_with("events")) continue;
    ++files;
    const std::string text = Text(In(run_ + "/0/log/" + name));
    for (size_t at = 0; (at = text.find("Loss/training/train_loss", at)) != std::string::npos; ++at) ++losses;
    for (const char* tag : {"Training/grad_norm", "Training/learning_rate"}) EXPECT_THAT(text, HasSubstr(tag));
    EXPECT_THAT(text, Not(HasSubstr("Loss/training/val_loss")));
    EXPECT_THAT(text, HasSubstr("Loss/validation/val_loss"));
  }
  EXPECT_EQ(files, 2);
  EXPECT_EQ(losses, 16u);
}

TEST_F(Runs, ACheckpointHasTheMetricOfItsOwnWeightsAndTheLossScaleOfNewLimits) {
  ExpectSuccess(
      Run("train --model=mlp --dataset=shapes --train_size=16 --validation_size=8 --batch_size=8 --epochs=2 "
          "--save_every=1 --keep=9 --amp=O1 --device=cpu --threads=1 --output=run --tag=t --suffix=a"));
  const std::string folder = "run/mlp/t/a";
  const auto record = [&](int step) {
    return nlohmann::json::parse(
        std::ifstream(In(fmt::format("{}/run/checkpoints/step-{:08}/state.json", folder, step))));
  };
  EXPECT_TRUE(record(2).contains("top1"));
  EXPECT_FALSE(record(3).contains("top1")) << "no evaluation after the third update";
  ExpectSuccess(Run("train --steps=5 --init_scale=1024 --max_scale=4096 --threads=1 --resume=" + folder),
                {"the loss scale was 65536; from here on it is 4096", "trained 5 updates, 1 of them here"});
}

}  // namespace
}  // namespace switchyard
