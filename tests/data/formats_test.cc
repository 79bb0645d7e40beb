// Datasets of images with classes: the files of each format, and those that are damaged, missing or irregular.
#include "core/data/formats.h"

#include <sys/stat.h>

#include <filesystem>

#include "core/base/environment.h"
#include "core/data/files.h"
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

class IdxFiles : public ::testing::Test {
 protected:
  IdxFiles() {
    folder_.Write("train-images-idx3-ubyte.gz", GzipBytes(IdxBytes({3, 4, 5}, Pattern(12, 5, 1).bytes)));
    folder_.Write("train-labels-idx1-ubyte", IdxBytes({3}, {0, 9, 4}));
    folder_.Write("t10k-images-idx3-ubyte", IdxBytes({2, 4, 5}, Pattern(8, 5, 1).bytes));
    folder_.Write("t10k-labels-idx1-ubyte.gz", GzipBytes(IdxBytes({2}, {1, 2})));
  }
  TemporaryFolder folder_;
};

TEST_F(IdxFiles, ReadsPlainAndCompressedFilesOfBothSplits) {
  const auto train = OpenData("mnist", folder_.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_EQ((*train)->size(), 3);
  EXPECT_EQ((*train)->channels(), 1);
  EXPECT_EQ((*train)->class_names().size(), 10u);
  const auto sample = (*train)->Get(1);
  ASSERT_TRUE(sample.ok());
  EXPECT_EQ(sample->label, 9);
  const Bytes all = Pattern(12, 5, 1).bytes;
  EXPECT_EQ(sample->image.bytes, Bytes(all.begin() + 20, all.begin() + 40));
  const auto test = OpenData("mnist", folder_.path(), Split::kValidation);
  ASSERT_TRUE(test.ok()) << Message(test.status());
  EXPECT_EQ((*test)->size(), 2);
  EXPECT_NE((*test)->Checksum(), (*train)->Checksum());
}

TEST_F(IdxFiles, NamesClassesByNumberForUnknownSets) {
  const auto test = OpenData("idx", folder_.path(), Split::kTest);
  ASSERT_TRUE(test.ok()) << Message(test.status());
  EXPECT_EQ((*test)->class_names().size(), 10u);
}

TEST_F(IdxFiles, ReadsColourImagesOfFourDimensions) {
  folder_.Write("train-images-idx3-ubyte.gz", GzipBytes(IdxBytes({3, 2, 2, 3}, Pattern(3, 4, 3).bytes)));
  const auto train = OpenData("idx", folder_.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_EQ((*train)->channels(), 3);
  EXPECT_EQ((*train)->Get(2)->image.bytes.size(), 12u);
}

TEST_F(IdxFiles, RefusesDamagedFilesNamingThem) {
  const Bytes good = IdxBytes({3, 4, 5}, Pattern(12, 5, 1).bytes);
  const auto error = [&](const Bytes& bytes) {
    folder_.Write("train-images-idx3-ubyte.gz", bytes);
    return Error(OpenData("mnist", folder_.path(), Split::kTrain).status());
  };
  const auto file = HasSubstr("train-images-idx3-ubyte.gz");
  EXPECT_THAT(error(Bytes(good.begin(), good.end() - 1)),
              AllOf(file, HasSubstr("expected 60 bytes"), HasSubstr("found 59")));
  EXPECT_THAT(error(Bytes(good.begin(), good.begin() + 9)), AllOf(file, HasSubstr("header")));
  EXPECT_THAT(error({}), AllOf(file, HasSubstr("expected an IDX file")));
  EXPECT_THAT(error({1, 2, 3, 4, 5}), AllOf(file, HasSubstr("expected an IDX file")));
  EXPECT_THAT(error({0, 0, 0x0D, 1, 0, 0, 0, 0}), AllOf(file, HasSubstr("type 0x0d")));
  EXPECT_THAT(error({0, 0, 8, 5}), AllOf(file, HasSubstr("1 to 4 dimensions")));
  EXPECT_THAT(error(IdxBytes({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, {1})), AllOf(file, HasSubstr("impossible")));
  EXPECT_THAT(error(IdxBytes({0, 4, 5}, {})), AllOf(file, HasSubstr("impossible")));
  EXPECT_THAT(error(IdxBytes({3, 2, 2, 5}, Bytes(60))), AllOf(file, HasSubstr("(3, 2, 2, 5)")));
  EXPECT_THAT(error(IdxBytes({4, 1, 1}, Bytes(4))), AllOf(file, HasSubstr("4 images"), HasSubstr("3 labels")));
  const Bytes packed = GzipBytes(good);
  EXPECT_THAT(error(Bytes(packed.begin(), packed.end() - 12)), AllOf(file, HasSubstr("damaged gzip")));
  Bytes flipped = packed;
  flipped[flipped.size() / 2] ^= 0x40;
  EXPECT_THAT(error(flipped), file);
}

TEST_F(IdxFiles, RefusesLabelsWithoutAClass) {
  folder_.Write("train-labels-idx1-ubyte", IdxBytes({3}, {0, 10, 4}));
  EXPECT_THAT(Error(OpenData("mnist", folder_.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train-labels"), HasSubstr("found 10 in record 1")));
}

TEST_F(IdxFiles, SaysWhichFileIsMissing) {
  std::filesystem::remove(folder_.path() + "/t10k-labels-idx1-ubyte.gz");
  EXPECT_THAT(Error(OpenData("mnist", folder_.path(), Split::kTest).status()), HasSubstr("t10k-labels"));
}

Bytes CifarRecords(int count) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<uint8_t>(i % 10));
    for (int p = 0; p < 3072; ++p) bytes.push_back(static_cast<uint8_t>(p / 1024 * 50 + p % 7 + i));
  }
  return bytes;
}

TEST(Cifar10, ReadsAFolderAndACompressedTarAlike) {
  TemporaryFolder folder, archive;
  std::vector<std::pair<std::string, Bytes>> files = {{"cifar-10-batches-bin/data_batch_1.bin", CifarRecords(3)},
                                                      {"cifar-10-batches-bin/data_batch_2.bin", CifarRecords(2)},
                                                      {"cifar-10-batches-bin/test_batch.bin", CifarRecords(4)}};
  for (const auto& [name, bytes] : files) folder.Write(name, bytes);
  archive.Write("cifar-10-binary.tar.gz", GzipBytes(TarBytes(files)));
  const auto a = OpenData("cifar10", folder.path(), Split::kTrain),
             b = OpenData("cifar10", archive.path(), Split::kTrain);
  ASSERT_TRUE(a.ok()) << Message(a.status());
  ASSERT_TRUE(b.ok()) << Message(b.status());
  EXPECT_EQ((*a)->size(), 5);
  EXPECT_EQ((*a)->Checksum(), (*b)->Checksum());
  const Sample sample = *(*a)->Get(4);
  EXPECT_EQ(sample.label, 1);
  EXPECT_EQ(sample.image.bytes[3], 1 % 7 + 1);
  EXPECT_EQ(sample.image.bytes[4], 50 + 1025 % 7 + 1);
  EXPECT_EQ((*OpenData("cifar10", archive.path(), Split::kTest))->size(), 4);
}

TEST(Cifar10, ACopyBelowIsNotReadAsWell) {
  TemporaryFolder folder;
  for (const char* name : {"a/data_batch_1.bin", "b/data_batch_1.bin"}) folder.Write(name, CifarRecords(3));
  EXPECT_THAT(Error(OpenData("cifar10", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("data_batch_*.bin is in a/ as well as in b/")));
  folder.Write("data_batch_1.bin", CifarRecords(3));
  EXPECT_EQ((*OpenData("cifar10", folder.path(), Split::kTrain))->size(), 3);
}

TEST(Cifar10, RefusesFilesThatAreNoWholeNumberOfRecordsOrHaveWrongLabels) {
  TemporaryFolder folder;
  Bytes records = CifarRecords(2);
  records.pop_back();
  folder.Write("data_batch_1.bin", records);
  EXPECT_THAT(Error(OpenData("cifar10", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("data_batch_1.bin"), HasSubstr("6145 bytes")));
  records = CifarRecords(2);
  records[3073] = 10;
  folder.Write("data_batch_1.bin", records);
  EXPECT_THAT(Error(OpenData("cifar10", folder.path(), Split::kTrain).status()), HasSubstr("found 10 in record 1"));
  EXPECT_THAT(Error(OpenData("cifar10", folder.path(), Split::kTest).status()), HasSubstr("test_batch"));
}

TEST(ImageFolder, ReadsAFolderAndEveryKindOfTarAlike) {
  const auto files = SmallImageFolder(2, 1);
  TemporaryFolder folder;
  for (const auto& [name, bytes] : files) folder.Write(name, bytes);
  for (const char* hidden : {"train/ant/.checkpoints/1.jpg", "train/.old/1.jpg", ".old/train/ant/1.jpg"})
    folder.Write(hidden, JpegBytes(Pattern(4, 4, 3)));
  const auto train = OpenData("imagefolder", folder.path(), Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_THAT((*train)->class_names(), ElementsAre("ant", "bee", "cat"));
  EXPECT_EQ((*train)->size(), 7);
  std::vector<int> labels;
  for (int64_t i = 0; i < (*train)->size(); ++i) labels.push_back((*train)->Get(i)->label);
  EXPECT_THAT(labels, ElementsAre(0, 0, 1, 1, 2, 2, 2));
  EXPECT_EQ((*train)->Get(6)->image.bytes, Pattern(25, 25, 3).bytes);
  EXPECT_EQ((*OpenData("imagefolder", folder.path(), Split::kValidation))->size(), 4);

  // Members below a root whose name needs every way of keeping a long name.
  auto rooted = files;
  for (auto& [name, bytes] : rooted) name.insert(0, std::string(110, 'r') + "/");
  int number = 0;
  for (const TarNames names : {TarNames::kUstar, TarNames::kGnu, TarNames::kPax}) {
    const std::string tar = folder.Write(fmt::format("out/{}.tar", number++), TarBytes(rooted, names));
    const auto from_tar = OpenData("imagefolder", tar, Split::kTrain);
    ASSERT_TRUE(from_tar.ok()) << Message(from_tar.status());
    EXPECT_EQ((*from_tar)->Checksum(), (*train)->Checksum());
    EXPECT_THAT((*from_tar)->Path(6), HasSubstr("train/cat/last.png"));
  }
}

TEST(ImageFolder, CountsFilesOfOtherFormatsInItsClasses) {
  TemporaryFolder folder;
  for (const auto& [name, bytes] : SmallImageFolder(2, 1)) folder.Write("set/" + name, bytes);
  folder.Write("set/notes.txt", {1});
  folder.Write("set/train/ant/a.webp", {1});
  folder.Write("set/train/bee/b.bmp", {1});
  folder.Write("set/val/bee/.thumbs", {1});
  EXPECT_THAT((*OpenData("imagefolder", folder.path(), Split::kTrain))->LeftOut(),
              AllOf(HasSubstr("2 files that are neither .jpg, .jpeg nor .png are left out, as "),
                    HasSubstr("set/train/ant/a.webp")));
  EXPECT_EQ((*OpenData("imagefolder", folder.path(), Split::kValidation))->LeftOut(), "");
}

TEST(OpenDataset, AFolderOfAnotherLayoutIsHintedAt) {
  for (const auto& [file, other] : {std::pair{"train/ant/1.jpg", "imagefolder"},
                                    {"train/images/a.npy", "volume"},
                                    {"images/train/a.jpg", "segmentation"}}) {
    TemporaryFolder folder;
    for (const char* beside : {"train/labels/a.npy", "masks/train/a.png"}) {
      if (std::string(other) != "imagefolder") folder.Write(beside, {1});
    }
    folder.Write(file, {1});
    for (const char* name : {"fashion-mnist", "idx"}) {
      EXPECT_THAT(Error(OpenData(name, folder.path(), Split::kTrain).status()),
                  AllOf(HasSubstr("train-images"), HasSubstr(std::string("laid out as --dataset=") + other)));
    }
  }
}

TEST(ImageFolder, ACopyBelowIsNotReadAsWell) {
  TemporaryFolder folder;
  for (const char* name : {"old/train/ant/1.jpg", "new/train/ant/1.jpg", "notes/test/ant/readme.txt"})
    folder.Write(name, JpegBytes(Pattern(4, 4, 3)));
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("is in new/ as well as in old/"), HasSubstr("give the folder of one of them")));
  folder.Write("train/ant/1.jpg", JpegBytes(Pattern(4, 4, 3)));
  EXPECT_EQ((*OpenData("imagefolder", folder.path(), Split::kTrain))->size(), 1);
}

TEST(ImageFolder, LinksInATarLeadToItsFiles) {
  TemporaryFolder folder;
  const auto link = [](const std::string& name, char type, const std::string& target) {
    Bytes block = TarBytes({{name, {}}});
    block.resize(512);
    block[156] = static_cast<uint8_t>(type);
    std::copy(target.begin(), target.end(), block.begin() + 157);
    int sum = 8 * ' ';
    for (size_t i = 0; i < block.size(); ++i) sum += i >= 148 && i < 156 ? 0 : block[i];
    const std::string text = fmt::format("{:06o}", sum) + std::string(1, '\0') + " ";
    std::copy(text.begin(), text.end(), block.begin() + 148);
    return block;
  };
  Bytes tar;
  for (const Bytes& part :
       {link("train/ant/3.jpg", '2', "../ant/2.jpg"), link("train/ant/2.jpg", '1', "train/ant/1.jpg"),
        link("train/ant/lost.jpg", '2', "/etc/passwd"), link("train/ant/loop.jpg", '2', "loop.jpg")})
    tar.insert(tar.end(), part.begin(), part.end());
  const Bytes files = TarBytes({{"train/ant/1.jpg", JpegBytes(Pattern(4, 4, 3))}});
  tar.insert(tar.end(), files.begin(), files.end());
  testing::internal::CaptureStderr();
  const auto train = OpenData("imagefolder", folder.Write("x.tar", tar), Split::kTrain);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("2 links"), HasSubstr("left out"), HasSubstr("train/ant/loop.jpg")));
  ASSERT_TRUE(train.ok()) << Message(train.status());
  ASSERT_EQ((*train)->size(), 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ((*train)->Get(i)->image.bytes, (*train)->Get(0)->image.bytes);
}

TEST(ImageFolder, RefusesFoldersThatAreLaidOutDifferently) {
  TemporaryFolder folder;
  folder.Write("ant/1.jpg", JpegBytes(Pattern(4, 4, 3)));
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kTrain).status()), HasSubstr("train/CLASS"));
  folder.Write("train/ant/1.jpg", JpegBytes(Pattern(4, 4, 3)));
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kValidation).status()), HasSubstr("val, validation"));
  folder.Write("val/bee/1.jpg", JpegBytes(Pattern(4, 4, 3)));
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kValidation).status()),
              AllOf(HasSubstr("class bee"), HasSubstr("not in train")));
  folder.Write("train/bee/notes.txt", {1});
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kTrain).status()),
              AllOf(HasSubstr("train/bee"), HasSubstr("no .jpg")));
}

TEST(ImageFolder, NeedsNoTrainFolderToBeEvaluated) {
  TemporaryFolder folder;
  for (const char* name : {"val/dog/1.jpg", "val/zebra/1.jpg", "val/zebra/2.jpg"})
    folder.Write(name, JpegBytes(Pattern(4, 4, 3)));
  const auto validation = OpenData("imagefolder", folder.path(), Split::kValidation);
  ASSERT_TRUE(validation.ok()) << Message(validation.status());
  EXPECT_THAT((*validation)->class_names(), ElementsAre("dog", "zebra"));
  EXPECT_EQ((*validation)->size(), 3);
  EXPECT_THAT(Error(OpenData("imagefolder", folder.path(), Split::kTrain).status()), HasSubstr("no train folder"));
}

TEST(ImageFolder, NamesOfClassesAreUtf8WhateverTheFolderIsCalled) {
  TemporaryFolder folder;
  for (const char* name : {"val/caf\xe9\\/1.jpg", "val/caf\xc3\xa9\\/1.jpg", "val/tea/2.jpg"})
    folder.Write(name, JpegBytes(Pattern(4, 4, 3)));
  const auto open = [&] { return OpenData("imagefolder", folder.path(), Split::kValidation); };
  auto validation = open();
  ASSERT_TRUE(validation.ok()) << Message(validation.status());
  const std::vector<std::string> names = (*validation)->class_names();
  EXPECT_THAT(names, ElementsAre("caf\xc3\xa9\\", "caf\\xe9\\\\", "tea"));
  EXPECT_TRUE((*validation)->Get(1).ok());
  EXPECT_TRUE(WithClasses(std::move(*validation), {names[2], names[1], names[0]}).ok());
  folder.Write("val/caf\\xe9\\\\/1.jpg", JpegBytes(Pattern(4, 4, 3)));
  EXPECT_THAT(Error(open().status()), HasSubstr("two class folders are both called caf\\xe9\\\\"));
}

TEST(WithClasses, LabelsAreThoseOfTheSameNameAndUnknownClassesAreNamed) {
  TemporaryFolder folder;
  for (const char* name : {"val/dog/1.jpg", "val/zebra/1.jpg", "val/zebra/2.jpg"})
    folder.Write(name, JpegBytes(Pattern(4, 4, 3)));
  const auto open = [&] { return std::move(*OpenData("imagefolder", folder.path(), Split::kValidation)); };
  const auto renamed = WithClasses(open(), {"zebra", "cat", "dog"});
  ASSERT_TRUE(renamed.ok()) << Message(renamed.status());
  EXPECT_THAT((*renamed)->class_names(), ElementsAre("zebra", "cat", "dog"));
  std::vector<int> labels;
  for (int64_t i = 0; i < (*renamed)->size(); ++i) labels.push_back((*renamed)->Get(i)->label);
  EXPECT_THAT(labels, ElementsAre(2, 0, 0));
  EXPECT_EQ((*renamed)->crop_ratio(), 0.875f);
  EXPECT_THAT(Error(WithClasses(open(), {"dog", "zebras"}).status()),
              AllOf(HasSubstr("does not know 1 of the dataset's 2 classes: zebra (did you mean zebras?)"),
                    HasSubstr("it knows dog, zebras")));
  EXPECT_THAT(Error(WithClasses(open(), {"dog", "zebra", "dog"}).status()), HasSubstr("two classes of the name dog"));
  // Names of a checkpoint, which may be anybody's.
  const std::string long_name(1 << 20, 'z');
  const std::string message = Error(WithClasses(open(), {"dog", "zebra\nerror: x", long_name}).status());
  EXPECT_THAT(message, HasSubstr("it knows dog, zebra\\nerror: x, zzz"));
  EXPECT_LT(message.size(), 1000u);
}

TEST(ImageFolder, RefusesDamagedTars) {
  TemporaryFolder folder;
  const Bytes good = TarBytes(SmallImageFolder(1, 1));
  const auto error = [&](const Bytes& bytes) {
    return Error(OpenData("imagefolder", folder.Write("x.tar", bytes), Split::kTrain).status());
  };
  Bytes broken = good;
  broken[3] ^= 1;
  EXPECT_THAT(error(broken), AllOf(HasSubstr("x.tar"), HasSubstr("no tar header")));
  broken = good;
  size_t second = 512 + (JpegBytes(Pattern(20, 30, 3)).size() + 511) / 512 * 512;
  broken[second + 130] ^= 1;
  EXPECT_THAT(error(broken),
              AllOf(HasSubstr("x.tar"), HasSubstr(fmt::format("broken tar header at offset {}", second))));
  EXPECT_THAT(error(Bytes(good.begin(), good.begin() + 700)), AllOf(HasSubstr("x.tar"), HasSubstr("past the end")));
  EXPECT_THAT(error(Bytes(good.begin(), good.begin() + 100)), AllOf(HasSubstr("x.tar"), HasSubstr("inside a header")));
  EXPECT_THAT(error({}), HasSubstr("empty"));
  EXPECT_THAT(error(Bytes(2048, 0)), HasSubstr("zeros"));
  const Bytes packed = GzipBytes(good);
  EXPECT_THAT(error(Bytes(packed.begin(), packed.begin() + static_cast<long>(packed.size() / 2))),
              HasSubstr("damaged gzip"));
}

TEST(ImageFolder, NamesTheFileThatDoesNotDecode) {
  TemporaryFolder folder;
  Bytes jpeg = JpegBytes(Pattern(64, 64, 3));
  jpeg.resize(jpeg.size() / 2);
  folder.Write("train/ant/half.jpg", jpeg);
  const auto train = OpenData("imagefolder", folder.path(), Split::kTrain);
  ASSERT_TRUE(train.ok());
  EXPECT_THAT(Error((*train)->Get(0).status()), AllOf(HasSubstr("train/ant/half.jpg"), HasSubstr("damaged JPEG")));
}

TEST(KnownDatasets, AllHaveHelpAndAMistypedNameGetsASuggestion) {
  for (const DatasetInfo& info : KnownDatasets()) EXPECT_FALSE(info.help.empty());
  EXPECT_THAT(Error(OpenData("fashion-mnits", {}, Split::kTrain).status()), HasSubstr("did you mean fashion-mnist?"));
}

TEST(KnownDatasets, SyntheticAndShapesNeedNoFile) {
  DatasetOptions options;
  options.name = "synthetic";
  options.image_size = 48;
  options.classes = 7;
  const auto synthetic = OpenDataset(options, Split::kTrain);
  ASSERT_TRUE(synthetic.ok());
  EXPECT_EQ((*synthetic)->size(), 1281167);
  options.content = Content::kMaskedVolumes;
  EXPECT_EQ((*OpenDataset(options, Split::kTrain))->size(), 2975);
  EXPECT_EQ((*OpenDataset(options, Split::kValidation))->size(), 500);
  EXPECT_EQ((*synthetic)->Get(13)->image.width, 48);
  EXPECT_EQ((*synthetic)->Get(13)->label, 6);

  options = {};
  options.name = "shapes";
  const auto train = OpenDataset(options, Split::kTrain), again = OpenDataset(options, Split::kTrain);
  const auto validation = OpenDataset(options, Split::kValidation);
  EXPECT_EQ((*train)->Checksum(), (*again)->Checksum());
  EXPECT_NE((*train)->Get(5)->image.bytes, (*validation)->Get(5)->image.bytes);
  std::vector<int> counts(10);
  for (int64_t i = 0; i < 1000; ++i) ++counts[static_cast<size_t>((*train)->Get(i)->label)];
  for (const int count : counts) EXPECT_GT(count, 60);
}

TEST(KnownDatasets, MadeUpOnesOfNothingAreRefused) {
  const auto error = [](const std::function<void(DatasetOptions&)>& change) {
    DatasetOptions options;
    options.name = "synthetic";
    change(options);
    return Error(OpenDataset(options, Split::kTrain).status());
  };
  EXPECT_EQ(error([](DatasetOptions&) {}), "no error");
  EXPECT_EQ(error([](DatasetOptions& o) { o.image_size = 0; }), "expected an image size of 1 to 8192 pixels, found 0");
  EXPECT_EQ(error([](DatasetOptions& o) { o.classes = 0; }), "expected 1 class or more, found 0");
  EXPECT_EQ(error([](DatasetOptions& o) { o.train_size = 0; }), "expected 1 training sample or more, found 0");
  EXPECT_EQ(error([](DatasetOptions& o) { o.validation_size = -1; }), "expected 1 validation sample or more, found -1");
}

// A file that is no regular one is refused at once, whoever reads it: nothing waits for a pipe's other end.
TEST(Irregular, NoReaderOfDataWaitsForAPipe) {
  const TemporaryFolder folder;
  for (const auto& [name, bytes] : SmallImageFolder(1, 1)) folder.Write("images/" + name, bytes);
  const auto pipe = [&](const std::string& name) {
    const std::string path = folder.path() + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::filesystem::remove(path);
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  };
  const auto images = OpenData("imagefolder", folder.path() + "/images", Split::kTrain);
  ASSERT_TRUE(images.ok());
  pipe("images/" + (*images)->Path(0).substr((folder.path() + "/images/").size()));
  EXPECT_THAT(Error((*images)->Get(0).status()), HasSubstr("expected a regular file, found a pipe"));
  EXPECT_THAT(Error(OpenData("imagefolder", pipe("data.tar"), Split::kTrain).status()), HasSubstr("found a pipe"));
  EXPECT_THAT(Error(OpenData("cifar10", pipe("alone/data.tar.gz"), Split::kTrain).status()), HasSubstr("found a pipe"));
  pipe("idx/train-images-idx3-ubyte");
  pipe("idx/train-labels-idx1-ubyte");
  EXPECT_THAT(Error(OpenData("idx", folder.path() + "/idx", Split::kTrain).status()), HasSubstr("found a pipe"));
  pipe("cifar/data_batch_1.bin");
  EXPECT_THAT(Error(OpenData("cifar10", folder.path() + "/cifar", Split::kTrain).status()), HasSubstr("found a pipe"));
  EXPECT_THAT(Error(OpenData("imagefolder", "/dev/zero", Split::kTrain).status()), HasSubstr("found a device"));
}

TEST(Irregular, AGzipBombEndsAtTheLimit) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("bomb.gz", GzipBytes(Bytes(64 << 20)));
  EXPECT_LT(std::filesystem::file_size(path), 100'000u);
  const auto read = [&](uint64_t count, Bytes* bytes) {
    auto stream = FileStream::Open(path);
    return stream.ok() ? stream->Finish(count, "of zeros", bytes) : stream.status();
  };
  Bytes bytes, all;
  const Status status = read(1 << 20, &bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Error(status), HasSubstr("bomb.gz: expected 1048576 bytes of zeros, found more than that"));
  EXPECT_LE(bytes.capacity(), size_t{4} << 20) << "memory is taken for no more than was asked for";
  EXPECT_TRUE(read(64 << 20, &all).ok());
  EXPECT_EQ(all.size(), size_t{64} << 20);
}

TEST(Irregular, NamesFromAnArchiveAreShownWithoutControlCharacters) {
  const TemporaryFolder folder;
  auto files = SmallImageFolder(1, 1);
  files.push_back({"val/\x1b[2Jzebra/z.png", PngBytes(Pattern(8, 8, 3))});
  const std::string path = folder.Write("data.tar", TarBytes(files));
  const std::string text = Error(OpenData("imagefolder", path, Split::kValidation).status());
  EXPECT_THAT(text, HasSubstr("class \\x1b[2Jzebra is in val but not in train"));
}

// With the real files, where they are.
std::string RealData(const std::string& name) {
  const auto folder = Environment("SWITCHYARD_DATA");
  return folder && std::filesystem::exists(*folder + "/" + name) ? *folder + "/" + name : "";
}

TEST(RealData, FashionMnistHasItsCountsAndMean) {
  const std::string path = RealData("fashion-mnist");
  if (path.empty()) GTEST_SKIP() << "SWITCHYARD_DATA has no fashion-mnist";
  const auto train = OpenData("fashion-mnist", path, Split::kTrain);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  EXPECT_EQ((*train)->size(), 60000);
  EXPECT_EQ((*OpenData("fashion-mnist", path, Split::kValidation))->size(), 10000);
  double sum = 0;
  std::vector<int> counts(10);
  Sample sample;
  for (int64_t i = 0; i < 60000; ++i) {
    ASSERT_TRUE((*train)->Read(i, &sample).ok());
    for (const uint8_t byte : sample.image.bytes) sum += byte;
    ++counts[static_cast<size_t>(sample.label)];
  }
  EXPECT_NEAR(sum / (60000.0 * 784 * 255), 0.2860, 5e-5);
  EXPECT_EQ(counts, std::vector<int>(10, 6000));
}

TEST(RealData, Cifar10CountsComeFromTheFileSizes) {
  const std::string path = RealData("cifar10");
  if (path.empty()) GTEST_SKIP() << "SWITCHYARD_DATA has no cifar10";
  const auto train = OpenData("cifar10", path, Split::kTrain), test = OpenData("cifar10", path, Split::kTest);
  ASSERT_TRUE(train.ok()) << Message(train.status());
  std::vector<int64_t> counts(10);
  for (int64_t i = 0; i < (*train)->size(); ++i) ++counts[static_cast<size_t>((*train)->Get(i)->label)];
  EXPECT_EQ(counts, std::vector<int64_t>(10, (*train)->size() / 10));
  EXPECT_EQ((*test)->class_names()[8], "ship");
}

TEST(RealData, BeansDecodeInEverySplit) {
  const std::string path = RealData("beans");
  if (path.empty()) GTEST_SKIP() << "SWITCHYARD_DATA has no beans";
  const std::pair<Split, int64_t> splits[] = {{Split::kTrain, 1034}, {Split::kValidation, 133}, {Split::kTest, 88}};
  for (const auto& [split, size] : splits) {
    const auto beans = OpenData("beans", path, split);
    ASSERT_TRUE(beans.ok()) << Message(beans.status());
    EXPECT_EQ((*beans)->size(), size);
    EXPECT_THAT((*beans)->class_names(), ElementsAre("angular_leaf_spot", "bean_rust", "healthy"));
    for (int64_t i = 0; i < size; i += 7) {
      const auto sample = (*beans)->Get(i);
      ASSERT_TRUE(sample.ok()) << Message(sample.status());
      EXPECT_EQ(sample->image.height, 256);
    }
  }
}

}  // namespace
}  // namespace switchyard
