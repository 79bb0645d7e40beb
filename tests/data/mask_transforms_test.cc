#include "core/data/mask_transforms.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/data/affine.h"
#include "core/data/dataset.h"
#include "core/data/masked_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Class 0, grey 40, in the left half; class 1, grey 200, in the right one; a row of kIgnoredClass at the top.
Sample Halves(int height, int width) {
  Sample sample;
  sample.image.Reshape(height, width, 3);
  sample.mask.Reshape(height, width, 1);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const bool right = x >= width / 2;
      std::fill_n(sample.image.Row(y) + 3 * x, 3, right ? 200 : 40);
      sample.mask.Row(y)[x] = y == 0 ? kIgnoredClass : right;
    }
  }
  return sample;
}

struct Result {
  std::vector<uint8_t> pixels;
  std::vector<int32_t> classes;
  friend bool operator==(const Result&, const Result&) = default;
};

Result Apply(const MaskTransform& transform, Sample sample, int64_t epoch = 0, int64_t index = 0) {
  const MaskTransformOptions& o = transform.options();
  Result result;
  result.pixels.resize(static_cast<size_t>(o.height * o.width * o.channels));
  result.classes.resize(static_cast<size_t>(o.height * o.width));
  transform.ApplyBytes(epoch, index, &sample.image, &sample.mask, result.pixels.data(), result.classes.data());
  return result;
}

MaskTransform Make(const MaskTransformOptions& options) { return MaskTransform::Create(options).value(); }

MaskTransformOptions Training(int height, int width) {
  MaskTransformOptions o;
  o.height = height, o.width = width;
  o.mean = {0.4f};  // 102, which no pixel of Halves has
  o.train = true;
  return o;
}

TEST(FittedSize, KeepsTheProportionsInsideTheInput) {
  EXPECT_THAT(FittedSize(360, 480, 192, 256), ElementsAre(192, 256));
  EXPECT_THAT(FittedSize(1024, 2048, 513, 513), ElementsAre(257, 513));
  EXPECT_THAT(FittedSize(2, 1, 8, 8), ElementsAre(8, 4)) << "smaller images grow";
  EXPECT_THAT(FittedSize(1, 8192, 4, 4), ElementsAre(1, 4));
}

TEST(MaskTransform, EvaluationFitsAndPadsWithTheMeanAndNoClass) {
  MaskTransformOptions o;
  o.height = o.width = 4;
  o.channels = 1;
  o.mean = {0.4f};
  Sample sample;
  sample.image.Reshape(2, 1, 1), sample.mask.Reshape(2, 1, 1);
  sample.image.bytes = {50, 50}, sample.mask.bytes = {7, 255};
  const Result result = Apply(Make(o), sample);
  EXPECT_THAT(result.pixels,
              ElementsAreArray({50, 50, 102, 102, 50, 50, 102, 102, 50, 50, 102, 102, 50, 50, 102, 102}));
  EXPECT_THAT(result.classes, ElementsAreArray({7, 7, -1, -1, 7, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
}

TEST(MaskTransform, EvaluationAtTheSizeOfTheInputChangesNothing) {
  MaskTransformOptions o;
  o.height = 3, o.width = 5;
  const Sample sample = Halves(3, 5);
  const Result result = Apply(Make(o), sample);
  EXPECT_EQ(result.pixels, sample.image.bytes);
  for (size_t i = 0; i < result.classes.size(); ++i)
    EXPECT_EQ(result.classes[i], sample.mask.bytes[i] == kIgnoredClass ? -1 : sample.mask.bytes[i]);
}

// Wherever the mask says a class, the image shows its grey, but where the resizing blends the two halves.
TEST(MaskTransform, ImageAndMaskMoveTogether) {
  const MaskTransform transform = Make(Training(24, 32));
  int mirrored = 0, padded = 0, cropped = 0;
  for (int64_t index = 0; index < 200; ++index) {
    const Result result = Apply(transform, Halves(24, 32), 3, index);
    int classes[2] = {}, first[2] = {1000, 1000};
    for (int y = 0; y < 24; ++y) {
      for (int x = 0; x < 32; ++x) {
        const size_t i = static_cast<size_t>(y * 32 + x);
        const int32_t c = result.classes[i];
        const int grey = result.pixels[3 * i];
        if (c < 0) continue;
        ++classes[c];
        first[c] = std::min(first[c], x);
        EXPECT_LT(std::abs(grey - (c == 0 ? 40 : 200)), 90) << "sample " << index << " at " << x << ", " << y;
      }
    }
    const int counted = classes[0] + classes[1];
    EXPECT_GT(counted, 0);
    mirrored += classes[0] > 0 && classes[1] > 0 && first[1] < first[0];
    padded += std::count(result.pixels.begin(), result.pixels.end(), 102) > 0;
    cropped += counted > 24 * 32 - 40;
  }
  EXPECT_GT(mirrored, 60);
  EXPECT_LT(mirrored, 140);
  EXPECT_GT(padded, 30) << "scales below 1";
  EXPECT_GT(cropped, 60) << "scales above 1";
}

TEST(MaskTransform, DependsOnSeedEpochAndIndexAlone) {
  MaskTransformOptions o = Training(16, 16);
  o.brightness = 0.5f;
  const Sample sample = Halves(20, 30);
  const Result one = Apply(Make(o), sample, 1, 2);
  EXPECT_EQ(one, Apply(Make(o), sample, 1, 2));
  EXPECT_NE(one, Apply(Make(o), sample, 2, 2));
  EXPECT_NE(one, Apply(Make(o), sample, 1, 3));
  o.seed = 43;
  EXPECT_NE(one, Apply(Make(o), sample, 1, 2));
}

TEST(MaskTransform, ColourChangesTheImageAlone) {
  MaskTransformOptions o = Training(16, 16);
  const Result plain = Apply(Make(o), Halves(20, 30), 0, 5);
  o.brightness = o.contrast = 0.9f;
  const Result jittered = Apply(Make(o), Halves(20, 30), 0, 5);
  EXPECT_EQ(plain.classes, jittered.classes);
  EXPECT_NE(plain.pixels, jittered.pixels);
  o.augmentation = Augmentation::kNone;
  o.brightness = o.contrast = 0;
  EXPECT_EQ(Apply(Make(o), Halves(20, 30), 0, 5), Apply(Make(o), Halves(20, 30), 7, 9)) << "none: no random geometry";
}

TEST(WarpNearest, TakesThePixelInWhichAPlaceLies) {
  Image mask, moved;
  mask.Reshape(2, 3, 1);
  mask.bytes = {1, 2, 3, 4, 5, 6};
  const auto warped = [&](const AffineMap& map) {
    WarpNearest(mask, map, 255, &moved);
    return moved.bytes;
  };
  EXPECT_THAT(warped({1, 0, 1, 0, 1, 0}), ElementsAre(2, 3, 255, 5, 6, 255));
  EXPECT_THAT(warped({1, 0, -0.75, 0, 1, 0}), ElementsAre(255, 1, 2, 255, 4, 5)) << "0.5 comes from -0.25";
  EXPECT_THAT(warped({1, 0, 0, 0, 1, 1.25}), ElementsAre(4, 5, 6, 255, 255, 255));
  EXPECT_THAT(warped({1, 1, 0, 0, 1, 0}), ElementsAre(2, 3, 255, 6, 255, 255)) << "sheared: by 0.5, then by 1.5";
  EXPECT_THAT(warped(Rotation(180, 2, 3)), ElementsAre(6, 5, 4, 3, 2, 1));
  mask.Reshape(2, 2, 1);
  mask.bytes = {1, 2, 3, 4};
  EXPECT_THAT(warped(Rotation(90, 2, 2)), ElementsAre(2, 4, 1, 3)) << "counterclockwise";
}

// Where a mask says a class the image shows its grey, at least by the share that the nearest of four pixels has; and
// where nothing was, there is the filling and no class. Ops that change colours leave the mask.
TEST(RandAugment, MovesAMaskWithItsImage) {
  const std::set<AugmentOp> moving = {AugmentOp::kRotate, AugmentOp::kShearX, AugmentOp::kShearY,
                                      AugmentOp::kTranslateX, AugmentOp::kTranslateY};
  const std::vector<uint8_t> fill = {102, 102, 102};
  for (size_t number = 0; number < AugmentOpNames().size(); ++number) {
    const auto op = static_cast<AugmentOp>(number);
    const std::string& name = AugmentOpNames()[number];
    for (const bool negate : {false, true}) {
      Sample sample = Halves(21, 30);
      const Image before = sample.mask;
      switchyard::Apply(op, {.magnitude = 7, .negate = negate, .fill = fill, .mask = &sample.mask}, &sample.image);
      EXPECT_EQ(sample.mask.bytes != before.bytes, moving.contains(op)) << name;
      if (!moving.contains(op)) continue;
      int outside = 0;
      for (int y = 0; y < 21; ++y) {
        for (int x = 0; x < 30; ++x) {
          const int grey = sample.image.Row(y)[3 * x], id = sample.mask.Row(y)[x];
          const bool own = id == 0 ? grey <= 40 + 120 : id == 1 ? grey >= 200 - 121 : true;
          EXPECT_TRUE(own) << name << " at " << x << ", " << y << ": class " << id << ", grey " << grey;
          outside += id == kIgnoredClass && grey == 102;
        }
      }
      EXPECT_GT(outside, 8) << name;
    }
  }
}

TEST(MaskTransform, RandAugmentMovesImageAndMaskAndErasingTheImageAlone) {
  MaskTransformOptions o = Training(21, 30);
  o.augmentation = Augmentation::kNone;
  const Result plain = Apply(Make(o), Halves(21, 30));
  o.erasing = {.probability = 1, .max_count = 3};
  int moved = 0, erased = 0;
  for (int64_t index = 0; index < 40; ++index) {
    o.rand_augment.reset();
    const Result hidden = Apply(Make(o), Halves(21, 30), 1, index);
    EXPECT_EQ(hidden.classes, plain.classes);
    erased += hidden.pixels != plain.pixels;
    o.rand_augment = RandAugment{.layers = 3, .probability = 1};
    const Result varied = Apply(Make(o), Halves(21, 30), 1, index);
    EXPECT_EQ(varied, Apply(Make(o), Halves(21, 30), 1, index));
    moved += varied.classes != plain.classes;
  }
  EXPECT_EQ(erased, 40);
  EXPECT_GT(moved, 15) << "a third of the ops move pixels";
  o.train = false;
  EXPECT_EQ(Apply(Make(o), Halves(21, 30), 1, 3), plain) << "evaluation varies nothing";
}

TEST(MaskTransform, FloatsAreTheNormalisedBytes) {
  MaskTransformOptions o = Training(8, 8);
  o.mean = {0.4f, 0.5f, 0.6f}, o.std = {0.2f, 0.25f, 0.3f};
  const MaskTransform transform = Make(o);
  const Result bytes = Apply(transform, Halves(9, 9), 1, 1);
  Sample sample = Halves(9, 9);
  std::vector<float> floats(bytes.pixels.size());
  std::vector<int32_t> classes(bytes.classes.size());
  transform.Apply(1, 1, &sample.image, &sample.mask, floats.data(), classes.data());
  EXPECT_EQ(classes, bytes.classes);
  for (size_t i = 0; i < floats.size(); ++i) {
    const size_t c = i % 3;
    EXPECT_EQ(floats[i], (static_cast<float>(bytes.pixels[i]) / 255.0f - o.mean[c]) / o.std[c]);
  }
}

// Rows of image and mask that are left to the device are, once it reversed them, those that are reversed here.
TEST(MaskTransform, LeavesFlipsToWhoAsksForThem) {
  const MaskTransform transform = Make(Training(8, 6));
  int flipped = 0;
  for (int64_t index = 0; index < 12; ++index) {
    const Result expected = Apply(transform, Halves(9, 9), 1, index);
    Sample sample = Halves(9, 9);
    Result found = expected;
    bool flip = false;
    transform.ApplyBytes(1, index, &sample.image, &sample.mask, found.pixels.data(), found.classes.data(), &flip);
    EXPECT_EQ(found == expected, !flip) << index;
    flipped += flip;
    for (int y = 0; y < 8 && flip; ++y) {
      std::reverse(found.classes.begin() + 6 * y, found.classes.begin() + 6 * (y + 1));
      auto* const row = reinterpret_cast<std::array<uint8_t, 3>*>(found.pixels.data()) + 6 * y;
      std::reverse(row, row + 6);
    }
    EXPECT_EQ(found, expected) << index;
  }
  EXPECT_GT(flipped, 2);
  EXPECT_LT(flipped, 10);
}

TEST(MaskTransform, RefusesWhatMasksCannotTake) {
  const auto error = [](const MaskTransformOptions& o) { return Message(MaskTransform::Create(o).status()); };
  MaskTransformOptions o = Training(8, 8);
  o.augmentation = Augmentation::kResizedCrop;
  EXPECT_THAT(error(o), AllOf(HasSubstr("--augmentation=resized_crop"), HasSubstr("none or scale_crop")));
  o = Training(0, 8);
  EXPECT_THAT(error(o), HasSubstr("found 0 x 8"));
  o = Training(8, 8);
  o.mean = {0.1f, 0.2f};
  EXPECT_THAT(error(o), HasSubstr("found 2"));
  o = Training(8, 8);
  o.erasing.probability = 2;
  EXPECT_THAT(error(o), HasSubstr("erase_prob"));
}

// A dataset of one sample.
struct OneSample : Dataset {
  std::string name() const override { return "one"; }
  int64_t size() const override { return 1; }
  Content content() const override { return Content::kMaskedImages; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return names; }
  Status Read(int64_t, Sample* out) const override {
    *out = sample;
    return OkStatus();
  }
  Sample sample = Halves(4, 6);
  std::vector<std::string> names = {"left", "right"};
};

TEST(MaskedImages, FillsRowsAndSaysWhatIsWrong) {
  OneSample data;
  MaskTransformOptions o;
  o.height = 4, o.width = 6;
  const MaskedImages source(data, Make(o), DType::kU8);
  ASSERT_EQ(source.tensors().size(), 2u);
  EXPECT_EQ(source.tensors()[1].name, "masks");
  std::vector<uint8_t> pixels(4 * 6 * 3, 9);
  std::vector<int32_t> classes(4 * 6, 9);
  const std::vector<void*> rows = {pixels.data(), classes.data()};
  ASSERT_TRUE(source.Fill(0, 0, rows).ok());
  EXPECT_EQ(pixels, data.sample.image.bytes);
  EXPECT_EQ(std::set<int32_t>(classes.begin(), classes.end()), (std::set<int32_t>{-1, 0, 1}));
  source.FillEmpty(rows);
  EXPECT_EQ(std::count(classes.begin(), classes.end(), -1), 24);
  EXPECT_EQ(std::count(pixels.begin(), pixels.end(), 0), 72);
  data.sample.mask.bytes[7] = 2;
  EXPECT_THAT(Message(source.Fill(0, 0, rows)),
              AllOf(HasSubstr("one[0]"), HasSubstr("class 2"), HasSubstr("2 classes")));
  data.sample.mask.Reshape(3, 6, 1);
  EXPECT_THAT(Message(source.Fill(0, 0, rows)), HasSubstr("6 x 3 in its mask"));
}

}  // namespace
}  // namespace switchyard
