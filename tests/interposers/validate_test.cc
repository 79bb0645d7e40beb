// The validating interposer: a right sequence passes, and each wrong one is refused with the call, the handle and where
// that was made.
#include <array>

#include "core/abi/collective.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/registry.h"
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
    api_ = plugin_->Interface<sy_device_v1>("device/1");
    kernels_ = plugin_->Interface<sy_kernel_v1>("kernel/1");
    capture_ = plugin_->Interface<sy_capture_v1>("capture/1");
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
    EXPECT_EQ(api_->open(index, &options, &device, &error_), SY_OK) << error_.message;
    return device;
  }
  sy_buffer* Alloc(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api_->alloc(device_, bytes, &buffer, &error_), SY_OK) << error_.message;
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
    EXPECT_EQ(api_->event_create(device_, &event, &error_), SY_OK) << error_.message;
    return event;
  }
  void Clear() { error_ = EmptyError(); }
  // What a function without a status had to say: the next call that has one tells it, once.
  std::string Pending() {
    Clear();
    int32_t count = 0;
    return api_->count(&count, &error_) == SY_OK ? "" : error_.message;
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
  const sy_device_v1* api_ = nullptr;
  const sy_kernel_v1* kernels_ = nullptr;
  const sy_capture_v1* capture_ = nullptr;
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
  ASSERT_EQ(kernels_->bind(kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->copy(device_, stream, At(x), Host(host_.data()), 256, &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch(bound, stream, &error_), SY_OK) << error_.message;
  std::array<float, 64> result{};
  EXPECT_EQ(api_->copy(device_, stream, Host(result.data()), At(y), 256, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, &error_), SY_OK) << error_.message;
  EXPECT_EQ(result[63], -3);
  kernels_->unbind(bound);
  kernels_->release(kernel);
  api_->free(device_, x);
  api_->free(device_, y);
  api_->stream_destroy(device_, stream);
  EXPECT_EQ(Pending(), "");
}

TEST_F(ValidateTest, AnUnknownHandleIsNamed) {
  sy_buffer* buffer = nullptr;
  ExpectRefused(api_->alloc(reinterpret_cast<sy_device*>(0x1234), 1, &buffer, &error_),
                {"alloc", "expected a live device", "0x1234, which never was a device"});
  ExpectRefused(api_->alloc(nullptr, 1, &buffer, &error_), {"a NULL device"});
  api_->free(device_, reinterpret_cast<sy_buffer*>(0x77));
  ExpectPending({"free", "0x77, which never was a buffer"});
}

TEST_F(ValidateTest, UseAfterFreeNamesWhereTheBufferWasMadeAndFreed) {
  sy_buffer* const buffer = Alloc(128);
  api_->free(device_, buffer);
  ExpectRefused(api_->copy(device_, nullptr, At(buffer), Host(host_.data()), 4, &error_),
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
  EXPECT_EQ(api_->copy(device_, stream, At(buffer), Host(host_.data()), 256, &error_), SY_OK);
  api_->free(device_, buffer);
  ExpectPending({"free", "alloc of 256 bytes", "copy", "nobody has waited for"});
  EXPECT_EQ(api_->synchronize(device_, stream, &error_), SY_OK);
  api_->free(device_, buffer);
  EXPECT_EQ(Pending(), "") << "after waiting it may be freed";
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, WaitingForALaterStreamFinishesTheEarlierOne) {
  sy_buffer* const buffer = Alloc(256);
  sy_stream* const first = Stream();
  sy_stream* const second = Stream();
  sy_event* const event = Event();
  EXPECT_EQ(api_->copy(device_, first, At(buffer), Host(host_.data()), 256, &error_), SY_OK);
  EXPECT_EQ(api_->event_record(device_, event, first, &error_), SY_OK);
  EXPECT_EQ(api_->stream_wait(device_, second, event, &error_), SY_OK);
  EXPECT_EQ(api_->synchronize(device_, second, &error_), SY_OK);
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
  ExpectRefused(api_->copy(device_, nullptr, At(buffer, 96), Host(host_.data()), 8, &error_),
                {"destination", "8 bytes at offset 96", "100 bytes", "alloc of 100 bytes"});
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), At(buffer, ~uint64_t{0}), 8, &error_), {"source"});
  ExpectRefused(api_->fill(device_, nullptr, At(buffer, 1), 0, 100, &error_), {"fill", "do not lie inside"});
  api_->free(device_, buffer);
}

TEST_F(ValidateTest, CopiesFromHostToHostAreRefused) {
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), Host(host_.data() + 8), 8, &error_), {"host to host"});
}

TEST_F(ValidateTest, StreamsAndBuffersOfAnotherDeviceAreRefused) {
  sy_device* const other = Open(1);
  sy_stream* const foreign = Stream(other);
  sy_buffer* const buffer = Alloc(64);
  ExpectRefused(api_->copy(device_, foreign, At(buffer), Host(host_.data()), 4, &error_),
                {"stream", "belongs to device", "open of device 1", "open of device 0"});
  ExpectRefused(api_->copy(other, foreign, At(buffer), Host(host_.data()), 4, &error_),
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
  ExpectRefused(kernels_->bind(kernel, &short_output.binding, &bound, &launch, &error_),
                {"bind", "output 0", "256 bytes"});
  Places askew(At(buffer), At(buffer, 4));
  ExpectRefused(kernels_->bind(kernel, &askew.binding, &bound, &launch, &error_), {"offset 4", "alignment"});
  Places host(Host(host_.data()), At(buffer, 256));
  ExpectRefused(kernels_->bind(kernel, &host.binding, &bound, &launch, &error_), {"input 0", "expected device memory"});

  Places places(At(buffer), At(buffer, 256));
  ASSERT_EQ(kernels_->bind(kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  kernels_->release(kernel);
  ExpectPending({"release", "prepare of pointwise", "1 bindings"});
  kernels_->unbind(bound);
  ExpectRefused(launch(bound, nullptr, &error_), {"launch", "expected a live binding", "bind of pointwise", "unbind"});
  kernels_->release(kernel);
  EXPECT_EQ(Pending(), "");
  ExpectRefused(kernels_->bind(kernel, &places.binding, &bound, &launch, &error_), {"expected a live kernel"});
  api_->free(device_, buffer);
}

TEST_F(ValidateTest, ALaunchWhoseBufferIsGoneIsRefused) {
  Negation negation(64);
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(kernels_->prepare(device_, &negation.request, &kernel, &negation.info, &error_), SY_OK) << error_.message;
  sy_buffer* const x = Alloc(256);
  sy_buffer* const y = Alloc(256);
  Places places(At(x), At(y));
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(kernels_->bind(kernel, &places.binding, &bound, &launch, &error_), SY_OK) << error_.message;
  api_->free(device_, y);
  ExpectRefused(launch(bound, nullptr, &error_), {"binding", "uses a buffer that was freed since"});
  kernels_->unbind(bound);
  kernels_->release(kernel);
  api_->free(device_, x);
}

TEST_F(ValidateTest, CapturesBeginBeforeTheyEnd) {
  sy_stream* const stream = Stream();
  sy_graph* graph = nullptr;
  ExpectRefused(capture_->end(device_, stream, &graph, &error_), {"end of a capture", "is not being captured"});
  ASSERT_EQ(capture_->begin(device_, stream, &error_), SY_OK) << error_.message;
  ExpectRefused(capture_->begin(device_, stream, &error_), {"is being captured already"});
  ExpectRefused(api_->synchronize(device_, stream, &error_), {"is being captured"});
  ASSERT_EQ(capture_->end(device_, stream, &graph, &error_), SY_OK) << error_.message;
  EXPECT_EQ(capture_->launch(graph, stream, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->synchronize(device_, stream, &error_), SY_OK);
  capture_->release(graph);
  ExpectRefused(capture_->launch(graph, stream, &error_), {"expected a live graph", "release of a graph"});
  api_->stream_destroy(device_, stream);
}

TEST_F(ValidateTest, TheProfilerIsStartedOnce) {
  const auto* profiler = plugin_->Interface<sy_profiler_v1>("profiler/1");
  ASSERT_NE(profiler, nullptr);
  ExpectRefused(profiler->stop(device_, &error_), {"was not started"});
  EXPECT_EQ(profiler->start(device_, &error_), SY_OK);
  ExpectRefused(profiler->start(device_, &error_), {"runs already"});
  EXPECT_EQ(profiler->stop(device_, &error_), SY_OK);
}

// A communicator of one rank: everything that can be wrong on one side.
TEST(ValidateCollectiveTest, WrongCallsAreRefused) {
  const auto found = Registry::Get().Find(PluginKind::kCollective, "shm");
  ASSERT_TRUE(found.ok()) << Message(found.status());
  const auto plugin = Interpose(*found, {"validate"});
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  const auto* api = (*plugin)->Interface<sy_collective_v1>("collective/1");
  sy_error error = EmptyError();
  const int32_t host = 0;
  sy_store store{};
  store.header = SY_HEADER(sy_store);
  store.put = [](void*, const char*, const void*, uint32_t, sy_error*) -> sy_status { return SY_OK; };
  store.get = [](void*, const char*, void*, uint32_t, uint32_t*, uint64_t, sy_error*) -> sy_status {
    return SY_TIMEOUT;
  };
  sy_init_request request{};
  request.header = SY_HEADER(sy_init_request);
  request.rank = 2;
  request.size = 1;
  request.hosts = &host;
  request.name = "alone";
  request.store = &store;
  request.timeout_ms = 1000;
  sy_communicator* communicator = nullptr;
  EXPECT_EQ(api->init(&request, &communicator, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 2 of 1"));
  request.rank = 0;
  ASSERT_EQ(api->init(&request, &communicator, &error), SY_OK) << error.message;
  sy_call call{};
  call.header = SY_HEADER(sy_call);
  call.tag = "gradients";
  sy_request* pending = nullptr;
  float values[8] = {1, 2, 3};
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, AllOf(HasSubstr("init of alone"), HasSubstr("has not finished init")));
  while (api->poll(communicator, &error) == SY_IN_PROGRESS) {
  }
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values + 1, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("overlap"));
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, 99, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("no dtype 99"));
  EXPECT_EQ(api->all_reduce(communicator, &call, nullptr, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("no memory to send from"));
  EXPECT_EQ(api->broadcast(communicator, &call, values, 3, SY_F32, 5, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 5 of 1"));
  EXPECT_EQ(api->request_poll(reinterpret_cast<sy_request*>(0x99), &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("0x99, which never was a request"));
  ASSERT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_OK)
      << error.message;
  while (pending != nullptr && api->request_poll(pending, &error) == SY_IN_PROGRESS) {
  }
  EXPECT_EQ(values[2], 3);
  api->destroy(communicator);
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, AllOf(HasSubstr("expected a live communicator"), HasSubstr("destroy")));
}

}  // namespace
}  // namespace switchyard
