// Datasets of volumes with masks: folders of files, and IDX pairs.
#include <cstring>
#include <filesystem>

#include "core/data/files.h"
#include "core/data/formats.h"
#include "core/data/renamed_classes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"
#include "tests/data/opened_data.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A volume of bytes, or of floats, as .npy.
template <typename T>
Bytes Npy(const std::vector<T>& values, const std::string& shape) {
  const std::string descr = sizeof(T) == 1 ? "|u1" : "<f4";
  std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  text.resize(117, ' ');
  text += '\n';
  Bytes bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  bytes.insert(bytes.end(), text.begin(), text.end());
  const auto* const first = reinterpret_cast<const uint8_t*>(values.data());
  bytes.insert(bytes.end(), first, first + values.size() * sizeof(T));
  return bytes;
}

class VolumeFolder : public ::testing::Test {
 protected:
  VolumeFolder() {
    folder_.Write("train/images/b.npy", Npy<float>({1, 2, 3, 4}, "(1, 2, 2)"));
    folder_.Write("train/images/a.npy", Npy<float>({5, 6}, "(2, 1, 1)"));
    folder_.Write("train/images/.hidden.npy", {});
    folder_.Write("train/labels/b.npy", Npy<uint8_t>({0, 2, 255, 1}, "(1, 2, 2)"));
    folder_.Write("train/labels/a.npy", Npy<float>({1, 0}, "(2, 1, 1)"));
    folder_.Write("val/images/c.npy", Npy<float>({7}, "(1, 1, 1)"));
    folder_.Write("val/labels/c.npy", Npy<uint8_t>({1}, "(1, 1, 1)"));
  }
  StatusOr<std::unique_ptr<Dataset>> Train() const { return OpenData("volume", folder_.path(), Split::kTrain); }
  TemporaryFolder folder_;
};

TEST_F(VolumeFolder, PairsFilesByNameAndCountsClassesInTheTrainingLabels) {
  const auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_EQ((*train)->size(), 2);
  EXPECT_EQ((*train)->content(), Content::kMaskedVolumes);
  EXPECT_THAT((*train)->class_names(), ElementsAre("0", "1", "2"));
  const auto a = (*train)->Get(0), b = (*train)->Get(1);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->volume.depth, 2);
  EXPECT_THAT(a->voxels, ElementsAre(1, 0));
  EXPECT_THAT(b->volume.voxels, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(b->voxels, ElementsAre(0, 2, kIgnoredClass, 1));
  const auto validation = OpenData("volume", folder_.path(), Split::kValidation);
  ASSERT_TRUE(validation.ok()) << Message(validation.status());
  EXPECT_EQ((*validation)->size(), 1);
  EXPECT_EQ((*validation)->class_names(), (*train)->class_names());
}

TEST_F(VolumeFolder, KnowsExtentsWithoutTheVoxelsAndAsksOnce) {
  const auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT(*(*train)->ReadExtents(1), ElementsAre(1, 2, 2));
  std::filesystem::remove(folder_.path() + "/train/images/b.npy");
  EXPECT_THAT(*(*train)->ReadExtents(1), ElementsAre(1, 2, 2));
  std::filesystem::remove(folder_.path() + "/train/images/a.npy");
  EXPECT_THAT(Error((*train)->ReadExtents(0).status()), HasSubstr("a.npy"));
}

TEST_F(VolumeFolder, UnderOtherClassNamesHasTheSameExtents) {
  auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  const auto renamed = WithClasses(std::move(*train), {"2", "1", "0"});
  ASSERT_TRUE(renamed.ok()) << Message(renamed.status());
  std::filesystem::remove(folder_.path() + "/train/labels/b.npy");
  EXPECT_THAT(*(*renamed)->ReadExtents(1), ElementsAre(1, 2, 2)) << "of the image's header alone";
}

TEST_F(VolumeFolder, TakesClassNamesFromTheirFile) {
  folder_.Write("classes.txt", {'n', 'o', 'n', 'e', '\r', '\n', 'o', 'n', 'e', '\n', 't', 'w', 'o'});
  const auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT((*train)->class_names(), ElementsAre("none", "one", "two"));
  folder_.Write("classes.txt", {'n', 'o', 'n', 'e', '\n', 'o', 'n', 'e'});
  EXPECT_THAT(Error((*Train())->Get(1).status()),
              AllOf(HasSubstr("labels/b.npy"), HasSubstr("below 2"), HasSubstr("found 2")));
  folder_.Write("classes.txt", {'x'});
  EXPECT_THAT(Error(Train().status()), AllOf(HasSubstr("classes.txt"), HasSubstr("at least 2"), HasSubstr("found 1")));
  // An empty line would shift the classes behind it; a byte that is no UTF-8 would not come back from a checkpoint.
  folder_.Write("classes.txt", {'a', '\n', '\n', 'b', '\n', 'c'});
  EXPECT_THAT(Error(Train().status()), AllOf(HasSubstr("classes.txt"), HasSubstr("line 2")));
  folder_.Write("classes.txt", {'a', '\n', 'b', '\n', 0xE4});
  EXPECT_EQ((*Train())->class_names()[2], "\\xe4");
}

TEST_F(VolumeFolder, RefusesLabelsFromWhichNothingCanBeLearned) {
  for (const bool named : {false, true}) {
    for (const uint8_t label : {uint8_t{0}, kIgnoredClass}) {
      for (const char* name : {"a", "b"}) {
        std::filesystem::remove(folder_.path() + "/train/images/" + name + ".npy");
        std::filesystem::remove(folder_.path() + "/train/labels/" + name + ".npy");
      }
      folder_.Write("train/images/c.npy", Npy<float>({1, 2}, "(2, 1, 1)"));
      folder_.Write("train/labels/c.npy", Npy<uint8_t>({label, label}, "(2, 1, 1)"));
      if (named) folder_.Write("classes.txt", {'a', '\n', 'b'});
      EXPECT_THAT(Error(Train().status()), AllOf(HasSubstr("at least 2 classes"),
                                                 HasSubstr(label == 0 ? "no other than 0" : "nothing but 255")));
    }
  }
  folder_.Write("train/labels/c.npy", Npy<uint8_t>({0, 1}, "(2, 1, 1)"));
  folder_.Write("train/images/c.dcm", {1});
  const auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT((*train)->LeftOut(), AllOf(HasSubstr("a file that is neither .nii"), HasSubstr("images/c.dcm")));
}

TEST_F(VolumeFolder, RefusesWhatDoesNotBelongTogetherNamingTheFile) {
  folder_.Write("train/labels/a.npy", Npy<uint8_t>({1, 0}, "(1, 2, 1)"));
  EXPECT_THAT(Error((*Train())->Get(0).status()),
              AllOf(HasSubstr("labels/a.npy"), HasSubstr("2 x 1 x 1"), HasSubstr("found 1 x 2 x 1")));
  // A bad sample, whether its labels have to be read to know the classes or not.
  folder_.Write("train/labels/a.npy", Npy<float>({0.5f, 0}, "(2, 1, 1)"));
  const auto train = Train();
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT(Error((*train)->Get(0).status()),
              AllOf(HasSubstr("labels/a.npy"), HasSubstr("whole numbers"), HasSubstr("0.5")));
  EXPECT_THAT((*train)->class_names(), ElementsAre("0", "1", "2"));
  folder_.Write("train/images/z.npy", Npy<float>({1}, "(1, 1, 1)"));
  EXPECT_THAT(Error(Train().status()), AllOf(HasSubstr("images/z.npy"), HasSubstr("labels/z.npy"), HasSubstr("none")));
}

TEST(VolumeFolders, LabelsLieInTheBodyAsTheirImagesDo) {
  const TemporaryFolder folder;
  const std::vector<float> to_the_left = {-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0},
                           to_the_right = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
  const auto write = [&](const char* name, const std::vector<float>& image, const std::vector<float>& labels) {
    folder.Write(std::string("train/images/") + name, NiftiOfBytes({3, 1, 1}, {7, 8, 9}, image));
    folder.Write(std::string("train/labels/") + name, NiftiOfBytes({3, 1, 1}, {0, 1, 2}, labels));
  };
  write("a.nii", to_the_left, to_the_left);
  write("b.nii", to_the_left, to_the_right);
  write("c.nii", to_the_left, {});  // nothing is said of the labels: as the image
  write("d.nii", {}, to_the_right);
  write("e.nii", {}, to_the_left);
  const auto train = OpenData("volume", folder.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  for (const int64_t index : {0, 1, 2, 3}) {
    const auto sample = (*train)->Get(index);
    ASSERT_TRUE(sample.ok()) << Message(sample.status());
    const bool turned = index == 0 || index == 2;  // the labels
    EXPECT_THAT(sample->volume.voxels, ElementsAre(index < 3 ? 9 : 7, 8, index < 3 ? 7 : 9)) << index;
    EXPECT_THAT(sample->voxels, ElementsAre(turned ? 2 : 0, 1, turned ? 0 : 2)) << index;
  }
  EXPECT_THAT(
      Error((*train)->Get(4).status()),
      AllOf(HasSubstr("labels/e.nii"), HasSubstr("images/e.nii says nothing of that"), HasSubstr("the same sform")));
}

TEST(VolumeFolders, SayWhatTheyExpect) {
  const TemporaryFolder folder;
  folder.Write("train/a.txt", {1});
  EXPECT_THAT(Error(OpenData("volume", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train/images"), HasSubstr("train-images-idx4-ubyte")));
  folder.Write("train/images/a.txt", {1});
  EXPECT_THAT(Error(OpenData("volume", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train/images"), HasSubstr(".nii.gz"), HasSubstr("none")));
}

class VolumePairs : public ::testing::Test {
 protected:
  VolumePairs() {
    folder_.Write("train-images-idx4-ubyte.gz", GzipBytes(IdxBytes({2, 1, 2, 2}, {9, 8, 7, 6, 5, 4, 3, 2})));
    folder_.Write("train-labels-idx4-ubyte", IdxBytes({2, 1, 2, 2}, {0, 1, 2, 0, 0, 0, 1, 255}));
    folder_.Write("test-images-idx4-ubyte", IdxBytes({1, 1, 1, 2}, {1, 2}));
    folder_.Write("test-labels-idx4-ubyte", IdxBytes({1, 1, 1, 2}, {1, 0}));
  }
  TemporaryFolder folder_;
};

TEST_F(VolumePairs, AreVolumesToo) {
  for (const std::string name : {"volume", "hippocampus3d"}) {
    const auto train = OpenData(name, folder_.path(), Split::kTrain);
    ASSERT_TRUE(train.ok()) << Message(train.status());
    EXPECT_EQ((*train)->size(), 2);
    EXPECT_EQ((*train)->class_names().size(), 3u);
    const auto second = (*train)->Get(1);
    ASSERT_TRUE(second.ok());
    EXPECT_THAT(second->volume.voxels, ElementsAre(5, 4, 3, 2));
    EXPECT_THAT(second->voxels, ElementsAre(0, 0, 1, 255));
    const auto validation = OpenData(name, folder_.path(), Split::kValidation);
    ASSERT_TRUE(validation.ok()) << Message(validation.status());
    EXPECT_EQ((*validation)->Get(0)->volume.width, 2);
    EXPECT_NE((*validation)->Checksum(), (*train)->Checksum());
  }
}

TEST_F(VolumePairs, TakeClassNamesFromTheirFile) {
  folder_.Write("classes.txt", {'b', 'g', '\n', 'f', 'r', 'o', 'n', 't', '\n', 'b', 'a', 'c', 'k'});
  const auto train = OpenData("volume", folder_.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT((*train)->class_names(), ElementsAre("bg", "front", "back"));
}

TEST_F(VolumePairs, MustAgree) {
  folder_.Write("train-labels-idx4-ubyte", IdxBytes({2, 2, 1, 2}, {0, 1, 2, 0, 0, 0, 1, 0}));
  EXPECT_THAT(Error(OpenData("volume", folder_.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train-labels"), HasSubstr("2, 1, 2, 2"), HasSubstr("found (2, 2, 1, 2)")));
  folder_.Write("train-labels-idx4-ubyte", IdxBytes({2, 1, 2, 2}, {0, 1, 7, 0, 0, 0, 1, 0}));
  EXPECT_THAT(Error(OpenData("hippocampus3d", folder_.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train-labels"), HasSubstr("below 3"), HasSubstr("found 7")));
  folder_.Write("train-labels-idx4-ubyte", IdxBytes({2, 2, 2}, {0, 1, 7, 0, 0, 0, 1, 0}));
  EXPECT_THAT(Error(OpenData("volume", folder_.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train-labels"), HasSubstr("(N, D, H, W)"), HasSubstr("(2, 2, 2)")));
}

}  // namespace
}  // namespace switchyard
