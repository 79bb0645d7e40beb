#include "core/base/checksum.h"

#include <zlib.h>

#include <vector>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

std::vector<unsigned char> SomeBytes(size_t count) {
  std::vector<unsigned char> bytes(count);
  uint32_t word = 1;
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>((word = word * 1664525 + 1013904223) >> 24);
  return bytes;
}

// The check value of CRC-32 (G. Cook's catalogue of CRC algorithms, "CRC-32/ISO-HDLC").
TEST(Checksum, HasTheCheckValue) {
  EXPECT_EQ(Crc32("123456789", 9), 0xCBF43926u);
  EXPECT_EQ(Crc32(nullptr, 0), 0u);
  EXPECT_EQ(Crc32(nullptr, 0, 5), 5u);
}

// Every length around the sizes of the blocks in which it is computed, from aligned and unaligned addresses.
TEST(Checksum, IsThatOfZlibAtEveryLengthAndAddress) {
  const std::vector<unsigned char> bytes = SomeBytes(1500);
  for (const size_t from : {0, 1, 13}) {
    for (size_t count = 0; count + from <= bytes.size(); ++count) {
      ASSERT_EQ(Crc32(bytes.data() + from, count, 77), crc32_z(77, bytes.data() + from, count)) << from << " " << count;
    }
  }
  const std::vector<unsigned char> many = SomeBytes(1'000'003), ones(70'000, 0xFF);
  EXPECT_EQ(Crc32(many.data(), many.size()), crc32_z(0, many.data(), many.size()));
  EXPECT_EQ(Crc32(ones.data(), ones.size()), crc32_z(0, ones.data(), ones.size()));
}

TEST(Checksum, GoesOnFromWhatCameBefore) {
  const std::vector<unsigned char> bytes = SomeBytes(3000);
  const uint32_t whole = Crc32(bytes.data(), bytes.size());
  for (const size_t cut : {0, 1, 63, 64, 300, 512, 2048, 2999, 3000}) {
    EXPECT_EQ(Crc32(bytes.data() + cut, bytes.size() - cut, Crc32(bytes.data(), cut)), whole) << cut;
  }
}

TEST(Checksum, FindsEveryFlippedBit) {
  std::vector<unsigned char> bytes = SomeBytes(1000);
  const uint32_t whole = Crc32(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    ASSERT_NE(Crc32(bytes.data(), bytes.size()), whole) << bit;
    bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace switchyard
