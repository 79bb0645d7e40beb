// The null device is everything that the engine must cope with: asynchronous, opaque, unforgiving. These tests show
// that it really is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class NullDevice : public testing::Test {
 protected:
  NullDevice() { Reopen({{"NULL_DELAY_US", "30000"}}); }  // 30 ms before every command
  void Reopen(std::map<std::string, std::string> settings) {
    backend_ = std::make_unique<Backend>("null", std::move(settings));
  }
  const sy_device_v2& api() { return backend_->api(); }
  sy_device* device() { return backend_->device(); }
  sy_stream* stream() { return backend_->stream(); }
  sy_error* error() { return backend_->error(); }

  sy_buffer* Allocate(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api().alloc(device(), bytes, nullptr, &buffer, error()), SY_OK) << backend_->message();
    return buffer;
  }
  sy_status Copy(sy_stream* stream, sy_place to, sy_place from, uint64_t bytes) {
    return api().copy(device(), stream, to, from, bytes, nullptr, error());
  }
  static sy_place At(sy_buffer* buffer, uint64_t offset = 0) { return {buffer, nullptr, offset}; }
  static sy_place Host(void* address) { return {nullptr, address, 0}; }
  sy_stream* NewStream() {
    const sy_stream_options options{SY_HEADER(sy_stream_options)};
    sy_stream* made = nullptr;
    EXPECT_EQ(api().stream_create(device(), &options, &made, error()), SY_OK);
    return made;
  }
  sy_event* NewEvent() {
    sy_event* made = nullptr;
    EXPECT_EQ(api().event_create(device(), nullptr, &made, error()), SY_OK);
    return made;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(NullDevice, HostMemoryIsReadOnlyWhenTheCopyRuns) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "writing to the source of a running copy is the data race that this test is about";
#endif
  sy_buffer* buffer = Allocate(4);
  int32_t host = 1, back = 0;
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  host = 2;  // the mistake that this device shows
  ASSERT_EQ(Copy(stream(), Host(&back), At(buffer), 4), SY_OK);
  EXPECT_EQ(back, 0) << "a copy returns before it has run";
  ASSERT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK);
  EXPECT_EQ(back, 2);
  api().free(device(), buffer);
}

TEST_F(NullDevice, WithoutAStreamACopyHasFinishedOnReturn) {
  sy_buffer* buffer = Allocate(4);
  int32_t host = 5, back = 0;
  ASSERT_EQ(Copy(nullptr, At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(Copy(nullptr, Host(&back), At(buffer), 4), SY_OK);
  EXPECT_EQ(back, 5);
  api().free(device(), buffer);
}

using NullDeviceDeathTest = NullDevice;
TEST_F(NullDeviceDeathTest, TheHostCannotDereferenceABuffer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  sy_buffer* buffer = Allocate(4096);
  EXPECT_DEATH(
      {
        const char byte = *reinterpret_cast<volatile char*>(buffer);
        std::_Exit(byte == 0 ? 0 : 0);
      },
      "");
  api().free(device(), buffer);
}

TEST_F(NullDevice, NewMemoryIsNanAndMinusOne) {
  sy_buffer* buffer = Allocate(8);
  EXPECT_THAT(backend_->Download(buffer, 8), Each(char(0xFF)));
  api().free(device(), buffer);
}

TEST_F(NullDevice, AnEventRecordedAnewHoldsUpWhoWaitedForTheRecordBefore) {
  sy_stream *idle = NewStream(), *reader = NewStream();
  sy_event* event = NewEvent();
  sy_buffer* buffer = Allocate(4);
  int32_t host = 7, back = 0;
  ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  ASSERT_EQ(api().stream_wait(device(), reader, event, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, idle, error()), SY_OK);
  ASSERT_EQ(Copy(reader, Host(&back), At(buffer), 4), SY_OK);
  ASSERT_EQ(api().event_synchronize(device(), event, error()), SY_OK) << "of the stream that is idle";
  EXPECT_EQ(back, 0) << "who asks now waits for the last record alone";
  ASSERT_EQ(api().synchronize(device(), reader, nullptr, error()), SY_OK);
  EXPECT_EQ(back, 7);
  api().free(device(), buffer);
  api().event_destroy(device(), event);
  for (sy_stream* one : {idle, reader}) api().stream_destroy(device(), one);
}

TEST_F(NullDevice, EventsOrderStreams) {
  sy_stream* other = NewStream();
  sy_event* event = NewEvent();
  EXPECT_EQ(api().event_query(device(), event, error()), SY_OK) << "never recorded";
  sy_buffer* buffer = Allocate(4);
  int32_t host = 7, back = 0;
  ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  error()->native_code = 77;
  EXPECT_EQ(api().event_query(device(), event, error()), SY_IN_PROGRESS);
  EXPECT_EQ(error()->native_code, 77) << "which is no error";
  ASSERT_EQ(api().stream_wait(device(), other, event, error()), SY_OK);
  ASSERT_EQ(Copy(other, Host(&back), At(buffer), 4), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other, nullptr, error()), SY_OK);
  EXPECT_EQ(back, 7);
  EXPECT_EQ(api().event_query(device(), event, error()), SY_OK);
  EXPECT_EQ(api().event_synchronize(device(), event, error()), SY_OK);
  api().event_destroy(device(), event);
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

TEST_F(NullDevice, WithoutAnEventStreamsDoNotWaitForEachOther) {
  sy_stream* other = NewStream();
  sy_buffer* buffer = Allocate(8);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), other, At(buffer, 4), 0, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other, nullptr, error()), SY_OK);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(api().synchronize(device(), nullptr, nullptr, error()), SY_OK);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20)) << "the other stream was ahead";
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

TEST_F(NullDevice, TheFirstErrorOfAStreamStaysAndPassesThroughEvents) {
  Reopen({{"NULL_DELAY_US", "2000"}});
  sy_stream* failing = NewStream();
  sy_event* event = NewEvent();
  sy_buffer *buffer = Allocate(4), *kept = Allocate(4);
  ASSERT_EQ(api().fill(device(), failing, At(kept), 1, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), failing, At(buffer), 0, 4, nullptr, error()), SY_OK);
  api().free(device(), buffer);  // the planted fault: work that uses it is still queued
  ASSERT_EQ(api().fill(device(), failing, At(kept), 2, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, failing, error()), SY_OK);
  EXPECT_EQ(api().event_synchronize(device(), event, error()), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("freed before the work"));
  for (int again = 0; again < 2; ++again) EXPECT_EQ(api().synchronize(device(), failing, nullptr, error()), SY_INVALID);
  EXPECT_EQ(api().event_query(device(), event, error()), SY_INVALID);

  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK) << "other streams go on";
  EXPECT_THAT(backend_->Download(kept, 4), Each(char{1})) << "what follows an error does not run";
  ASSERT_EQ(api().stream_wait(device(), stream(), event, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INVALID)
      << "who waits for a failed event fails";
  EXPECT_EQ(api().synchronize(device(), nullptr, nullptr, error()), SY_INVALID);
  api().event_destroy(device(), event);
  api().stream_destroy(device(), failing);
  api().free(device(), kept);
}

TEST_F(NullDevice, OutOfMemoryIsSurvivedAndPerDevice) {
  Reopen({{"NULL_DELAY_US", "1"}, {"NULL_MEMORY", "1000"}});
  sy_buffer* first = Allocate(600);
  sy_buffer* second = nullptr;
  EXPECT_EQ(api().alloc(device(), 600, nullptr, &second, error()), SY_OUT_OF_MEMORY);
  api().free(device(), first);
  second = Allocate(1000);
  api().free(device(), second);
}

TEST_F(NullDevice, KernelsComputeThroughTheReference) {
  Reopen({{"NULL_DELAY_US", "20"}});
  const Result result = backend_->Run(Op("matmul", sy_matmul_attributes{.alpha = 1}),
                                      {F32({1, 2}, {1, 2}), F32({2, 1}, {3, 4})}, {F32({1, 1})});
  EXPECT_THAT(result[0], ElementsAre(11)) << result.message;
  EXPECT_GT(result.info.workspace_bytes, 0u);
  EXPECT_EQ(result.info.capturable, 1u);
  const Result loss = backend_->Run(Op("cross_entropy", sy_cross_entropy_attributes{}),
                                    {F32({1, 1}, {1}), I32({1}, {-1})}, {F32({1}), F32({1})});
  EXPECT_THAT(loss[0], ElementsAre(0)) << loss.message;
  EXPECT_GT(loss.info.persistent_bytes, 0u);
}

TEST_F(NullDevice, OffersLittle) {
  Reopen({{"NULL_DELAY_US", "20"}});
  Op copy("pointwise", sy_pointwise_attributes{.output_count = 1, .outputs = {0}});
  EXPECT_THAT(backend_->Run(copy, {F32({1}, {1})}, {F32({1})}).inplace, ElementsAre(-1));
  EXPECT_EQ(backend_->Run(copy, {F64({1}, {1})}, {F64({1})}).status, SY_UNSUPPORTED);
  Tensor strided = F32({2}, {1, 2, 3});
  strided.strides = {2};
  EXPECT_EQ(backend_->Run(copy, {strided}, {F32({2})}).status, SY_UNSUPPORTED);
  copy.accumulate = {1};
  EXPECT_EQ(backend_->Run(copy, {F32({1}, {1})}, {F32({1}, {1})}).status, SY_UNSUPPORTED);
}

// Kernels prepared and bound by hand.
class NullKernels : public NullDevice {
 protected:
  NullKernels() { Reopen({{"NULL_DELAY_US", "20"}}); }
  sy_kernel* Prepare(const Op& op, const std::vector<sy_tensor>& inputs, const std::vector<sy_tensor>& outputs,
                     sy_kernel* forward = nullptr) {
    sy_prepare_request request = backend_->Request(op, inputs, outputs);
    request.paired_forward = forward == nullptr;
    request.forward = forward;
    info_ = {SY_HEADER(sy_kernel_info)};
    sy_kernel* kernel = nullptr;
    EXPECT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info_, error()), SY_OK) << backend_->message();
    return kernel;
  }
  sy_status Bind(sy_kernel* kernel, const sy_binding& binding, sy_bound** bound, sy_launch* launch) {
    return backend_->kernels().bind(device(), kernel, &binding, bound, launch, error());
  }
  // On a stream of its own, which a failure spoils.
  sy_status Launch(sy_kernel* kernel, const std::vector<sy_place>& inputs, const std::vector<sy_place>& outputs,
                   sy_place persistent, sy_place residual, sy_place constants = {}, int times = 1) {
    const sy_binding binding{SY_HEADER(sy_binding), inputs.data(), outputs.data(), {}, persistent, residual, constants};
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    sy_status status = Bind(kernel, binding, &bound, &launch);
    sy_stream* const own = NewStream();
    for (int i = 0; status == SY_OK && i < times; ++i) status = launch(bound, own, error());
    if (status == SY_OK) status = api().synchronize(device(), own, nullptr, error());
    if (bound) backend_->kernels().unbind(device(), bound);
    api().stream_destroy(device(), own);
    return status;
  }
  void Release(sy_kernel* kernel) { backend_->kernels().release(device(), kernel); }
  sy_kernel_info info_{};
};

TEST_F(NullKernels, AProductWithoutScratchIsASecondChoice) {
  const sy_matmul_attributes attributes{.alpha = 1};
  const auto matrix = Describe(F32({2, 2}));
  const Op op("matmul", attributes);
  for (const uint64_t limit : {uint64_t{0}, uint64_t{4096}}) {
    const std::vector<sy_tensor> inputs = {matrix, matrix}, outputs = {matrix};
    sy_prepare_request request = backend_->Request(op, inputs, outputs);
    request.workspace_limit = limit;
    info_ = {SY_HEADER(sy_kernel_info)};
    sy_kernel* kernel = nullptr;
    ASSERT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info_, error()), SY_OK) << backend_->message();
    EXPECT_EQ(info_.second_choice != nullptr, limit == 0);
    Release(kernel);
  }
}

TEST_F(NullKernels, TheBackwardReadsWhatItsForwardLeft) {
  const sy_pool_attributes attributes{.spatial_rank = 2, .kernel = {1, 2}, .stride = {1, 2}};
  const auto x = Describe(F32({1, 1, 2, 1})), y = Describe(F32({1, 1, 1, 1}));
  sy_kernel* forward = Prepare(Op("pool", attributes), {x}, {y});
  ASSERT_GE(info_.residual_bytes, 8u);
  sy_buffer* in = backend_->Upload(Encode(F32({2}, {1, 2})));
  sy_buffer *out = Allocate(4), *dx = Allocate(8), *residual = Allocate(info_.residual_bytes);
  EXPECT_EQ(Launch(forward, {At(in)}, {At(out)}, {}, {}), SY_INVALID) << "the residual needs a place";
  ASSERT_EQ(Launch(forward, {At(in)}, {At(out)}, {}, At(residual)), SY_OK) << backend_->message();
  sy_kernel* backward = Prepare(Op("pool_backward", attributes), {x, y}, {x}, forward);
  api().fill(device(), stream(), At(in), 0, 8, nullptr,
             error());  // x is gone: the maximum is known from the residual alone
  ASSERT_EQ(Launch(backward, {At(in), At(out)}, {At(dx)}, {}, At(residual)), SY_OK) << backend_->message();
  Tensor gradient = F32({2});
  Decode(backend_->Download(dx, 8), &gradient);
  EXPECT_THAT(gradient.values, ElementsAre(0, 2));
  Release(backward);
  Release(forward);
  for (sy_buffer* buffer : {in, out, dx, residual}) api().free(device(), buffer);
}

// cross_entropy of one sample of one class, whose places all lie in one buffer.
class NullConstants : public NullKernels {
 protected:
  sy_kernel* PrepareLoss() {
    const auto one = Describe(F32({1}));
    return Prepare(Op("cross_entropy", sy_cross_entropy_attributes{}), {Describe(F32({1, 1})), Describe(I32({1}))},
                   {one, one});
  }
  sy_status Run(sy_kernel* kernel, sy_buffer* buffer, uint64_t constants, int times = 1) {
    api().fill(device(), stream(), At(buffer, 1024), 0, 8, nullptr, error());
    api().synchronize(device(), stream(), nullptr, error());
    return Launch(kernel, {At(buffer), At(buffer, 256)}, {At(buffer, 512), At(buffer, 768)}, At(buffer, 1024), {},
                  At(buffer, constants), times);
  }
  sy_status Write(sy_kernel* kernel, sy_place place) {
    return backend_->kernels().write_constants(device(), kernel, stream(), place, error());
  }
};

TEST_F(NullConstants, PersistentBytesMustStartAtZeroAndStayUntouched) {
  sy_kernel* kernel = PrepareLoss();
  sy_buffer* buffer = backend_->Upload(std::vector<char>(2048, 0));
  ASSERT_EQ(Write(kernel, At(buffer, 1280)), SY_OK);
  EXPECT_EQ(Run(kernel, buffer, 1280, 3), SY_OK) << backend_->message();
  EXPECT_EQ(Launch(kernel, {At(buffer), At(buffer, 256)}, {At(buffer, 512), At(buffer, 768)}, At(buffer, 1024), {},
                   At(buffer, 1280)),
            SY_INVALID)
      << "a new binding expects zeros";
  EXPECT_THAT(backend_->message(), HasSubstr("expected 0, found 3"));
  Release(kernel);
  api().free(device(), buffer);
}

TEST_F(NullConstants, ALaunchFindsTheConstantsThatItsKernelWrote) {
  sy_kernel *kernel = PrepareLoss(), *other = PrepareLoss();
  EXPECT_GT(info_.constant_bytes, 0u);
  sy_buffer* buffer = backend_->Upload(std::vector<char>(2048, 0));
  EXPECT_EQ(Run(kernel, buffer, 1280), SY_INVALID) << "never written";
  EXPECT_THAT(backend_->message(), HasSubstr("write_constants"));
  EXPECT_EQ(Run(kernel, buffer, 2048 - info_.constant_bytes + 1), SY_INVALID) << "no room for them";
  EXPECT_EQ(Launch(kernel, {At(buffer), At(buffer, 256)}, {At(buffer, 512), At(buffer, 768)}, At(buffer, 1024), {}),
            SY_INVALID)
      << "no place for them";
  EXPECT_EQ(Write(kernel, {}), SY_INVALID);
  ASSERT_EQ(Write(kernel, At(buffer, 1280)), SY_OK);
  EXPECT_EQ(Run(kernel, buffer, 1280, 2), SY_OK) << backend_->message();
  EXPECT_EQ(Run(other, buffer, 1280), SY_INVALID) << "another kernel's";
  api().fill(device(), stream(), At(buffer, 1280 + info_.constant_bytes - 1), 1, 1, nullptr, error());
  EXPECT_EQ(Run(kernel, buffer, 1280), SY_INVALID) << "overwritten";
  Release(kernel);
  Release(other);
  api().free(device(), buffer);
}

TEST_F(NullKernels, ABindingLivesUntilItsLaunchesHaveRun) {
  Reopen({{"NULL_DELAY_US", "30000"}});
  const auto one = Describe(F32({1}));
  sy_kernel* kernel = Prepare(Op("softmax"), {one}, {one});
  sy_buffer* buffer = backend_->Upload(Encode(F32({2}, {1, 1})));
  const sy_place from = At(buffer), to = At(buffer, 4);
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(Bind(kernel, binding, &bound, &launch), SY_OK);
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK);
  backend_->kernels().unbind(device(), bound);  // the planted fault: its launch is still queued
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("unbound before"));
  Release(kernel);
  api().free(device(), buffer);
}

TEST_F(NullKernels, ACapturedRunReplays) {
  const auto* capture = backend_->Interface<sy_capture_v2>("capture/2");
  ASSERT_NE(capture, nullptr);
  sy_buffer* buffer = backend_->Upload(Encode(F32({2}, {1, 1})));
  const auto one = Describe(F32({1}));
  sy_kernel* kernel =
      Prepare(Op("pointwise",
                 sy_pointwise_attributes{
                     .instruction_count = 1, .output_count = 1, .outputs = {1}, .instructions = {{SY_PW_ADD, 0, 0}}}),
              {one}, {one});
  const sy_place from = At(buffer), to = At(buffer, 4);
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(Bind(kernel, binding, &bound, &launch), SY_OK);
  sy_event* event = NewEvent();
  ASSERT_EQ(capture->begin(device(), stream(), nullptr, error()), SY_OK);
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK);
  ASSERT_EQ(Copy(stream(), from, to, 4), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  sy_graph* graph = nullptr;
  ASSERT_EQ(capture->end(device(), stream(), &graph, error()), SY_OK);
  Tensor values = F32({2});
  Decode(backend_->Download(buffer, 8), &values);
  EXPECT_THAT(values.values, ElementsAre(1, 1)) << "capturing runs nothing";
  sy_stream* other = NewStream();
  float seen = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(capture->launch(device(), graph, stream(), error()), SY_OK);
  EXPECT_EQ(api().event_query(device(), event, error()), SY_IN_PROGRESS) << "each replay records it anew";
  ASSERT_EQ(api().stream_wait(device(), other, event, error()), SY_OK);
  ASSERT_EQ(Copy(other, Host(&seen), to, 4), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other, nullptr, error()), SY_OK);
  EXPECT_EQ(seen, 8);
  Decode(backend_->Download(buffer, 8), &values);
  EXPECT_THAT(values.values, ElementsAre(8, 8));
  capture->release(device(), graph);
  api().stream_destroy(device(), other);
  api().event_destroy(device(), event);
  backend_->kernels().unbind(device(), bound);
  Release(kernel);
  api().free(device(), buffer);
}

TEST_F(NullKernels, WhatCannotBeCapturedSpoilsTheCapture) {
  const auto* capture = backend_->Interface<sy_capture_v2>("capture/2");
  sy_buffer* buffer = backend_->Upload(std::vector<char>(8, 5));
  sy_event* event = NewEvent();
  sy_graph* graph = nullptr;
  int32_t host = 0;
  const auto refused = [&](const auto& call) {
    EXPECT_EQ(capture->begin(device(), stream(), nullptr, error()), SY_OK);
    EXPECT_EQ(api().fill(device(), stream(), At(buffer), 0, 8, nullptr, error()), SY_OK);
    EXPECT_EQ(call(), SY_UNSUPPORTED);
    EXPECT_EQ(capture->end(device(), stream(), &graph, error()), SY_UNSUPPORTED);
    EXPECT_EQ(graph, nullptr);
  };
  refused([&] { return Copy(stream(), Host(&host), At(buffer), 4); });
  refused([&] { return Copy(stream(), At(buffer), Host(&host), 4); });
  refused([&] { return api().stream_wait(device(), stream(), event, error()); });
  refused([&] { return api().synchronize(device(), stream(), nullptr, error()); });
  EXPECT_THAT(backend_->Download(buffer, 8), Each(char{5})) << "the stream runs again, and nothing recorded has run";
  EXPECT_EQ(capture->end(device(), stream(), &graph, error()), SY_INVALID) << "not being captured";
  api().event_destroy(device(), event);
  api().free(device(), buffer);
}

TEST_F(NullKernels, ProfilerGivesSpansWithTags) {
  const auto* profiler = backend_->Interface<sy_profiler_v2>("profiler/2");
  ASSERT_NE(profiler, nullptr);
  ASSERT_EQ(profiler->start(device(), error()), SY_OK);
  for (int i = 0; i < 3; ++i) backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})});
  ASSERT_EQ(profiler->stop(device(), error()), SY_OK);
  backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})});
  sy_span spans[2];
  uint32_t count = 0, total = 0;
  uint64_t shift = 1;
  do {
    ASSERT_EQ(profiler->drain(device(), spans, 2, &count, &shift, error()), SY_OK);
    total += count;
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_STREQ(spans[i].tag, "softmax");
      EXPECT_EQ(spans[i].stream, stream());
      EXPECT_LE(spans[i].start_ns, spans[i].end_ns);
    }
  } while (count > 0);
  EXPECT_EQ(total, 3u);
}

TEST_F(NullDevice, ALaunchFailsOnRequest) {
  Reopen({{"NULL_DELAY_US", "1"}, {"NULL_FAIL_AT", "2"}});
  EXPECT_EQ(backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})}).status, SY_OK);
  const Result second = backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})});
  EXPECT_EQ(second.status, SY_INTERNAL);
  EXPECT_THAT(second.message, HasSubstr("launch 2 fails"));
}

TEST_F(NullDevice, CopiesAndFillsAreOfWholeLines) {
  Reopen({{"NULL_DELAY_US", "1"}, {"NULL_LINE_BYTES", "4"}});
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(api().query(backend_->instance(), 0, &info, error()), SY_OK);
  EXPECT_EQ(info.copy_granularity, 4u);
  EXPECT_STREQ(info.memory_kind, "") << "nobody else reaches its memory";
  sy_buffer* buffer = Allocate(16);
  char host[16] = {};
  EXPECT_EQ(Copy(stream(), At(buffer, 4), Host(host + 1), 8), SY_OK) << "host memory has no lines";
  EXPECT_EQ(Copy(stream(), At(buffer, 2), Host(host), 4), SY_INVALID);
  EXPECT_EQ(Copy(stream(), At(buffer), Host(host), 6), SY_INVALID);
  EXPECT_EQ(Copy(stream(), Host(host), At(buffer, 1), 4), SY_INVALID);
  EXPECT_EQ(Copy(stream(), At(buffer), At(buffer, 9), 4), SY_INVALID);
  EXPECT_EQ(api().fill(device(), stream(), At(buffer, 4), 1, 3, nullptr, error()), SY_INVALID);
  EXPECT_EQ(api().fill(device(), stream(), At(buffer, 3), 1, 4, nullptr, error()), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("4 bytes at offset 3 are not whole lines of 4"));
  EXPECT_EQ(api().fill(device(), stream(), At(buffer, 4), 1, 4, nullptr, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK) << "what was refused was not queued";
  api().free(device(), buffer);
}

TEST_F(NullDevice, InstancesHaveTheirOwnSettingsAndShareTheDevices) {
  Reopen({{"NULL_DELAY_US", "1"}});
  const Backend small("null", {{"NULL_DEVICES", "1"}, {"NULL_MEMORY", "1000"}});
  int32_t count = 0;
  EXPECT_EQ(small.api().count(small.instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(api().count(backend_->instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 2);
  sy_buffer* first = Allocate(600);
  sy_buffer* second = nullptr;
  EXPECT_EQ(small.api().alloc(small.device(), 600, nullptr, &second, nullptr), SY_OUT_OF_MEMORY)
      << "the other instance has what this one lacks";
  api().free(device(), first);
  EXPECT_EQ(small.api().alloc(small.device(), 600, nullptr, &second, nullptr), SY_OK);
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(small.api().query(small.instance(), 0, &info, nullptr), SY_OK);
  EXPECT_EQ(info.memory_bytes, 1000u);
  EXPECT_EQ(info.free_bytes, 400u);
  EXPECT_EQ(api().fill(device(), stream(), At(second), 0, 4, nullptr, error()), SY_INVALID) << "but not the buffers";
  small.api().free(small.device(), second);
}

TEST_F(NullDevice, RequiredExtensionsAreRefusedEverywhere) {
  Reopen({{"NULL_DELAY_US", "1"}});
  const sy_extension required{SY_HEADER(sy_extension), "tests.required/1", 1};
  const auto with = [&](auto options) {
    options.header = {sizeof options, SY_ABI_MAJOR, SY_ABI_MINOR, &required};
    return options;
  };
  sy_buffer *buffer = Allocate(4), *refused = nullptr;
  int32_t host = 0;
  const auto open = with(sy_open_options{});
  sy_device* opened = nullptr;
  EXPECT_EQ(api().open(backend_->instance(), 0, &open, &opened, error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_->message(), HasSubstr("tests.required/1"));
  auto info = with(sy_device_info{});
  EXPECT_EQ(api().query(backend_->instance(), 0, &info, error()), SY_UNSUPPORTED);
  const auto alloc = with(sy_alloc_options{});
  EXPECT_EQ(api().alloc(device(), 4, &alloc, &refused, error()), SY_UNSUPPORTED);
  const auto copy = with(sy_copy_options{});
  EXPECT_EQ(api().copy(device(), stream(), At(buffer), Host(&host), 4, &copy, error()), SY_UNSUPPORTED);
  const auto fill = with(sy_fill_options{});
  EXPECT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, &fill, error()), SY_UNSUPPORTED);
  const auto synchronize = with(sy_synchronize_options{});
  EXPECT_EQ(api().synchronize(device(), stream(), &synchronize, error()), SY_UNSUPPORTED);
  const auto stream_options = with(sy_stream_options{});
  sy_stream* no_stream = nullptr;
  EXPECT_EQ(api().stream_create(device(), &stream_options, &no_stream, error()), SY_UNSUPPORTED);
  const auto event = with(sy_event_options{});
  sy_event* no_event = nullptr;
  EXPECT_EQ(api().event_create(device(), &event, &no_event, error()), SY_UNSUPPORTED);
  const auto capture = with(sy_capture_options{});
  EXPECT_EQ(backend_->Interface<sy_capture_v2>("capture/2")->begin(device(), stream(), &capture, error()),
            SY_UNSUPPORTED);
  Op op("softmax");
  const auto one = Describe(F32({1}));
  const std::vector<sy_tensor> tensors = {one};
  auto request = backend_->Request(op, tensors, tensors);
  sy_kernel_info kernel_info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &kernel_info, error()), SY_OK);
  const sy_place place = At(buffer);
  const auto binding = with(sy_binding{.inputs = &place, .outputs = &place});
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  EXPECT_EQ(backend_->kernels().bind(device(), kernel, &binding, &bound, &launch, error()), SY_UNSUPPORTED);
  backend_->kernels().release(device(), kernel);
  request.header.next = &required;
  EXPECT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &kernel_info, error()), SY_UNSUPPORTED);
  EXPECT_EQ(api().synchronize(device(), stream(), nullptr, error()), SY_OK);
  api().free(device(), buffer);
}

class NullSemaphores : public NullDevice {
 protected:
  NullSemaphores() {
    Reopen({{"NULL_DELAY_US", "20000"}});
    EXPECT_EQ(api_->create(device(), nullptr, &semaphore_, error()), SY_OK);
  }
  ~NullSemaphores() override { api_->destroy(device(), semaphore_); }
  sy_status Signal(uint64_t value) { return api_->signal(device(), semaphore_, value, error()); }
  sy_status Wait(uint64_t value, uint64_t timeout_ms) {
    return api_->wait(device(), semaphore_, value, timeout_ms, error());
  }
  sy_status StreamSignal(sy_stream* on, uint64_t value) {
    return api_->stream_signal(device(), on, semaphore_, value, error());
  }
  sy_status StreamWait(sy_stream* on, uint64_t value) {
    return api_->stream_wait(device(), on, semaphore_, value, error());
  }
  uint64_t Value() {
    uint64_t value = 99;
    EXPECT_EQ(api_->query(device(), semaphore_, &value, error()), SY_OK);
    return value;
  }
  sy_status Synchronize(sy_stream* on) { return api().synchronize(device(), on, nullptr, error()); }

  const sy_semaphore_v1* api_ = backend_->Interface<sy_semaphore_v1>("semaphore/1");
  sy_semaphore* semaphore_ = nullptr;
};

constexpr uint64_t kLong = 60000;  // ms

TEST_F(NullSemaphores, TheCountStartsAtZeroAndOnlyGrows) {
  EXPECT_EQ(Value(), 0u);
  EXPECT_EQ(Wait(0, 0), SY_OK);
  EXPECT_EQ(Signal(0), SY_INVALID);
  EXPECT_EQ(Signal(5), SY_OK);
  EXPECT_EQ(Value(), 5u);
  EXPECT_EQ(Signal(5), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("at 5 cannot be raised to 5"));
  EXPECT_EQ(Signal(3), SY_INVALID);
  EXPECT_EQ(Wait(4, 0), SY_OK);
  EXPECT_EQ(Wait(6, 10), SY_TIMEOUT);
  EXPECT_THAT(backend_->message(), HasSubstr("at 5 and not at 6"));
  EXPECT_EQ(Wait(5, UINT64_MAX), SY_OK);
}

TEST_F(NullSemaphores, AStreamWaitsForWhatTheHostSignalsLater) {
  sy_buffer* buffer = Allocate(4);
  int32_t host = 7, back = 0;
  ASSERT_EQ(StreamWait(stream(), 2), SY_OK) << "asked before anybody raised it";
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(Copy(stream(), Host(&back), At(buffer), 4), SY_OK);
  sy_event* event = NewEvent();
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  ASSERT_EQ(Signal(1), SY_OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(api().event_query(device(), event, error()), SY_IN_PROGRESS) << "1 is not 2";
  ASSERT_EQ(Signal(2), SY_OK);
  ASSERT_EQ(Synchronize(stream()), SY_OK);
  EXPECT_EQ(back, 7);
  api().event_destroy(device(), event);
  api().free(device(), buffer);
}

TEST_F(NullSemaphores, TheHostWaitsForAStream) {
  sy_buffer* buffer = Allocate(4);
  int32_t back = 0;
  ASSERT_EQ(api().fill(device(), stream(), At(buffer), 1, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(Copy(stream(), Host(&back), At(buffer), 4), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 3), SY_OK);
  EXPECT_EQ(Value(), 0u) << "the call only queues";
  EXPECT_EQ(Wait(3, 1), SY_TIMEOUT);
  EXPECT_EQ(Wait(3, kLong), SY_OK);
  EXPECT_EQ(back, 0x01010101);
  EXPECT_EQ(Value(), 3u);
  api().free(device(), buffer);
}

TEST_F(NullSemaphores, OneStreamHoldsAnotherUp) {
  sy_stream* other = NewStream();
  sy_buffer* buffer = Allocate(4);
  int32_t back = 0;
  ASSERT_EQ(StreamWait(other, 1), SY_OK);
  ASSERT_EQ(Copy(other, Host(&back), At(buffer), 4), SY_OK);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(api().fill(device(), stream(), At(buffer), 2, 4, nullptr, error()), SY_OK);
  ASSERT_EQ(StreamSignal(stream(), 1), SY_OK);
  ASSERT_EQ(Synchronize(other), SY_OK);
  EXPECT_EQ(back, 0x02020202);
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

TEST_F(NullSemaphores, AFailedStreamDoesNotLeaveAnybodyWaiting) {
  sy_stream *failing = NewStream(), *other = NewStream();
  sy_buffer* buffer = Allocate(4);
  ASSERT_EQ(StreamWait(other, 1), SY_OK);
  ASSERT_EQ(api().fill(device(), failing, At(buffer), 0, 4, nullptr, error()), SY_OK);
  api().free(device(), buffer);  // the planted fault
  ASSERT_EQ(StreamSignal(failing, 1), SY_OK);
  EXPECT_EQ(Wait(1, kLong), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("freed before the work"));
  EXPECT_EQ(Synchronize(other), SY_INVALID);
  EXPECT_EQ(Synchronize(stream()), SY_OK);
  for (sy_stream* each : {failing, other}) api().stream_destroy(device(), each);
}

TEST_F(NullSemaphores, AStreamThatLowersTheCountFails) {
  sy_stream* other = NewStream();
  ASSERT_EQ(Signal(9), SY_OK);
  ASSERT_EQ(StreamSignal(other, 4), SY_OK);
  EXPECT_EQ(Synchronize(other), SY_INVALID);
  EXPECT_EQ(Value(), 9u);
  EXPECT_EQ(StreamSignal(nullptr, 10), SY_INVALID) << "work on a stream needs one";
  api().stream_destroy(device(), other);
}

// Memory that two processes share. The other process is forked before this one has threads, and asks and is told
// through a pair of sockets.
class NullPeer : public testing::Test {
 protected:
  // What the other process does, with its end of the pair; its result is the exit code, 0 where all went well.
  void Fork(int (*other)(int socket)) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    process_ = fork();
    ASSERT_GE(process_, 0);
    close(pair[process_ == 0 ? 0 : 1]);
    if (process_ == 0) _exit(other(pair[1]));
    socket_ = pair[0];
    backend_ = std::make_unique<Backend>("null", kFast);
    peer_ = backend_->Interface<sy_peer_v1>("peer/1");
    ASSERT_NE(peer_, nullptr);
  }
  ~NullPeer() override { close(socket_); }
  int ExitCode() {
    int status = -1;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static void Tell(int socket, const std::vector<char>& message) {
    EXPECT_EQ(send(socket, message.data(), message.size(), 0), static_cast<ssize_t>(message.size()));
  }
  static std::vector<char> Hear(int socket) {
    std::vector<char> message(SY_MEMORY_DESCRIPTION_BYTES);
    const ssize_t bytes = recv(socket, message.data(), message.size(), 0);
    message.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return message;
  }
  static sy_buffer* Exportable(Backend& backend, uint64_t bytes) {
    sy_alloc_options options{SY_HEADER(sy_alloc_options)};
    options.exportable = 1;
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(backend.api().alloc(backend.device(), bytes, &options, &buffer, backend.error()), SY_OK);
    return buffer;
  }
  static std::vector<char> Describe(Backend& backend, sy_buffer* buffer) {
    std::vector<char> description(SY_MEMORY_DESCRIPTION_BYTES);
    uint32_t bytes = 0;
    EXPECT_EQ(backend.Interface<sy_peer_v1>("peer/1")->export_memory(
                  backend.device(), buffer, description.data(), SY_MEMORY_DESCRIPTION_BYTES, &bytes, backend.error()),
              SY_OK)
        << backend.message();
    description.resize(bytes);
    return description;
  }
  static sy_status Import(Backend& backend, const std::vector<char>& description, sy_buffer** buffer) {
    return backend.Interface<sy_peer_v1>("peer/1")->import_memory(
        backend.device(), description.data(), static_cast<uint32_t>(description.size()), buffer, backend.error());
  }
  static void Fill(Backend& backend, sy_buffer* buffer, uint64_t offset, uint8_t value, uint64_t bytes) {
    EXPECT_EQ(backend.api().fill(backend.device(), nullptr, {buffer, nullptr, offset}, value, bytes, nullptr,
                                 backend.error()),
              SY_OK)
        << backend.message();
  }

  static inline const std::map<std::string, std::string> kFast = {{"NULL_DELAY_US", "1"}};
  std::unique_ptr<Backend> backend_;
  const sy_peer_v1* peer_ = nullptr;
  int socket_ = -1;
  pid_t process_ = -1;
};

TEST_F(NullPeer, AnotherProcessReadsAndWritesWhatThisOneExports) {
  ASSERT_NO_FATAL_FAILURE(Fork([](int socket) {
    Backend backend("null", kFast);
    sy_buffer* buffer = nullptr;
    if (Import(backend, Hear(socket), &buffer) != SY_OK) return 1;
    if (backend.Download(buffer, 4) != std::vector<char>(4, 5)) return 2;
    Fill(backend, buffer, 4, 6, 4);
    sy_buffer* own = backend.Upload(std::vector<char>(4, 7));
    if (backend.api().copy(backend.device(), nullptr, {buffer, nullptr, 8}, {own, nullptr, 0}, 4, nullptr, nullptr))
      return 3;
    backend.api().free(backend.device(), own);
    backend.api().free(backend.device(), buffer);
    Tell(socket, {1});
    return 0;
  }));
  sy_buffer* buffer = Exportable(*backend_, 12);
  EXPECT_THAT(backend_->Download(buffer, 12), Each(char(0xFF)));
  Fill(*backend_, buffer, 0, 5, 12);
  Tell(socket_, Describe(*backend_, buffer));
  EXPECT_EQ(Hear(socket_).size(), 1u);
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_THAT(backend_->Download(buffer, 12), ElementsAre(5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7));
  backend_->api().free(backend_->device(), buffer);
}

TEST_F(NullPeer, TheMemoryOfAProcessThatEndedDoesNotCrashItsImporters) {
  ASSERT_NO_FATAL_FAILURE(Fork([](int socket) {
    Backend backend("null", kFast);
    sy_buffer* buffer = Exportable(backend, 1 << 20);
    Fill(backend, buffer, 0, 9, 1 << 20);
    Tell(socket, Describe(backend, buffer));
    return Hear(socket).size() == 1 ? 0 : 1;  // ends without a word, as a process that is killed does
  }));
  const std::vector<char> description = Hear(socket_);
  sy_buffer *early = nullptr, *late = nullptr;
  ASSERT_EQ(Import(*backend_, description, &early), SY_OK) << backend_->message();
  Tell(socket_, {1});
  EXPECT_EQ(ExitCode(), 0);
  EXPECT_EQ(backend_->Download(early, 1 << 20).size(), size_t{1} << 20);
  Fill(*backend_, early, 0, 1, 1 << 20);
  EXPECT_EQ(Import(*backend_, description, &late), SY_UNSUPPORTED) << "nobody has it any more to give";
  EXPECT_THAT(backend_->message(), HasSubstr("no longer"));
  backend_->api().free(backend_->device(), early);
}

TEST_F(NullPeer, ADeviceOfTheSameProcessImportsToo) {
  Backend backend("null", kFast);
  const sy_device_v2& api = backend.api();
  sy_device* second = nullptr;
  ASSERT_EQ(api.open(backend.instance(), 1, nullptr, &second, backend.error()), SY_OK);
  sy_buffer *own = Exportable(backend, 64), *theirs = nullptr;
  Fill(backend, own, 0, 3, 64);
  const auto description = Describe(backend, own);
  const auto* peer = backend.Interface<sy_peer_v1>("peer/1");
  ASSERT_EQ(peer->import_memory(second, description.data(), static_cast<uint32_t>(description.size()), &theirs,
                                backend.error()),
            SY_OK)
      << backend.message();
  char seen[64] = {};
  EXPECT_EQ(api.copy(second, nullptr, {nullptr, seen, 0}, {theirs, nullptr, 0}, 64, nullptr, nullptr), SY_OK);
  EXPECT_THAT(seen, Each(char{3}));
  EXPECT_EQ(api.fill(second, nullptr, {theirs, nullptr, 1}, 0, 64, nullptr, nullptr), SY_INVALID)
      << "as large as it is";
  api.free(second, theirs);
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(api.query(backend.instance(), 1, &info, nullptr), SY_OK);
  EXPECT_EQ(info.free_bytes, info.memory_bytes) << "imported memory is none of its own";
  api.close(second);
  api.free(backend.device(), own);
}

TEST_F(NullPeer, KernelsDoNotReachImportedMemory) {
  Backend backend("null", kFast);
  sy_buffer *own = Exportable(backend, 4), *imported = nullptr;
  ASSERT_EQ(Import(backend, Describe(backend, own), &imported), SY_OK);
  const Op op("softmax");
  const std::vector<sy_tensor> one = {test::Describe(F32({1}))};
  const sy_prepare_request request = backend.Request(op, one, one);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend.kernels().prepare(backend.device(), &request, &kernel, &info, backend.error()), SY_OK);
  const sy_place from{own, nullptr, 0}, to{imported, nullptr, 0};
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  EXPECT_EQ(backend.kernels().bind(backend.device(), kernel, &binding, &bound, &launch, backend.error()), SY_INVALID);
  EXPECT_THAT(backend.message(), HasSubstr("imported memory"));
  backend.kernels().release(backend.device(), kernel);
  for (sy_buffer* buffer : {imported, own}) backend.api().free(backend.device(), buffer);
}

TEST_F(NullPeer, WhatIsNotExportableAndWhatIsNoDescriptionAreRefused) {
  Backend backend("null", kFast);
  const auto* peer = backend.Interface<sy_peer_v1>("peer/1");
  sy_buffer *plain = backend.Upload({1, 2, 3, 4}), *exportable = Exportable(backend, 4), *imported = nullptr;
  std::vector<char> room(SY_MEMORY_DESCRIPTION_BYTES);
  uint32_t bytes = 0;
  const auto exported = [&](sy_buffer* buffer, uint32_t capacity) {
    return peer->export_memory(backend.device(), buffer, room.data(), capacity, &bytes, backend.error());
  };
  EXPECT_EQ(exported(plain, SY_MEMORY_DESCRIPTION_BYTES), SY_INVALID);
  EXPECT_EQ(exported(exportable, 8), SY_INVALID);
  auto description = Describe(backend, exportable);
  EXPECT_EQ(exported(exportable, static_cast<uint32_t>(description.size())), SY_OK);
  EXPECT_EQ(Import(backend, {'x', 'y'}, &imported), SY_INVALID);
  EXPECT_EQ(Import(backend, std::vector<char>(description.size()), &imported), SY_INVALID);
  backend.api().free(backend.device(), exportable);
  EXPECT_EQ(Import(backend, description, &imported), SY_UNSUPPORTED) << "freed before it was imported";
  exportable = Exportable(backend, 4);  // under the number that the freed one's file had
  EXPECT_EQ(Import(backend, description, &imported), SY_UNSUPPORTED) << "another buffer of the same size";
  for (sy_buffer* buffer : {plain, exportable}) backend.api().free(backend.device(), buffer);
}

}  // namespace
}  // namespace switchyard::test
