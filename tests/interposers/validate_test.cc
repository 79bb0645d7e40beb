// The validating interposer: a right sequence passes, and each wrong one is refused with the call, the handle and where
// that was made.
#include <array>

#include "core/runtime/device/device.h"
#include "core/runtime/plugins/registry.h"
#include "tests/interposers/fake_plugin.h"
#include "tests/interposers/interposed.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A device of the null plugin (asynchronous, opaque) behind validate, driven through the C interfaces.
class ValidateTest : public testing::Test {
 protected:
  void SetUp() override {
    plugin_ = Interposed("null", {"validate"});
    ASSERT_NE(plugin_, nullptr);
    api_ = plugin_->Interface<sy_device_v2>("device/2");
    kernels_ = plugin_->Interface<sy_kernel_v2>("kernel/2");
    capture_ = plugin_->Interface<sy_capture_v2>("capture/2");
    Clear();
    device_ = Open(0);
  }
  void TearDown() override {
    Clear();
    if (device_ != nullptr) api_->close(device_);
    EXPECT_EQ(Pending(), "") << "the test left something behind";
  }

  sy_device* Open(int32_t index) {
    sy_open_options options{};
    options.header = SY_HEADER(sy_open_options);
    sy_device* device = nullptr;
    EXPECT_EQ(api_->open(plugin_->table().instance, index, &options, &device, &error_), SY_OK) << error_.message;
    return device;
  }
  sy_buffer* Alloc(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api_->alloc(device_, bytes, nullptr, &buffer, &error_), SY_OK) << error_.message;
    return buffer;
  }
  sy_stream* Stream(sy_device* device = nullptr) {
    sy_stream_options options{};
    options.header = SY_HEADER(sy_stream_options);
    sy_stream* stream = nullptr;
    EXPECT_EQ(api_->stream_create(device ? device : device_, &options, &stream, &error_), SY_OK) << error_.message;
    return stream;
  }
  sy_event* Event() {
    sy_event* event = nullptr;
    EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK) << error_.message;
    return event;
  }
  void Clear() { error_ = EmptyError(); }
  // What a function without a status had to say: the next call that has one tells it, once.
  std::string Pending() {
    Clear();
    int32_t count = 0;
    return api_->count(plugin_->table().instance, &count, &error_) == SY_OK ? "" : error_.message;
  }
  // A call was refused as the caller's mistake, with these words.
  void ExpectRefused(sy_status status, const std::vector<std::string>& words) {
    EXPECT_EQ(status, SY_INVALID);
    for (const std::string& word : words) EXPECT_THAT(error_.message, HasSubstr(word));
    Clear();
  }
  void ExpectPending(const std::vector<std::string>& words) {
    const std::string text = Pending();
    for (const std::string& word : words) EXPECT_THAT(text, HasSubstr(word));
    Clear();
  }

  std::shared_ptr<Plugin> plugin_;
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  const sy_capture_v2* capture_ = nullptr;
  sy_device* device_ = nullptr;
  sy_error error_{};
  std::array<float, 64> host_{};
};

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

TEST_F(ValidateTest, AnEventIsNotWaitedForBeforeItIsRecorded) {
  sy_event* const event = Event();
  sy_stream* const stream = Stream();
  ExpectRefused(api_->stream_wait(device_, stream, event, &error_), {"event", "never recorded", "event_create"});
  ExpectRefused(api_->event_synchronize(device_, event, &error_), {"never recorded"});
  EXPECT_EQ(api_->event_record(device_, event, stream, &error_), SY_OK);
  EXPECT_EQ(api_->event_synchronize(device_, event, &error_), SY_OK);
  api_->event_destroy(device_, event);
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, KernelsAreBoundToPlacesThatSuitAndReleasedAfterTheirBindings) {
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  sy_buffer* const buffer = Alloc(512);
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  Places short_output(At(buffer), At(buffer, 384));
  short_output.output.offset = 512 - 128;
  ExpectRefused(kernels_->bind(device_, kernel, &short_output.binding, &bound, &launch, &error_),
                {"bind", "output 0", "256 bytes"});
  Places askew(At(buffer), At(buffer, 4));
  ExpectRefused(kernels_->bind(device_, kernel, &askew.binding, &bound, &launch, &error_), {"offset 4", "alignment"});
  Places host(Host(host_.data()), At(buffer, 256));
  ExpectRefused(kernels_->bind(device_, kernel, &host.binding, &bound, &launch, &error_),
                {"input 0", "expected device memory"});

  Places places(At(buffer), At(buffer, 256));
  ASSERT_EQ(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  kernels_->release(device_, kernel);
  ExpectPending({"release", "prepare of pointwise", "1 bindings"});
  kernels_->unbind(device_, bound);
  ExpectRefused(launch(bound, nullptr, &error_), {"launch", "expected a live binding", "bind of pointwise", "unbind"});
  kernels_->release(device_, kernel);
  EXPECT_EQ(Pending(), "");
  ExpectRefused(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), {"expected a live kernel"});
  api_->free(device_, buffer);
}

TEST_F(ValidateTest, ABufferIsNotFreedUnderABinding) {
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  sy_buffer* const x = Alloc(256);
  sy_buffer* const y = Alloc(256);
  Places places(At(x), At(y));
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(kernels_->bind(device_, kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  api_->free(device_, y);
  ExpectPending({"free", "alloc of 256 bytes", "is named by 1 bindings"});
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, x);
  api_->free(device_, y);
  EXPECT_EQ(Pending(), "");
}

TEST_F(ValidateTest, CapturesBeginBeforeTheyEnd) {
  sy_stream* const stream = Stream();
  sy_graph* graph = nullptr;
  ExpectRefused(capture_->end(device_, stream, &graph, &error_), {"end of a capture", "is not being captured"});
  ASSERT_EQ(capture_->begin(device_, stream, nullptr, &error_), SY_OK) << error_.message;
  ExpectRefused(capture_->begin(device_, stream, nullptr, &error_), {"is being captured already"});
  ASSERT_EQ(capture_->end(device_, stream, &graph, &error_), SY_OK) << error_.message;
  EXPECT_EQ(capture_->launch(device_, graph, stream, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK);
  capture_->release(device_, graph);
  ExpectRefused(capture_->launch(device_, graph, stream, &error_), {"expected a live graph", "release of a graph"});
  // What a capture cannot hold the plugin refuses itself, and then the whole capture.
  ASSERT_EQ(capture_->begin(device_, stream, nullptr, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_UNSUPPORTED);
  EXPECT_EQ(capture_->end(device_, stream, &graph, &error_), SY_UNSUPPORTED);
  EXPECT_EQ(api_->synchronize(device_, stream, nullptr, &error_), SY_OK) << "after the end it runs work as before";
  EXPECT_EQ(Pending(), "");
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, TheProfilerIsStartedOnce) {
  const auto* profiler = plugin_->Interface<sy_profiler_v2>("profiler/2");
  ASSERT_NE(profiler, nullptr);
  ExpectRefused(profiler->stop(device_, &error_), {"was not started"});
  EXPECT_EQ(profiler->start(device_, &error_), SY_OK);
  ExpectRefused(profiler->start(device_, &error_), {"runs already"});
  EXPECT_EQ(profiler->stop(device_, &error_), SY_OK);
}

}  // namespace
}  // namespace switchyard
