// Images from the bytes of JPEG and PNG files: values, channels, and damaged, hostile and enormous files.
#include <algorithm>
#include <cstdlib>

#include "core/data/formats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/data/files_for_tests.h"
#include "tests/data/opened_data.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

TEST(Decoding, JpegIsCloseToWhatWasEncoded) {
  Image smooth;
  smooth.Reshape(48, 40, 3);
  for (size_t i = 0; i < smooth.bytes.size(); ++i) smooth.bytes[i] = static_cast<uint8_t>(i % 3 * 60 + i / 120);
  Image decoded;
  ASSERT_TRUE(DecodeImage(JpegBytes(smooth, 98), &decoded).ok());
  ASSERT_EQ(decoded.bytes.size(), smooth.bytes.size());
  int worst = 0;
  for (size_t i = 0; i < smooth.bytes.size(); ++i)
    worst = std::max(worst, std::abs(smooth.bytes[i] - decoded.bytes[i]));
  EXPECT_LE(worst, 8);
}

TEST(Decoding, GreyAndAlphaAndCmykBecomeRgb) {
  Image decoded;
  ASSERT_TRUE(DecodeImage(JpegBytes(Pattern(8, 9, 1)), &decoded).ok());
  EXPECT_EQ(decoded.channels, 3);
  ASSERT_TRUE(DecodeImage(JpegBytes(Pattern(8, 9, 4)), &decoded).ok());
  EXPECT_EQ(decoded.bytes.size(), 8u * 9 * 3);
  // Rounded as PIL does: light 101 behind ink of 1 in 255 is 101, not 100.6 cut off.
  Image plain = Pattern(8, 8, 4);
  for (size_t i = 0; i < plain.bytes.size(); ++i) plain.bytes[i] = i % 4 == 3 ? 101 : 254;
  ASSERT_TRUE(DecodeImage(JpegBytes(plain), &decoded).ok());
  EXPECT_THAT(decoded.bytes, testing::Each(101));
  ASSERT_TRUE(DecodeImage(PngBytes(Pattern(8, 9, 1)), &decoded).ok());
  Image expected = Pattern(8, 9, 1);
  ConvertChannels(3, &expected);
  EXPECT_EQ(decoded.bytes, expected.bytes);
  Image opaque = Pattern(8, 9, 4);
  ASSERT_TRUE(DecodeImage(PngBytes(opaque), &decoded).ok());
  EXPECT_EQ(decoded.bytes[4], opaque.bytes[5]);
}

TEST(Decoding, DamagedImagesAreErrorsAtEveryLength) {
  Image decoded;
  for (const Bytes& good : {JpegBytes(Pattern(33, 31, 3)), PngBytes(Pattern(33, 31, 3))}) {
    ASSERT_TRUE(DecodeImage(good, &decoded).ok());
    for (size_t length = 0; length + 2 < good.size(); length += length < 700 ? 1 : 13) {
      EXPECT_FALSE(DecodeImage(std::span(good).first(length), &decoded).ok()) << length << " of " << good.size();
    }
  }
  EXPECT_FALSE(DecodeImage(Bytes{'G', 'I', 'F', '8'}, &decoded).ok());
}

TEST(Decoding, FlippedBitsNeverCrash) {
  Image decoded;
  int refused = 0;
  for (const Bytes& good : {JpegBytes(Pattern(33, 31, 3)), PngBytes(Pattern(33, 31, 3))}) {
    for (size_t i = 0; i < good.size(); ++i) {
      Bytes bad = good;
      bad[i] ^= static_cast<uint8_t>(1 << i % 8);
      refused += !DecodeImage(bad, &decoded).ok();
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Decoding, AJpegOfThousandsOfScansIsRefused) {
  Bytes jpeg = JpegBytes(Pattern(16, 16, 3), 95, true);
  Image decoded;
  ASSERT_TRUE(DecodeImage(jpeg, &decoded).ok());
  const Bytes start_of_scan = {0xFF, 0xDA}, tables = {0xFF, 0xC4};
  const auto first = std::search(jpeg.begin(), jpeg.end(), start_of_scan.begin(), start_of_scan.end());
  const auto next = std::search(first, jpeg.end(), tables.begin(), tables.end());
  const Bytes scan(first, next);
  const auto end = next - jpeg.begin();
  for (int i = 0; i < 5000; ++i) jpeg.insert(jpeg.begin() + end, scan.begin(), scan.end());
  EXPECT_THAT(Error(DecodeImage(jpeg, &decoded)), HasSubstr("more than 100 scans"));
}

TEST(Decoding, EnormousImagesAreRefusedBeforeMemoryIsTaken) {
  Bytes jpeg = JpegBytes(Pattern(16, 16, 3));
  const Bytes start_of_frame = {0xFF, 0xC0};
  const auto at = std::search(jpeg.begin(), jpeg.end(), start_of_frame.begin(), start_of_frame.end());
  ASSERT_NE(at, jpeg.end());
  for (int i = 5; i < 9; ++i) at[i] = 0xFA;
  Image decoded;
  EXPECT_THAT(Error(DecodeImage(jpeg, &decoded)), HasSubstr("64250 x 64250"));
}

}  // namespace
}  // namespace switchyard
