// Bad input: a message that says what was expected, what was found and what to do; an exit status that is not 0; no
// crash and no hang, with one rank and with two.
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <tuple>

#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class BadInput : public ProgramTest {
 protected:
  void ExpectAloneRefused(const std::string& arguments, const std::vector<std::string>& words) {
    ExpectRefused(Run(arguments), words);
  }
};

TEST_F(BadInput, WordsThatAreNotKnownGetASuggestion) {
  ExpectAloneRefused("trian", {"unknown command trian (did you mean train?)"});
  ExpectAloneRefused("train --bach_size=3", {"unknown flag --bach_size (did you mean --batch_size?)"});
  ExpectAloneRefused("train --checkpoint=x", {"unknown flag --checkpoint"});
  ExpectAloneRefused("train now", {"found \"now\""});
  ExpectAloneRefused("launch --nproc_per_nod=2 train", {"did you mean --nproc_per_node?"});
  ExpectAloneRefused("launch", {"launch needs a command"});
  ExpectAloneRefused("launch --nproc_per_node=2 no-such-program", {"cannot run no-such-program"});
  ExpectAloneRefused("datasets --have=cifar", {"unknown dataset cifar (did you mean cifar10?)"});
}

TEST_F(BadInput, ValuesOutsideTheirRangeNameTheFlag) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--steps=abc", "\"abc\" is not a value for --steps"},
      {"--batch_size=-3", "--batch_size: expected at least"},
      {"--log_every=0", "--log_every: expected at least 1, found 0"},
      {"--lr=nan", "--lr: expected at least 0, found nan"},
      {"--beta1=nan", "--beta1: expected at least 0"},
      {"--dampening=1", "--dampening: expected"},
      {"--label_smoothing=1", "--label_smoothing: expected"},
      {"--scale_lr_factor=0", "--scale_lr_factor: expected at least 1e-12, found 0"},
      {"--trust_coefficient=0", "--trust_coefficient: expected at least 1e-12, found 0"},
      {"--clip=-0.5", "--clip: expected at least 0, found -0.5"},
      {"--weight_decay=-1", "--weight_decay: expected at least 0, found -1"},
      {"--lr=0 --model=vit_micro", "--lr=0 would rise to --min_lr=1e-05"},
      {"--suffix=../x", "--suffix: expected the name of a folder, found \"../x\""},
      {"--tag=/x", "--tag: expected the name of a folder"},
      {"--suffix=.", "--suffix: expected the name of a folder"},
      {"--suffix='a\033[31m'", "--suffix: expected the name of a folder, found \"a"},
      {"--workers=-1", "--workers"},
      {"--dropout=1.5", "--dropout=1.5"},
      {"--precision=fp8", "expected fp32, fp16 or bf16, found fp8"},
      {"--optimizer=adm", "did you mean adam?"},
      {"--schedule=cosin", "did you mean cosine?"},
      {"--warmup=soon", "warm-up"},
      {"--augmentation=spin", "--augmentation: expected none, crop, crop_flip, resized_crop or scale_crop, found spin"},
      {"--mean=x", "--mean: expected numbers"},
      {"--debug=loud", "expected sync, nan or both, found loud"},
      {"--classes=3", "the dataset shapes has 10 classes"},
      {"--batch_size=4096", "use a smaller --batch_size"},
      {"--batch_size=8 --global_batch_size=100", "give one of them"},
      {"--batch_size=0", "--batch_size: expected"},
      {"--epochs=1.5", "\"1.5\" is not a value for --epochs"},
      {"--epochs=0", "--epochs: expected"},
      {"--suffix --steps=1", "--suffix needs a value"},
      {"--pretrained=none.safetensors", "none.safetensors"},
  };
  for (const auto& [flags, words] : cases) ExpectAloneRefused(SmallTraining(flags), {words});
  ExpectAloneRefused("train --dataset=shapes --model=vit_micro --global_batch_size=5 --accumulation=2",
                     {"no multiple"});
  ExpectAloneRefused("train --dataset=shapes --model=vit_micro --image_size=30", {"try --image_size=35"});
  ExpectAloneRefused("train --dataset=shapes --model=vit_micro --heads=7", {"no multiple of 7 heads"});
  ExpectAloneRefused("explain --model=resnet18 --channels=1",
                     {"--mean has 3", "images have 1 channel;", "as --mean=0.5"});
  ExpectAloneRefused("explain --world=0", {"--world: expected 1 to 1048576 ranks, found 0"});
  ExpectAloneRefused("explain --world=3 --pp=2", {"--pp=2: expected a number that divides the 3 ranks"});
  const std::string stages = "explain --model=vit_micro --pp=2 ";
  ExpectAloneRefused(stages + "--world=2 --global_batch_size=6 --accumulation=1",
                     {"--pp=2 with 1 micro-batch an update, of 6 images:", "use --accumulation=2, 3 or 6"});
  ExpectAloneRefused(stages + "--world=2 --batch_size=6 --num_microbatches=1", {"use --num_microbatches=2, 3 or 6"});
  ExpectAloneRefused(stages + "--world=2 --batch_size=6 --microbatch_size=6", {"use --microbatch_size=1, 2 or 3"});
  ExpectAloneRefused(stages + "--world=2 --batch_size=3 --mixup=0.8", {"use a smaller --pp, or --batch_size=4"});
  ExpectAloneRefused("explain --model=vit_micro --world=4 --pp=4 --batch_size=3 --num_microbatches=3",
                     {"use a smaller --pp, or --batch_size=4 without --num_microbatches"});
  ExpectAloneRefused(stages + "--world=2 --batch_size=6 --accumulation=1", {"use --batch_size=3 --accumulation=2"});
  ExpectAloneRefused(stages + "--world=4 --global_batch_size=2", {"or --global_batch_size=4"});
  ExpectAloneRefused(stages + "--world=4 --tp=2 --sp --global_batch_size=2",
                     {"of a multiple of 2 images each for --sp, which divides them", "; the 2 images",
                      "a smaller --pp, or --global_batch_size=4"});
  ExpectAloneRefused(stages + "--world=2 --batch_size=12 --num_microbatches=3 --mixup=0.8 --pp_interleave=2",
                     {"a multiple of them for --pp_interleave=2", "use --num_microbatches=2 or 6"});
}

TEST_F(BadInput, AConfigFileThatIsWrongSaysWhere) {
  const auto expect = [&](const std::string& text, const std::string& words) {
    std::ofstream(In("c.json")) << text;
    ExpectAloneRefused("train --config=c.json", {"--config=c.json", words});
  };
  expect("{\"lr\": 0.1,\n \"seed\" 3}", "line 2");
  expect("[1, 2]", "found array");
  expect("{\"learn_rate\": 1}", "unknown setting learn_rate");
  expect("{\"batchsize\": 1}", "did you mean batch_size?");
  expect("{\"epochs\": \"many\"}", "\"many\" is not a value for --epochs");
  expect("{\"epochs\": {}}", "{} is no value");
  expect("", "not JSON");
  std::ofstream(In("large.json")) << "{\"lr\": 0.1}" << std::string((1 << 20) - 10, ' ');  // a byte more than 1 MiB
  ExpectAloneRefused("train --config=large.json", {"--config=large.json", "1048576"});
  ExpectAloneRefused("train --config=missing.json", {"cannot read this file"});
  ExpectAloneRefused("train --config=.", {"cannot read this file"});
}

// Which of two values stands is not for the order of a file to say.
TEST_F(BadInput, AKeyThatAConfigFileHasTwiceIsNamed) {
  const std::string twice = "the key 'parallel' appears twice";
  std::ofstream(In("c.json")) << R"({"parallel": "tp2", "lr": 0.1, "parallel": "tp4"})";
  ExpectAloneRefused("train --config=c.json", {"--config=c.json", twice});
  std::ofstream(In("d.json")) << R"({"parallel": "tp2", "tp": 4})";
  ExpectAloneRefused("train --config=d.json",
                     {"--config=d.json: parallel", " and --config=d.json: tp=4 both set --tp"});
  ExpectSuccess(Run(SmallTraining()));
  std::ofstream(In("run/mlp/shapes/a/run/config.json")) << R"({"model": "mlp", "parallel": "tp2", "parallel": "tp4"})";
  EXPECT_THAT(Run("plot run").output, HasSubstr("config.json: " + twice));
}

// Each reads for itself, and one of them perhaps another copy.
TEST_F(BadInput, RanksOfOneNodeWithOtherDataAreRefused) {
  for (const char* rank : {"0", "1"}) {
    auto files = SmallImageFolder(2, 2);
    if (rank == std::string("1")) {
      files[0].second.swap(files[1].second);                 // in training
      files[files.size() - 2].second = files.back().second;  // in validation
    }
    for (const auto& [name, bytes] : files) folder_.Write(fmt::format("photos{}/{}", rank, name), bytes);
  }
  std::ofstream(In("start.sh")) << "exec " << Program() << " \"$@\" --data=photos$RANK\n";
  const std::string training =
      "train --model=mlp --dataset=imagefolder --image_size=8 --width=8 --batch_size=2 --steps=1 --device=cpu "
      "--threads=1 --output=run --suffix=a";
  ExpectRefused(Run("launch --nproc_per_node=2 sh start.sh " + training),
                {"the data are not the same on all ranks: rank 1 has \"training 7 samples, checksum",
                 "give the same --data to every rank"});
  ExpectSuccess(Run(training + " --data=photos0"));
  ExpectRefused(Run("launch --nproc_per_node=2 sh start.sh eval --device=cpu --checkpoint=run/mlp/imagefolder/a/run"),
                {"the data are not the same on all ranks: rank 1 has \"validation 7 samples, checksum"});
}

// What rank 1 has and rank 0 has not, in the words of the command line.
TEST_F(BadInput, SettingsOfWhichARankHasOthersAreNamedAsTheUserWouldGiveThem) {
  ExpectSuccess(Run(SmallTraining()));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--augmentation=crop", "rank 1 has \"--augmentation=crop\", rank 0 has \"--augmentation=none\""},
      {"--bucket_mb=0.1", "rank 1 has \"--bucket_mb=0.1\", rank 0 has no --bucket_mb"},
      {"--pretrained=run/mlp/shapes/a/run", "rank 1 has \"--pretrained=weights\", rank 0 has \"--pretrained=\""}};
  for (const auto& [flag, words] : cases) {
    std::ofstream(In("start.sh")) << "[ \"$RANK\" = 1 ] && set -- \"$@\" " << flag << "\nexec " << Program()
                                  << " \"$@\"\n";
    ExpectRefused(Run("launch --nproc_per_node=2 sh start.sh " + SmallTraining("--augmentation=none --suffix=b")),
                  {words});
  }
}

TEST_F(BadInput, AConfigFileNamesNoCode) {
  std::filesystem::create_directory(In("x:"));
  for (const char* file : {"evil.so", "x:/evil.so"}) std::ofstream(In(file)) << "no library";
  for (const std::string setting :
       {R"("device": "./evil.so")", R"("device": "x:/evil.so")", R"("collective": "./evil.so")",
        R"("collective": "x:/evil.so")", R"("interpose": ["validate", "./evil.so"])",
        R"("interpose": "trace:../calls.json")"}) {
    std::ofstream(In("evil.json")) << "{" << setting << "}";
    ExpectRefused(Run("train --model=mlp --dataset=shapes --config=evil.json"),
                  {"evil.json: ", "is not for a file that may come from anybody; give it by --"});
  }
  std::ofstream(In("validate.json")) << R"({"interpose": "validate"})";
  ExpectSuccess(Run(SmallTraining("--config=validate.json")));
}

TEST_F(BadInput, DeepJsonPipesAndDevicesAreRefusedAtOnce) {
  std::ofstream(In("deep.json")) << "{\"lr\": " << std::string(200000, '[') << std::string(200000, ']') << "}";
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  ExpectAloneRefused("train --config=deep.json", {"nested deeper than 64 levels"});
  ExpectAloneRefused("train --config=pipe", {"found a pipe"});
  ExpectAloneRefused("train --config=/dev/zero", {"found a device"});
  ExpectAloneRefused(SmallTraining("--pretrained=/dev/zero"), {"/dev/zero"});
  ExpectSuccess(Run(SmallTraining()));
  ExpectAloneRefused("predict /dev/zero --checkpoint=run/mlp/shapes/a/run", {"found a device"});
  ExpectAloneRefused("predict pipe --checkpoint=run/mlp/shapes/a/run", {"found a pipe"});
}

TEST_F(BadInput, ACheckpointWhoseFieldsAreOfAnotherTypeIsRefused) {
  ExpectSuccess(Run(SmallTraining()));
  const std::string run = "run/mlp/shapes/a/run", path = SmallRun() + "/checkpoints/latest/state.json";
  std::stringstream whole;
  whole << std::ifstream(path).rdbuf();
  const auto record = nlohmann::json::parse(whole.str());
  const auto seal_with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = record;
    changed.erase("state_crc32");
    changed[key] = value;
    std::string text = changed.dump(2);
    text.resize(text.size() - 2);
    text += fmt::format(",\n  \"state_crc32\": \"{:08x}\"\n}}\n", Crc(Bytes(text.begin(), text.end())));
    std::ofstream(path, std::ios::trunc) << text;
  };
  const auto refused = [&](const char* key, const nlohmann::json& value, const std::string& command,
                           const std::string& words) {
    seal_with(key, value);
    ExpectAloneRefused(command, {words});
  };
  refused("step", "six", "train --steps=8 --resume=" + run, "step: expected a count, found \"six\"");
  refused("samples", {1, 2}, "train --steps=8 --resume=" + run, "samples: expected a count, found [1,2]");
  refused("bad_samples", {{0, "x"}}, "train --steps=8 --resume=" + run, "bad_samples: expected a list of indices");
  refused("best_top1", {{"x", 1}}, "train --steps=8 --resume=" + run, "best_top1: expected a number");
  refused("best_top1", 1e308, "train --steps=8 --resume=" + run, "best_top1: expected a share, 0 to 1, found 1e+308");
  refused("evaluation_pending", "x", "train --steps=8 --resume=" + run, "evaluation_pending: expected");
  refused("samples", int64_t{1} << 62, "train --steps=8 --resume=" + run, "state.json: samples: expected a count");
  refused("classes", {1, 2}, "eval --checkpoint=" + run, "classes: expected a list of texts");
  refused("config", {{"lr", {{"a", 1}}}}, "eval --checkpoint=" + run, "setting lr");
  refused("config", 7, "eval --checkpoint=" + run, "expected a JSON object of settings");
  refused("config", {{"lr\x1b[2J" + std::string(9 << 20, 'x'), 1}}, "eval --checkpoint=" + run, "lr\\x1b[2Jxxx");
  // Names that are only names are shown as what they are, and command no terminal.
  folder_.Write("a.png", PngBytes(Pattern(32, 32, 3)));
  seal_with("classes", std::vector<std::string>(10, "\x1b[2Jcat\a"));
  const CommandResult shown = Run("predict a.png --top=2 --checkpoint=" + run);
  ExpectSuccess(shown, {"\\x1b[2Jcat\\x07"});
  EXPECT_EQ(shown.output.find('\x1b'), std::string::npos);
}

// What nothing else caught is told in words: no abort, no empty screen.
TEST_F(BadInput, RunningOutOfMemoryIsSaid) {
  folder_.Write("digits/train-labels-idx1-ubyte", IdxBytes({4}, Bytes(4)));
  const std::string images = folder_.Write("digits/train-images-idx3-ubyte", IdxBytes({4, 1024, 460800}, {}));
  std::filesystem::resize_file(images, (uintmax_t{1800} << 20) + 16);  // without a block on the disk
  ExpectRefused(Run(SmallTraining("--dataset=idx --data=digits"), Start::kAlone, "ulimit -v 1600000;"),
                {"out of memory while running train"});
}

TEST_F(BadInput, OutputThatCannotBeWrittenIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  ExpectAloneRefused("help > /dev/full", {"cannot write the output of help: No space left on device"});
}

TEST_F(BadInput, WhatARunWritesGoesThroughNoLink) {
  ExpectSuccess(Run(SmallTraining("--save_every=3")));
  std::filesystem::create_directory(In("victim"));
  std::filesystem::copy(SmallRun() + "/config.json", In("victim"));  // else the folder is none of a run
  const auto text_of = [&](const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const std::string config = text_of(In("victim/config.json"));
  for (const std::string name : {"config.json", "loss.png", "loss.svg", ".config.json.tmp"}) {
    if (name != "config.json") std::ofstream(In("victim/") + name) << "precious";
    std::filesystem::remove(SmallRun() + "/" + name);
    std::filesystem::create_symlink(In("victim/") + name, SmallRun() + "/" + name);
  }
  std::filesystem::create_directory_symlink(In("victim"), SmallRun() + "/checkpoints/.step-00000009.tmp");
  ExpectSuccess(Run("train --steps=8 --resume=run/mlp/shapes/a/run"));
  for (const std::string name : {"config.json", "loss.png", "loss.svg", ".config.json.tmp"}) {
    EXPECT_EQ(text_of(In("victim/") + name), name == "config.json" ? config : "precious") << name;
    EXPECT_FALSE(std::filesystem::is_symlink(SmallRun() + "/" + name)) << name;
  }
  std::filesystem::rename(SmallRun() + "/0/log", In("log"));
  std::filesystem::create_directory_symlink(In("log"), SmallRun() + "/0/log");
  ExpectAloneRefused("train --steps=9 --resume=run/mlp/shapes/a/run", {"0/log: expected a folder, found a file or"});
}

TEST_F(BadInput, AWrongEnvironmentIsRefusedBeforeAnythingStarts) {
  ExpectRefused(Run(SmallTraining(), Start::kAlone, "RANK=3 WORLD_SIZE=2"),
                {"RANK=3 but WORLD_SIZE=2; ranks count from 0 to 1"});
  ExpectRefused(Run(SmallTraining(), Start::kAlone, "RANK=one WORLD_SIZE=2"), {"RANK: expected a whole number"});
  ExpectRefused(Run(SmallTraining(), Start::kAlone, "WORLD_SIZE=2"), {"WORLD_SIZE is set but RANK is not"});
  ExpectRefused(Run(SmallTraining(), Start::kAlone, "SWITCHYARD_SEED=lucky"),
                {"SWITCHYARD_SEED: \"lucky\" is not a value for --seed"});
  ExpectRefused(Run(SmallTraining("--init_timeout_ms=300"), Start::kAlone,
                    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29611"),
                {"rank 1 of 2 did not come within 0.3 s"});
}

// The same refusal with one rank and with two, however they are started.
class BadInputOnEveryRank : public BadInput, public testing::WithParamInterface<Start> {
 protected:
  void SetUp() override {
    if (GetParam() == Start::kMpirun && !HasMpirun()) GTEST_SKIP() << "mpirun was not found";
  }
  void Expect(const std::string& arguments, const std::vector<std::string>& words, const std::string& prefix = "") {
    ExpectRefused(Run(arguments, GetParam(), prefix), words);
  }
  bool alone() const { return GetParam() == Start::kAlone; }
};

INSTANTIATE_TEST_SUITE_P(Started, BadInputOnEveryRank, testing::Values(Start::kAlone, Start::kLaunch, Start::kMpirun),
                         testing::PrintToStringParamName());

TEST_P(BadInputOnEveryRank, UnknownModelDatasetDeviceOrCollective) {
  Expect(SmallTraining("--model=vit_mikro"), {"unknown model", "did you mean vit_micro?"});
  Expect(SmallTraining("--dataset=shaped"), {"unknown dataset shaped (did you mean shapes?)"});
  Expect(SmallTraining("--device=cpux"), {"--device=cpux", "did you mean cpu?"});
  Expect(SmallTraining("--collective=shn"), {"no collective \"shn\" (did you mean shm?)"});
}

TEST_P(BadInputOnEveryRank, ADeviceWithoutAPluginNamesWhatWasFoundAndWhere) {
  Expect("train --device=tpu",
         {"--device=tpu", "no backend \"tpu\"", "cpu", "reference", "lib/switchyard/plugins", "switchyard doctor"});
}

TEST_P(BadInputOnEveryRank, MoreRanksThanDevices) {
  if (alone()) {
    Expect(SmallTraining("--device_list=1"), {"cpu has no device 1; it has 0 to 0"});
    Expect(SmallTraining("--device_list=0,0"), {"the id 0 is there twice"});
    Expect(SmallTraining("--device_list=0,x"), {"\"x\" is not a device id"});
  } else {
    Expect(SmallTraining("--device_list=0 --ranks_per_device=1"),
           {"2 local ranks, but cpu has 1 device", "--ranks_per_device=2"});
  }
}

TEST_P(BadInputOnEveryRank, MissingData) {
  Expect(SmallTraining("--dataset=fashion-mnist --data=nowhere"), {"--data=nowhere: no such file or folder"});
  Expect(SmallTraining("--dataset=beans --nodownload"), {"beans", "--data=FOLDER"});
}

TEST_P(BadInputOnEveryRank, ATruncatedIdxFileIsNamed) {
  const Bytes labels = IdxBytes({4}, Bytes{0, 1, 2, 3});
  Bytes images = IdxBytes({4, 8, 8}, Bytes(4 * 64, 7));
  for (const std::string split : {"train", "t10k"}) {
    folder_.Write("digits/" + split + "-images-idx3-ubyte", images);
    folder_.Write("digits/" + split + "-labels-idx1-ubyte", labels);
  }
  images.resize(images.size() - 10);
  folder_.Write("digits/train-images-idx3-ubyte", images);
  Expect(SmallTraining("--dataset=idx --data=digits"), {"digits/train-images-idx3-ubyte"});
}

TEST_P(BadInputOnEveryRank, ACorruptImageIsNamedByItsPath) {
  for (const auto& [name, bytes] : SmallImageFolder(6, 2)) folder_.Write("photos/" + name, bytes);
  Bytes cut = JpegBytes(Pattern(30, 30, 3));
  cut.resize(cut.size() / 2);
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(In("photos/train/bee")))
    path = entry.path().string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(cut.data()), static_cast<std::streamsize>(cut.size()));
  const std::string train = SmallTraining("--dataset=imagefolder --data=photos --batch_size=2 --steps=20");
  Expect(train, {path.substr(path.find("photos/")), "damaged JPEG"});
  ExpectSuccess(Run(train + " --suffix=b --max_bad_samples=100", GetParam()), {"accuracy"});
}

TEST_P(BadInputOnEveryRank, SkippedSamplesCountOverAllPartsOfARun) {
  std::vector<std::string> bees;
  Bytes whole;
  for (const auto& [name, bytes] : SmallImageFolder(6, 2)) {
    folder_.Write("photos/" + name, bytes);
    if (name.starts_with("train/bee")) bees.push_back("photos/" + name);
    if (bees.size() == 1 && whole.empty()) whole = bytes;
  }
  const Bytes cut(whole.begin(), whole.begin() + static_cast<int64_t>(whole.size() / 2));
  folder_.Write(bees[0], cut);
  ExpectSuccess(Run(SmallTraining("--dataset=imagefolder --data=photos --batch_size=2 --steps=20 --max_bad_samples=1"),
                    GetParam()),
                {bees[0].substr(bees[0].find("bee"))});
  folder_.Write(bees[0], whole);
  folder_.Write(bees[1], cut);
  const std::string on = "train --resume=run/mlp/imagefolder/a/run --data=photos --device=cpu --steps=40";
  ExpectRefused(Run(on, GetParam()), {bees[1].substr(bees[1].find("bee")), "bad sample number 2"});
  ExpectSuccess(Run(on + " --max_bad_samples=2", GetParam()));
}

TEST_P(BadInputOnEveryRank, AClassWithoutImages) {
  for (const auto& [name, bytes] : SmallImageFolder(2, 1)) folder_.Write("photos/" + name, bytes);
  std::filesystem::create_directories(In("photos/train/dog"));
  std::filesystem::create_directories(In("photos/val/dog"));
  Expect(SmallTraining("--dataset=imagefolder --data=photos"), {"photos", "dog"});
}

TEST_P(BadInputOnEveryRank, AClassifierWithOneClass) {
  for (const auto& [name, bytes] : SmallImageFolder(2, 1)) {
    if (name.find("/ant/") != std::string::npos) folder_.Write("photos/" + name, bytes);
  }
  Expect(SmallTraining("--dataset=imagefolder --data=photos"),
         {"expected at least 2 classes to tell apart, found one, ant", "may point a level too deep"});
}

TEST_P(BadInputOnEveryRank, ACheckpointThatCannotBeUsedIsNamed) {
  ExpectSuccess(Run(SmallTraining()));
  const std::string run = "run/mlp/shapes/a/run";
  Expect("train --resume=nowhere", {"no checkpoint at nowhere"});
  Expect("eval --checkpoint=nowhere", {"no checkpoint at nowhere"});
  Expect(fmt::format("train --resume={} --width=32", run),
         {"another model: --width=32 where the run has 16; leave out what the run says itself"});
  Expect(fmt::format("train --resume={} --model=vit_micro", run),
         {"is a checkpoint of mlp, and --model=vit_micro was given; leave --model out"});

  const std::string weights =
      std::filesystem::canonical(SmallRun() + "/checkpoints/latest").string() + "/model.safetensors";
  const auto size = std::filesystem::file_size(weights);
  std::fstream file(weights, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(size) - 9);
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(size) - 9);
  file.put(static_cast<char>(byte ^ 4));
  file.close();
  Expect("train --resume=" + run, {"model.safetensors"});
  std::filesystem::resize_file(weights, size / 2);
  Expect("train --resume=" + run, {"model.safetensors"});
  std::ofstream(weights, std::ios::binary | std::ios::trunc) << "\xff\xff\xff\xff\xff\xff\xff\x7f{}";
  Expect("eval --checkpoint=" + run, {"model.safetensors"});
}

}  // namespace
}  // namespace switchyard
