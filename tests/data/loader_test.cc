#include "core/data/loader.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>

#include "core/base/logging.h"
#include "core/data/labelled_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

// Images of one pixel whose value is the index; some indices can be bad.
class NumberedDataset : public Dataset {
 public:
  explicit NumberedDataset(int64_t size, std::set<int64_t> bad = {}) : size_(size), bad_(std::move(bad)) {}
  std::string name() const override { return "numbered"; }
  int64_t size() const override { return size_; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return names_; }
  Status Read(int64_t index, Sample* sample) const override {
    if (bad_.count(index)) return DataLoss("photo{}.jpg: damaged JPEG", index);
    if (throws_) throw std::runtime_error("a dataset that throws");
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    sample->image.Reshape(1, 1, 1);
    sample->image.bytes[0] = static_cast<uint8_t>(index);
    sample->label = static_cast<int32_t>(index % 10);
    return OkStatus();
  }
  int64_t size_;
  std::set<int64_t> bad_;
  bool throws_ = false;
  std::chrono::microseconds delay_{0};
  std::vector<std::string> names_ = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
};

Transform OnePixel() {
  TransformOptions options;
  options.evaluation = {.image_size = 1, .channels = 1, .resize = 1, .mean = {0}, .std = {1.0f / 255}};
  options.augmentation = Augmentation::kNone;
  return *Transform::Create(options);
}

std::unique_ptr<Loader> MakeLoader(const Dataset& dataset, const Transform& transform, const LoaderOptions& options) {
  auto loader = Loader::Create(std::make_unique<LabelledImages>(dataset, transform, DType::kF32), options);
  EXPECT_TRUE(loader.ok()) << Message(loader.status());
  return std::move(loader).value();
}

struct Taken {
  std::vector<float> images;
  std::vector<int32_t> labels;
  int64_t batches = 0, count = 0;
  Status status;
  bool operator==(const Taken& other) const { return images == other.images && labels == other.labels; }
};

Taken TakeAll(Loader* loader, int64_t elements = 1) {
  Taken taken;
  Batch batch;
  for (;;) {
    const auto more = loader->Next(&batch);
    taken.status = more.status();
    if (!more.ok() || !*more) return taken;
    const auto rows = static_cast<int64_t>(batch.filled.size());
    const auto* const images = static_cast<const float*>(batch.tensors[0]);
    const auto* const labels = static_cast<const int32_t*>(batch.tensors[1]);
    taken.images.insert(taken.images.end(), images, images + rows * elements);
    taken.labels.insert(taken.labels.end(), labels, labels + rows);
    for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(batch.filled[static_cast<size_t>(i)] != 0, labels[i] >= 0) << i;
    taken.count += batch.count;
    ++taken.batches;
  }
}

TEST(Loader, BatchesDoNotDependOnWorkersOrPrefetch) {
  DatasetOptions shapes;
  shapes.name = "shapes";
  shapes.train_size = 200;
  const auto dataset = OpenDataset(shapes, Split::kTrain);
  TransformOptions options;
  options.evaluation.image_size = 32;
  options.train = true;
  options.augmentation = Augmentation::kResizedCrop;
  options.brightness = 0.3f;
  const Transform transform = *Transform::Create(options);
  std::vector<Taken> results;
  for (const auto& [workers, prefetch] : {std::pair{0, 1}, {1, 1}, {2, 3}, {7, 2}}) {
    const auto loader =
        MakeLoader(**dataset, transform, {.batch_size = 20, .train = true, .workers = workers, .prefetch = prefetch});
    ASSERT_TRUE(loader->Start(2, 3, 5).ok());
    results.push_back(TakeAll(loader.get(), transform.elements()));
    EXPECT_EQ(results.back().batches, 7 + 20);
    EXPECT_TRUE(results.back() == results.front()) << workers << " workers";
  }
}

TEST(Loader, TrainingDropsThePartialBatchAndTakesEverySampleOnceWhereItDivides) {
  const NumberedDataset dataset(24);
  std::multiset<float> seen;
  for (int rank = 0; rank < 2; ++rank) {
    const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 5, .train = true, .rank = rank, .world = 2});
    ASSERT_TRUE(loader->StartEpoch(0).ok());
    const Taken taken = TakeAll(loader.get());
    EXPECT_EQ(taken.count, 10);
    seen.insert(taken.images.begin(), taken.images.end());
  }
  EXPECT_EQ(std::set<float>(seen.begin(), seen.end()).size(), seen.size());
}

TEST(Loader, EvaluationCountsEverySampleOnceForEveryWorld) {
  for (const int64_t size : {1, 7, 23, 40}) {
    const NumberedDataset dataset(size);
    for (int world = 1; world <= 4; ++world) {
      std::map<int, int> times;
      int64_t count = 0, batches = -1;
      for (int rank = 0; rank < world; ++rank) {
        const auto loader =
            MakeLoader(dataset, OnePixel(), {.batch_size = 4, .rank = rank, .world = world, .workers = 2});
        ASSERT_TRUE(loader->StartEpoch(0).ok());
        const Taken taken = TakeAll(loader.get());
        if (batches >= 0) {
          EXPECT_EQ(taken.batches, batches) << "ranks must agree, or a collective hangs";
        }
        batches = taken.batches;
        count += taken.count;
        for (size_t i = 0; i < taken.labels.size(); ++i) {
          if (taken.labels[i] >= 0) {
            ++times[static_cast<int>(std::lround(taken.images[i]))];
          } else {
            EXPECT_EQ(taken.images[i], 0);
          }
        }
      }
      EXPECT_EQ(count, size);
      EXPECT_EQ(static_cast<int64_t>(times.size()), size);
    }
  }
}

TEST(Loader, ARunTakenUpInTheMiddleGoesOnAsIfNeverStopped) {
  const NumberedDataset dataset(50);
  const LoaderOptions options = {.batch_size = 8, .train = true, .workers = 3};
  const auto whole = MakeLoader(dataset, OnePixel(), options);
  ASSERT_TRUE(whole->Start(0, 0, 3).ok());
  const Taken all = TakeAll(whole.get());
  ASSERT_EQ(all.batches, 18);
  const auto epoch = [&](int number) {
    return std::vector<float>(all.images.begin() + number * 48, all.images.begin() + (number + 1) * 48);
  };
  EXPECT_NE(epoch(0), epoch(1)) << "every epoch has an order of its own";
  for (int64_t batch = 0; batch <= 18; batch += 5) {
    const auto loader = MakeLoader(dataset, OnePixel(), options);
    ASSERT_TRUE(loader->Start(batch / 6, batch % 6, 3).ok());
    EXPECT_EQ(TakeAll(loader.get()).labels, std::vector<int32_t>(all.labels.begin() + batch * 8, all.labels.end()));
  }
}

TEST(Loader, SaysWhereEachBatchBelongs) {
  const NumberedDataset dataset(20);
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 3, .train = true, .rank = 1, .world = 2});
  ASSERT_TRUE(loader->Start(4, 2, 6).ok());
  Batch batch;
  ASSERT_TRUE(*loader->Next(&batch));
  EXPECT_EQ(batch.epoch, 4);
  EXPECT_EQ(batch.index, 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(batch.tensors[0]) % 64, 0u);
  EXPECT_EQ(std::vector<int32_t>(batch.sample_ids, batch.sample_ids + 3), (std::vector<int32_t>{1, 3, 5}));
  ASSERT_TRUE(*loader->Next(&batch));
  EXPECT_EQ(batch.epoch, 5);
  EXPECT_EQ(batch.index, 0);
}

TEST(Loader, UsesTheSameBuffersAgainAndAgain) {
  const NumberedDataset dataset(64);
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 4, .train = true, .workers = 2, .prefetch = 3});
  ASSERT_TRUE(loader->Start(0, 0, 4).ok());
  std::set<const void*> buffers;
  Batch batch;
  while (*loader->Next(&batch)) buffers.insert(batch.tensors[0]);
  EXPECT_EQ(buffers.size(), 4u);
}

TEST(Loader, ABadSampleStopsTheRunAndIsNamed) {
  const NumberedDataset dataset(40, {17});
  for (const bool train : {true, false}) {
    for (const int workers : {0, 2}) {
      const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 10, .train = train, .workers = workers});
      ASSERT_TRUE(loader->StartEpoch(0).ok());
      const Taken taken = TakeAll(loader.get());
      EXPECT_THAT(Message(taken.status), HasSubstr("photo17.jpg"));
      EXPECT_FALSE(TakeAll(loader.get()).status.ok()) << "stays failed";
    }
  }
}

TEST(Loader, ToleratedBadSamplesAreReplacedInTrainingAndMaskedInEvaluation) {
  SetLogLevel(LogLevel::kError);
  const NumberedDataset dataset(40, {5, 6, 17});
  auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 10, .train = true, .workers = 2, .max_bad_samples = 3});
  ASSERT_TRUE(loader->Start(0, 0, 3).ok());
  const Taken train = TakeAll(loader.get());
  EXPECT_TRUE(train.status.ok()) << Message(train.status);
  EXPECT_EQ(train.count, 120);
  EXPECT_EQ(loader->bad_samples(), (std::set<int64_t>{5, 6, 17}));
  EXPECT_EQ(std::count(train.images.begin(), train.images.end(), train.images[0]) % 3, 0);

  loader = MakeLoader(dataset, OnePixel(), {.batch_size = 10, .workers = 2, .max_bad_samples = 3});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  const Taken evaluation = TakeAll(loader.get());
  EXPECT_EQ(evaluation.count, 37);
  EXPECT_EQ(evaluation.labels[17], -1);

  loader = MakeLoader(dataset, OnePixel(), {.batch_size = 10, .workers = 2, .max_bad_samples = 2});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  EXPECT_THAT(Message(TakeAll(loader.get()).status), HasSubstr("--max_bad_samples=2"));
  SetLogLevel(LogLevel::kInfo);
}

TEST(Loader, ARunThatGoesOnRemembersItsBadSamples) {
  SetLogLevel(LogLevel::kError);
  const NumberedDataset dataset(40, {5, 6, 17});
  const auto go_on = [&](int64_t tolerated) {
    const auto loader =
        MakeLoader(dataset, OnePixel(), {.batch_size = 10, .train = true, .workers = 2, .max_bad_samples = tolerated});
    loader->RestoreBadSamples({6, 30});
    EXPECT_TRUE(loader->StartEpoch(1).ok());
    return TakeAll(loader.get()).status;
  };
  EXPECT_TRUE(go_on(4).ok()) << "5, 6, 17 and 30";
  EXPECT_THAT(Message(go_on(3)), HasSubstr("bad sample number 4"));
  SetLogLevel(LogLevel::kInfo);
}

// Rows of two tensors of other shapes and types: a loader asks nothing of them.
TEST(Loader, TakesWhateverASampleIsMadeOf) {
  struct Pairs : SampleSource {
    std::string name() const override { return "pairs"; }
    int64_t size() const override { return 5; }
    std::string Path(int64_t index) const override { return std::to_string(index); }
    std::vector<SampleTensor> tensors() const override {
      return {{"mask", {DType::kU8, {2, 3}}}, {"depth", {DType::kF64, {2}}}};
    }
    Status Fill(int64_t, int64_t index, std::span<void* const> rows) const override {
      std::fill_n(static_cast<uint8_t*>(rows[0]), 6, static_cast<uint8_t>(index));
      std::fill_n(static_cast<double*>(rows[1]), 2, static_cast<double>(index) / 2);
      return OkStatus();
    }
    void FillEmpty(std::span<void* const> rows) const override {
      std::fill_n(static_cast<uint8_t*>(rows[0]), 6, uint8_t{255});
      std::fill_n(static_cast<double*>(rows[1]), 2, -1.0);
    }
  };
  const auto loader = *Loader::Create(std::make_unique<Pairs>(), {.batch_size = 3});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  Batch batch;
  ASSERT_TRUE(*loader->Next(&batch));
  ASSERT_TRUE(*loader->Next(&batch));
  EXPECT_EQ(std::vector<uint8_t>(batch.filled.begin(), batch.filled.end()), (std::vector<uint8_t>{1, 1, 0}));
  const auto* const masks = static_cast<const uint8_t*>(batch.tensors[0]);
  const auto* const depths = static_cast<const double*>(batch.tensors[1]);
  EXPECT_EQ(masks[5], 3);
  EXPECT_EQ(masks[6], 4);
  EXPECT_EQ(masks[12], 255);
  EXPECT_EQ(std::vector<double>(depths, depths + 6), (std::vector<double>{1.5, 1.5, 2, 2, -1, -1}));
}

TEST(Loader, MixesTrainingBatchesOnceTheyAreWhole) {
  const NumberedDataset dataset(64);
  const MixingOptions mixing = {.mixup = 1, .mode = MixingOptions::kElem};
  const auto taken = [&](bool train, int workers) {
    const LoaderOptions options = {.batch_size = 16, .train = train, .workers = workers};
    auto loader = Loader::Create(std::make_unique<LabelledImages>(dataset, OnePixel(), DType::kF32, mixing), options);
    EXPECT_TRUE((*loader)->Start(0, 0, 3).ok());
    std::vector<std::vector<float>> all;
    Batch batch;
    while (*(*loader)->Next(&batch)) {
      const auto* const images = static_cast<const float*>(batch.tensors[0]);
      const auto* const own = static_cast<const int32_t*>(batch.tensors[1]);
      const auto* const partner = static_cast<const int32_t*>(batch.tensors[2]);
      const auto* const share = static_cast<const float*>(batch.tensors[3]);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(partner[i], train ? own[15 - i] : own[i]);
        if (!train) {
          EXPECT_EQ(share[i], 1);
        }
        all.push_back({images[i], static_cast<float>(own[i]), static_cast<float>(partner[i]), share[i]});
      }
    }
    return all;
  };
  const auto mixed = taken(true, 0);
  EXPECT_EQ(mixed.size(), 3u * 64);
  EXPECT_EQ(mixed, taken(true, 4));
  EXPECT_EQ(taken(false, 4).size(), 3u * 64);
  // Pixels are indices and labels their last digits: undoing the mix gives whole numbers that agree with the labels.
  for (size_t b = 0; b < mixed.size(); b += 16) {
    for (size_t i = 0; i < 8; ++i) {
      const auto &a = mixed[b + i], &z = mixed[b + 15 - i];
      const double s = a[3], t = z[3], determinant = s * t - (1 - s) * (1 - t);
      if (std::abs(determinant) < 0.05) continue;
      const double first = (a[0] * t - z[0] * (1 - s)) / determinant;
      EXPECT_NEAR(std::remainder(first - a[1], 10), 0, 0.01);
    }
  }
}

TEST(Loader, LeavesMixingToTheDeviceWithPartnersAndShares) {
  const NumberedDataset dataset(64);
  const auto loader_of = [&](MixingOptions mixing, bool train) {
    auto loader = Loader::Create(std::make_unique<LabelledImages>(dataset, OnePixel(), DType::kU8, mixing),
                                 {.batch_size = 16, .train = train, .workers = 2});
    EXPECT_TRUE((*loader)->Start(0, 0, 1).ok());
    return std::move(*loader);
  };
  const MixingOptions mixing = {.mixup = 1, .cutmix = 1, .mode = MixingOptions::kElem};
  MixingOptions on_device = mixing;
  on_device.on_device = true;
  const auto here = loader_of(mixing, true), there = loader_of(on_device, true), plain = loader_of({}, true);
  Batch mixed, unmixed, own;
  while (*here->Next(&mixed)) {
    ASSERT_TRUE(*there->Next(&unmixed) && *plain->Next(&own));
    ASSERT_EQ(unmixed.tensors.size(), 7u);
    EXPECT_EQ(std::memcmp(unmixed.tensors[0], own.tensors[0], 16), 0) << "images as they are";
    for (const size_t t : {1, 2, 3})
      EXPECT_EQ(std::memcmp(unmixed.tensors[t], mixed.tensors[t], 64), 0) << "labels and shares, tensor " << t;
    const auto* const pixels = static_cast<const uint8_t*>(own.tensors[0]);
    for (int i = 0; i < 16; ++i) {
      const int partner = static_cast<const int32_t*>(unmixed.tensors[4])[i];
      EXPECT_EQ(partner, 15 - i);
      const double share = static_cast<const int32_t*>(unmixed.tensors[5])[i] / double{kMixUnit} *
                           static_cast<const uint8_t*>(unmixed.tensors[6])[i];
      EXPECT_EQ(std::floor(pixels[i] * (1 - share) + pixels[partner] * share + 0.5),
                static_cast<const uint8_t*>(mixed.tensors[0])[i]);
    }
  }
  const auto evaluation = loader_of(on_device, false);
  ASSERT_TRUE(*evaluation->Next(&unmixed));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(static_cast<const int32_t*>(unmixed.tensors[5])[i], 0);
}

// Beside what the device mixes too; of evaluation, and where a sample is missing, nothing is to be flipped.
TEST(Loader, LeavesFlipsToTheDeviceWithAByteForEachSample) {
  const NumberedDataset dataset(64);
  TransformOptions options = OnePixel().options();
  options.train = true;
  options.augmentation = Augmentation::kCropFlip;
  options.crop_padding = 0;
  const MixingOptions mixing = {.mixup = 1, .on_device = true};
  for (const bool train : {true, false}) {
    options.train = train;
    auto loader = Loader::Create(std::make_unique<LabelledImages>(dataset, *Transform::Create(options), DType::kU8,
                                                                  mixing, /*flips_on_device=*/true),
                                 {.batch_size = 48, .train = train, .workers = 2});
    ASSERT_TRUE((*loader)->Start(0, 0, 1).ok());
    ASSERT_EQ((*loader)->source().tensors().back().name, "flips");
    int count = 0, samples = 0;
    Batch batch;
    while (*(*loader)->Next(&batch)) {
      ASSERT_EQ(batch.tensors.size(), 8u);
      const auto* const flips = static_cast<const uint8_t*>(batch.tensors[7]);
      for (int i = 0; i < 48; ++i) count += flips[i] != 0, ++samples;
    }
    EXPECT_EQ(samples, train ? 48 : 96) << "a last batch is dropped, or padded";
    if (train) {
      EXPECT_NEAR(count, 24, 12);
    } else {
      EXPECT_EQ(count, 0);
    }
  }
}

TEST(Loader, ADatasetThatIsAllBadEndsWithAnErrorHoweverManyAreTolerated) {
  SetLogLevel(LogLevel::kError);
  std::set<int64_t> all;
  for (int64_t i = 0; i < 200; ++i) all.insert(i);
  const NumberedDataset dataset(200, all);
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 4, .train = true, .max_bad_samples = 100000});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  EXPECT_THAT(Message(TakeAll(loader.get()).status), HasSubstr("cannot be read"));
  SetLogLevel(LogLevel::kInfo);
}

TEST(Loader, AThrowingDatasetIsAnErrorAndNoCrash) {
  NumberedDataset dataset(10);
  dataset.throws_ = true;
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 2, .train = true, .workers = 2});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  EXPECT_THAT(Message(TakeAll(loader.get()).status), HasSubstr("a dataset that throws"));
}

TEST(Loader, ASourceThatThrowsAnywhereIsAnErrorAndNoCrash) {
  struct Throwing : SampleSource {
    enum Where { kFill, kFillEmpty, kFinishBatch };
    explicit Throwing(Where at) : at(at) {}
    std::string name() const override { return "throwing"; }
    int64_t size() const override { return 20; }
    std::string Path(int64_t index) const override { return fmt::format("sample {}", index); }
    std::vector<SampleTensor> tensors() const override { return {{"x", {DType::kU8, {1}}}}; }
    Status Fill(int64_t, int64_t, std::span<void* const>) const override {
      if (at == kFill) throw 17;
      return at == kFillEmpty ? DataLoss("bad") : OkStatus();
    }
    void FillEmpty(std::span<void* const>) const override {
      if (at == kFillEmpty) throw std::runtime_error("no empty sample");
    }
    void FinishBatch(int64_t, int64_t, std::span<const int32_t>, std::span<void* const>) const override {
      if (at == kFinishBatch) throw std::runtime_error("no batch");
    }
    Where at;
  };
  for (const int workers : {0, 2}) {
    const auto error = [&](Throwing::Where at) {
      const auto loader =
          *Loader::Create(std::make_unique<Throwing>(at), {.batch_size = 10, .train = true, .workers = workers});
      EXPECT_TRUE(loader->StartEpoch(0).ok());
      Batch batch;
      const Status status = loader->Next(&batch).status();
      EXPECT_EQ(loader->Next(&batch).status(), status) << "stays failed";
      return status.ok() ? "no error" : Message(status);
    };
    EXPECT_THAT(error(Throwing::kFill), HasSubstr(": an exception that is no std::exception"));
    EXPECT_THAT(error(Throwing::kFillEmpty), HasSubstr("throwing: no empty sample"));
    EXPECT_THAT(error(Throwing::kFinishBatch), HasSubstr("throwing: batch 0 of epoch 0: no batch"));
  }
}

TEST(Loader, StopsAndStartsAgainAtAnyTime) {
  NumberedDataset dataset(1000);
  dataset.delay_ = std::chrono::microseconds(20);
  const LoaderOptions options = {.batch_size = 16, .train = true, .workers = 3, .prefetch = 2};
  const auto loader = MakeLoader(dataset, OnePixel(), options);
  Batch batch;
  EXPECT_FALSE(*loader->Next(&batch)) << "nothing before Start";
  for (int round = 0; round < 30; ++round) {
    ASSERT_TRUE(loader->Start(round, round % 7, round + 2).ok());
    for (int i = 0; i < round % 4; ++i) {
      ASSERT_TRUE(*loader->Next(&batch));
      EXPECT_EQ(batch.epoch, round);
      EXPECT_EQ(batch.index, round % 7 + i);
    }
    const auto short_lived = MakeLoader(dataset, OnePixel(), options);
    if (round % 2 == 1) {
      ASSERT_TRUE(short_lived->StartEpoch(round).ok());
    }
  }
}

TEST(Loader, MeasuresHowLongItWasWaitedFor) {
  NumberedDataset dataset(16);
  dataset.delay_ = std::chrono::microseconds(2000);
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 8, .train = true, .workers = 1});
  ASSERT_TRUE(loader->StartEpoch(0).ok());
  Batch batch;
  ASSERT_TRUE(*loader->Next(&batch));
  EXPECT_GE(batch.wait_seconds, 0.010);
}

TEST(Loader, RefusesWhatCannotWork) {
  const NumberedDataset dataset(10);
  const auto error = [&](LoaderOptions options) {
    const auto loader = Loader::Create(std::make_unique<LabelledImages>(dataset, OnePixel(), DType::kF32), options);
    return loader.ok() ? "no error" : Message(loader.status());
  };
  EXPECT_THAT(error({.batch_size = 0}), HasSubstr("batch size"));
  EXPECT_THAT(error({.batch_size = 6, .train = true, .rank = 0, .world = 2}), HasSubstr("smaller --batch_size"));
  EXPECT_THAT(error({.batch_size = 1, .rank = 3, .world = 2}), HasSubstr("rank 3"));
  EXPECT_THAT(error({.batch_size = 1, .workers = -1}), HasSubstr("--workers"));
  const auto loader = MakeLoader(dataset, OnePixel(), {.batch_size = 2, .train = true});
  EXPECT_FALSE(loader->Start(0, 6, 1).ok());
  EXPECT_FALSE(loader->Start(1, 0, 1).ok());
}

}  // namespace
}  // namespace switchyard
