#include "core/data/volume.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "core/data/files.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/data/files_for_tests.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
void Put(T value, bool big_endian, size_t at, Bytes* bytes) {
  if (bytes->size() < at + sizeof(T)) bytes->resize(at + sizeof(T));
  std::memcpy(bytes->data() + at, &value, sizeof(T));
  if (big_endian)
    std::reverse(bytes->begin() + static_cast<long>(at), bytes->begin() + static_cast<long>(at + sizeof(T)));
}

void PutFloats(size_t at, const std::vector<float>& values, bool big_endian, Bytes* bytes) {
  for (size_t i = 0; i < values.size(); ++i) Put(values[i], big_endian, at + 4 * i, bytes);
}

// (x, y, z) = (4, 3, 2): voxels of `values`, datatype as in nifti1.h, an extension of 16 bytes before them.
template <typename T>
Bytes NiftiBytes(const std::vector<T>& values, int16_t datatype, bool big = false, float slope = 0, float inter = 0) {
  Bytes bytes(368);
  Put(int32_t{348}, big, 0, &bytes);
  const int16_t dim[] = {3, 4, 3, 2, 1, 1, 1, 1};
  for (size_t i = 0; i < 8; ++i) Put(dim[i], big, 40 + 2 * i, &bytes);
  Put(datatype, big, 70, &bytes);
  Put(static_cast<int16_t>(8 * sizeof(T)), big, 72, &bytes);
  Put(368.0f, big, 108, &bytes);
  Put(slope, big, 112, &bytes);
  Put(inter, big, 116, &bytes);
  Put(-1.5f, big, 280, &bytes);  // srow_x[0]: the orientation
  std::memcpy(&bytes[344], "n+1", 4);
  bytes[348] = 1;
  std::memcpy(&bytes[356], "extended", 8);
  for (const T value : values) Put(value, big, bytes.size(), &bytes);
  return bytes;
}

template <typename T>
Bytes NpyBytes(const std::vector<T>& values, const std::string& descr, const std::string& order = "False",
               const std::string& shape = "(2, 3, 4)", bool big = false) {
  std::string text = "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  text.resize(117, ' ');
  text += '\n';
  Bytes bytes = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0};
  bytes.insert(bytes.end(), text.begin(), text.end());
  for (const T value : values) Put(value, big, bytes.size(), &bytes);
  return bytes;
}

template <typename T>
std::vector<T> Counting() {
  std::vector<T> values;
  for (int i = 0; i < 24; ++i) values.push_back(static_cast<T>(3 * i + 1));
  return values;
}

class VolumeFiles : public ::testing::Test {
 protected:
  Volume Read(const std::string& name, const Bytes& bytes) {
    auto volume = ReadVolume(folder_.Write(name, bytes));
    EXPECT_TRUE(volume.ok()) << Message(volume.status());
    return volume.ok() ? *volume : Volume{};
  }
  std::string Error(const std::string& name, const Bytes& bytes) {
    const auto volume = ReadVolume(folder_.Write(name, bytes));
    return volume.ok() ? "no error" : Message(volume.status());
  }
  // Reads, checks every voxel, and that writing gives the same bytes.
  template <typename T>
  void ReadsAndWrites(const std::string& name, const Bytes& bytes) {
    const Volume v = Read(name, bytes);
    ASSERT_THAT((std::vector<int64_t>{v.depth, v.height, v.width}), ElementsAre(2, 3, 4)) << name;
    for (size_t i = 0; i < 24; ++i) ASSERT_EQ(v.voxels[i], static_cast<float>(3 * i + 1)) << name << ' ' << i;
    EXPECT_EQ(EncodeVolume(v), bytes) << name;
  }
  TemporaryFolder folder_;
};

TEST_F(VolumeFiles, NiftiOfEveryTypeAndByteOrderIsReadAndWrittenBack) {
  for (const bool big : {false, true}) {
    ReadsAndWrites<uint8_t>("u8.nii", NiftiBytes(Counting<uint8_t>(), 2, big));
    ReadsAndWrites<int8_t>("i8.nii", NiftiBytes(Counting<int8_t>(), 256, big));
    ReadsAndWrites<int16_t>("i16.nii", NiftiBytes(Counting<int16_t>(), 4, big));
    ReadsAndWrites<uint16_t>("u16.nii", NiftiBytes(Counting<uint16_t>(), 512, big));
    ReadsAndWrites<int32_t>("i32.nii", NiftiBytes(Counting<int32_t>(), 8, big));
    ReadsAndWrites<uint32_t>("u32.nii", NiftiBytes(Counting<uint32_t>(), 768, big));
    ReadsAndWrites<float>("f32.nii", NiftiBytes(Counting<float>(), 16, big));
    ReadsAndWrites<double>("f64.nii", NiftiBytes(Counting<double>(), 64, big));
  }
}

TEST_F(VolumeFiles, NpyOfEveryTypeAndByteOrderIsReadAndWrittenBack) {
  ReadsAndWrites<uint8_t>("u1.npy", NpyBytes(Counting<uint8_t>(), "|u1"));
  ReadsAndWrites<int16_t>("i2.npy", NpyBytes(Counting<int16_t>(), "<i2"));
  ReadsAndWrites<uint32_t>("u4.npy", NpyBytes(Counting<uint32_t>(), ">u4", "False", "(2, 3, 4)", true));
  ReadsAndWrites<float>("f4.npy", NpyBytes(Counting<float>(), "<f4"));
  ReadsAndWrites<double>("f8.npy", NpyBytes(Counting<double>(), ">f8", "False", "(2, 3, 4)", true));
}

TEST_F(VolumeFiles, FortranOrderIsTurned) {
  const Bytes bytes = NpyBytes(Counting<int16_t>(), "<i2", "True");
  const Volume v = Read("f.npy", bytes);
  // (d, h, w) = (1, 2, 3) is the last in both orders, (0, 0, 1) the second here and the seventh there.
  EXPECT_EQ(v.voxels[23], 70);
  EXPECT_EQ(v.voxels[1], 3 * 6 + 1);
  EXPECT_EQ(v.voxels[12], 3 * 1 + 1);
  EXPECT_EQ(EncodeVolume(v), bytes);
}

TEST_F(VolumeFiles, ScaledVoxelsAreReadInTheirUnitsAndWrittenAsStored) {
  const Bytes bytes = NiftiBytes(Counting<int16_t>(), 4, false, 0.5f, -10);
  Volume v = Read("scaled.nii", bytes);
  EXPECT_EQ(v.voxels[0], -9.5f);
  EXPECT_EQ(v.voxels[23], 25);
  EXPECT_EQ(EncodeVolume(v), bytes);
  v.voxels = {1e9f, -1e9f, std::numeric_limits<float>::quiet_NaN()};
  v.depth = v.height = 1, v.width = 3;
  const Bytes written = EncodeVolume(v);
  int16_t stored[3];
  std::memcpy(stored, &written[368], 6);
  EXPECT_THAT(stored, ElementsAre(32767, -32768, 0));
}

TEST_F(VolumeFiles, CompressedComesBackCompressed) {
  const Bytes plain = NiftiBytes(Counting<float>(), 16);
  const Volume v = Read("a.nii.gz", GzipBytes(plain));
  const Bytes packed = EncodeVolume(v);
  ASSERT_GT(packed.size(), 2u);
  EXPECT_EQ(packed[0], 0x1f);
  auto stream = FileStream::Open(folder_.Write("b.nii.gz", packed));
  ASSERT_TRUE(stream.ok()) << Message(stream.status());
  Bytes again;
  ASSERT_TRUE(stream->Finish(plain.size(), "of a volume", &again).ok());
  EXPECT_EQ(again, plain);
}

// A header as scanners leave it: left-handed voxels of unequal size, an oblique sform beside another qform, units,
// words and an intent. All of it stays but what says how the mask's own voxels are stored.
TEST_F(VolumeFiles, AMaskKeepsEveryByteOfTheHeaderThatPlacesItsImage) {
  const Bytes ids(24, 1);
  for (const bool big : {false, true}) {
    Bytes bytes = NiftiBytes(Counting<int16_t>(), 4, big, 2, -1024);
    const auto put = [&](size_t at, const std::vector<float>& values) { PutFloats(at, values, big, &bytes); };
    put(76, {-1, 0.7f, 0.8f, 2.5f, 1.5f});          // pixdim: qfac, millimetres, seconds
    bytes[123] = 2 | 8;                             // xyzt_units
    put(124, {3000, -1000});                        // cal_max, cal_min: of the image's intensities
    std::memcpy(&bytes[148], "head, 3 of 7", 12);   // descrip
    Put(int16_t{1}, big, 252, &bytes);              // qform_code: the scanner's
    Put(int16_t{2}, big, 254, &bytes);              // sform_code: aligned
    put(256, {0.1f, -0.2f, 0.97f, -90, 126, -72});  // quaternion and offset
    put(280, {-0.6f, 0.1f, 0.9f, 91, 0.2f, -0.7f, 0.3f, -17, 0.1f, 0.2f, -2.3f, 55});  // srow_x, srow_y, srow_z
    const std::vector<uint8_t> written = EncodeVolume(MaskLike(Read("image.nii", bytes), ids));
    const auto own = [](size_t at) {  // datatype and bitpix, scl_slope and scl_inter, cal_max and cal_min
      return (at >= 70 && at < 74) || (at >= 112 && at < 120) || (at >= 124 && at < 132);
    };
    for (size_t at = 0; at < 368; ++at) {
      EXPECT_TRUE(own(at) || written[at] == bytes[at]) << at;
    }
  }
}

TEST_F(VolumeFiles, AMaskHasTheFormatAndOrientationOfItsImage) {
  Bytes ids(24);
  for (size_t i = 0; i < 24; ++i) ids[i] = static_cast<uint8_t>(i % 3);
  for (const bool big : {false, true}) {
    const Volume image = Read("image.nii", NiftiBytes(Counting<float>(), 16, big, 2, 5));
    const Bytes written = EncodeVolume(MaskLike(image, ids));
    EXPECT_EQ(written.size(), 368u + 24u);
    EXPECT_TRUE(std::equal(&written[252], &written[344], &image.header[252])) << "qform and sform";
    const Volume mask = Read("mask.nii", written);
    EXPECT_EQ(mask.stored, VoxelType::kU8);
    EXPECT_EQ(mask.slope, 1);
    for (size_t i = 0; i < 24; ++i) EXPECT_EQ(mask.voxels[i], ids[i]);
  }
  const Volume image = Read("image.npy", NpyBytes(Counting<float>(), "<f4", "True"));
  const Bytes written = EncodeVolume(MaskLike(image, ids));
  EXPECT_EQ((written.size() - 24) % 64, 0u);
  const Volume mask = Read("mask.npy", written);
  EXPECT_THAT(mask.order.axis, ElementsAre(2, 1, 0));
  EXPECT_EQ(mask.depth, 2);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(mask.voxels[i], ids[i]);
}

Bytes OrientedBytes(const nlohmann::json& header, bool big) {
  std::vector<int16_t> counting;
  for (int16_t i = 0; i < 24; ++i) counting.push_back(i);
  Bytes bytes = NiftiBytes(counting, 4, big);
  Put(header["qform_code"].get<int16_t>(), big, 252, &bytes);
  Put(header["sform_code"].get<int16_t>(), big, 254, &bytes);
  PutFloats(76, header["pixdim"], big, &bytes);
  PutFloats(256, header["quaternion"], big, &bytes);
  for (size_t row = 0; row < 3; ++row) PutFloats(280 + 16 * row, header["srow"][row], big, &bytes);
  return bytes;
}

TEST_F(VolumeFiles, AHeaderThatTurnsItsVolumeIsFollowedAsByNibabelAndKept) {
  const auto recorded = nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/orientation.json"));
  ASSERT_GT(recorded["cases"].size(), 48u);
  for (const auto& c : recorded["cases"]) {
    for (const bool big : {false, true}) {
      const Bytes bytes = OrientedBytes(c, big);
      const Volume v = Read("turned.nii", bytes);
      EXPECT_TRUE(v.oriented);
      const std::vector<int64_t> shape = c["canonical_shape"];  // (x, y, z)
      ASSERT_THAT(ExtentsOf(v), ElementsAre(shape[2], shape[1], shape[0])) << c;
      EXPECT_EQ(v.voxels, c["canonical"].get<std::vector<float>>()) << c;
      EXPECT_EQ(EncodeVolume(v), bytes) << "written as it was read";
      const auto extents = ReadVolumeExtents(folder_.path() + "/turned.nii");
      ASSERT_TRUE(extents.ok());
      EXPECT_EQ(*extents, ExtentsOf(v));
    }
  }
}

// Along the axes of the file unless the header says otherwise, or the caller where it says nothing.
TEST_F(VolumeFiles, AHeaderThatDoesNotSayHowItLies) {
  const Bytes bytes = NiftiBytes(Counting<float>(), 16);
  const FileOrder turned = {.axis = {1, 0, 2}, .reversed = {false, true, false}};
  const auto other = ReadVolume(folder_.Write("a.nii", bytes), turned);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->oriented);
  EXPECT_THAT(ExtentsOf(*other), ElementsAre(3, 2, 4));
  EXPECT_EQ(other->voxels[0], Read("a.nii", bytes).voxels[12]) << "the second slice of the file";
  EXPECT_EQ(EncodeVolume(*other), bytes);
  Bytes flat = bytes;
  Put(int16_t{1}, false, 254, &flat);  // sform_code, and srow_y and srow_z are 0
  EXPECT_THAT(Error("a.nii", flat), AllOf(HasSubstr("a.nii"), HasSubstr("sform"), HasSubstr("no direction")));
  Put(std::numeric_limits<float>::quiet_NaN(), false, 284, &flat);
  EXPECT_THAT(Error("a.nii", flat), HasSubstr("no direction"));
}

TEST_F(VolumeFiles, ExtentsAreReadFromTheHeaderAlone) {
  const Bytes nifti = NiftiBytes(Counting<int16_t>(), 4), npy = NpyBytes(Counting<double>(), "<f8");
  const auto extents = [&](const std::string& name, const Bytes& bytes) {
    const auto found = ReadVolumeExtents(folder_.Write(name, bytes));
    return found.ok() ? fmt::format("{}", fmt::join(*found, " ")) : Message(found.status());
  };
  EXPECT_EQ(extents("a.nii", nifti), "2 3 4");
  EXPECT_EQ(extents("a.npy", npy), "2 3 4");
  EXPECT_THAT(extents("a.nii", Bytes(nifti.begin(), nifti.end() - 1)), HasSubstr("a.nii: expected 48 bytes"));
  // Of a compressed file the end need not be there, let alone be right.
  Bytes large = nifti;
  Put(int16_t{300}, false, 42, &large);
  Put(int16_t{200}, false, 44, &large);
  Put(int16_t{100}, false, 46, &large);
  std::minstd_rand noise;
  while (large.size() < 368 + 2 * 300 * 200 * 100) large.push_back(static_cast<uint8_t>(noise() >> 8));
  Bytes packed = GzipBytes(large);
  packed.resize(packed.size() / 2);
  EXPECT_EQ(extents("a.nii.gz", packed), "100 200 300");
  // A header that promises more than any compression gives is not believed: windows of it would fill the memory.
  large = nifti;
  for (size_t i = 0; i < 3; ++i) Put(int16_t{30000}, false, 42 + 2 * i, &large);
  EXPECT_THAT(extents("a.nii.gz", GzipBytes(large)), HasSubstr("a.nii.gz: expected 54000000000000 bytes"));
  EXPECT_THAT(extents("a.nii", {}), HasSubstr("found 0 bytes"));
}

TEST_F(VolumeFiles, DamagedAndForeignNiftiIsRefusedByName) {
  const Bytes good = NiftiBytes(Counting<int16_t>(), 4);
  const auto changed = [&](size_t at, auto value) {
    Bytes bytes = good;
    Put(value, false, at, &bytes);
    return Error("v.nii", bytes);
  };
  const auto file = HasSubstr("v.nii");
  EXPECT_THAT(Error("v.nii", Bytes(good.begin(), good.end() - 1)),
              AllOf(file, HasSubstr("expected 48 bytes"), HasSubstr("found 47")));
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_THAT(Error("v.nii", longer), AllOf(file, HasSubstr("found 49")));
  EXPECT_THAT(Error("v.nii", Bytes(good.begin(), good.begin() + 347)), AllOf(file, HasSubstr("found 347 bytes")));
  EXPECT_THAT(Error("v.nii", {}), AllOf(file, HasSubstr("found 0 bytes")));
  EXPECT_THAT(changed(0, int32_t{349}), AllOf(file, HasSubstr("number 348")));
  EXPECT_THAT(changed(344, uint32_t{0x0031696e}), AllOf(file, HasSubstr(".hdr and .img")));
  EXPECT_THAT(changed(40, int16_t{2}), AllOf(file, HasSubstr("found 2 (4, 3)")));
  EXPECT_THAT(changed(40, int16_t{-7}), AllOf(file, HasSubstr("found -7")));
  EXPECT_THAT(changed(42, int16_t{-4}), AllOf(file, HasSubstr("(2, 3, -4)")));
  EXPECT_THAT(changed(46, int16_t{0}), AllOf(file, HasSubstr("(0, 3, 4)")));
  EXPECT_THAT(changed(70, int16_t{32}), AllOf(file, HasSubstr("datatype 32")));
  for (const float offset : {0.0f, 1e9f, -1.0f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_THAT(changed(108, offset), AllOf(file, HasSubstr("voxels after the header"))) << offset;
  Bytes series = good;
  Put(int16_t{4}, false, 40, &series);
  Put(int16_t{1}, false, 48, &series);
  EXPECT_EQ(Error("v.nii", series), "no error");
  Put(int16_t{2}, false, 48, &series);
  EXPECT_THAT(Error("v.nii", series), AllOf(file, HasSubstr("found 4 (4, 3, 2, 2)")));
  const Bytes packed = GzipBytes(good);
  EXPECT_THAT(Error("v.nii.gz", Bytes(packed.begin(), packed.end() - 12)), AllOf(file, HasSubstr("damaged gzip")));
}

TEST_F(VolumeFiles, DamagedAndForeignNpyIsRefusedByName) {
  const auto values = Counting<int16_t>();
  const Bytes good = NpyBytes(values, "<i2");
  const auto file = HasSubstr("v.npy");
  EXPECT_THAT(Error("v.npy", Bytes(good.begin(), good.end() - 1)), AllOf(file, HasSubstr("found 47")));
  EXPECT_THAT(Error("v.npy", Bytes(good.begin(), good.begin() + 40)), AllOf(file, HasSubstr("ends inside")));
  EXPECT_THAT(Error("v.npy", Bytes(good.begin(), good.begin() + 8)), AllOf(file, HasSubstr("ends inside")));
  EXPECT_THAT(Error("v.npy", NpyBytes(values, "<c8")), AllOf(file, HasSubstr("<c8")));
  EXPECT_THAT(Error("v.npy", NpyBytes(values, "<i2", "False", "(24,)")), AllOf(file, HasSubstr("found (24)")));
  EXPECT_THAT(Error("v.npy", NpyBytes(values, "<i2", "False", "(2, x, 4)")), AllOf(file, HasSubstr("(2, 0, 4)")));
  EXPECT_THAT(Error("v.npy", NpyBytes(values, "<i2", "False", "(9223372036854775807, 9, 4)")),
              AllOf(file, HasSubstr("expected three extents")));
  Bytes version = good;
  version[6] = 9;
  EXPECT_THAT(Error("v.npy", version), AllOf(file, HasSubstr("version 1 to 3, found 9")));
}

}  // namespace
}  // namespace switchyard
