// Images with masks: the readers of every layout, and masks as pictures.
#include <cstdlib>
#include <filesystem>

#include "core/base/environment.h"
#include "core/data/class_map.h"
#include "core/data/formats.h"
#include "core/data/mask_picture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StatusOr<std::unique_ptr<Dataset>> OpenMasked(const std::string& name, const std::optional<std::string>& data,
                                              Split split) {
  DatasetOptions options;
  options.name = name;
  options.data = data;
  options.download = false;
  return OpenDataset(options, split);
}

std::string MaskError(const Status& status) { return status.ok() ? "no error" : Message(status); }

Bytes Text(const std::string& text) { return Bytes(text.begin(), text.end()); }

Image MaskOf(int height, int width, const Bytes& ids) {
  Image mask;
  mask.Reshape(height, width, 1);
  mask.bytes = ids;
  return mask;
}

Bytes PalettePng(const Image& mask) { return Text(EncodeMask(mask).value()); }

TEST(MaskPicture, PaletteKeepsTheIdsAndShowsColours) {
  const Image mask = MaskOf(2, 3, {0, 1, 2, 3, 11, 255});
  const Bytes png = PalettePng(mask);
  Image ids, shown;
  ASSERT_TRUE(DecodeMask(png, &ids).ok());
  EXPECT_EQ(ids.bytes, mask.bytes);
  EXPECT_EQ(ids.channels, 1);
  ASSERT_TRUE(DecodePng(png, &shown).ok());
  EXPECT_EQ(Bytes(shown.bytes.begin() + 3, shown.bytes.begin() + 6), (Bytes{128, 0, 0}));      // aeroplane of VOC
  EXPECT_EQ(Bytes(shown.bytes.begin() + 12, shown.bytes.begin() + 15), (Bytes{192, 128, 0}));  // its dining table, 11
  EXPECT_EQ(shown.bytes[15], 224) << "what counts nowhere does not look like class 0";
}

TEST(MaskPicture, AnOverlayIsHalfImageAndHalfColour) {
  Image image;
  image.Reshape(1, 2, 3);
  image.bytes = {100, 101, 0, 7, 8, 9};
  EXPECT_THAT(Overlay(image, MaskOf(1, 2, {1, 255})).bytes, ElementsAre(114, 51, 0, 7, 8, 9));
}

TEST(MaskPicture, ScoresAreInterpolatedOverTheFittedPart) {
  // An image of 2 x 6 (height x width) in an input of 2 x 3 is fitted to 1 x 3; the second row is padding.
  const std::vector<float> scores = {4, 0, 0, /**/ 0, 1, 0, /**/ 0, 0, 9, /**/ 0, 99, 0, /**/ 0, 99, 0, /**/ 0, 99, 0};
  const Image mask = MaskOfScores(scores, 2, 3, 2, 6);
  ASSERT_EQ(mask.height, 2);
  // Columns lie at -0.25 (0), 0.25, 0.75, 1.25, 1.75 and 2.25 (2): 0.75 has 1, 0.75, 0; 1.25 has 0, 0.75, 2.25.
  EXPECT_THAT(mask.bytes, ElementsAre(0, 0, 0, 2, 2, 2, 0, 0, 0, 2, 2, 2));
  // Of the input's own size the mask is that of its places.
  EXPECT_THAT(MaskOfScores(std::span(scores).first(9), 1, 3, 1, 3).bytes, ElementsAre(0, 1, 2));
}

TEST(DecodeMask, TakesGreyAsItIsAndRefusesColours) {
  Image mask;
  ASSERT_TRUE(DecodeMask(PngBytes(MaskOf(1, 4, {0, 1, 18, 255})), &mask).ok());
  EXPECT_THAT(mask.bytes, ElementsAre(0, 1, 18, 255));
  EXPECT_THAT(MaskError(DecodeMask(PngBytes(Pattern(3, 3, 3)), &mask)),
              AllOf(HasSubstr("expected a mask"), HasSubstr("found RGB of 8 bits")));
  EXPECT_THAT(MaskError(DecodeMask(JpegBytes(Pattern(8, 8, 1)), &mask)), HasSubstr("as a PNG file"));
  Bytes cut = PngBytes(MaskOf(1, 4, {0, 1, 18, 255}));
  cut.resize(cut.size() - 20);
  EXPECT_THAT(MaskError(DecodeMask(cut, &mask)), HasSubstr("damaged PNG"));
}

class MaskFolderFiles : public ::testing::Test {
 protected:
  MaskFolderFiles() {
    folder_.Write("images/train/b.jpg", JpegBytes(Pattern(4, 6, 3)));
    folder_.Write("masks/train/b.png", PalettePng(MaskOf(4, 6, Bytes(24, 2))));
    folder_.Write("images/train/town/a.png", PngBytes(Pattern(2, 3, 3)));
    folder_.Write("masks/train/town/a.png", PngBytes(MaskOf(2, 3, {0, 1, 2, 255, 1, 0})));
    folder_.Write("images/val/c.png", PngBytes(Pattern(1, 2, 3)));
    folder_.Write("masks/val/c.png", PngBytes(MaskOf(1, 2, {0, 1})));
  }
  std::string Error(Split split = Split::kTrain, int64_t index = 0) const {
    const auto data = OpenMasked("segmentation", folder_.path(), split);
    return data.ok() ? MaskError((*data)->Get(index).status()) : Message(data.status());
  }
  TemporaryFolder folder_;
};

TEST_F(MaskFolderFiles, MatchesImagesAndMasksByName) {
  const auto train = OpenMasked("segmentation", folder_.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  ASSERT_EQ((*train)->size(), 2);
  EXPECT_EQ((*train)->content(), Content::kMaskedImages);
  EXPECT_THAT((*train)->class_names(), ElementsAre("class 0", "class 1", "class 2"));
  const auto first = (*train)->Get(0), second = (*train)->Get(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->image.channels, 3);
  EXPECT_EQ(first->mask.bytes, Bytes(24, 2));
  EXPECT_THAT(second->mask.bytes, ElementsAre(0, 1, 2, 255, 1, 0));
  EXPECT_THAT((*train)->Path(1), HasSubstr("images/train/town/a.png"));
  const auto val = OpenMasked("segmentation", folder_.path(), Split::kValidation);
  ASSERT_TRUE(val.ok()) << Message(val.status());
  EXPECT_EQ((*val)->class_names().size(), 3u) << "the classes are those of train";
}

TEST_F(MaskFolderFiles, NamesOfClassesComeFromAFile) {
  folder_.Write("classes.txt", Text("road\r\nhouse\ntree\ncar\n"));
  const auto val = OpenMasked("segmentation", folder_.path(), Split::kValidation);
  ASSERT_TRUE(val.ok()) << Message(val.status());
  EXPECT_THAT((*val)->class_names(), ElementsAre("road", "house", "tree", "car"));
  folder_.Write("classes.txt", Text("road\nhouse\n"));
  EXPECT_THAT(Error(Split::kTrain), AllOf(HasSubstr("masks/train/b.png"), HasSubstr("one of the 2 numbers"),
                                          HasSubstr("found 2 in column 0 of row 0")));
  folder_.Write("classes.txt", Text("road\nroad\n"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("classes.txt"), HasSubstr("line 2 names the class road again")));
  folder_.Write("classes.txt", Text("road\n\n"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("classes.txt"), HasSubstr("line 2")));
}

TEST_F(MaskFolderFiles, ReadsTheSameFromATarOneFolderDown) {
  const TemporaryFolder other;
  const Image mask = MaskOf(1, 2, {1, 0});
  const std::string tar = other.Write("set.tar", TarBytes({{"set/images/train/x.png", PngBytes(Pattern(1, 2, 3))},
                                                           {"set/masks/train/x.png", PngBytes(mask)},
                                                           {"set/classes.txt", Text("a\nb\nc")}}));
  const auto train = OpenMasked("segmentation", tar, Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT((*train)->class_names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ((*train)->Get(0)->mask.bytes, mask.bytes);
}

TEST_F(MaskFolderFiles, ACopyBelowIsNotReadAsWell) {
  folder_.Write("all/images/train/x.png", PngBytes(Pattern(1, 2, 3)));
  folder_.Write("all/masks/train/x.png", PngBytes(MaskOf(1, 2, {0, 1})));
  EXPECT_EQ((*OpenMasked("segmentation", folder_.path(), Split::kTrain))->size(), 2);
  for (const char* kind : {"images", "masks"}) {
    std::filesystem::create_directory(folder_.path() + "/more");
    std::filesystem::rename(folder_.path() + "/" + kind, folder_.path() + "/more/" + kind);
  }
  EXPECT_THAT(Error(), AllOf(HasSubstr("images is in all/ as well as in more/")));
  std::filesystem::remove_all(folder_.path() + "/all/masks");
  EXPECT_EQ((*OpenMasked("segmentation", folder_.path(), Split::kTrain))->size(), 2);
}

TEST_F(MaskFolderFiles, NeedTwoClasses) {
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(4, 6, Bytes(24, 255))));
  folder_.Write("masks/train/town/a.png", PngBytes(MaskOf(2, 3, {0, 0, 0, 255, 0, 0})));
  EXPECT_THAT(Error(), AllOf(HasSubstr("no other than 0"), HasSubstr("write 1 instead")));
  folder_.Write("classes.txt", Text("road\n"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("classes.txt"), HasSubstr("at least 2 classes")));
}

// With names of classes too, of which a foreground of 255 is the commonest mistake.
TEST_F(MaskFolderFiles, FromWhichNothingCanBeLearnedAreRefusedForTraining) {
  folder_.Write("classes.txt", Text("none\nfg\n"));
  folder_.Write("masks/train/town/a.png", PngBytes(MaskOf(2, 3, {0, 255, 0, 255, 0, 0})));
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(4, 6, Bytes(24, 0))));
  EXPECT_THAT(Error(), AllOf(HasSubstr("no other than 0"), HasSubstr("write 1 instead")));
  EXPECT_TRUE(OpenMasked("segmentation", folder_.path(), Split::kValidation).ok());
  folder_.Write("masks/train/town/a.png", PngBytes(MaskOf(2, 3, Bytes(6, 255))));
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(4, 6, Bytes(24, 255))));
  EXPECT_THAT(Error(), HasSubstr("nothing but 255"));
}

TEST_F(MaskFolderFiles, ClassesThatNeverOccurAreNamed) {
  const auto sentence = [&] {
    const auto data = OpenMasked("segmentation", folder_.path(), Split::kTrain);
    return data.ok() ? ClassesThatNeverOccur((*data)->Survey(), **data) : Message(data.status());
  };
  EXPECT_EQ(sentence(), "");
  folder_.Write("classes.txt", Text("road\nhouse\ntree\ncar\n"));
  EXPECT_EQ(sentence(), "the class car occurs in no training mask, so that nothing of it is learned");
  std::filesystem::remove(folder_.path() + "/classes.txt");
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(4, 6, Bytes(24, 128))));
  EXPECT_THAT(sentence(), HasSubstr("125 of 129 classes occur in no training mask (class 3, class 4, class 5, …)"));
  // Of many masks some are looked at, and of those it is only said that hardly any class is in them.
  for (int i = 0; i < 70; ++i) {
    folder_.Write(fmt::format("images/train/c{}.png", i), PngBytes(Pattern(1, 2, 3)));
    folder_.Write(fmt::format("masks/train/c{}.png", i), PngBytes(MaskOf(1, 2, {0, 1})));
  }
  EXPECT_THAT(sentence(), HasSubstr("occur in none of the 64 training masks that were looked at, of 72"));
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(4, 6, Bytes(24, 2))));
  EXPECT_EQ(sentence(), "");
}

TEST_F(MaskFolderFiles, ImagesOfOtherFormatsAreCounted) {
  const auto left_out = [&] { return (*OpenMasked("segmentation", folder_.path(), Split::kTrain))->LeftOut(); };
  EXPECT_EQ(left_out(), "");
  folder_.Write("images/val/z.webp", {1});
  folder_.Write("images/train/.hidden", {1});
  EXPECT_EQ(left_out(), "");
  folder_.Write("images/train/town/z.webp", {1});
  EXPECT_THAT(left_out(), AllOf(HasSubstr("a file that is neither .jpg, .jpeg nor .png is left out"),
                                HasSubstr("images/train/town/z.webp")));
}

TEST_F(MaskFolderFiles, OfATurnedImageTheOrientationIsNamed) {
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(6, 4, Bytes(24, 1))));
  EXPECT_THAT(Error(), AllOf(HasSubstr("6 x 4 pixels"), HasSubstr("found 4 x 6; an orientation in the image's EXIF")));
}

TEST_F(MaskFolderFiles, AnUnreadableMaskIsABadSample) {
  folder_.Write("masks/train/b.png", {1, 2, 3});
  EXPECT_THAT(Error(), AllOf(HasSubstr("masks/train/b.png"), HasSubstr("expected a mask as a PNG file")));
  EXPECT_EQ((*OpenMasked("segmentation", folder_.path(), Split::kTrain))->class_names().size(), 3u);
  folder_.Write("masks/train/town/a.png", {1, 2, 3});
  EXPECT_FALSE(OpenMasked("segmentation", folder_.path(), Split::kTrain).ok());
}

TEST_F(MaskFolderFiles, TwoImagesOfOneNameAreRefused) {
  folder_.Write("images/train/town/a.jpg", JpegBytes(Pattern(2, 3, 3)));
  EXPECT_THAT(Error(), AllOf(HasSubstr("town/a.png"), HasSubstr("town/a.jpg"), HasSubstr("would have the same mask")));
}

TEST_F(MaskFolderFiles, SaysWhatIsMissingOrDoesNotFit) {
  folder_.Write("masks/train/b.png", PngBytes(MaskOf(1, 2, {0, 1})));
  EXPECT_THAT(Error(), AllOf(HasSubstr("masks/train/b.png"), HasSubstr("6 x 4 pixels"), HasSubstr("found 2 x 1")));
  folder_.Write("masks/train/b.png", PngBytes(Pattern(4, 6, 3)));
  EXPECT_THAT(Error(), AllOf(HasSubstr("masks/train/b.png"), HasSubstr("found RGB")));
  std::filesystem::remove(folder_.path() + "/masks/train/b.png");
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("images/train/b.jpg"), HasSubstr("expected its mask"), HasSubstr("masks/train/b.png")));
  std::filesystem::remove_all(folder_.path() + "/images/train");
  EXPECT_THAT(Error(), AllOf(HasSubstr(folder_.path()), HasSubstr("images/train/NAME.jpg"), HasSubstr("masks/train")));
}

TEST(Cityscapes, LabelIdsBecomeTheClassesOfTheBenchmark) {
  for (const DatasetInfo& info : KnownDatasets()) {
    ASSERT_EQ(info.mask_ids.size(), info.name == "cityscapes" ? 19u : 0u) << info.name;
    if (info.name == "cityscapes") {
      EXPECT_EQ(info.mask_ids[13], 26) << "car";
    }
  }
  const TemporaryFolder folder;
  folder.Write("leftImg8bit/train/ulm/ulm_1_leftImg8bit.png", PngBytes(Pattern(2, 3, 3)));
  folder.Write("gtFine/train/ulm/ulm_1_gtFine_labelIds.png", PngBytes(MaskOf(2, 3, {7, 33, 0, 8, 30, 26})));
  folder.Write("gtFine/train/ulm/ulm_1_gtFine_color.png", PngBytes(Pattern(2, 3, 3)));
  const auto train = OpenMasked("cityscapes", folder.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_EQ((*train)->size(), 1);
  ASSERT_EQ((*train)->class_names().size(), 19u);
  EXPECT_EQ((*train)->class_names()[13], "car");
  const auto sample = (*train)->Get(0);
  ASSERT_TRUE(sample.ok()) << Message(sample.status());
  EXPECT_THAT(sample->mask.bytes, ElementsAre(0, 18, 255, 1, 255, 13));
  folder.Write("gtFine/train/ulm/ulm_1_gtFine_labelIds.png", PngBytes(MaskOf(2, 3, {7, 33, 0, 8, 34, 26})));
  EXPECT_THAT(MaskError((*train)->Get(0).status()), AllOf(HasSubstr("labelIds.png"), HasSubstr("found 34")));
  EXPECT_THAT(MaskError(OpenMasked("cityscapes", folder.path(), Split::kValidation).status()),
              HasSubstr("leftImg8bit/val/CITY"));
}

class CamVidFiles : public ::testing::Test {
 protected:
  CamVidFiles() {
    folder_.Write("camvid_images.tar", TarBytes({{"camvid/train/a.jpg", JpegBytes(Pattern(2, 3, 3))},
                                                 {"camvid/train/b.jpg", JpegBytes(Pattern(2, 3, 3))}}));
    folder_.Write("train-files.txt", Text("b.jpg\na.jpg\n"));
    folder_.Write("train-labels-idx3-ubyte.gz", GzipBytes(IdxBytes({2, 2, 3}, ids_)));
  }
  std::string Error() const {
    const auto data = OpenMasked("camvid", folder_.path(), Split::kTrain);
    return data.ok() ? MaskError((*data)->Get(0).status()) : Message(data.status());
  }
  const Bytes ids_ = {0, 1, 2, 3, 10, 11, 5, 5, 5, 5, 5, 5};
  TemporaryFolder folder_;
};

TEST_F(CamVidFiles, MatchesRecordsWithLinesAndIgnoresWhatIsUnlabelled) {
  const auto train = OpenMasked("camvid", folder_.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  ASSERT_EQ((*train)->size(), 2);
  EXPECT_EQ((*train)->class_names().size(), 11u);
  EXPECT_THAT((*train)->Path(0), HasSubstr("camvid/train/b.jpg"));
  EXPECT_THAT((*train)->Get(0)->mask.bytes, ElementsAre(0, 1, 2, 3, 10, 255));
}

TEST_F(CamVidFiles, SaysWhatDoesNotFit) {
  Bytes ids = ids_;
  ids[4] = 12;
  folder_.Write("train-labels-idx3-ubyte.gz", GzipBytes(IdxBytes({2, 2, 3}, ids)));
  EXPECT_THAT(Error(), AllOf(HasSubstr("ubyte.gz[0]"), HasSubstr("found 12 in column 1 of row 1")));
  folder_.Write("train-labels-idx3-ubyte.gz", GzipBytes(IdxBytes({2, 3, 2}, ids_)));
  EXPECT_THAT(Error(), AllOf(HasSubstr("3 x 2 pixels"), HasSubstr("found 2 x 3")));
  folder_.Write("train-files.txt", Text("b.jpg\n"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("expected 1 masks"), HasSubstr("train-files.txt"), HasSubstr("found 2")));
  folder_.Write("train-files.txt", Text("b.jpg\nc.jpg\n"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("camvid_images.tar"), HasSubstr("train/c.jpg"), HasSubstr("found none")));
  std::filesystem::remove(folder_.path() + "/train-labels-idx3-ubyte.gz");
  EXPECT_THAT(Error(), HasSubstr("train-labels-idx3-ubyte"));
}

TEST(Synthetic, MakesMasksOfTheSizeThatTheModelTakes) {
  DatasetOptions options;
  options.name = "synthetic";
  options.content = Content::kMaskedImages;
  options.input_shape = {6, 9, 3};
  options.classes = 4;
  const auto data = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(data.ok()) << Message(data.status());
  EXPECT_EQ((*data)->content(), Content::kMaskedImages);
  const Sample sample = (*data)->Get(5).value();
  EXPECT_EQ(sample.image.height, 6);
  EXPECT_EQ(sample.image.width, 9);
  ASSERT_EQ(sample.mask.bytes.size(), 54u);
  Image mask = sample.mask;
  EXPECT_TRUE(MapClasses(Identity(4), "mask", &mask).ok());
  EXPECT_EQ(sample.mask.bytes.back(), kIgnoredClass);
}

// The pixels of each class, as the data's description counts them.
TEST(CamVid, TheRealFilesHoldWhatTheirDescriptionSays) {
  const auto shared = Environment("SWITCHYARD_DATA");
  if (!shared || !std::filesystem::exists(*shared + "/camvid")) GTEST_SKIP() << "no camvid in $SWITCHYARD_DATA";
  const auto train = OpenMasked("camvid", {}, Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  ASSERT_EQ((*train)->size(), 367);
  std::vector<int64_t> pixels(256);
  for (int64_t i = 0; i < (*train)->size(); ++i) {
    const auto sample = (*train)->Get(i);
    ASSERT_TRUE(sample.ok()) << Message(sample.status());
    for (const uint8_t id : sample->mask.bytes) ++pixels[id];
  }
  const int64_t skies = 3039171, bicyclists = 52570, unlabelled = 713051;
  EXPECT_EQ(pixels[0], skies);
  EXPECT_EQ(pixels[10], bicyclists);
  EXPECT_EQ(pixels[kIgnoredClass], unlabelled);
  EXPECT_EQ(OpenMasked("camvid", {}, Split::kValidation).value()->size(), 101);
  EXPECT_EQ(OpenMasked("camvid", {}, Split::kTest).value()->size(), 200);
}

}  // namespace
}  // namespace switchyard
