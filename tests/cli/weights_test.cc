// Trained weights in use: eval, predict and export, of a run and of weights without one.
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>

#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Weights : public RunFilesTest {
 protected:
  Weights() {
    // Pictures of no common shape, whose classes are so near each other that a small model is often wrong.
    for (const std::string split : {"train", "val"}) {
      int next = split == "train" ? 1 : 7;
      for (const std::string name : {"cat", "dog", "zebra"}) {
        for (int i = 0; i < (split == "train" ? 10 : 6); ++i, ++next) {
          Image image = Pattern(30 + 5 * next % 23, 30 + 7 * next % 29, 3);
          for (size_t b = name == "cat" ? 0 : name == "dog" ? 1 : 2; b < image.bytes.size(); b += 3)
            image.bytes[b] = static_cast<uint8_t>(std::min(255, image.bytes[b] + 5 * (next % 6)));
          folder_.Write(fmt::format("photos/{}/{}/{}.png", split, name, i), PngBytes(image));
        }
      }
    }
  }

  void Train(const std::string& more = "") {
    ExpectSuccess(
        Run("train --model=vit_micro --image_size=28 --width=16 --depth=2 --heads=2 --dataset=imagefolder "
            "--data=photos --batch_size=10 --steps=12 --warmup=0 --layer_norm_eps=1e-4 --device=cpu "
            "--threads=1 --notensorboard --output=run --tag=t --suffix=a " +
            more));
  }
  std::string TrainResNet(const std::string& stem = "imagenet") {
    ExpectSuccess(
        Run("train --model=resnet18 --width=4 --image_size=40 --dataset=imagefolder --data=photos --batch_size=10 "
            "--steps=3 --warmup=0 --device=cpu --threads=1 --output=run --tag=t --suffix=" +
            stem + " --stem=" + stem));
    return "run/resnet18/t/" + stem + "/run";
  }
  nlohmann::json RunJson(const std::string& arguments) const {
    const CommandResult result = Run(arguments + " --json --device=cpu --threads=1");
    ExpectSuccess(result);
    return nlohmann::json::parse(result.output, nullptr, false);
  }
  nlohmann::json Eval(const std::string& arguments) const { return RunJson("eval --checkpoint=" + arguments); }

  struct Accuracy {
    int64_t count = 0;
    double top1 = 0, loss = 0;
  };
  // What eval reports, from what predict says of files that lie in folders named after their class.
  Accuracy ByPrediction(const std::string& arguments) const {
    Accuracy accuracy;
    const nlohmann::json files = RunJson("predict " + arguments + " --top=9");
    for (const nlohmann::json& file : files) {
      const std::string truth = std::filesystem::path(file["file"].get<std::string>()).parent_path().filename();
      accuracy.top1 += file["classes"][0]["class"] == truth;
      for (const nlohmann::json& c : file["classes"]) {
        if (c["class"] == truth) accuracy.loss -= std::log(c["probability"].get<double>());
      }
      ++accuracy.count;
    }
    accuracy.top1 /= static_cast<double>(accuracy.count);
    accuracy.loss /= static_cast<double>(accuracy.count);
    return accuracy;
  }
  static void ExpectAlike(const nlohmann::json& evaluation, const Accuracy& prediction) {
    EXPECT_EQ(evaluation["count"], prediction.count);
    EXPECT_NEAR(evaluation["top1"].get<double>(), prediction.top1, 1e-9);
    EXPECT_NEAR(evaluation["loss"].get<double>(), prediction.loss, 1e-5);
  }
  void KeepOnly(const std::string& split, const std::string& from, const std::string& to) const {
    std::filesystem::create_directories(In(to));
    std::filesystem::copy(In(from), In(to + "/" + split), std::filesystem::copy_options::recursive);
  }
  const std::string run_ = "run/vit_micro/t/a/run";
};

TEST_F(Weights, PredictAndEvalTreatTheSameImagesAlike) {
  int trained = 0;
  for (const std::string flags :
       {"", "--augmentation=resized_crop --crop_ratio=0.7 --interpolation=bicubic --mean=0.4 --std=0.2"}) {
    Train(fmt::format("{} --output_suffix=r{}", flags, ++trained));
    const std::string run = fmt::format("run/vit_micro/t/a/r{}", trained), data = " --data=photos";
    const nlohmann::json evaluation = Eval(run + data);
    ExpectAlike(evaluation, ByPrediction("photos/val --checkpoint=" + run));
    // The augmentation is training's own, and a batch larger than the data changes nothing either.
    for (const std::string more : {"--augmentation=none", "--augmentation=resized_crop", "--batch_size=1000"}) {
      EXPECT_NEAR(Eval(run + data + " " + more)["loss"].get<double>(), evaluation["loss"].get<double>(), 1e-6) << more;
    }
    // What is given wins, for both.
    const nlohmann::json whole = Eval(run + data + " --crop_ratio=1");
    EXPECT_NE(whole["loss"], evaluation["loss"]);
    ExpectAlike(whole, ByPrediction("photos/val --crop_ratio=1 --checkpoint=" + run));
  }
}

TEST_F(Weights, EvalTellsClassesByNameAndNeedsNoTrainingData) {
  Train();
  KeepOnly("val", "photos/val", "two");
  std::filesystem::remove_all(In("two/val/cat"));
  const nlohmann::json evaluation = Eval(run_ + " --data=two");
  EXPECT_EQ(evaluation["count"], 12);
  ExpectAlike(evaluation, ByPrediction("two/val --checkpoint=" + run_));
  EXPECT_NE(Eval(run_ + " --data=two --match_classes=position")["loss"], evaluation["loss"]);
  std::filesystem::rename(In("two/val/zebra"), In("two/val/zebras"));
  ExpectRefused(
      Run("eval --checkpoint=" + run_ + " --data=two"),
      {"does not know 1 of the dataset's 2 classes: zebras (did you mean zebra?)", "--match_classes=position"});
  ExpectRefused(Run("eval --match_classes=size --data=photos --checkpoint=" + run_),
                {"--match_classes: expected name or position"});
}

// Latin-1, as archives of old systems unpack it.
TEST_F(Weights, ClassFoldersMayHaveNamesThatAreNotUtf8) {
  for (const char* split : {"train", "val"})
    std::filesystem::rename(In(fmt::format("photos/{}/cat", split)), In(fmt::format("photos/{}/caf\xe9", split)));
  Train();
  ExpectSuccess(Run("train --steps=13 --device=cpu --data=photos --resume=" + run_), {"trained 13 updates"});
  EXPECT_EQ(Eval(run_ + " --data=photos")["count"], 18);
  const nlohmann::json files = RunJson("predict photos/val/dog/1.png --top=3 --checkpoint=" + run_);
  std::vector<std::string> classes;
  for (const nlohmann::json& c : files[0]["classes"]) classes.push_back(c["class"]);
  EXPECT_THAT(classes, testing::UnorderedElementsAre("caf\\xe9", "dog", "zebra"));
}

// Their config.json does not say for which size of images a residual network was made: it suits any.
TEST_F(Weights, AnExportedResNetPredictsAsItsRun) {
  const std::string run = TrainResNet();
  ExpectSuccess(Run("export hub --checkpoint=" + run), {"ResNetForImageClassification.from_pretrained"});
  const std::string predict = "predict photos/val --top=3 --checkpoint=";
  const nlohmann::json predicted = RunJson(predict + run);
  EXPECT_EQ(RunJson(predict + "hub"), predicted);  // of 40 pixels, which only the preprocessor knows
  EXPECT_EQ(RunJson(predict + "hub --model=resnet18 --width=4"), predicted);
  EXPECT_NE(RunJson(predict + "hub --image_size=48"), predicted);
}

// Of its full width, the only one that timm has. Their config.json says the size of the images, for any of which its
// weights are.
TEST_F(Weights, AResNetUnderTheNamesOfTimmPredictsAsItsRun) {
  ExpectSuccess(
      Run("train --model=resnet18 --image_size=40 --stem=imagenet --dataset=imagefolder --data=photos --batch_size=10 "
          "--steps=1 --warmup=0 --lr=1e-4 --mean=0.4 --crop_ratio=0.8 --device=cpu --threads=1 --output=run --tag=t "
          "--suffix=a"));
  const std::string run = "run/resnet18/t/a/run", predict = "predict photos/val --top=3 --checkpoint=";
  ExpectSuccess(Run("export hub --names=timm --checkpoint=" + run),
                {"122 tensors under the names of timm; load them by timm.create_model(\"local-dir:hub\""});
  const nlohmann::json predicted = RunJson(predict + run);
  EXPECT_EQ(RunJson(predict + "hub"), predicted);
  EXPECT_EQ(RunJson(predict + "hub/model.safetensors"), predicted);
  EXPECT_NE(RunJson(predict + "hub --image_size=48"), predicted);
  const CommandResult shown =
      Run("train --pretrained=hub --dataset=imagefolder --data=photos --device=cpu --show_settings --output=tuned");
  ExpectSuccess(shown);
  EXPECT_THAT(shown.output, AllOf(testing::ContainsRegex("model +resnet18 +checkpoint: hub: config.json"),
                                  testing::ContainsRegex("stem +imagenet +checkpoint: hub: config.json"),
                                  testing::ContainsRegex("image_size +40 pixels +checkpoint: hub: config.json")));
  ExpectSuccess(Run("train --steps=1 --pretrained=hub --dataset=imagefolder --data=photos --batch_size=10 --device=cpu "
                    "--threads=1 --output=tuned"),
                {"trained 1 update"});
  ExpectRefused(Run("export narrow --names=timm --checkpoint=" + TrainResNet()),
                {"--width=4 has no counterpart under the names of timm"});
  EXPECT_FALSE(std::filesystem::exists(In("narrow")));
}

// Where Hugging Face has the network, the folder of a checkpoint is a model of theirs, as that of a ViT is.
TEST_F(Weights, AResNetsCheckpointIsAModelOfHuggingFaceWhereThatHasIt) {
  const std::string run = TrainResNet(), best = run + "/checkpoints/best";
  std::ifstream file(In(best + "/config.json"));
  const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(config.is_object());
  EXPECT_EQ(config["model_type"], "resnet");
  EXPECT_EQ(config["id2label"]["2"], "zebra");
  EXPECT_TRUE(std::filesystem::exists(In(best + "/preprocessor_config.json")));
  const auto weights = TensorFile::Open(In(best + "/model.safetensors"));
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  EXPECT_NE(weights->Find("resnet.embedder.embedder.convolution.weight"), nullptr);
  EXPECT_NE(weights->Find("classifier.1.weight"), nullptr);
  const std::string predict = "predict photos/val --top=3 --checkpoint=";
  const nlohmann::json expected = RunJson(predict + run);
  EXPECT_EQ(RunJson(predict + best + "/model.safetensors --image_size=40"), expected);
  ExpectSuccess(Run("export plain --names=torchvision --checkpoint=" + run));
  EXPECT_EQ(RunJson(predict + "plain --model=resnet18 --width=4 --stem=imagenet --image_size=40").size(), 18u);
  ExpectSuccess(Run("train --steps=4 --resume=" + run + " --data=photos --device=cpu --threads=1"), {"trained 4"});
}

// Its stem would be another one at that size, had the weights not been seen.
TEST_F(Weights, ARunIsEvaluatedAtAnotherImageSize) {
  const std::string run = TrainResNet("auto");
  for (const char* size : {"", " --image_size=40", " --image_size=96", " --image_size=96 --stem=small"})
    EXPECT_GT(Eval(run + " --data=photos" + size)["loss"].get<double>(), 0) << size;
  ExpectRefused(Run("eval --device=cpu --data=photos --stem=imagenet --checkpoint=" + run), {"--stem="});
}

TEST_F(Weights, AResNetThatHuggingFaceDoesNotHaveIsPublishedAsTorchvisionNamesIt) {
  const std::string latest = TrainResNet("small") + "/checkpoints/latest";
  EXPECT_FALSE(std::filesystem::exists(In(latest + "/config.json")));
  const auto weights = TensorFile::Open(In(latest + "/model.safetensors"));
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  EXPECT_NE(weights->Find("layer4.1.conv2.weight"), nullptr);
}

// For images so small that the default would be another network.
TEST_F(Weights, AResNetOfPretrainedWeightsHasTheirStem) {
  const std::string run = TrainResNet();
  ExpectSuccess(Run("export hub --checkpoint=" + run));
  ExpectSuccess(Run("export plain --names=torchvision --checkpoint=" + run));
  for (const std::string from : {"hub", "plain", run.c_str()}) {
    const std::string train =
        "train --model=resnet18 --width=4 --image_size=32 --dataset=imagefolder --data=photos "
        "--batch_size=10 --steps=1 --device=cpu --threads=1 --output=tuned --pretrained=" +
        from;
    const CommandResult shown = Run(train + " --show_settings");
    ExpectSuccess(shown);
    EXPECT_THAT(shown.output, testing::ContainsRegex("stem +imagenet +checkpoint: "));
    ExpectSuccess(Run(train), {"trained 1 update"});
    ExpectRefused(Run(train + " --stem=small"), {"--stem="});
    EXPECT_EQ(RunJson("predict photos/val/cat --image_size=32 --checkpoint=" + from +
                      (from == "plain" ? " --model=resnet18 --width=4" : ""))
                  .size(),
              6u);
  }
}

// PyTorch's batch norms have counters beside their statistics; without them it speaks of missing weights.
TEST_F(Weights, AnExportedResNetHasTheCountersOfItsBatchNorms) {
  const auto counters = [&](const std::string& folder) {
    std::map<std::string, int64_t> found;
    const auto file = TensorFile::Open(In(folder + "/model.safetensors"));
    EXPECT_TRUE(file.ok()) << Message(file.status());
    if (!file.ok()) return found;
    for (const TensorFile::Entry& entry : file->entries()) {
      if (entry.dtype != "I64" || !entry.shape.empty()) continue;
      EXPECT_TRUE(file->Read(entry, &found[entry.name]).ok());
    }
    return found;
  };
  ExpectSuccess(Run("export hub --checkpoint=" + TrainResNet()));
  const auto of_run = counters("hub");
  EXPECT_EQ(of_run.size(), 20u);
  EXPECT_THAT(of_run,
              testing::Contains(testing::Pair("resnet.embedder.embedder.normalization.num_batches_tracked", 3)));
  ExpectSuccess(Run("export plain --names=torchvision --checkpoint=hub"));  // and passes over theirs
  EXPECT_THAT(counters("plain"), testing::Contains(testing::Pair("layer4.1.bn2.num_batches_tracked", 0)));
}

TEST_F(Weights, AForgedConfigIsRefusedWhateverItHolds) {
  Train();
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  const auto expect_refused = [&](const std::string& config, const std::string& word) {
    std::ofstream(In("hub/config.json")) << config;
    for (const std::string command : {"eval --dataset=imagefolder --data=photos --checkpoint=hub --device=cpu",
                                      "predict photos/val/dog/1.png --checkpoint=hub --device=cpu",
                                      "train --dataset=imagefolder --data=photos --pretrained=hub --device=cpu"}) {
      const CommandResult result = Run(command);
      ExpectRefused(result, {"config.json", word});
      EXPECT_LT(result.output.size(), 4000u);
    }
  };
  for (const std::string brackets : {"[", "{\"label2id\":"}) {
    std::string nested = "{\"model_type\": \"vit\", \"id2label\": ";
    for (int level = 0; level < 100000; ++level) nested += brackets;
    expect_refused(nested, "nested deeper than 64 levels");
  }
  const std::string architecture = "{\"architecture\": \"vit_" + std::string(1 << 20, 'a') + "_patch16_224\"}";
  expect_refused(architecture, "architecture: expected vit_tiny, vit_small, vit_base or vit_large");
}

// Sizes that nobody's weights have: refused before a graph of them is built, which would take minutes and gigabytes.
TEST_F(Weights, AForgedConfigOfHugeSizesIsRefusedAtOnce) {
  Train();
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  std::stringstream whole;
  whole << std::ifstream(In("hub/config.json")).rdbuf();
  const auto config = nlohmann::json::parse(whole.str());
  const auto expect_refused = [&](const nlohmann::json& changes, const std::string& word) {
    nlohmann::json forged = config;
    forged.update(changes);
    std::ofstream(In("hub/config.json")) << forged;
    for (const std::string command : {"eval --dataset=imagefolder --data=photos --checkpoint=hub --device=cpu",
                                      "train --dataset=imagefolder --data=photos --pretrained=hub --device=cpu"}) {
      const auto begin = std::chrono::steady_clock::now();
      ExpectRefused(Run(command), {"hub", word});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << command;
    }
  };
  expect_refused({{"num_hidden_layers", 1000000}}, "--depth");
  expect_refused({{"num_hidden_layers", 4096}}, "its 40 tensors are too few for the weights of");
  expect_refused({{"intermediate_size", 1 << 20}}, "--mlp_ratio");
}

// One image twice: its place in a batch may change the last bits of a sum (SY_DETERMINISM_RUN), but nothing more.
void ExpectSamePrediction(const nlohmann::json& one, const nlohmann::json& other) {
  ASSERT_EQ(one["file"], other["file"]);
  ASSERT_EQ(one["classes"].size(), other["classes"].size());
  ASSERT_FALSE(one["classes"].empty());
  for (size_t i = 0; i < one["classes"].size(); ++i) {
    EXPECT_EQ(one["classes"][i]["class"], other["classes"][i]["class"]);
    EXPECT_NEAR(one["classes"][i]["probability"].get<double>(), other["classes"][i]["probability"].get<double>(), 1e-7);
  }
}

TEST_F(Weights, AFolderPredictsItsImagesInOrder) {
  Train();
  folder_.Write("mixed/b/2.PNG", PngBytes(Pattern(9, 11, 1)));
  folder_.Write("mixed/b/notes.txt", {1, 2});
  folder_.Write("mixed/.hidden/1.png", PngBytes(Pattern(9, 11, 1)));
  folder_.Write("mixed/a.jpg", JpegBytes(Pattern(40, 50, 3)));
  folder_.Write("mixed/empty.d/x", {1});
  const nlohmann::json files = RunJson("predict mixed mixed/a.jpg --checkpoint=" + run_);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0]["file"], "mixed/a.jpg");
  EXPECT_EQ(files[1]["file"], "mixed/b/2.PNG");
  ExpectSamePrediction(files[2], files[0]);
  const std::string with = " --device=cpu --checkpoint=" + run_;
  ExpectRefused(Run("predict mixed/empty.d" + with), {"mixed/empty.d: no image in this folder", "found 1 other file"});
  ExpectRefused(Run("predict nowhere.png" + with), {"nowhere.png: No such file"});
  ExpectRefused(Run("predict mixed/b/notes.txt" + with), {"mixed/b/notes.txt: expected a JPEG or PNG image"});
  ExpectRefused(Run("predict /dev/zero" + with), {"/dev/zero: expected an image file or a folder"});
  ExpectRefused(Run("predict mixed --top=0" + with), {"--top: expected at least 1"});
  ExpectRefused(Run("predict mixed" + with, Start::kLaunch),
                {"predict runs on one device in one process, found 2 ranks"});
  // A damaged file among others is skipped only by consent.
  folder_.Write("mixed/b/1.png", {0x89, 'P', 'N', 'G', 1});
  ExpectRefused(Run("predict mixed" + with), {"mixed/b/1.png: damaged PNG"});
  const nlohmann::json rest = RunJson("predict mixed --max_bad_samples=1 --checkpoint=" + run_ + " 2>/dev/null");
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_TRUE(rest[1]["classes"].empty());
  ExpectSamePrediction(rest[2], files[1]);
}

TEST_F(Weights, ExportedWeightsAreEvaluatedAsTheRunIs) {
  Train("--mean=0.4 --crop_ratio=0.8");
  const nlohmann::json expected = Eval(run_ + " --data=photos");
  const auto expect_same = [&](const std::string& weights) {
    const nlohmann::json found = Eval(weights + " --dataset=imagefolder --data=photos");
    EXPECT_EQ(found["count"], expected["count"]) << weights;
    EXPECT_NEAR(found["loss"].get<double>(), expected["loss"].get<double>(), 1e-6) << weights;
  };
  ExpectSuccess(Run("export hub --checkpoint=" + run_), {"hub: 40 tensors under the names of Hugging Face"});
  expect_same("hub");
  expect_same("hub/model.safetensors");
  expect_same(run_ + "/checkpoints/latest/model.safetensors");
  ExpectAlike(expected, ByPrediction("photos/val --checkpoint=hub"));
  // timm has one eps, 1e-6: it has to be said.
  ExpectSuccess(Run("export timm --names=timm --checkpoint=" + run_),
                {"32 tensors under the names of timm", "layer_norm_eps"});
  expect_same("timm --layer_norm_eps=1e-4");
  EXPECT_NE(Eval("timm --dataset=imagefolder --data=photos")["loss"], expected["loss"]);
  ExpectRefused(Run("export hub --checkpoint=" + run_), {"hub: expected a new or an empty folder"});
  ExpectRefused(Run("export x --names=jax --checkpoint=" + run_), {"--names: expected huggingface or timm"});

  // Sizes that disagree with config.json are refused where weights are taken up, of a run as of a folder.
  const std::string heads =
      "--model=vit_micro --image_size=28 --channels=3 --width=16 --depth=2 --heads=4 --dataset=imagefolder "
      "--data=photos --device=cpu";
  for (const std::string from : {"hub", "timm", run_.c_str()}) {
    ExpectRefused(Run("train --steps=1 --output=x --pretrained=" + from + " " + heads),
                  {"config.json says that the weights were made for another model", "--heads=4 where the file has 2"});
  }
  ExpectRefused(Run("eval --checkpoint=hub " + heads), {"--heads=4 where the file has 2"});
  const std::string other = " --device=cpu --heads=4 --layer_norm_eps=0.1";
  for (const std::string command :
       {"eval --checkpoint=", "predict photos/val --checkpoint=", "export x --checkpoint="}) {
    ExpectRefused(Run(command + run_ + other), {"is a checkpoint of another model: --heads=4 where the run has 2, "
                                                "--layer_norm_eps=0.1 where the run has 0.0001"});
  }
  // Weights alone: what is known without config.json has to be said, and the classes are counted from the head.
  std::filesystem::remove(In("timm/config.json"));
  ExpectRefused(Run("eval --checkpoint=timm --dataset=imagefolder --data=photos"), {"give --model"});
  ExpectRefused(Run("eval --checkpoint=hub"), {"say with --dataset"});
  const std::string bare =
      "timm/model.safetensors --model=vit_micro --image_size=28 --channels=3 --width=16 --depth=2 --heads=2 "
      "--layer_norm_eps=1e-4 --mean=0.4 ";
  expect_same(bare + "--crop_ratio=0.8");
  // A dataset that is named says how predict crops too, as of evaluation.
  const std::string predict = "predict photos/val --top=3 --checkpoint=" + bare;
  const nlohmann::json whole = RunJson(predict + "--dataset=shapes");
  EXPECT_EQ(whole, RunJson(predict + "--crop_ratio=1"));
  EXPECT_NE(whole, RunJson(predict));
  ExpectRefused(Run(predict + "--dataset=imagefolder --data=nowhere"),
                {"--dataset=imagefolder says how images are cropped, and cannot be read", "--crop_ratio"});
}

TEST_F(Weights, WhatIsInForceForForeignWeightsIsShown) {
  Train("--mean=0.4 --crop_ratio=0.8");
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  for (const std::string command : {"eval --dataset=imagefolder --data=photos", "predict photos/val"}) {
    const CommandResult shown = Run(command + " --checkpoint=hub --show_settings");
    ExpectSuccess(shown);
    EXPECT_THAT(shown.output, AllOf(testing::ContainsRegex("mean +0.4[,0-9.]* +checkpoint: hub"),
                                    testing::ContainsRegex("std +0[.,0-9]* +checkpoint: hub"),
                                    testing::ContainsRegex("interpolation +bilinear +checkpoint: hub"),
                                    testing::ContainsRegex("crop_ratio +0.8 +checkpoint: hub")));
  }
}

constexpr char kTune[] =
    "train --dataset=imagefolder --data=photos --batch_size=10 --steps=1 --device=cpu --threads=1 --output=run "
    "--tag=t ";

TEST_F(Weights, WhoNamesTheModelOfWeightsGetsThatOfTheirChannels) {
  Train();  // of colours, and vit_micro alone would take grey
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  const std::string model = " --model=vit_micro --width=16 --depth=2 --heads=2";
  const nlohmann::json expected = Eval("hub --dataset=imagefolder --data=photos");
  EXPECT_EQ(Eval("hub --dataset=imagefolder --data=photos" + model)["loss"], expected["loss"]);
  const std::string predict = "predict photos/val --checkpoint=hub";
  EXPECT_EQ(RunJson(predict + model), RunJson(predict));
  ExpectSuccess(Run(kTune + std::string("--pretrained=hub --suffix=b") + model));
}

TEST_F(Weights, ARunThatBeginsWithAnotherHasItsModel) {
  const std::string run = TrainResNet("small");  // which Hugging Face does not have
  ExpectSuccess(Run(kTune + std::string("--suffix=b --pretrained=") + run), {"resnet18 on"});
  const nlohmann::json kept = Saved("run/resnet18/t/b/run/config.json");
  EXPECT_EQ(kept["width"], 4);
  EXPECT_EQ(kept["image_size"], 40);
  EXPECT_EQ(kept["stem"], "small");
  // And another model, or another size, where one is named.
  ExpectRefused(Run(kTune + std::string("--suffix=c --model=vit_micro --pretrained=") + run), {"do not fit vit_micro"});
  ExpectSuccess(Run(kTune + std::string("--suffix=d --image_size=32 --pretrained=") + run));
  EXPECT_EQ(Saved("run/resnet18/t/d/run/config.json")["image_size"], 32);
}

TEST_F(Weights, ALevelOfMixedPrecisionIsThatOfAHalfTypeOfARunInF32Too) {
  Train();
  const nlohmann::json expected = Eval(run_ + " --data=photos"), half = Eval(run_ + " --data=photos --amp=O2");
  EXPECT_EQ(half["count"], expected["count"]);
  EXPECT_NEAR(half["loss"].get<double>(), expected["loss"].get<double>(), 1e-2);
  EXPECT_NE(half["loss"], expected["loss"]);
}

TEST_F(Weights, PretrainedWeightsBringTheirEpsAndNormalisation) {
  Train("--mean=0.4 --std=0.3");
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  ExpectSuccess(
      Run("train --pretrained=hub --dataset=imagefolder --data=photos --batch_size=10 --steps=1 --lr=1e-30 --min_lr=0 "
          "--warmup=0 "
          "--weight_decay=0 --device=cpu --threads=1 "
          "--output=run --tag=t --suffix=b"));
  const std::string tuned = "run/vit_base/t/b/run";
  const auto expect_record = [&] {
    std::ifstream file(In(tuned + "/checkpoints/latest/state.json"));
    const nlohmann::json record = nlohmann::json::parse(file, nullptr, false);
    EXPECT_FLOAT_EQ(record["arch"]["layer_norm_eps"].get<float>(), 1e-4f);
    EXPECT_EQ(record["arch"]["heads"], 2);
    EXPECT_EQ(record["evaluation"]["mean"][0], 0.4);
    EXPECT_EQ(record["evaluation"]["resize"], 32);
  };
  expect_record();
  // A step of nothing leaves the weights as they were.
  EXPECT_NEAR(Eval(tuned + " --data=photos")["loss"].get<double>(), Eval(run_ + " --data=photos")["loss"].get<double>(),
              1e-5);
  // Nor does going on forget what came with the weights.
  ExpectSuccess(Run("train --steps=2 --resume=" + tuned + " --data=photos --device=cpu --threads=1"));
  expect_record();
}

TEST_F(Weights, PretrainedClassifiersMeanTheClassesThatTheyNamed) {
  Train();
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  const auto name_classes = [&](const std::vector<std::string>& names) {
    std::ifstream in(In("hub/config.json"));
    nlohmann::json config = nlohmann::json::parse(in, nullptr, false);
    for (size_t i = 0; i < names.size(); ++i) config["id2label"][std::to_string(i)] = names[i];
    std::ofstream(In("hub/config.json")) << config;
  };
  const auto tune = [&](const std::string& suffix, const std::string& more) {
    const CommandResult result =
        Run("train --pretrained=hub --dataset=imagefolder --data=photos --batch_size=10 --steps=1 --lr=1e-30 "
            "--min_lr=0 --warmup=0 --weight_decay=0 --device=cpu --threads=1 --output=run --tag=t --suffix=" +
            suffix + more);
    ExpectSuccess(result);
    return result.output;
  };
  const auto loss = [&](const std::string& weights) {
    return Eval(weights + " --dataset=imagefolder --data=photos")["loss"].get<double>();
  };
  const std::string ordered = "into the order of the classes of", other = "made for other classes";
  EXPECT_THAT(tune("same", ""), AllOf(testing::Not(HasSubstr(ordered)), testing::Not(HasSubstr(other))));
  name_classes({"dog", "zebra", "cat"});
  EXPECT_THAT(tune("ordered", ""), HasSubstr(ordered));
  EXPECT_NEAR(loss("run/vit_base/t/ordered/run"), loss("hub"), 1e-5);
  EXPECT_GT(std::abs(loss("run/vit_base/t/same/run") - loss("hub")), 1e-3);
  EXPECT_THAT(tune("position", " --match_classes=position"),
              AllOf(testing::Not(HasSubstr(ordered)), testing::Not(HasSubstr(other))));
  EXPECT_NEAR(loss("run/vit_base/t/position/run"), loss("run/vit_base/t/same/run"), 1e-5);
  name_classes({"cat", "horse", "zebra"});
  EXPECT_THAT(tune("other", ""), AllOf(HasSubstr(other), HasSubstr("row 1 meant horse and is now dog; --reset_head")));
  // Of a run, its own record names them.
  std::filesystem::rename(In("photos/train/zebra"), In("photos/train/ape"));
  std::filesystem::rename(In("photos/val/zebra"), In("photos/val/ape"));
  ExpectSuccess(Run("train --steps=1 --dataset=imagefolder --data=photos --batch_size=10 --device=cpu --threads=1 "
                    "--output=run --tag=t --suffix=of_run --pretrained=" +
                    run_),
                {"row 0 meant cat and is now ape, row 1 meant dog and is now cat, row 2 meant zebra and is now dog"});
}

TEST_F(Weights, APickleIsRefusedWithTheWayToConvertIt) {
  folder_.Write("vit.pth", {'P', 'K', 3, 4});
  ExpectRefused(Run(SmallTraining("--pretrained=vit.pth")), {"vit.pth: pickled weights", "save_file"});
  ExpectRefused(Run("eval --checkpoint=vit.pth"), {"vit.pth: pickled weights"});
}

TEST_F(Weights, ACheckpointThatMisstatesItsTransformIsRefused) {
  Train();
  ExpectSuccess(Run("export hub --checkpoint=" + run_));
  const auto expect = [&](const std::string& file, const std::string& field, const nlohmann::json& value,
                          const std::string& words) {
    std::ifstream in(In("hub/" + file));
    const nlohmann::json before = nlohmann::json::parse(in, nullptr, false);
    nlohmann::json changed = before;
    changed[field] = value;
    std::ofstream(In("hub/" + file)) << changed;
    ExpectRefused(Run("eval --checkpoint=hub --dataset=imagefolder --data=photos"), {file, words});
    std::ofstream(In("hub/" + file)) << before;
  };
  expect("config.json", "num_attention_heads", "two", "num_attention_heads: expected a whole number");
  expect("config.json", "hidden_act", "relu", "hidden_act: expected gelu");
  expect("preprocessor_config.json", "resample", 1, "resample: expected 2");
  expect("preprocessor_config.json", "crop_size", 64, "crop_size");
}

}  // namespace
}  // namespace switchyard
