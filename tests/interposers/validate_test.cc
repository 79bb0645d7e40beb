// The validating interposer: a right sequence passes, and each wrong one is refused with the call, the handle and where
// that was made.
#include <array>

#include "core/abi/collective.h"
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

// A communicator of one rank: everything that can be wrong on one side.
TEST(ValidateCollectiveTest, WrongCallsAreRefused) {
  const auto found = Registry::Get().Find(PluginKind::kCollective, "shm");
  ASSERT_TRUE(found.ok()) << Message(found.status());
  const auto plugin = Interpose(*found, {"validate"});
  ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
  const auto* api = (*plugin)->Interface<sy_collective_v2>("collective/2");
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
  EXPECT_EQ(api->init((*plugin)->table().instance, &request, &communicator, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 2 of 1"));
  request.rank = 0;
  ASSERT_EQ(api->init((*plugin)->table().instance, &request, &communicator, &error), SY_OK) << error.message;
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
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, 99, SY_SUM, &pending, &error), SY_UNSUPPORTED)
      << "what the plugin does not know is the plugin's to say";
  EXPECT_EQ(api->all_reduce(communicator, &call, nullptr, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("no memory to send from"));
  EXPECT_EQ(api->broadcast(communicator, &call, values, 3, SY_F32, 5, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("rank 5 of 1"));
  EXPECT_EQ(api->request_poll(communicator, reinterpret_cast<sy_request*>(0x99), &error), SY_INVALID);
  EXPECT_THAT(error.message, HasSubstr("0x99, which never was a request"));
  ASSERT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_OK)
      << error.message;
  if (pending != nullptr) {
    while (api->request_poll(communicator, pending, &error) == SY_IN_PROGRESS) {
    }
    api->request_release(communicator, pending);
  }
  EXPECT_EQ(values[2], 3);
  api->destroy(communicator);
  EXPECT_EQ(api->all_reduce(communicator, &call, values, values, 3, SY_F32, SY_SUM, &pending, &error), SY_INVALID);
  EXPECT_THAT(error.message, AllOf(HasSubstr("expected a live communicator"), HasSubstr("destroy")));
}

// A fake plugin behind validate: what a caller may get wrong with any plugin, and what a plugin may.
class PromiseTest : public testing::Test {
 protected:
  void TearDown() override {
    if (device_ == nullptr) return;
    Clear();
    api_->close(device_);
    EXPECT_EQ(Pending(), "") << "the test left something behind";
  }
  // Wraps the fake as it now is, and opens its device.
  void Wrap() {
    const auto validate = Registry::Get().Find(PluginKind::kInterposer, "validate").value();
    Clear();
    outer_.header = SY_HEADER(sy_plugin);
    ASSERT_EQ(validate->Interface<sy_interpose_v2>("interpose/2")
                  ->wrap(validate->table().instance, &fake_.table, "", &outer_, &error_),
              SY_OK)
        << error_.message;
    Take("device/2", api_);
    Take("kernel/2", kernels_);
    Take("capture/2", capture_);
    Take("semaphore/1", semaphores_);
    Take("peer/1", peer_);
    Take("collective/2", collective_);
    ASSERT_EQ(api_->open(outer_.instance, 0, nullptr, &device_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->stream_create(device_, nullptr, &stream_, &error_), SY_OK) << error_.message;
    ASSERT_EQ(api_->alloc(device_, 512, nullptr, &buffer_, &error_), SY_OK) << error_.message;
  }
  void End() {
    EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
    api_->free(device_, buffer_);
    api_->stream_destroy(device_, stream_);
  }
  template <typename Table>
  void Take(const char* name, const Table*& table) {
    table = static_cast<const Table*>(outer_.get_interface(outer_.instance, name));
    ASSERT_NE(table, nullptr) << name;
  }
  void Clear() { error_ = EmptyError(); }
  std::string Pending() {
    Clear();
    return collective_->reduces(outer_.instance, SY_SUM, SY_F32, &error_) == SY_OK ? "" : error_.message;
  }
  void ExpectPending(const std::vector<std::string>& words) {
    const std::string text = Pending();
    for (const std::string& word : words) EXPECT_THAT(text, HasSubstr(word));
    Clear();
  }
  void ExpectRefused(sy_status status, const std::vector<std::string>& words) {
    EXPECT_EQ(status, SY_INVALID);
    for (const std::string& word : words) EXPECT_THAT(error_.message, HasSubstr(word));
    Clear();
  }
  sy_kernel* Prepare(const char* op) {
    negation_.request.op = op;
    sy_kernel* kernel = nullptr;
    EXPECT_EQ(kernels_->prepare(device_, &negation_.request, &kernel, &negation_.info, &error_), SY_OK)
        << error_.message;
    return kernel;
  }
  // From the first 256 bytes of the buffer to the others.
  sy_bound* Bind(sy_kernel* kernel, sy_place constants = {}) {
    places_.binding.constants = constants;
    places_.input = At(buffer_);
    places_.output = At(buffer_, 256);
    sy_bound* bound = nullptr;
    EXPECT_EQ(kernels_->bind(device_, kernel, &places_.binding, &bound, &launch_, &error_), SY_OK) << error_.message;
    return bound;
  }
  sy_communicator* Communicator(sy_device* device = nullptr) {
    const int32_t host = 0;
    sy_init_request request{};
    request.header = SY_HEADER(sy_init_request);
    request.size = 1;
    request.hosts = &host;
    request.name = "alone";
    request.device = device;
    request.backend = device == nullptr ? nullptr : &outer_;
    sy_communicator* communicator = nullptr;
    EXPECT_EQ(collective_->init(outer_.instance, &request, &communicator, &error_), SY_OK) << error_.message;
    EXPECT_EQ(collective_->poll(communicator, &error_), SY_OK);
    return communicator;
  }
  sy_status AllReduce(sy_communicator* communicator, sy_request** request, sy_dtype dtype = SY_F32) {
    static float values[4];
    sy_call call{};
    call.header = SY_HEADER(sy_call);
    call.tag = "gradients";
    return collective_->all_reduce(communicator, &call, values, values, 4, dtype, SY_SUM, request, &error_);
  }

  FakePlugin& fake_ = *new FakePlugin;  // lives as long as the process, as every plugin
  sy_plugin outer_{};
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  const sy_capture_v2* capture_ = nullptr;
  const sy_semaphore_v1* semaphores_ = nullptr;
  const sy_peer_v1* peer_ = nullptr;
  const sy_collective_v2* collective_ = nullptr;
  sy_device* device_ = nullptr;
  sy_stream* stream_ = nullptr;
  sy_buffer* buffer_ = nullptr;
  sy_launch launch_ = nullptr;
  Negation negation_{64};
  Places places_{{}, {}};
  sy_error error_{};
  std::array<char, 512> host_{};
};

TEST_F(PromiseTest, TheErrorIsUntouchedOnSuccess) {
  fake_.device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*,
                         sy_error* error) {
    if (error != nullptr) std::strcpy(error->message, "all is well");
    return sy_status{SY_OK};
  };
  fake_.device.event_query = [](sy_device*, sy_event*, sy_error* error) {
    error->native_code = 600;
    return sy_status{SY_IN_PROGRESS};
  };
  Wrap();
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "copy: it answered 0 and changed the error"});
  sy_event* event = nullptr;
  EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK);
  EXPECT_EQ(api_->event_query(device_, event, &error_), SY_IN_PROGRESS);
  ExpectPending({"event_query: it answered 8 and changed the error"});
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, nullptr), SY_OK)
      << "without an error there is nothing to touch";
  api_->event_destroy(device_, event);
  End();
}

TEST_F(PromiseTest, FailuresSayWhyAndOnlyPollsAreInProgress) {
  fake_.device.copy = [](sy_device*, sy_stream*, sy_place, sy_place, uint64_t, const sy_copy_options*, sy_error*) {
    return sy_status{SY_UNSUPPORTED};
  };
  fake_.device.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*, sy_error*) {
    return sy_status{SY_IN_PROGRESS};
  };
  Wrap();
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, nullptr, &error_), SY_UNSUPPORTED);
  ExpectPending({"the plugin broke a promise", "copy: it answered 1 without a message"});
  EXPECT_EQ(api_->fill(device_, nullptr, At(buffer_), 0, 8, nullptr, &error_), SY_IN_PROGRESS);
  ExpectPending({"fill: it answered SY_IN_PROGRESS, which only polls may"});
  End();
}

TEST_F(PromiseTest, HeadersAreSane) {
  Wrap();
  sy_copy_options options{};
  const auto copy = [&] { return api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 8, &options, &error_); };
  ExpectRefused(copy(), {"copy", "the header of a struct says 0 bytes"});
  options.header = SY_HEADER(sy_copy_options);
  EXPECT_EQ(copy(), SY_OK) << error_.message;
  sy_extension link{};
  link.header = SY_HEADER(sy_extension);
  options.header.next = &link;
  ExpectRefused(copy(), {"an extension says", "has no name"});
  link.name = "acme.hint/1";
  EXPECT_EQ(copy(), SY_OK) << error_.message;
  link.header.next = &link;
  ExpectRefused(copy(), {"does not end after 64 links"});
  End();
}

TEST_F(PromiseTest, ARequiredExtensionIsNotIgnored) {
  Wrap();
  sy_extension link{};
  link.header = SY_HEADER(sy_extension);
  link.name = "other.topic/1";
  link.required = 1;
  sy_fill_options options{};
  options.header = SY_HEADER(sy_fill_options);
  options.header.next = &link;
  const auto fill = [&] { return api_->fill(device_, nullptr, At(buffer_), 0, 8, &options, &error_); };
  EXPECT_EQ(fill(), SY_OK);
  ExpectPending({"the plugin broke a promise", "fill", "other.topic/1 is required"});
  link.name = "acme.topic/1";
  EXPECT_EQ(fill(), SY_OK);
  EXPECT_EQ(Pending(), "") << "its own it may know";
  End();
}

TEST_F(PromiseTest, CopiesAndFillsAreOfWhatTheDeviceCopies) {
  Wrap();
  ExpectRefused(api_->copy(device_, nullptr, At(buffer_), Host(host_.data()), 6, nullptr, &error_),
                {"copy", "destination: 6 bytes at offset 0", "the 4 bytes that the device copies"});
  ExpectRefused(api_->copy(device_, nullptr, Host(host_.data()), At(buffer_, 2), 4, nullptr, &error_),
                {"source: 4 bytes at offset 2"});
  ExpectRefused(api_->fill(device_, nullptr, At(buffer_, 1), 0, 4, nullptr, &error_), {"fill", "offset 1"});
  ExpectRefused(api_->copy(device_, nullptr, At(buffer_), At(buffer_, 4), 8, nullptr, &error_), {"overlap"});
  EXPECT_EQ(api_->copy(device_, nullptr, At(buffer_), Host(host_.data() + 1), 4, nullptr, &error_), SY_OK)
      << "host memory may lie anywhere";
  End();
}

TEST_F(PromiseTest, ABindingOutlivesItsLaunches) {
  Wrap();
  sy_kernel* const kernel = Prepare("plain");
  sy_bound* const bound = Bind(kernel);
  EXPECT_EQ(launch_(bound, stream_, &error_), SY_OK) << error_.message;
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "binding", "is used by call", "launch", "nobody has waited for"});
  sy_event* event = nullptr;
  EXPECT_EQ(api_->event_create(device_, nullptr, &event, &error_), SY_OK);
  EXPECT_EQ(api_->event_record(device_, event, stream_, &error_), SY_OK);
  api_->event_destroy(device_, event);
  ExpectPending({"event_destroy", "event_record", "nobody has waited for"});
  EXPECT_EQ(api_->event_synchronize(device_, event, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  EXPECT_EQ(Pending(), "") << "the event came after the launch";
  api_->event_destroy(device_, event);
  kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, WhatAGraphNamesOutlivesIt) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->capturable = std::strcmp(request->op, "recorded") == 0;
    return NewHandle(made);
  };
  Wrap();
  sy_kernel* const kernel = Prepare("recorded");
  sy_bound* const bound = Bind(kernel);
  const sy_launch launch = launch_;
  sy_kernel* const other = Prepare("not recorded");
  sy_bound* const other_bound = Bind(other);
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(launch(bound, stream_, &error_), SY_OK) << error_.message;
  ExpectRefused(launch_(other_bound, stream_, &error_), {"launch", "prepare of not recorded", "is not capturable"});
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by what stream", "captures"});
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by graph"});
  EXPECT_EQ(capture_->launch(device_, graph, stream_, &error_), SY_OK) << error_.message;
  capture_->release(device_, graph);
  ExpectPending({"release of a graph", "launch of a graph", "nobody has waited for"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  api_->close(device_);
  ExpectPending({"close", "left"});
  capture_->release(device_, graph);
  EXPECT_EQ(Pending(), "");
  for (sy_bound* const one : {bound, other_bound}) kernels_->unbind(device_, one);
  for (sy_kernel* const one : {kernel, other}) kernels_->release(device_, one);
  End();
}

// What a capture drew in is being captured like the stream on which it was begun, and no longer.
TEST_F(PromiseTest, StreamsThatACaptureDrewInAreCaptured) {
  fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
    info->flags = SY_DEVICE_ASYNC | SY_DEVICE_CAPTURES_STREAMS;
    return sy_status{SY_OK};
  };
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    info->capturable = std::strcmp(request->op, "recorded") == 0;
    return NewHandle(made);
  };
  Wrap();
  sy_kernel* const kernel = Prepare("recorded");
  sy_bound* const bound = Bind(kernel);
  const sy_launch launch = launch_;
  sy_kernel* const other = Prepare("not recorded");
  sy_bound* const other_bound = Bind(other);
  sy_stream *branch = nullptr, *outside = nullptr;
  sy_event *fork = nullptr, *join = nullptr;
  for (sy_stream** stream : {&branch, &outside})
    ASSERT_EQ(api_->stream_create(device_, nullptr, stream, &error_), SY_OK);
  for (sy_event** event : {&fork, &join}) ASSERT_EQ(api_->event_create(device_, nullptr, event, &error_), SY_OK);

  ASSERT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  ASSERT_EQ(api_->event_record(device_, fork, stream_, &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch_(other_bound, branch, &error_), SY_OK) << "not drawn in yet";
  ASSERT_EQ(api_->stream_wait(device_, branch, fork, &error_), SY_OK) << error_.message;
  ASSERT_EQ(launch(bound, branch, &error_), SY_OK) << error_.message;
  ExpectRefused(launch_(other_bound, branch, &error_), {"is not capturable", "between begin and end"});
  EXPECT_EQ(api_->synchronize(device_, branch, nullptr, &error_), SY_OK);
  ExpectPending({"broke a promise", "synchronize", "is being captured: expected SY_UNSUPPORTED"});
  ExpectRefused(capture_->begin(device_, branch, nullptr, &error_), {"is being captured already"});
  sy_graph* graph = nullptr;
  ExpectRefused(capture_->end(device_, branch, &graph, &error_), {"was drawn into a capture"});
  api_->stream_destroy(device_, branch);
  ExpectPending({"stream_destroy", "is being captured"});
  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by what stream", "captures"});
  EXPECT_EQ(launch_(other_bound, outside, &error_), SY_OK) << "a stream that waits for nothing of it";
  EXPECT_EQ(api_->synchronize(device_, outside, nullptr, &error_), SY_OK) << error_.message;
  ASSERT_EQ(api_->event_record(device_, join, branch, &error_), SY_OK);
  ASSERT_EQ(api_->stream_wait(device_, stream_, join, &error_), SY_OK);
  ASSERT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK) << error_.message;

  kernels_->unbind(device_, bound);
  ExpectPending({"unbind", "is named by graph"});
  EXPECT_EQ(launch_(other_bound, branch, &error_), SY_OK) << "after the end it runs work as before";
  EXPECT_EQ(api_->stream_wait(device_, outside, fork, &error_), SY_OK);
  EXPECT_EQ(api_->synchronize(device_, outside, nullptr, &error_), SY_OK) << "which draws nobody in any more";
  EXPECT_EQ(api_->synchronize(device_, nullptr, nullptr, &error_), SY_OK) << error_.message;
  capture_->release(device_, graph);
  for (sy_event* event : {fork, join}) api_->event_destroy(device_, event);
  for (sy_bound* const one : {bound, other_bound}) kernels_->unbind(device_, one);
  for (sy_kernel* const one : {kernel, other}) kernels_->release(device_, one);
  for (sy_stream* stream : {branch, outside}) api_->stream_destroy(device_, stream);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, GraphsAndSemaphoresEndBeforeTheirDevice) {
  Wrap();
  sy_graph* graph = nullptr;
  EXPECT_EQ(capture_->begin(device_, stream_, nullptr, &error_), SY_OK);
  EXPECT_EQ(capture_->end(device_, stream_, &graph, &error_), SY_OK);
  End();
  api_->close(device_);
  ExpectPending({"close", "1 left", "graph"});
  capture_->release(device_, graph);
  sy_semaphore* semaphore = nullptr;
  EXPECT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  api_->close(device_);
  ExpectPending({"close", "1 left", "semaphore"});
  semaphores_->destroy(device_, semaphore);
}

TEST_F(PromiseTest, ASemaphoreOnlyGrows) {
  Wrap();
  sy_semaphore* semaphore = nullptr;
  uint64_t value = 0;
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  EXPECT_EQ(semaphores_->signal(device_, semaphore, 5, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->signal(device_, semaphore, 5, &error_),
                {"signal of a semaphore", "has reached 5", "to become 5"});
  EXPECT_EQ(semaphores_->stream_signal(device_, stream_, semaphore, 8, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->stream_signal(device_, stream_, semaphore, 7, &error_), {"will have reached 8"});
  semaphores_->destroy(device_, semaphore);
  ExpectPending({"destroy of a semaphore", "stream_signal", "nobody has waited for"});
  EXPECT_EQ(semaphores_->wait(device_, semaphore, 8, 1000, &error_), SY_OK) << error_.message;
  ExpectRefused(semaphores_->signal(device_, semaphore, 8, &error_), {"has reached 8"});
  FakePlugin::Counts().begin()->second = 2;
  EXPECT_EQ(semaphores_->query(device_, semaphore, &value, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "had reached 8 and is at 2"});
  EXPECT_EQ(semaphores_->wait(device_, semaphore, 8, 1000, &error_), SY_TIMEOUT);
  ExpectPending({"the plugin broke a promise", "had reached 8, and the wait for 8 answered SY_TIMEOUT"});
  semaphores_->destroy(device_, semaphore);
  EXPECT_EQ(Pending(), "") << "the wait came after the signal";
  End();
}

// A wait on one stream for what another signals orders them, whichever was asked first.
TEST_F(PromiseTest, ASemaphoreOrdersStreams) {
  Wrap();
  sy_stream* other = nullptr;
  sy_semaphore* semaphore = nullptr;
  ASSERT_EQ(api_->stream_create(device_, nullptr, &other, &error_), SY_OK);
  ASSERT_EQ(semaphores_->create(device_, nullptr, &semaphore, &error_), SY_OK);
  for (const bool wait_first : {false, true}) {
    sy_buffer* buffer = nullptr;
    const uint64_t value = wait_first ? 2 : 1;
    ASSERT_EQ(api_->alloc(device_, 64, nullptr, &buffer, &error_), SY_OK);
    const auto wait = [&] {
      EXPECT_EQ(semaphores_->stream_wait(device_, other, semaphore, value, &error_), SY_OK) << error_.message;
    };
    if (wait_first) wait();
    EXPECT_EQ(api_->fill(device_, stream_, At(buffer), 0, 64, nullptr, &error_), SY_OK);
    EXPECT_EQ(semaphores_->stream_signal(device_, stream_, semaphore, value, &error_), SY_OK);
    if (!wait_first) wait();
    api_->free(device_, buffer);
    ExpectPending({"free", "fill", "nobody has waited for"});
    EXPECT_EQ(api_->synchronize(device_, other, nullptr, &error_), SY_OK);
    api_->free(device_, buffer);
    EXPECT_EQ(Pending(), "");
  }
  semaphores_->destroy(device_, semaphore);
  api_->stream_destroy(device_, other);
  End();
}

TEST_F(PromiseTest, ImportedMemoryIsForCopiesOnly) {
  Wrap();
  unsigned char description[SY_MEMORY_DESCRIPTION_BYTES];
  uint32_t bytes = 0;
  ExpectRefused(peer_->export_memory(device_, buffer_, description, sizeof description, &bytes, &error_),
                {"export_memory", "alloc of 512 bytes", "not allocated with sy_alloc_options.exportable"});
  sy_alloc_options options{};
  options.header = SY_HEADER(sy_alloc_options);
  options.exportable = 1;
  sy_buffer *exported = nullptr, *imported = nullptr;
  ASSERT_EQ(api_->alloc(device_, 512, &options, &exported, &error_), SY_OK);
  ASSERT_EQ(peer_->export_memory(device_, exported, description, sizeof description, &bytes, &error_), SY_OK)
      << error_.message;
  ASSERT_EQ(peer_->import_memory(device_, description, bytes, &imported, &error_), SY_OK) << error_.message;
  EXPECT_EQ(api_->copy(device_, nullptr, At(imported, 4096), At(exported), 256, nullptr, &error_), SY_OK)
      << error_.message;
  sy_kernel* const kernel = Prepare("plain");
  Places places(At(imported), At(exported));
  sy_bound* bound = nullptr;
  ExpectRefused(kernels_->bind(device_, kernel, &places.binding, &bound, &launch_, &error_),
                {"bind", "input 0", "was imported: it is for copy and fill only"});
  kernels_->release(device_, kernel);
  for (sy_buffer* const one : {imported, exported}) api_->free(device_, one);
  End();
}

TEST_F(PromiseTest, ADescriptionFitsWhereItWasAskedFor) {
  fake_.peer.export_memory = [](sy_device*, sy_buffer*, void*, uint32_t capacity, uint32_t* bytes, sy_error*) {
    *bytes = capacity + 1;
    return sy_status{SY_OK};
  };
  Wrap();
  sy_alloc_options options{};
  options.header = SY_HEADER(sy_alloc_options);
  options.exportable = 1;
  sy_buffer* exported = nullptr;
  unsigned char description[SY_MEMORY_DESCRIPTION_BYTES];
  uint32_t bytes = 0;
  ASSERT_EQ(api_->alloc(device_, 512, &options, &exported, &error_), SY_OK);
  EXPECT_EQ(peer_->export_memory(device_, exported, description, sizeof description, &bytes, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "a description of 257 bytes where there are 256"});
  api_->free(device_, exported);
  End();
}

TEST_F(PromiseTest, ConstantsAreBoundAndWrittenBeforeTheFirstLaunch) {
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  sy_buffer* constants = nullptr;
  ASSERT_EQ(api_->alloc(device_, FakePlugin::kConstantBytes, nullptr, &constants, &error_), SY_OK);
  Places without(At(buffer_), At(buffer_, 256));
  sy_bound* bound = nullptr;
  ExpectRefused(kernels_->bind(device_, kernel, &without.binding, &bound, &launch_, &error_),
                {"bind", "constants: expected device memory for 64 bytes"});
  bound = Bind(kernel, At(constants));
  ExpectRefused(launch_(bound, stream_, &error_), {"launch", "names constants that write_constants has not written"});
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants, 64), &error_),
                {"write_constants", "do not lie inside 64 bytes"});
  EXPECT_EQ(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_), SY_OK) << error_.message;
  EXPECT_EQ(launch_(bound, stream_, &error_), SY_OK) << error_.message;
  ExpectRefused(kernels_->write_constants(device_, kernel, stream_, At(constants), &error_),
                {"are written there already"});
  EXPECT_EQ(api_->synchronize(device_, stream_, nullptr, &error_), SY_OK);
  kernels_->unbind(device_, bound);
  kernels_->release(device_, kernel);
  api_->free(device_, constants);
  End();
}

TEST_F(PromiseTest, WhoeverAsksForConstantsWritesThem) {
  fake_.kernel.write_constants = nullptr;
  Wrap();
  sy_kernel* const kernel = Prepare("tabled");
  ExpectPending(
      {"the plugin broke a promise", "tabled", "64 bytes of constants", "lacks the function write_constants"});
  kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, OutputsOverlapOnlyAsTheKernelAllows) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error*) {
    if (std::strcmp(request->op, "inplace") == 0) info->inplace[0] = 0;
    return NewHandle(made);
  };
  Wrap();
  sy_bound* bound = nullptr;
  Places same(At(buffer_), At(buffer_)), askew(At(buffer_), At(buffer_, 64));
  sy_kernel* const plain = Prepare("plain");
  ExpectRefused(kernels_->bind(device_, plain, &same.binding, &bound, &launch_, &error_),
                {"output 0 overlaps input 0, which the kernel does not allow"});
  sy_kernel* const inplace = Prepare("inplace");
  ExpectRefused(kernels_->bind(device_, inplace, &askew.binding, &bound, &launch_, &error_), {"output 0 overlaps"});
  EXPECT_EQ(kernels_->bind(device_, inplace, &same.binding, &bound, &launch_, &error_), SY_OK) << error_.message;
  kernels_->unbind(device_, bound);
  for (sy_kernel* const kernel : {plain, inplace}) kernels_->release(device_, kernel);
  End();
}

TEST_F(PromiseTest, AKernelIsAsItWasAskedFor) {
  fake_.kernel.prepare = [](sy_device*, const sy_prepare_request* request, sy_kernel** made, sy_kernel_info* info,
                            sy_error* error) {
    const std::string op = request->op;
    if (op == "hungry") info->workspace_bytes = request->workspace_limit + 1;
    if (op == "leaving") info->residual_bytes = 8;
    if (op == "wild") info->inplace[0] = 1;
    if (request->inputs[0].dtype == 99) return SY_FAIL(error, SY_INVALID, "fake: a dtype of 99");
    return NewHandle(made);
  };
  Wrap();
  const std::pair<const char*, const char*> cases[] = {
      {"hungry", "1048577 bytes of workspace where at most 1048576 were offered"},
      {"leaving", "it leaves 8 bytes for a backward that does not follow"},
      {"wild", "output 0 is said to share the place of input 1 of 1"},
      {"random", "it reaches determinism 0 where 1 is required"},
  };
  for (const auto& [op, words] : cases) {
    negation_.info = {};
    negation_.info.header = SY_HEADER(sy_kernel_info);
    negation_.info.inplace = &negation_.inplace;
    negation_.inplace = -1;
    negation_.request.determinism = std::strcmp(op, "random") == 0 ? SY_DETERMINISM_RUN : SY_DETERMINISM_ANY;
    sy_kernel* const kernel = Prepare(op);
    ExpectPending({"the plugin broke a promise", words});
    kernels_->release(device_, kernel);
  }
  sy_kernel* kernel = nullptr;
  negation_.tensor.dtype = 99;
  EXPECT_EQ(kernels_->prepare(device_, &negation_.request, &kernel, &negation_.info, &error_), SY_INVALID);
  ExpectPending({"the plugin broke a promise", "SY_INVALID to a dtype that it does not know"});
  End();
}

TEST_F(PromiseTest, CountsAreCountsAndStringsEnd) {
  fake_.device.count = [](sy_instance*, int32_t* count, sy_error*) { return *count = -3, sy_status{SY_OK}; };
  fake_.device.query = [](sy_instance*, int32_t, sy_device_info* info, sy_error*) {
    std::memset(info->memory_kind, 'x', sizeof info->memory_kind);
    info->alignment = 48;
    return sy_status{SY_OK};
  };
  fake_.collective.query = [](sy_instance*, sy_collective_info* info, sy_error*) {
    std::memset(info->name, 'x', sizeof info->name);
    info->completion = SY_COMPLETES_BY_POLL;
    return sy_status{SY_OK};
  };
  Wrap();
  int32_t count = 0;
  EXPECT_EQ(api_->count(outer_.instance, &count, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "count", "-3 devices"});
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  EXPECT_EQ(api_->query(outer_.instance, 0, &info, &error_), SY_OK);
  ExpectPending({"query", "the name or the memory kind does not end"});
  sy_collective_info about{};
  about.header = SY_HEADER(sy_collective_info);
  EXPECT_EQ(collective_->query(outer_.instance, &about, &error_), SY_OK);
  ExpectPending({"query", "the name does not end"});
  End();
}

TEST_F(PromiseTest, CommunicatorsEndBeforeTheDeviceThatTheyName) {
  fake_.collective.split = [](sy_communicator*, int32_t, int32_t, const char*, sy_communicator** made, sy_error*) {
    return NewHandle(made);
  };
  Wrap();
  sy_communicator* const communicator = Communicator(device_);
  sy_communicator* part = nullptr;
  EXPECT_EQ(collective_->split(communicator, 0, 0, "part", &part, &error_), SY_OK) << error_.message;
  End();
  api_->close(device_);
  ExpectPending({"close", "open of device 0", "is named by 2 communicators"});
  collective_->destroy(communicator);
  api_->close(device_);
  ExpectPending({"close", "is named by 1 communicators"});
  collective_->destroy(part);
}

TEST_F(PromiseTest, RequestsAreReleasedOnceAndBeforeTheirCommunicator) {
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_communicator* const other = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  ExpectRefused(collective_->request_poll(other, request, &error_), {"request_poll", "belongs to communicator"});
  collective_->destroy(communicator);
  ExpectPending({"destroy", "every request to be released before", "all_reduce of gradients"});
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << error_.message;
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK) << "polled again it says the same";
  collective_->request_release(communicator, request);
  EXPECT_EQ(Pending(), "");
  collective_->request_release(communicator, request);
  ExpectPending({"request_release", "expected a live request", "ended by call"});
  ExpectRefused(collective_->request_poll(communicator, request, &error_),
                {"request_poll", "all_reduce of gradients", "request_release"});
  for (sy_communicator* const one : {communicator, other}) collective_->destroy(one);
  EXPECT_EQ(Pending(), "");
  End();
}

TEST_F(PromiseTest, ARequestStaysAsItEnded) {
  static int polls;
  polls = 0;
  fake_.collective.request_poll = [](sy_communicator*, sy_request*, sy_error* error) {
    return ++polls == 1 ? SY_FAIL(error, SY_ABORTED, "fake: a peer is gone") : sy_status{SY_OK};
  };
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request), SY_OK) << error_.message;
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_ABORTED);
  Clear();
  EXPECT_EQ(collective_->request_poll(communicator, request, &error_), SY_OK);
  ExpectPending({"the plugin broke a promise", "had ended with 6, and a later poll answered 0"});
  collective_->request_release(communicator, request);
  collective_->destroy(communicator);
  End();
}

TEST_F(PromiseTest, AnUnknownDtypeIsUnsupportedAndNotInvalid) {
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request, 99), SY_UNSUPPORTED);
  EXPECT_EQ(Pending(), "");
  collective_->destroy(communicator);
  End();
}

TEST_F(PromiseTest, AnUnknownDtypeThatIsCalledInvalidIsABrokenPromise) {
  fake_.collective.all_reduce = [](sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype, int32_t,
                                   sy_request**, sy_error* error) { return SY_FAIL(error, SY_INVALID, "fake: no"); };
  Wrap();
  sy_communicator* const communicator = Communicator();
  sy_request* request = nullptr;
  EXPECT_EQ(AllReduce(communicator, &request, 99), SY_INVALID);
  ExpectPending({"the plugin broke a promise", "all_reduce", "expected SY_UNSUPPORTED"});
  EXPECT_EQ(AllReduce(communicator, &request, SY_F32), SY_INVALID);
  EXPECT_EQ(Pending(), "");
  collective_->destroy(communicator);
  End();
}

}  // namespace
}  // namespace switchyard
