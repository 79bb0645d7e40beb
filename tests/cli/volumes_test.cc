// A 3-D U-Net trained on tiny volumes as a user does it: on two ranks, taken up again, evaluated on any number of
// ranks, and masks written in the format that came in.
#include <cmath>
#include <fstream>

#include "core/data/formats.h"
#include "core/data/volume.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uint32_t kDepth = 8, kHeight = 12, kWidth = 10;

// Volumes with a bright box whose place depends on the volume, and its labels: 1, or 1 and 2 for its halves,
// of which the second is brighter: volumes are mirrored in training.
struct Boxes {
  Bytes images, labels;
  Boxes(uint32_t volumes, int classes) {
    for (uint32_t v = 0; v < volumes; ++v) {
      for (uint32_t d = 0; d < kDepth; ++d) {
        for (uint32_t h = 0; h < kHeight; ++h) {
          for (uint32_t w = 0; w < kWidth; ++w) {
            const bool inside = d >= 1 + v % 3 && d < 5 + v % 3 && h >= v % 5 && h < v % 5 + 6 && w >= 2 && w < 7;
            const bool second = inside && classes > 2 && w >= 4;
            images.push_back(static_cast<uint8_t>((second   ? 240
                                                   : inside ? 160
                                                            : 60) +
                                                  (d * 7 + h * 5 + w * 3 + v) % 11));
            labels.push_back(static_cast<uint8_t>(second ? 2 : inside));
          }
        }
      }
    }
  }
};

class VolumeRuns : public RunFilesTest {
 protected:
  void WriteData(int classes) const {
    for (const auto& [split, volumes] : {std::pair("train", 6u), std::pair("test", 5u)}) {
      const Boxes boxes(volumes, classes);
      const std::vector<uint32_t> dims = {volumes, kDepth, kHeight, kWidth};
      folder_.Write(fmt::format("data/{}-images-idx4-ubyte", split), IdxBytes(dims, boxes.images));
      folder_.Write(fmt::format("data/{}-labels-idx4-ubyte.gz", split), GzipBytes(IdxBytes(dims, boxes.labels)));
    }
  }
  static std::string Training(const std::string& more) {
    return "train --model=unet3d --dataset=volume --data=data --patch_size=8,8,8 --width=2 --levels=2 --batch_size=1 "
           "--lr=0.02 --schedule=constant --warmup=0 --log_every=1 --save_every=3 --keep=0 --eval_every=0 --device=cpu "
           "--threads=1 --workers=2 --output=run --suffix=a " +
           more;
  }
  std::vector<double> Losses(const std::string& run) const {
    std::vector<double> losses;
    std::ifstream log(In(run + "/0/log/metrics.jsonl"));
    for (std::string line; std::getline(log, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.contains("lr")) losses.push_back(record["loss"]);
    }
    return losses;
  }
  nlohmann::json Evaluated(const std::string& run, int ranks, const std::string& more = "") const {
    const std::string launch = ranks == 1 ? "" : fmt::format("launch --nproc_per_node={} ", ranks);
    const CommandResult result =
        Run(launch + "eval --device=cpu --threads=1 --data=data --json --checkpoint=" + run + " " + more);
    EXPECT_EQ(result.code, 0) << result.output;
    const size_t begin = result.output.find('{'), end = result.output.rfind('}');
    if (begin == std::string::npos || end == std::string::npos) return {};
    return nlohmann::json::parse(result.output.substr(begin, end + 1 - begin), nullptr, false);
  }
  const std::string run_ = "run/unet3d/volume/a/run";
};

TEST_F(VolumeRuns, LearnOnTwoRanksGoOnBitForBitAndAreEvaluatedAlikeOnAny) {
  WriteData(2);
  ExpectSuccess(Run(Training("--epochs=12"), Start::kMpirun), {"2 volumes per update", "of 5 volumes", " volumes/s"});
  const std::vector<double> losses = Losses(run_);
  ASSERT_EQ(losses.size(), 36u);
  EXPECT_LT(losses.back(), 0.6 * losses.front());

  fs::copy(In(run_ + "/checkpoints/step-00000018"), In("half"), fs::copy_options::recursive);
  ExpectSuccess(
      Run("train --device=cpu --threads=1 --output=run --suffix=b --data=data --resume=half", Start::kMpirun));
  const std::string b = "run/unet3d/volume/b/run";
  for (const char* file : {"model.safetensors", "state.safetensors"})
    EXPECT_TRUE(Text(b + "/checkpoints/latest/" + file) == Text(run_ + "/checkpoints/latest/" + file)) << file;
  EXPECT_FALSE(Text(b + "/checkpoints/latest/model.safetensors").empty());

  const nlohmann::json alone = Evaluated(run_, 1);
  EXPECT_GT(alone.value("dice", 0.0), 0.8) << alone;
  EXPECT_GT(alone.value("dice", 0.0), alone.value("iou", 1.0));
  EXPECT_EQ(alone["count"], 5) << "volumes, not windows";
  for (const int ranks : {2, 3}) {
    const nlohmann::json many = Evaluated(run_, ranks);
    for (const char* metric : {"dice", "iou", "count"}) EXPECT_EQ(many[metric], alone[metric]) << metric << ranks;
    EXPECT_NEAR(many.value("loss", 0.0), alone.value("loss", 1.0), 1e-12);
  }
  EXPECT_GT(Evaluated(run_, 1, "--window_weights=gaussian --window_overlap=0.5").value("dice", 0.0), 0.8);
}

// .npy in Fortran order, big-endian: what is written has both, too.
Bytes BigEndianNpy(const std::vector<uint8_t>& values, const std::string& shape) {
  std::string text = "{'descr': '>i2', 'fortran_order': True, 'shape': " + shape + ", }";
  text.resize(117, ' ');
  Bytes bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  bytes.insert(bytes.end(), text.begin(), text.end());
  bytes.push_back('\n');
  for (const uint8_t value : values) bytes.insert(bytes.end(), {0, value});
  return bytes;
}

TEST_F(VolumeRuns, PredictWritesMasksInTheFormatThatCameIn) {
  WriteData(2);
  ExpectSuccess(Run(Training("--epochs=30")));
  const Boxes boxes(1, 2);
  std::vector<uint8_t> first_fastest(boxes.images.size());
  for (uint32_t d = 0; d < kDepth; ++d) {
    for (uint32_t h = 0; h < kHeight; ++h) {
      for (uint32_t w = 0; w < kWidth; ++w)
        first_fastest[d + kDepth * (h + kHeight * w)] = boxes.images[(d * kHeight + h) * kWidth + w];
    }
  }
  folder_.Write("volumes/a.npy", BigEndianNpy(first_fastest, "(8, 12, 10)"));
  folder_.Write("volumes/b.npy", BigEndianNpy({1, 2, 3, 4, 5, 6}, "(1, 2, 3)"));
  const std::string predict = "predict --device=cpu --checkpoint=" + run_ + " ";
  ExpectSuccess(Run(predict + "volumes"), {"volumes/a.npy -> volumes/a_mask.npy: background 8", "b_mask.npy"});
  const auto mask = ReadVolume(In("volumes/a_mask.npy"));
  ASSERT_TRUE(mask.ok()) << Message(mask.status());
  EXPECT_EQ(mask->stored, VoxelType::kU8);
  EXPECT_EQ(mask->order.axis[0], 2u) << "the first extent is still the fastest";
  int right = 0;
  for (size_t i = 0; i < boxes.labels.size(); ++i) right += mask->voxels[i] == boxes.labels[i];
  EXPECT_GT(right, 0.9 * static_cast<double>(boxes.labels.size()));
  const auto small = ReadVolume(In("volumes/b_mask.npy"));
  ASSERT_TRUE(small.ok()) << Message(small.status());
  EXPECT_EQ(small->voxels.size(), 6u) << "smaller than a window";
  // Stored upside down, in another order of axes: the same mask in the body, and stored as its image is.
  Bytes turned(boxes.images.size());
  for (uint32_t d = 0; d < kDepth; ++d) {
    for (uint32_t h = 0; h < kHeight; ++h) {
      for (uint32_t w = 0; w < kWidth; ++w)
        turned[kDepth - 1 - d + kDepth * (w + kWidth * h)] = boxes.images[(d * kHeight + h) * kWidth + w];
    }
  }
  const std::vector<float> srow = {0, 1, 0, 0, 0, 0, 2, 0, -3, 0, 0, 0};
  folder_.Write("turned/a.nii.gz", GzipBytes(NiftiOfBytes({kDepth, kWidth, kHeight}, turned, srow)));
  ExpectSuccess(Run(predict + "turned"), {"turned/a.nii.gz -> turned/a_mask.nii.gz: background 8"});
  const auto in_body = ReadVolume(In("turned/a_mask.nii.gz"));
  ASSERT_TRUE(in_body.ok()) << Message(in_body.status());
  EXPECT_EQ(in_body->voxels, mask->voxels);
  EXPECT_THAT(in_body->order.axis, testing::ElementsAre(2, 0, 1));

  // Nobody's file is written over without being asked for.
  const std::string before = Text("volumes/a_mask.npy");
  ExpectRefused(Run(predict + "volumes/a.npy"), {"volumes/a_mask.npy is there already", "--output"});
  ExpectRefused(Run(predict + "volumes/a.npy volumes/a_mask.npy --output=volumes"), {"would be written over"});
  EXPECT_TRUE(Text("volumes/a_mask.npy") == before);
  // Elsewhere, and masks of before are no volumes.
  const CommandResult json = Run(predict + "volumes --output=masks --json");
  ExpectSuccess(json);
  EXPECT_EQ(nlohmann::json::parse(json.output, nullptr, false).size(), 2u) << json.output;
  EXPECT_TRUE(Text("masks/a_mask.npy") == Text("volumes/a_mask.npy"));
  folder_.Write("volumes/c.npy", {1, 2, 3});
  ExpectRefused(Run(predict + "volumes/c.npy"), {"volumes/c.npy", "NIfTI"});
  ExpectRefused(Run(predict + "volumes/a.npy volumes/../volumes/a.npy --output=masks"), {"masks/a_mask.npy"});
  // A voxel that is no number is named instead of making everything background.
  Bytes nan = BigEndianNpy({1, 2}, "(1, 1, 1)");
  nan[nan.size() - 4] = 0x7f, nan[nan.size() - 3] = 0xc0;
  std::string text(nan.begin(), nan.end());
  text.replace(text.find(">i2"), 3, ">f4");
  folder_.Write("volumes/n.npy", Bytes(text.begin(), text.end()));
  ExpectRefused(Run(predict + "volumes/n.npy"), {"volumes/n.npy", "found nan at depth 0, height 0, width 0"});
  ExpectSuccess(Run(predict + "volumes/n.npy volumes/b.npy --output=some --max_bad_samples=1"),
                {"volumes/n.npy: cannot be read", "some/b_mask.npy"});
  EXPECT_FALSE(fs::exists(In("some/n_mask.npy")));
  // Flags of other tasks.
  ExpectRefused(Run(predict + "volumes/a.npy --output=some --overlay"),
                {"--overlay lays masks over images", "volumes"});
  const CommandResult top = Run(predict + "volumes/a.npy --output=top --top=1 --mean=0.5");
  ExpectSuccess(top, {"top/a_mask.npy: background 8", "--mean has no effect with --model=unet3d"});
  EXPECT_THAT(top.output, testing::Not(HasSubstr("foreground")));
  fs::create_directory(In("empty"));
  ExpectRefused(Run(predict + "empty"), {"no volume in this folder", ".nii.gz"});
  // Many volumes in one file: as many masks in one. Files of labels in the folder are no volumes.
  ExpectSuccess(Run(predict + "data --output=idx"),
                {"data/test-images-idx4-ubyte[4] -> idx/test-images_mask-idx4-ubyte: background 8",
                 "data/train-images-idx4-ubyte[5]"});
  const auto masks = ReadIdxVolumes(In("idx/test-images_mask-idx4-ubyte"));
  ASSERT_TRUE(masks.ok()) << Message(masks.status());
  EXPECT_THAT(masks->dims, testing::ElementsAre(5, kDepth, kHeight, kWidth));
  const Bytes labels = Boxes(5, 2).labels;
  int equal = 0;
  for (size_t i = 0; i < labels.size(); ++i) equal += masks->bytes[i] == labels[i];
  EXPECT_GT(equal, 0.9 * static_cast<double>(labels.size()));
  EXPECT_EQ(fs::exists(In("idx/train-labels_mask-idx4-ubyte.gz")), false);
  folder_.Write("one-images-idx4-ubyte.gz", GzipBytes(IdxBytes({1, kDepth, kHeight, kWidth}, boxes.images)));
  ExpectSuccess(Run(predict + "one-images-idx4-ubyte.gz"), {"-> one-images_mask-idx4-ubyte.gz"});
  const auto packed = ReadIdxVolumes(In("one-images_mask-idx4-ubyte.gz"));
  ASSERT_TRUE(packed.ok()) << Message(packed.status());
  EXPECT_TRUE(std::equal(mask->voxels.begin(), mask->voxels.end(), packed->bytes.begin(), packed->bytes.end()));
  EXPECT_EQ(Text("one-images_mask-idx4-ubyte.gz").substr(0, 2), "\x1f\x8b");
}

// Weights so large that what they make is not finite: of that no mask is written.
TEST_F(VolumeRuns, PredictRefusesWhatIsNotFinite) {
  WriteData(2);
  ExpectRefused(Run(Training("--steps=6 --clip=0 --lr=2147483647 --on_nonfinite=skip")),
                {"is not finite with these weights"});
  folder_.Write("a.npy", BigEndianNpy(std::vector<uint8_t>(6, 3), "(1, 2, 3)"));
  ExpectRefused(Run("predict a.npy --device=cpu --checkpoint=" + run_),
                {"a.npy: what the model makes of it is not finite"});
  EXPECT_FALSE(fs::exists(In("a_mask.npy")));
}

TEST_F(VolumeRuns, ShowSlicesWithTheirMasks) {
  WriteData(2);
  ExpectSuccess(Run(Training("--epochs=1")));
  std::string events;
  for (const auto& entry : fs::directory_iterator(In(run_ + "/0/log"))) {
    if (entry.path().filename().string().starts_with("events.out"))
      events += Text(run_ + "/0/log/" + entry.path().filename().string());
  }
  for (const char* tag : {"images", "Label/ground_truth", "Label/predicted"}) EXPECT_THAT(events, HasSubstr(tag));
  ExpectSuccess(Run("plot " + run_ + " --html --to=report --data=data"));
  const std::string page = Text("report/unet3d-volume.html");
  for (const char* part : {"alt=\"image\"", "alt=\"true mask\"", "alt=\"predicted mask\""})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST_F(VolumeRuns, AreTimedOnMadeUpData) {
  ExpectSuccess(
      Run("bench --model=unet3d --patch_size=8,8,8 --width=2 --levels=2 --batch_size=2 --steps=2 --device=cpu"),
      {"volumes/s"});
}

TEST_F(VolumeRuns, TellSeveralClassesApart) {
  WriteData(3);
  ExpectSuccess(Run(Training("--classes=3 --width=6 --epochs=30")));
  const nlohmann::json result = Evaluated(run_, 1);
  ASSERT_EQ(result["by_class"].size(), 3u);
  EXPECT_NEAR((result["by_class"][1].value("dice", 0.0) + result["by_class"][2].value("dice", 0.0)) / 2,
              result.value("dice", 1.0), 1e-12);
  EXPECT_EQ(result["by_class"][0].value("voxels", 0) + result["by_class"][1].value("voxels", 0) +
                result["by_class"][2].value("voxels", 0),
            5 * 8 * 12 * 10);
  EXPECT_GT(result.value("dice", 0.0), 0.5) << result;
  ExpectRefused(Run(Training("--classes=2")), {"--classes=2", "has 3 classes"});
  ExpectRefused(Run(Training("--loss=dice_ce")), {"--loss=dice_ce", "--classes=1", "give --classes=2"});
  ExpectRefused(Run(Training("--dice_weight=0 --entropy_weight=0")), {"--entropy_weight=0 leaves nothing of --loss="});
  ExpectRefused(Run(Training("--augmentation=resized_crop")), {"crop_flip for volumes", "resized_crop"});
  ExpectRefused(Run(Training("--auto_augment=rand-m9")), {"--auto_augment is for images"});
  ExpectRefused(Run(Training("--erase_prob=0.5")), {"--erase_prob is for images"});
  ExpectRefused(Run("train --model=mlp --dataset=volume --data=data --device=cpu"),
                {"mlp learns from labelled images", "volumes with masks"});
}

}  // namespace
}  // namespace switchyard
