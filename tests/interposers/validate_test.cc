// The validating interposer: a right sequence passes, and each wrong one is refused with the call, the handle and where
// that was made.
#include "tests/interposers/validate.h"

namespace switchyard {
namespace {

TEST_F(ValidateTest, ARightSequencePassesAndComputes) {
  host_.fill(3);
  sy_buffer* const x = Alloc(256);
  sy_buffer* const y = Alloc(256);
  sy_stream* const stream = Stream();
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  Places places(At(x), At(y));
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->copy(device_, stream, At(x), Host(host_.data()), 256, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch(bound, stream, &error_), SY_OK) << error_.message;
  std::array<float, 64> result{};
  EXPECT_EQ(api_->copy(device_, stream, Host(result.data()), At(y), 256, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(result[63], -3);
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, x);
  api_->free(device_, y);
  api_->stream_destroy(device_, stream);
  EXPECT_EQ(Pending(), "");
}

TEST_F(ValidateTest, AnUnknownHandleIsNamed) {
  sy_buffer* buffer = nullptr;
  ExpectRefused(api_->alloc(reinterpret_cast<sy_device*>(0x1234), 1, nullptr, &buffer, &error_),
                {"alloc", "expected a live device", "0x1234, which never was a device"});
  ExpectRefused(api_->alloc(nullptr, 1, nullptr, &buffer, &error_), {"a NULL device"});
  api_->free(device_, reinterpret_cast<sy_buffer*>(0x77));
  ExpectPending({"free", "0x77, which never was a buffer"});
}

TEST_F(ValidateTest, UseAfterFreeNamesWhereTheBufferWasMadeAndFreed) {
  sy_buffer* const buffer = Alloc(128);
  api_->free(device_, buffer);
  ExpectRefused(api_->copy(device_, nullptr, At(buffer), Host(host_.data()), 4, nullptr, &error_),
                {"copy", "expected a live buffer", "alloc of 128 bytes", "ended by call", ": free"});
}

TEST_F(ValidateTest, DoubleFreeIsNotPassedOn) {
  sy_buffer* const buffer = Alloc(128);
  api_->free(device_, buffer);
  EXPECT_EQ(Pending(), "");
  api_->free(device_, buffer);
  ExpectPending({"an earlier call was wrong", "free", "ended by call"});
}

TEST_F(ValidateTest, MemoryUnderUnfinishedWorkIsNotFreed) {
  sy_buffer* const buffer = Alloc(256);
  sy_stream* const stream = Stream();
  EXPECT_EQ(api_->copy(device_, stream, At(buffer), Host(host_.data()), 256, nullptr, &error_), SY_OK);
  api_->free(device_, buffer);
  ExpectPending({"free", "alloc of 256 bytes", "copy", "nobody has waited for"});
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK);
  api_->free(device_, buffer);
  EXPECT_EQ(Pending(), "") << "after waiting it may be freed";
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, WaitingForALaterStreamFinishesTheEarlierOne) {
  sy_buffer* const buffer = Alloc(256);
  sy_stream* const first = Stream();
  sy_stream* const second = Stream();
  sy_event* const event = Event();
  EXPECT_EQ(api_->copy(device_, first, At(buffer), Host(host_.data()), 256, nullptr, &error_), SY_OK);
  EXPECT_EQ(api_->event_record(device_, event, first, &error_), SY_OK);
  EXPECT_EQ(api_->stream_wait(device_, second, event, &error_), SY_OK);
  EXPECT_EQ(api_->synchronize(device_, second, nullptr, &error_), SY_OK);
  api_->free(device_, buffer);
  EXPECT_EQ(Pending(), "");
  api_->event_destroy(device_, event);
  api_->stream_destroy(device_, first);
  api_->stream_destroy(device_, second);
}

TEST_F(ValidateTest, WhatIsLeftAtCloseIsCounted) {
  sy_buffer* const buffer = Alloc(96);
  api_->close(device_);
  ExpectPending({"close", "1 left", "alloc of 96 bytes"});
  api_->free(device_, buffer);  // the close was not passed on: the device is still there
  EXPECT_EQ(Pending(), "");
}

TEST_F(ValidateTest, PlacesOutsideTheirBufferAreRefused) {
  sy_buffer* const buffer = Alloc(100);
  ExpectRefused(api_->copy(device_, nullptr, At(buffer, 96), Host(host_.data()), 8, nullptr, &error_),
                {"destination", "8 bytes at offset 96", "100 bytes", "alloc of 100 bytes"});
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), At(buffer, ~uint64_t{0}), 8, nullptr, &error_),
                {"source"});
  ExpectRefused(api_->fill(device_, nullptr, At(buffer, 1), 0, 100, nullptr, &error_), {"fill", "do not lie inside"});
  api_->free(device_, buffer);
}

TEST_F(ValidateTest, CopiesFromHostToHostAreRefused) {
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), Host(host_.data() + 8), 8, nullptr, &error_),
                {"host to host"});
}

TEST_F(ValidateTest, StreamsAndBuffersOfAnotherDeviceAreRefused) {
  sy_device* const other = Open(1);
  sy_stream* const foreign = Stream(other);
  sy_buffer* const buffer = Alloc(64);
  ExpectRefused(api_->copy(device_, foreign, At(buffer), Host(host_.data()), 4, nullptr, &error_),
                {"stream", "belongs to device", "open of device 1", "open of device 0"});
  ExpectRefused(api_->copy(other, foreign, At(buffer), Host(host_.data()), 4, nullptr, &error_),
                {"buffer", "belongs to device"});
  api_->free(device_, buffer);
  api_->stream_destroy(other, foreign);
  api_->close(other);
}

TEST_F(ValidateTest, TheHostWaitsForNoEventThatWasNeverRecorded) {
  sy_event* const event = Event();
  sy_stream* const stream = Stream();
  ExpectRefused(api_->event_synchronize(device_, event, &error_), {"event", "never recorded", "event_create"});
  EXPECT_EQ(api_->stream_wait(device_, stream, event, &error_), SY_OK) << "it holds no stream up: " << error_.message;
  EXPECT_EQ(api_->event_record(device_, event, stream, &error_), SY_OK);
  EXPECT_EQ(api_->event_synchronize(device_, event, &error_), SY_OK);
  api_->event_destroy(device_, event);
  api_->stream_destroy(device_, stream);
}

}  // namespace
}  // namespace switchyard
