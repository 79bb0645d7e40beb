// Copies and fills of any size at any place, on a device that moves whole lines.
#include <cstdlib>
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "tests/plan/world.h"

namespace switchyard {
namespace {

constexpr uint64_t kLine = 64, kBytes = 1000;  // not a multiple of a line

class LineCopy : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SWITCHYARD_NULL_LINE_BYTES", std::to_string(kLine).c_str(), 1);
    auto opened = TestDevice::Open("null", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
    ASSERT_EQ(test_->device->info().copy_granularity, kLine);
  }
  void TearDown() override { unsetenv("SWITCHYARD_NULL_LINE_BYTES"); }
  std::unique_ptr<TestDevice> test_;
};

TEST_F(LineCopy, TouchesTheBytesThatAreNamedAndNoOthers) {
  Device& device = *test_->device;
  auto buffer = device.Allocate(kBytes);
  auto stream = device.NewStream();
  ASSERT_TRUE(buffer.ok() && stream.ok());
  std::mt19937 random(1);
  std::vector<uint8_t> expected(kBytes), piece(kBytes), got(kBytes);
  ASSERT_TRUE(device.Upload(buffer->at(0), expected.data(), kBytes).ok());
  for (int round = 0; round < 200; ++round) {
    const uint64_t bytes = random() % (kBytes / 2), to = random() % (kBytes - bytes);
    // Beside the destination, or a whole number of lines away from it, where both may lie on lines.
    uint64_t from = random() % 2 == 0 ? random() % (kBytes - bytes) : to % kLine;
    if (from < to + bytes && to < from + bytes) from = to;
    for (uint8_t& byte : piece) byte = static_cast<uint8_t>(random());
    Status status;
    switch (random() % 3) {
      case 0:
        status = device.Copy(*stream, buffer->at(to), HostPlace(piece.data()), bytes);
        std::memcpy(&expected[to], piece.data(), bytes);
        break;
      case 1:
        status = device.Fill(*stream, buffer->at(to), piece[0], bytes);
        std::memset(&expected[to], piece[0], bytes);
        break;
      default:
        if (from == to) continue;  // overlapping
        status = device.Copy(*stream, buffer->at(to), buffer->at(from), bytes);
        std::memcpy(&expected[to], &expected[from], bytes);
    }
    ASSERT_TRUE(status.ok()) << Message(status);
    const uint64_t first = random() % kBytes;  // some of it, then all
    ASSERT_TRUE(device.Copy(*stream, HostPlace(got.data()), buffer->at(first), kBytes - first).ok());
    ASSERT_TRUE(device.Synchronize(*stream).ok());
    ASSERT_EQ(std::memcmp(got.data(), &expected[first], kBytes - first), 0) << "round " << round;
    ASSERT_TRUE(device.Download(got.data(), buffer->at(0), kBytes).ok());
    ASSERT_EQ(got, expected) << "round " << round << ": " << bytes << " bytes to " << to << " from " << from;
  }
}

}  // namespace
}  // namespace switchyard
