// A segmentation model as a user trains, resumes, evaluates and asks it: DeepLabV3+ on a few small pictures.
#include <map>
#include <set>

#include "core/data/mask_picture.h"
#include "core/train/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SegmentationRuns : public RunFilesTest {
 protected:
  SegmentationRuns() {
    setenv("SWITCHYARD_DEVICE", "cpu", 1);
    for (int i = 0; i < 13; ++i) {
      const std::string split = i < 8 ? "train" : "val";
      const auto [image, mask] = Scene(i, 24, 32);
      folder_.Write(fmt::format("town/images/{}/{:02}.png", split, i), PngBytes(image));
      const std::string png = EncodeMask(mask).value();
      folder_.Write(fmt::format("town/masks/{}/{:02}.png", split, i), Bytes(png.begin(), png.end()));
    }
    const std::string classes = "sky\nroad\ncar\n";
    folder_.Write("town/classes.txt", Bytes(classes.begin(), classes.end()));
  }
  ~SegmentationRuns() override { unsetenv("SWITCHYARD_DEVICE"); }

  // A bright sky over a dark road with a red car on it; the last row does not count.
  static std::pair<Image, Image> Scene(int number, int height, int width) {
    std::pair<Image, Image> scene;
    auto& [image, mask] = scene;
    image.Reshape(height, width, 3);
    mask.Reshape(height, width, 1);
    const int horizon = height / 3 + number % 5, car = (number * 7) % (width - 8);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const bool is_car = y > horizon + 2 && y < horizon + 8 && x >= car && x < car + 8;
        const uint8_t c = y < horizon ? 0 : is_car ? 2 : 1;
        const int noise = (x * 31 + y * 17 + number * 11) % 20;
        const int colors[3][3] = {{150, 180, 230}, {60, 60, 60}, {200, 30, 30}};
        for (int k = 0; k < 3; ++k) image.Row(y)[3 * x + k] = static_cast<uint8_t>(colors[c][k] + noise);
        mask.Row(y)[x] = y == height - 1 ? 255 : c;
      }
    }
    return scene;
  }

  static std::string Training(const std::string& more) {
    return "train --model=deeplabv3plus_resnet50 --dataset=segmentation --data=town --width=4 --decoder_width=8 "
           "--input_size=24,32 --batch_size=2 --optimizer=adamw --lr=0.01 --schedule=constant --log_every=1 "
           "--threads=1 "
           "--workers=1 --output=run " +
           more;
  }
  static std::string RunOf(const std::string& suffix) {
    return "run/deeplabv3plus_resnet50/segmentation/" + suffix + "/run";
  }
};

TEST_F(SegmentationRuns, ARunWarnsOfWhatItsDataLack) {
  const std::string classes = "sky\nroad\ncar\nbus\n";
  folder_.Write("town/classes.txt", Bytes(classes.begin(), classes.end()));
  folder_.Write("town/images/val/x.webp", {1});
  const std::string left_out = "a file that is neither .jpg, .jpeg nor .png is left out, ";
  ExpectSuccess(Run(Training("--suffix=a --steps=1")),
                {"warning: the class bus occurs in no training mask", left_out, "town/images/val/x.webp"});
  ExpectSuccess(Run("eval --threads=1 --data=town --checkpoint=" + RunOf("a")), {left_out});
}

TEST_F(SegmentationRuns, TrainsOnTwoRanksAndPredictsMasks) {
  ExpectSuccess(Run(Training("--suffix=a --steps=40 --augmentation=none"), Start::kMpirun), {"mean IoU"});
  const std::map<int64_t, double> loss = Logged(RunOf("a"), "loss");
  ASSERT_EQ(loss.size(), 40u);
  EXPECT_LT(loss.rbegin()->second, 0.5 * loss.begin()->second);
  EXPECT_GT(Logged(RunOf("a"), "miou").rbegin()->second, 0.4);

  ExpectSuccess(Run("eval --data=town --threads=1 --input_size=48,64 --checkpoint=" + RunOf("a")), {"mIoU"});

  // Every number of ranks counts every pixel once.
  nlohmann::json first;
  for (const std::string launch : {"", "launch --nproc_per_node=2 ", "launch --nproc_per_node=3 "}) {
    const CommandResult result = Run(launch + "eval --json --data=town --threads=1 --checkpoint=" + RunOf("a"));
    ExpectSuccess(result);
    const auto evaluation = nlohmann::json::parse(result.output, nullptr, false);
    ASSERT_TRUE(evaluation.is_object()) << result.output;
    if (launch.empty()) first = evaluation;
    EXPECT_EQ(evaluation["count"], 5);
    EXPECT_EQ(evaluation["by_class"], first["by_class"]) << launch;
    EXPECT_EQ(evaluation["miou"], first["miou"]) << launch;
    EXPECT_EQ(evaluation["pixel_accuracy"], first["pixel_accuracy"]) << launch;
    EXPECT_EQ(evaluation["dice"], first["dice"]) << launch;
    EXPECT_NEAR(evaluation["loss"].get<double>(), first["loss"].get<double>(), 1e-6) << launch;
  }
  ASSERT_EQ(first["by_class"].size(), 3u);
  EXPECT_EQ(first["by_class"][2]["class"], "car");
  int64_t pixels = 0;
  for (const auto& of_class : first["by_class"]) pixels += of_class["pixels"].get<int64_t>();
  EXPECT_EQ(pixels, 5 * 23 * 32);

  // Masks have the size of their image, whatever the model takes.
  const auto [image, truth] = Scene(3, 50, 40);
  folder_.Write("streets/street.png", PngBytes(image));
  const CommandResult predicted = Run("predict streets/street.png --overlay --json --checkpoint=" + RunOf("a"));
  ExpectSuccess(predicted);
  const auto told = nlohmann::json::parse(predicted.output, nullptr, false);
  ASSERT_TRUE(told.is_array()) << predicted.output;
  EXPECT_EQ(told[0]["mask"], "streets/street_mask.png");
  double shares = 0;
  for (const auto& entry : told[0]["classes"]) shares += entry["share"].get<double>();
  EXPECT_NEAR(shares, 1, 1e-9);
  const std::string png = Text("streets/street_mask.png"), overlay = Text("streets/street_overlay.png");
  Image mask, shown;
  ASSERT_TRUE(DecodeMask({reinterpret_cast<const uint8_t*>(png.data()), png.size()}, &mask).ok());
  ASSERT_TRUE(DecodePng({reinterpret_cast<const uint8_t*>(overlay.data()), overlay.size()}, &shown).ok());
  EXPECT_EQ(mask.height, 50);
  EXPECT_EQ(mask.width, 40);
  EXPECT_EQ(shown.height, 50);
  EXPECT_EQ(mask.Row(2)[20], 0) << "sky";
  EXPECT_EQ(mask.Row(48)[20], 1) << "road";

  // A folder, into another one; what was written before is no image. Two images of one name cannot share it.
  ExpectSuccess(Run("predict town/images/val streets --output=masks --checkpoint=" + RunOf("a")), {"street", "%"});
  EXPECT_TRUE(fs::exists(In("masks/08_mask.png")));
  EXPECT_FALSE(fs::exists(In("masks/street_mask_mask.png")));
  EXPECT_FALSE(fs::exists(In("masks/08_overlay.png")));
  ExpectRefused(Run("predict streets/street.png town/../streets/street.png --output=masks --checkpoint=" + RunOf("a")),
                {"street.png", "would both be"});
}

// The Dice part is of the pixels of all ranks: two ranks have the losses of one with the whole batch. Weights hardly
// move: batch norms over images so much alike make a lot of any difference.
TEST_F(SegmentationRuns, ALossWithADicePartIsThatOfAllRanks) {
  const std::string dice =
      " --loss=dice_ce --dice_weight=2 --steps=8 --augmentation=none --sync_batchnorm --optimizer=sgd --lr=1e-9 "
      "--dropout=0";
  ExpectSuccess(Run(Training("--suffix=one" + dice + " --batch_size=4")));
  const CommandResult two = Run(Training("--suffix=two" + dice), Start::kLaunch);
  ExpectSuccess(two, {"mean IoU"});
  EXPECT_THAT(two.output, testing::Not(testing::HasSubstr("no effect")));
  const std::map<int64_t, double> alone = Logged(RunOf("one"), "loss"), together = Logged(RunOf("two"), "loss");
  ASSERT_EQ(alone.size(), 8u);
  ASSERT_EQ(together.size(), 8u);
  for (const auto& [step, loss] : alone) EXPECT_NEAR(together.at(step), loss, 1e-5 * loss) << step;
  EXPECT_GT(alone.begin()->second, 2) << "entropy of three classes, and twice what Dice leaves";
  nlohmann::json first;
  for (const std::string launch : {"", "launch --nproc_per_node=2 ", "launch --nproc_per_node=3 "}) {
    const CommandResult result = Run(launch + "eval --json --data=town --threads=1 --checkpoint=" + RunOf("one"));
    ExpectSuccess(result);
    const auto evaluation = nlohmann::json::parse(result.output, nullptr, false);
    ASSERT_TRUE(evaluation.is_object()) << result.output;
    if (launch.empty()) first = evaluation;
    EXPECT_EQ(evaluation["by_class"], first["by_class"]) << launch;
    EXPECT_NEAR(evaluation["loss"].get<double>(), first["loss"].get<double>(), 1e-6) << launch;
  }
  ExpectSuccess(Run(Training("--suffix=ce --steps=1 --dice_weight=2 --entropy_weight=2")),
                {"--dice_weight has no effect with --loss=ce", "--entropy_weight has no effect with --loss=ce"});
}

TEST_F(SegmentationRuns, GoesOnBitForBit) {
  ExpectSuccess(Run(Training("--suffix=whole --steps=6 --eval_every=0"), Start::kMpirun));
  ExpectSuccess(Run(Training("--suffix=parts --steps=3 --eval_every=0"), Start::kMpirun));
  ExpectSuccess(Run("train --steps=6 --resume=" + RunOf("parts") + " --data=town --threads=1", Start::kMpirun));
  const std::string whole = Text(RunOf("whole") + "/checkpoints/latest/model.safetensors");
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(whole, Text(RunOf("parts") + "/checkpoints/latest/model.safetensors"));
}

// What predict writes can stand among the data's own masks, and goes to the benchmark as it is.
TEST_F(SegmentationRuns, WritesMasksOfCityscapesInItsLabelIds) {
  const uint8_t ids[] = {23, 7, 26};  // sky, road, car
  for (int i = 0; i < 10; ++i) {
    const std::string name = fmt::format("{}/ulm/ulm_{}", i < 8 ? "train" : "val", i);
    auto [image, mask] = Scene(i, 24, 32);
    for (uint8_t& number : mask.bytes) number = number == 255 ? 0 : ids[number];
    folder_.Write(fmt::format("city/leftImg8bit/{}_leftImg8bit.png", name), PngBytes(image));
    const std::string png = EncodeMask(mask).value();
    folder_.Write(fmt::format("city/gtFine/{}_gtFine_labelIds.png", name), Bytes(png.begin(), png.end()));
  }
  ExpectSuccess(Run(Training("--dataset=cityscapes --data=city --suffix=c --steps=30 --augmentation=none")));
  const std::string run = "run/deeplabv3plus_resnet50/cityscapes/c/run";
  const CommandResult predicted = Run("predict city/leftImg8bit/val --json --output=masks --checkpoint=" + run);
  ExpectSuccess(predicted);
  const auto told = nlohmann::json::parse(predicted.output, nullptr, false);
  ASSERT_EQ(told.size(), 2u) << predicted.output;
  const std::string png = Text(told[0]["mask"]);
  Image mask;
  ASSERT_TRUE(DecodeMask({reinterpret_cast<const uint8_t*>(png.data()), png.size()}, &mask).ok());
  EXPECT_EQ(mask.Row(2)[20], 23) << "sky";
  EXPECT_EQ(mask.Row(21)[31], 7) << "road";
  const auto road = std::count(mask.bytes.begin(), mask.bytes.end(), 7);
  for (const auto& entry : told[0]["classes"]) {
    if (entry["class"] == "road") {
      EXPECT_NEAR(entry["share"].get<double>(), static_cast<double>(road) / static_cast<double>(mask.bytes.size()),
                  1e-9);
    }
  }
}

TEST_F(SegmentationRuns, StartsFromTheWeightsOfAResidualNetwork) {
  ExpectSuccess(
      Run("train --model=resnet50 --dataset=shapes --train_size=8 --validation_size=4 --width=4 --steps=1 "
          "--stem=imagenet --batch_size=4 --threads=1 --output=run --suffix=r"));
  const std::string run = "run/resnet50/shapes/r/run";
  ExpectSuccess(Run("export hub --checkpoint=" + run));
  ExpectSuccess(Run("export plain --names=torchvision --checkpoint=" + run));
  const auto values = [&](const std::string& folder, const char* name) {
    std::vector<float> numbers;
    const auto file = TensorFile::Open(In(folder + "/model.safetensors"));
    const TensorFile::Entry* const entry = file.ok() ? file->Find(name) : nullptr;
    if (entry == nullptr) return numbers;
    numbers.resize(static_cast<size_t>(entry->bytes) / sizeof(float));
    EXPECT_TRUE(file->Read(*entry, numbers.data()).ok());
    return numbers;
  };
  const std::vector<float> expected = values("plain", "layer3.1.conv2.weight");
  ASSERT_FALSE(expected.empty());
  const std::string still = "--steps=1 --eval_every=0 --lr=1e-30 --weight_decay=0 --pretrained=";
  for (const std::string from : {"plain", "hub", run.c_str()}) {
    const std::string suffix = "from_" + from.substr(0, 3);
    const CommandResult result = Run(Training("--reset_head " + still + from + " --suffix=" + suffix), Start::kLaunch);
    ExpectSuccess(result);
    const std::string line = "weights of the backbone alone; aspp, classifier, decoder, low_level start afresh";
    const size_t said = result.output.find(line);
    EXPECT_NE(said, std::string::npos) << result.output;
    EXPECT_EQ(result.output.find(line, said + 1), std::string::npos) << "by one rank";
    EXPECT_EQ(values(RunOf(suffix) + "/checkpoints/latest", "backbone.layer3.1.conv2.weight"), expected) << from;
  }
  ExpectRefused(Run(Training(still + "plain --suffix=x")), {"its backbone alone", "--reset_head"});
}

TEST_F(SegmentationRuns, RandAugmentAndErasingReachThePixels) {
  std::set<std::string> weights;
  for (const std::string more :
       {"", "--auto_augment=rand-m9-n4-p1", "--erase_prob=1", "--erase_prob=1 --erase_count=9"}) {
    const std::string suffix = fmt::format("varied{}", weights.size());
    ExpectSuccess(Run(Training(fmt::format("--suffix={} --steps=1 --eval_every=0 {}", suffix, more))));
    weights.insert(Text(RunOf(suffix) + "/checkpoints/latest/model.safetensors"));
  }
  EXPECT_EQ(weights.size(), 4u);
}

TEST_F(SegmentationRuns, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::string& more, const std::vector<std::string>& words) {
    SCOPED_TRACE(more);
    ExpectRefused(Run(Training("--suffix=x --steps=1 " + more)), words);
  };
  refused("--dataset=shapes", {"images with masks", "camvid", "segmentation"});
  refused("--model=mlp --width=8 --decoder_width= --input_size=", {"labelled images"});
  refused("--augmentation=crop_flip", {"--augmentation=crop_flip", "none or scale_crop"});
  refused("--input_size=24", {"input_size", "24"});
  refused("--mixup=0.5", {"--mixup is for labelled images"});
  refused("--auto_augment=rand-q9", {"--auto_augment", "rand-m9-mstd0.5-inc1", "q9"});
  refused("--cutmix=1", {"--cutmix is for labelled images"});
  refused("--crop_ratio=0.5", {"--crop_ratio", "whole"});
  refused("--classes=300", {"--classes=300", "255"});
}

}  // namespace
}  // namespace switchyard
