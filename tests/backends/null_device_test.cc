// The null device is everything that the engine must cope with: asynchronous, opaque, unforgiving. These tests show
// that it really is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class NullDevice : public testing::Test {
 protected:
  NullDevice() { Reopen("30000"); }  // 30 ms before every command
  ~NullDevice() override {
    backend_.reset();
    unsetenv("SWITCHYARD_NULL_DELAY_US");
  }
  void Reopen(const char* delay_us) {
    setenv("SWITCHYARD_NULL_DELAY_US", delay_us, 1);
    backend_ = std::make_unique<Backend>("null");
  }
  const sy_device_v1& api() { return backend_->api(); }
  sy_device* device() { return backend_->device(); }
  sy_stream* stream() { return backend_->stream(); }
  sy_error* error() { return backend_->error(); }

  sy_buffer* Allocate(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api().alloc(device(), bytes, &buffer, error()), SY_OK) << backend_->message();
    return buffer;
  }
  sy_status Copy(sy_stream* stream, sy_place to, sy_place from, uint64_t bytes) {
    return api().copy(device(), stream, to, from, bytes, error());
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
    EXPECT_EQ(api().event_create(device(), &made, error()), SY_OK);
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
  ASSERT_EQ(api().synchronize(device(), stream(), error()), SY_OK);
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

TEST_F(NullDevice, EventsOrderStreams) {
  sy_stream* other = NewStream();
  sy_event* event = NewEvent();
  EXPECT_EQ(api().event_query(device(), event, error()), SY_OK) << "never recorded";
  sy_buffer* buffer = Allocate(4);
  int32_t host = 7, back = 0;
  ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, error()), SY_OK);
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  EXPECT_EQ(api().event_query(device(), event, error()), SY_IN_PROGRESS);
  ASSERT_EQ(api().stream_wait(device(), other, event, error()), SY_OK);
  ASSERT_EQ(Copy(other, Host(&back), At(buffer), 4), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other, error()), SY_OK);
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
  for (int i = 0; i < 3; ++i) ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), other, At(buffer, 4), 0, 4, error()), SY_OK);
  ASSERT_EQ(api().synchronize(device(), other, error()), SY_OK);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(api().synchronize(device(), nullptr, error()), SY_OK);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20)) << "the other stream was ahead";
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

TEST_F(NullDevice, TheFirstErrorOfAStreamStaysAndPassesThroughEvents) {
  Reopen("2000");
  sy_stream* failing = NewStream();
  sy_event* event = NewEvent();
  sy_buffer *buffer = Allocate(4), *kept = Allocate(4);
  ASSERT_EQ(api().fill(device(), failing, At(kept), 1, 4, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), failing, At(buffer), 0, 4, error()), SY_OK);
  api().free(device(), buffer);  // the planted fault: work that uses it is still queued
  ASSERT_EQ(api().fill(device(), failing, At(kept), 2, 4, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, failing, error()), SY_OK);
  EXPECT_EQ(api().event_synchronize(device(), event, error()), SY_INVALID);
  EXPECT_THAT(backend_->message(), HasSubstr("freed before the work"));
  for (int again = 0; again < 2; ++again) EXPECT_EQ(api().synchronize(device(), failing, error()), SY_INVALID);
  EXPECT_EQ(api().event_query(device(), event, error()), SY_INVALID);

  EXPECT_EQ(api().synchronize(device(), stream(), error()), SY_OK) << "other streams go on";
  EXPECT_THAT(backend_->Download(kept, 4), Each(char{1})) << "what follows an error does not run";
  ASSERT_EQ(api().stream_wait(device(), stream(), event, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), error()), SY_INVALID) << "who waits for a failed event fails";
  EXPECT_EQ(api().synchronize(device(), nullptr, error()), SY_INVALID);
  api().event_destroy(device(), event);
  api().stream_destroy(device(), failing);
  api().free(device(), kept);
}

TEST_F(NullDevice, OutOfMemoryIsSurvivedAndPerDevice) {
  setenv("SWITCHYARD_NULL_MEMORY", "1000", 1);
  Reopen("1");
  unsetenv("SWITCHYARD_NULL_MEMORY");
  sy_buffer* first = Allocate(600);
  sy_buffer* second = nullptr;
  EXPECT_EQ(api().alloc(device(), 600, &second, error()), SY_OUT_OF_MEMORY);
  api().free(device(), first);
  second = Allocate(1000);
  api().free(device(), second);
}

TEST_F(NullDevice, KernelsComputeThroughTheReference) {
  Reopen("20");
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
  Reopen("20");
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
  NullKernels() { Reopen("20"); }
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
  sy_status Launch(sy_kernel* kernel, const std::vector<sy_place>& inputs, const std::vector<sy_place>& outputs,
                   sy_place persistent, sy_place residual, int times = 1) {
    const sy_binding binding{SY_HEADER(sy_binding), inputs.data(), outputs.data(), {}, persistent, residual};
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    sy_status status = backend_->kernels().bind(kernel, &binding, &bound, &launch, error());
    for (int i = 0; status == SY_OK && i < times; ++i) status = launch(bound, stream(), error());
    if (bound) backend_->kernels().unbind(bound);  // legal: the queue holds on to it
    return status != SY_OK ? status : api().synchronize(device(), stream(), error());
  }
  sy_kernel_info info_{};
};

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
  api().fill(device(), stream(), At(in), 0, 8, error());  // x is gone: the maximum is known from the residual alone
  ASSERT_EQ(Launch(backward, {At(in), At(out)}, {At(dx)}, {}, At(residual)), SY_OK) << backend_->message();
  Tensor gradient = F32({2});
  Decode(backend_->Download(dx, 8), &gradient);
  EXPECT_THAT(gradient.values, ElementsAre(0, 2));
  backend_->kernels().release(backward);
  backend_->kernels().release(forward);
  for (sy_buffer* buffer : {in, out, dx, residual}) api().free(device(), buffer);
}

TEST_F(NullKernels, PersistentBytesMustStartAtZeroAndStayUntouched) {
  sy_kernel* kernel = Prepare(Op("cross_entropy", sy_cross_entropy_attributes{}),
                              {Describe(F32({1, 1})), Describe(I32({1}))}, {Describe(F32({1})), Describe(F32({1}))});
  sy_buffer* buffer = backend_->Upload(std::vector<char>(1024, 0));
  const std::vector<sy_place> inputs = {At(buffer), At(buffer, 256)}, outputs = {At(buffer, 512), At(buffer, 768)};
  EXPECT_EQ(Launch(kernel, inputs, outputs, At(buffer, 1016), {}, 3), SY_OK) << backend_->message();
  EXPECT_EQ(Launch(kernel, inputs, outputs, At(buffer, 1016), {}), SY_INVALID) << "a new binding expects zeros";
  EXPECT_THAT(backend_->message(), HasSubstr("expected 0, found 3"));
  backend_->kernels().release(kernel);
  api().free(device(), buffer);
}

TEST_F(NullKernels, ACapturedRunReplays) {
  const auto* capture = static_cast<const sy_capture_v1*>(backend_->plugin().interface("capture/1"));
  ASSERT_NE(capture, nullptr);
  sy_buffer* buffer = backend_->Upload(Encode(F32({2}, {1, 1})));
  const auto one = Describe(F32({1}));
  sy_kernel* kernel =
      Prepare(Op("pointwise",
                 sy_pointwise_attributes{
                     .instruction_count = 1, .output_count = 1, .outputs = {1}, .instructions = {{SY_PW_ADD, 0, 0}}}),
              {one}, {one});
  const sy_place from = At(buffer), to = At(buffer, 4);
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_->kernels().bind(kernel, &binding, &bound, &launch, error()), SY_OK);
  ASSERT_EQ(capture->begin(device(), stream(), error()), SY_OK);
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK);
  ASSERT_EQ(Copy(stream(), from, to, 4), SY_OK);
  sy_graph* graph = nullptr;
  ASSERT_EQ(capture->end(device(), stream(), &graph, error()), SY_OK);
  Tensor values = F32({2});
  Decode(backend_->Download(buffer, 8), &values);
  EXPECT_THAT(values.values, ElementsAre(1, 1)) << "capturing runs nothing";
  for (int i = 0; i < 3; ++i) ASSERT_EQ(capture->launch(graph, stream(), error()), SY_OK);
  Decode(backend_->Download(buffer, 8), &values);
  EXPECT_THAT(values.values, ElementsAre(8, 8));
  capture->release(graph);

  sy_event* event = NewEvent();
  ASSERT_EQ(capture->begin(device(), stream(), error()), SY_OK);
  EXPECT_EQ(api().event_record(device(), event, stream(), error()), SY_INVALID);
  EXPECT_EQ(capture->end(device(), stream(), &graph, error()), SY_INVALID) << "all or nothing";
  EXPECT_EQ(capture->end(device(), stream(), &graph, error()), SY_INVALID) << "not being captured";
  api().event_destroy(device(), event);
  backend_->kernels().unbind(bound);
  backend_->kernels().release(kernel);
  api().free(device(), buffer);
}

TEST_F(NullKernels, ProfilerGivesSpansWithTags) {
  const auto* profiler = static_cast<const sy_profiler_v1*>(backend_->plugin().interface("profiler/1"));
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
  setenv("SWITCHYARD_NULL_FAIL_AT", "2", 1);
  Reopen("1");
  unsetenv("SWITCHYARD_NULL_FAIL_AT");
  EXPECT_EQ(backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})}).status, SY_OK);
  const Result second = backend_->Run(Op("softmax"), {F32({1}, {1})}, {F32({1})});
  EXPECT_EQ(second.status, SY_INTERNAL);
  EXPECT_THAT(second.message, HasSubstr("launch 2 fails"));
}

}  // namespace
}  // namespace switchyard::test
