// Patches of training, windows of evaluation, and the samples made of them.
#include "core/data/volume_transforms.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "core/base/logging.h"
#include "core/data/loader.h"
#include "core/data/volume_samples.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Voxel i has intensity i and label i mod 5, or 255 where that is 4.
Sample Counting(const Extents& e) {
  Sample sample;
  sample.volume.depth = e[0], sample.volume.height = e[1], sample.volume.width = e[2];
  for (int64_t i = 0; i < VoxelsOf(e); ++i) {
    sample.volume.voxels.push_back(static_cast<float>(i));
    sample.voxels.push_back(i % 5 == 4 ? kIgnoredClass : static_cast<uint8_t>(i % 5));
  }
  return sample;
}

struct Patch {
  std::vector<float> volume;
  std::vector<int32_t> labels;
};

Patch Cut(const Sample& sample, const Extents& patch, const Extents& start) {
  Patch cut{std::vector<float>(static_cast<size_t>(VoxelsOf(patch))),
            std::vector<int32_t>(static_cast<size_t>(VoxelsOf(patch)))};
  CutPatch(sample, patch, start, cut.volume.data(), cut.labels.data());
  return cut;
}

Patch Training(const VolumeTransformOptions& o, int64_t epoch, int64_t index, Sample sample) {
  Patch cut{std::vector<float>(static_cast<size_t>(VoxelsOf(o.patch))),
            std::vector<int32_t>(static_cast<size_t>(VoxelsOf(o.patch)))};
  EXPECT_TRUE(TrainingPatch(o, epoch, index, &sample, cut.volume.data(), cut.labels.data()).ok());
  return cut;
}

TEST(VolumePatch, IsCutOutAndPaddedWithWhatCountsNowhere) {
  const Sample sample = Counting({2, 2, 3});
  const Patch inside = Cut(sample, {1, 2, 2}, {1, 0, 1});
  EXPECT_THAT(inside.volume, ElementsAre(7, 8, 10, 11));
  EXPECT_THAT(inside.labels, ElementsAre(2, 3, 0, 1));
  const Patch around = Cut(sample, {1, 3, 4}, {0, -1, -1});
  EXPECT_THAT(around.volume, ElementsAre(0, 0, 0, 0, 0, 0, 1, 2, 0, 3, 4, 5));
  EXPECT_THAT(around.labels, ElementsAre(-1, -1, -1, -1, -1, 0, 1, 2, -1, 3, -1, 0));
}

Volume Voxels(const std::vector<float>& voxels, const Extents& e) {
  Volume volume;
  volume.depth = e[0], volume.height = e[1], volume.width = e[2];
  volume.voxels = voxels;
  return volume;
}

std::vector<float> Normalized(Normalization normalization, const std::vector<float>& voxels) {
  Volume volume = Voxels(voxels, {1, 1, static_cast<int64_t>(voxels.size())});
  EXPECT_TRUE(Normalize(normalization, &volume).ok());
  return volume.voxels;
}

TEST(VolumeNormalization, TakesTheWholeVolume) {
  EXPECT_THAT(Normalized(Normalization::kUnit, {1, 2, 3, 6}), ElementsAre(0, 0.2f, 0.4f, 1));
  const std::vector<float> voxels = Normalized(Normalization::kZscore, {1, 2, 3, 6});
  EXPECT_NEAR(std::accumulate(voxels.begin(), voxels.end(), 0.0), 0, 1e-6);
  EXPECT_NEAR(std::inner_product(voxels.begin(), voxels.end(), voxels.begin(), 0.0), 4, 1e-5);
  EXPECT_THAT(Normalized(Normalization::kZscore, {7, 7}), ElementsAre(0, 0));
}

TEST(VolumeNormalization, NamesAVoxelThatWouldMakeAllOthersNan) {
  for (const auto normalization : {Normalization::kZscore, Normalization::kUnit, Normalization::kNone}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> voxels(24, 1);
      voxels[(1 * 3 + 2) * 4 + 3] = bad;
      Volume volume = Voxels(voxels, {2, 3, 4});
      const Status status = Normalize(normalization, &volume);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(Message(status), AllOf(HasSubstr(std::isnan(bad) ? "found nan" : "found -inf"),
                                         HasSubstr("depth 1, height 2, width 3"), HasSubstr("turned to RAS+"),
                                         HasSubstr("--max_bad_samples")));
    }
  }
}

TEST(VolumePatch, OfTrainingVariesWithEpochAndIndexAlone) {
  VolumeTransformOptions o = {.patch = {3, 3, 3}};
  const Sample sample = Counting({6, 7, 8});
  const Patch first = Training(o, 0, 0, sample);
  EXPECT_EQ(Training(o, 0, 0, sample).volume, first.volume);
  EXPECT_NE(Training(o, 1, 0, sample).volume, first.volume);
  EXPECT_NE(Training(o, 0, 1, sample).volume, first.volume);
  o.seed = 43;
  EXPECT_NE(Training(o, 0, 0, sample).volume, first.volume);
}

TEST(VolumePatch, OfTrainingIsMirroredWithItsLabels) {
  const VolumeTransformOptions o = {
      .patch = {2, 3, 2}, .normalization = Normalization::kNone, .intensity_scale = 0, .intensity_shift = 0};
  const Sample sample = Counting({2, 3, 2});
  std::set<std::vector<float>> seen;
  for (int64_t epoch = 0; epoch < 100; ++epoch) {
    const Patch patch = Training(o, epoch, 0, sample);
    seen.insert(patch.volume);
    for (size_t i = 0; i < patch.volume.size(); ++i) {
      const auto label = static_cast<int32_t>(patch.volume[i]) % 5;
      EXPECT_EQ(patch.labels[i], label == 4 ? kNoClass : label);
    }
  }
  EXPECT_EQ(seen.size(), 8u) << "three axes, mirrored or not";
}

TEST(VolumePatch, OfTrainingReachesEveryPlaceAndOtherIntensities) {
  VolumeTransformOptions o = {
      .patch = {1, 1, 2}, .normalization = Normalization::kNone, .augmentation = Augmentation::kCrop};
  const Sample sample = Counting({2, 2, 4});
  std::set<float> firsts;
  for (int64_t epoch = 0; epoch < 200; ++epoch) firsts.insert(Training(o, epoch, 0, sample).volume[0]);
  EXPECT_EQ(firsts.size(), 12u) << "starts at 0, 1 and 2 of each row";
  o.augmentation = Augmentation::kNone;
  for (int64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(Training(o, epoch, 0, sample).volume[0], 1);
  o.augmentation = Augmentation::kCropFlip;
  o.patch = {2, 2, 4};
  float least = 1e9, greatest = 0;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const std::vector<float> voxels = Training(o, epoch, 0, sample).volume;
    const float top = *std::max_element(voxels.begin(), voxels.end());
    EXPECT_TRUE(top >= 15 * 0.9f - 0.1f && top <= 15 * 1.1f + 0.1f) << top;
    least = std::min(least, top), greatest = std::max(greatest, top);
  }
  EXPECT_LT(least, 14);
  EXPECT_GT(greatest, 16);
}

TEST(VolumeTransform, RefusesWhatItCannotDo) {
  EXPECT_THAT(Message(Check(VolumeTransformOptions{.patch = {0, 1, 1}})), HasSubstr("0 x 1 x 1"));
  EXPECT_THAT(Message(Check(VolumeTransformOptions{.patch = {1, 1, 1}, .augmentation = Augmentation::kResizedCrop})),
              AllOf(HasSubstr("crop_flip for volumes"), HasSubstr("resized_crop")));
  EXPECT_THAT(Message(ParseNormalization("log").status()), AllOf(HasSubstr("zscore"), HasSubstr("found log")));
}

// MONAI's: a quarter of 4 is 1 voxel of overlap, so a step of 3; the last window ends where the volume does.
TEST(VolumeWindow, CoverTheVolume) {
  EXPECT_THAT(WindowStarts({1, 4, 11}, {1, 4, 4}, 0.25f),
              ElementsAre(Extents{0, 0, 0}, Extents{0, 0, 3}, Extents{0, 0, 6}, Extents{0, 0, 7}));
  EXPECT_THAT(WindowStarts({2, 3, 4}, {4, 4, 4}, 0.25f), ElementsAre(Extents{-1, 0, 0}));
  EXPECT_EQ(WindowStarts({48, 64, 48}, {32, 32, 32}, 0.25f).size(), 2u * 3 * 2);
  EXPECT_EQ(WindowStarts({8, 8, 8}, {4, 4, 4}, 0).size(), 8u);
}

TEST(VolumeWindow, WeighsAsMonaiDoes) {
  EXPECT_THAT(WindowWeights({1, 1, 3}, false), ElementsAre(1, 1, 1));
  const std::vector<float> weights = WindowWeights({1, 1, 8}, true);  // deviation 1
  EXPECT_FLOAT_EQ(weights[3], std::exp(-0.125f));
  EXPECT_FLOAT_EQ(weights[5], std::exp(-1.125f));
  EXPECT_FLOAT_EQ(weights[0], std::exp(-6.125f));
  EXPECT_FLOAT_EQ(WindowWeights({1, 8, 8}, true)[0], 1e-3f);
}

struct Volumes : Dataset {
  std::string name() const override { return "volumes"; }
  int64_t size() const override { return 3; }
  Content content() const override { return Content::kMaskedVolumes; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return classes; }
  Status Read(int64_t index, Sample* sample) const override {
    if (index == unreadable) return DataLoss("volume {} is broken", index);
    *sample = Counting({2, 2, 2 + 2 * index});
    if (index == not_finite) sample->volume.voxels[3] = std::numeric_limits<float>::quiet_NaN();
    ++reads;
    return OkStatus();
  }
  std::vector<std::string> classes = {"0", "1", "2", "3"};
  int64_t unreadable = -1, not_finite = -1;
  mutable std::atomic<int> reads = 0;
};

TEST(VolumeWindows, OfAVolumeGoToOneRankInTheirOrder) {
  const Volumes data;
  const VolumeTransformOptions o = {.patch = {2, 2, 2}, .normalization = Normalization::kNone};
  for (int world = 1; world <= 4; ++world) {
    std::map<int64_t, int> taken;
    for (int rank = 0; rank < world; ++rank) {
      LoaderOptions options;
      options.batch_size = 2;
      options.rank = rank;
      options.world = world;
      auto loader = Loader::Create(std::make_unique<VolumeWindows>(data, o, 0.0f), options);
      ASSERT_TRUE(loader.ok()) << Message(loader.status());
      const auto& source = dynamic_cast<const VolumeWindows&>((*loader)->source());
      EXPECT_EQ(source.size(), 1 + 2 + 3);
      ASSERT_TRUE((*loader)->StartEpoch(0).ok());
      int64_t before = -1;
      Batch batch;
      for (auto more = (*loader)->Next(&batch); more.ok() && *more; more = (*loader)->Next(&batch)) {
        for (size_t i = 0; i < batch.samples.size(); ++i) {
          const int64_t index = batch.samples[i];
          EXPECT_EQ(index >= 0, batch.filled[i] == 1);
          if (index < 0) continue;
          EXPECT_GT(index, before);
          before = index;
          ++taken[index];
          const VolumeWindows::Window& window = source.window(index);
          EXPECT_EQ(window.volume % world, rank);
          EXPECT_EQ(window.last, window.start[2] == 2 * window.volume);
          EXPECT_EQ(static_cast<const float*>(batch.tensors[0])[8 * i], static_cast<float>(window.start[2]));
        }
      }
    }
    EXPECT_EQ(taken.size(), 6u) << world;
    for (const auto& [index, times] : taken) EXPECT_EQ(times, 1) << index;
  }
}

TEST(VolumeWindows, OfAVolumeThatCannotBeReadAreOneThatSaysWhy) {
  Volumes data;
  data.unreadable = 1;
  const VolumeWindows windows(data, {.patch = {2, 2, 2}}, 0);
  EXPECT_EQ(windows.size(), 1 + 1 + 3);
  std::vector<float> volume(8);
  std::vector<int32_t> labels(8);
  void* const rows[] = {volume.data(), labels.data()};
  EXPECT_THAT(Message(windows.Fill(0, 1, rows)), HasSubstr("volume 1 is broken"));
  EXPECT_TRUE(windows.Fill(0, 2, rows).ok());
}

TEST(VolumeSamples, OfADatasetWithLabelsOfNoClassAreRefused) {
  struct Strange : Volumes {
    Status Read(int64_t index, Sample* sample) const override {
      SY_RETURN_IF_ERROR(Volumes::Read(index, sample));
      index == 0 ? sample->voxels.push_back(0) : sample->voxels.assign(sample->voxels.size(), 200);
      return OkStatus();
    }
  } data;
  const VolumeWindows windows(data, {.patch = {2, 2, 2}}, 0);
  const VolumePatches patches(data, {.patch = {2, 2, 2}});
  std::vector<float> volume(8);
  std::vector<int32_t> labels(8);
  void* const rows[] = {volume.data(), labels.data()};
  for (const SampleSource* source :
       {static_cast<const SampleSource*>(&windows), static_cast<const SampleSource*>(&patches)}) {
    EXPECT_THAT(Message(source->Fill(0, 0, rows)), AllOf(HasSubstr("volumes[0]"), HasSubstr("voxels, but")));
    EXPECT_THAT(Message(source->Fill(0, 1, rows)), AllOf(HasSubstr("volumes[1]"), HasSubstr("class 200")));
  }
}

// Its windows are many, but it is one bad sample, and is read once.
TEST(VolumeWindows, OfAVolumeThatIsNotFiniteCountAsOneBadSample) {
  SetLogLevel(LogLevel::kError);
  Volumes data;
  data.not_finite = 2;
  LoaderOptions options = {.batch_size = 2, .workers = 2, .max_bad_samples = 1};
  const auto evaluate = [&] {
    auto loader =
        *Loader::Create(std::make_unique<VolumeWindows>(data, VolumeTransformOptions{.patch = {2, 2, 2}}, 0), options);
    EXPECT_TRUE(loader->StartEpoch(0).ok());
    Batch batch;
    auto more = loader->Next(&batch);
    int64_t count = batch.count;
    while (more.ok() && *more) {
      more = loader->Next(&batch);
      if (more.ok() && *more) count += batch.count;
    }
    EXPECT_TRUE(!more.ok() || count == 1 + 2) << count;
    EXPECT_EQ(loader->bad_samples(), std::set<int64_t>{3});
    return more.status();
  };
  EXPECT_TRUE(evaluate().ok());
  options.max_bad_samples = 0;
  EXPECT_THAT(Message(evaluate()), AllOf(HasSubstr("volumes[2]"), HasSubstr("found nan"), HasSubstr("number 1")));
  SetLogLevel(LogLevel::kInfo);
}

TEST(VolumePatches, OfAVolumeThatIsNotFiniteAreReplacedAsOfOtherBadSamples) {
  SetLogLevel(LogLevel::kError);
  Volumes data;
  data.not_finite = 0;
  LoaderOptions options = {.batch_size = 3, .train = true, .workers = 1, .max_bad_samples = 1};
  const auto train = [&](Batch* batch) {
    auto loader =
        *Loader::Create(std::make_unique<VolumePatches>(data, VolumeTransformOptions{.patch = {2, 2, 2}}), options);
    EXPECT_TRUE(loader->StartEpoch(0).ok());
    const auto more = loader->Next(batch);
    if (!more.ok()) return more.status();
    const auto* const voxels = static_cast<const float*>(batch->tensors[0]);
    EXPECT_TRUE(std::all_of(voxels, voxels + 3 * 8, [](float v) { return std::isfinite(v); }));
    return OkStatus();
  };
  Batch batch;
  EXPECT_TRUE(train(&batch).ok());
  options.max_bad_samples = 0;
  EXPECT_THAT(Message(train(&batch)), AllOf(HasSubstr("volumes[0]: expected finite"), HasSubstr("width 1")));
  SetLogLevel(LogLevel::kInfo);
}

// A volume whose reading waits until another is being read, too.
TEST(VolumeWindows, OfDifferentVolumesAreReadAtOnceAndEachVolumeOnce) {
  struct Waiting : Volumes {
    StatusOr<Extents> ReadExtents(int64_t index) const override { return Extents{2, 2, 2 + 2 * index}; }
    Status Read(int64_t index, Sample* sample) const override {
      std::unique_lock lock(mutex);
      ++inside;
      both.notify_all();
      if (!both.wait_for(lock, std::chrono::seconds(30), [&] { return inside >= 2; })) return Internal("alone");
      return Volumes::Read(index, sample);
    }
    mutable std::mutex mutex;
    mutable std::condition_variable both;
    mutable int inside = 0;
  };
  const Waiting data;
  const VolumeWindows windows(data, {.patch = {2, 2, 2}}, 0);
  EXPECT_EQ(windows.size(), 6);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&windows, i] {
      const auto sample = windows.Get(1 + i % 2);
      EXPECT_TRUE(sample.ok()) << Message(sample.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(data.reads, 2) << "extents were not read from the voxels, nor a volume twice";
}

// What is put together comes long after what is read ahead, and has it still.
TEST(VolumeWindows, OfSmallVolumesAreReadOnceForAllThatUseThem) {
  struct Many : Volumes {
    int64_t size() const override { return 40; }
    StatusOr<Extents> ReadExtents(int64_t index) const override { return Extents{2, 2, 2 + 2 * index}; }
  };
  const Many data;
  const VolumeWindows windows(data, {.patch = {2, 2, 100}}, 0);
  for (int round = 0; round < 2; ++round) {
    for (int64_t volume = 0; volume < data.size(); ++volume) EXPECT_TRUE(windows.Get(volume).ok());
  }
  EXPECT_EQ(data.reads, 40);
}

// Of large ones only the last few, for lack of memory.
TEST(VolumeWindows, OfLargeVolumesAreFew) {
  struct Large : Volumes {
    int64_t size() const override { return 5; }
    StatusOr<Extents> ReadExtents(int64_t) const override { return Extents{256, 512, 512}; }
    Status Read(int64_t, Sample* sample) const override {
      sample->volume.depth = 256, sample->volume.height = sample->volume.width = 512;  // without its voxels
      ++reads;
      return OkStatus();
    }
  };
  const Large data;
  const VolumeWindows windows(data, {.patch = {256, 512, 512}, .normalization = Normalization::kNone}, 0);
  const auto get = [&](int64_t volume) {
    const int before = data.reads;
    EXPECT_TRUE(windows.Get(volume).ok());
    return data.reads - before;
  };
  for (int64_t volume = 0; volume < 5; ++volume) EXPECT_EQ(get(volume), 1);
  for (int64_t volume = 2; volume < 5; ++volume) EXPECT_EQ(get(volume), 0) << volume;
  EXPECT_EQ(get(0), 1);
}

TEST(VolumeWindows, RefuseAVolumeThatHasChanged) {
  struct Changed : Volumes {
    StatusOr<Extents> ReadExtents(int64_t) const override { return Extents{2, 2, 8}; }
  };
  const Changed data;
  const VolumeWindows windows(data, {.patch = {2, 2, 2}}, 0);
  EXPECT_THAT(Message(windows.Get(0).status()),
              AllOf(HasSubstr("volumes[0]"), HasSubstr("expected (2, 2, 8)"), HasSubstr("found (2, 2, 2)")));
}

}  // namespace
}  // namespace switchyard
