// The npu plugin on the simulator: what device/1 promises of an asynchronous, opaque device, and what kernels say when
// the runtime refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/backends/backend.h"
#include "tests/npu/simulator_path.h"

namespace switchyard::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NpuDevice : public testing::Test {
 protected:
  NpuDevice() { setenv("SWITCHYARD_NPU_RUNTIME", SimulatorPath().c_str(), 1); }
  // Settings of the simulator, which reads them when a stream is made.
  void Open(const char* delay_us = "0", const char* fail_at = "0") {
    setenv("SWITCHYARD_NPU_SIMULATOR_DELAY_US", delay_us, 1);
    setenv("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", fail_at, 1);
    backend_ = std::make_unique<Backend>("npu");
  }
  const sy_device_v1& api() { return backend_->api(); }
  sy_device* device() { return backend_->device(); }
  sy_stream* stream() { return backend_->stream(); }
  sy_error* error() { return backend_->error(); }
  const sy_memory_ext_v1& memory() {
    return *static_cast<const sy_memory_ext_v1*>(backend_->plugin().interface("memory_ext/1"));
  }

  sy_buffer* Allocate(uint64_t bytes) {
    sy_buffer* buffer = nullptr;
    EXPECT_EQ(api().alloc(device(), bytes, &buffer, error()), SY_OK) << backend_->message();
    return buffer;
  }
  sy_status Copy(sy_stream* stream, sy_place to, sy_place from, uint64_t bytes) {
    return api().copy(device(), stream, to, from, bytes, error());
  }
  sy_device_info Info(int32_t index) {
    sy_device_info info{SY_HEADER(sy_device_info)};
    EXPECT_EQ(api().query(index, &info, error()), SY_OK) << backend_->message();
    return info;
  }
  static sy_place At(sy_buffer* buffer, uint64_t offset = 0) { return {buffer, nullptr, offset}; }
  static sy_place Host(void* address) { return {nullptr, address, 0}; }

  std::unique_ptr<Backend> backend_;
};

TEST_F(NpuDevice, ItsRulesAreData) {
  Open();
  int32_t count = 0;
  ASSERT_EQ(api().count(&count, error()), SY_OK);
  EXPECT_EQ(count, 8);
  const sy_device_info info = Info(7);
  EXPECT_EQ(info.flags, SY_DEVICE_ASYNC | SY_DEVICE_ADJACENT_IDS);
  EXPECT_EQ(info.static_loss_scale, 1024);
  EXPECT_EQ(info.address_kind, static_cast<uint32_t>(SY_ADDRESS_OPAQUE));
  EXPECT_NE(std::memcmp(info.uuid, Info(6).uuid, sizeof info.uuid), 0) << "two devices, two names";
}

using NpuDeviceDeathTest = NpuDevice;
TEST_F(NpuDeviceDeathTest, TheHostFaultsWhereItFollowsADeviceAddress) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Open();
  sy_buffer* buffer = Allocate(4096);
  void* address = nullptr;
  int32_t kind = -1;
  ASSERT_EQ(memory().native_address(device(), buffer, &address, &kind, error()), SY_OK);
  EXPECT_EQ(kind, SY_MEMORY_NPU);
  EXPECT_DEATH(
      {
        const char byte = *static_cast<volatile char*>(address);
        std::_Exit(byte == 0 ? 0 : 0);
      },
      "");
  api().free(device(), buffer);
}

TEST_F(NpuDevice, CopiesAndKernelsDoNotBlockTheHost) {
  Open("30000");
  sy_buffer* buffer = Allocate(4);
  int32_t host = 1, back = 0;
  ASSERT_EQ(Copy(stream(), At(buffer), Host(&host), 4), SY_OK);
  ASSERT_EQ(Copy(stream(), Host(&back), At(buffer), 4), SY_OK);
  EXPECT_EQ(back, 0) << "a copy returns before it has run";
  ASSERT_EQ(api().synchronize(device(), stream(), error()), SY_OK);
  EXPECT_EQ(back, 1);
  api().free(device(), buffer);
}

TEST_F(NpuDevice, EveryThreadWorksWithoutChoosingADeviceFirst) {
  Open();
  sy_device* other = nullptr;
  const sy_open_options options{SY_HEADER(sy_open_options)};
  ASSERT_EQ(api().open(3, &options, &other, error()), SY_OK) << backend_->message();
  std::thread([&] {
    // To and fro between two devices, on a thread that the runtime has not seen.
    for (sy_device* each : {device(), other, device()}) {
      sy_buffer* buffer = nullptr;
      int32_t host = 9, back = 0;
      EXPECT_EQ(api().alloc(each, 4, &buffer, nullptr), SY_OK);
      EXPECT_EQ(api().copy(each, nullptr, At(buffer), Host(&host), 4, nullptr), SY_OK);
      EXPECT_EQ(api().copy(each, nullptr, Host(&back), At(buffer), 4, nullptr), SY_OK);
      EXPECT_EQ(back, 9);
      api().free(each, buffer);
    }
  }).join();
  api().close(other);
}

TEST_F(NpuDevice, MemoryIsCountedForEachDevice) {
  Open();
  const uint64_t first = Info(0).free_bytes, second = Info(1).free_bytes;
  sy_buffer* buffer = Allocate(1 << 20);
  EXPECT_EQ(Info(0).free_bytes, first - (1 << 20));
  EXPECT_EQ(Info(1).free_bytes, second);
  api().free(device(), buffer);
  EXPECT_EQ(Info(0).free_bytes, first);
}

TEST_F(NpuDevice, TheFirstErrorOfAStreamStaysAlthoughTheRuntimeTellsItOnce) {
  Open("0", "3");
  sy_buffer* buffer = Allocate(4);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(api().fill(device(), stream(), At(buffer), 0, 4, error()), SY_OK);
  }
  EXPECT_EQ(api().synchronize(device(), stream(), error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("task 3 fails"));
  EXPECT_EQ(error()->native_code, 507015);
  error()->message[0] = '\0';
  EXPECT_EQ(api().synchronize(device(), stream(), error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("task 3 fails"));
  EXPECT_EQ(api().synchronize(device(), nullptr, error()), SY_INTERNAL) << "and of the device as a whole";

  // Another stream goes on, and an event of the failed one fails with it.
  const sy_stream_options options{SY_HEADER(sy_stream_options)};
  sy_stream* other = nullptr;
  ASSERT_EQ(api().stream_create(device(), &options, &other, error()), SY_OK);
  ASSERT_EQ(api().fill(device(), other, At(buffer), 7, 4, error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), other, error()), SY_OK);
  sy_event* event = nullptr;
  ASSERT_EQ(api().event_create(device(), &event, error()), SY_OK);
  ASSERT_EQ(api().event_record(device(), event, stream(), error()), SY_OK);
  EXPECT_EQ(api().event_synchronize(device(), event, error()), SY_INTERNAL);
  api().event_destroy(device(), event);
  api().stream_destroy(device(), other);
  api().free(device(), buffer);
}

TEST_F(NpuDevice, AKernelOverFreedMemoryFailsItsStreamByName) {
  Open();
  const sy_tensor tensor = Describe(F32({8}));
  sy_pointwise_attributes a{};
  a.instruction_count = a.output_count = 1;
  a.instructions[0].op = SY_PW_EXP;
  a.outputs[0] = 1;
  const Op op("pointwise", a);
  const std::vector<sy_tensor> tensors = {tensor};
  const sy_prepare_request request = backend_->Request(op, tensors, tensors);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info, error()), SY_OK) << backend_->message();
  sy_buffer *in = Allocate(32), *out = Allocate(32);
  const sy_place from = At(in), to = At(out);
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_->kernels().bind(kernel, &binding, &bound, &launch, error()), SY_OK) << backend_->message();
  api().free(device(), in);
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK);
  EXPECT_EQ(api().synchronize(device(), stream(), error()), SY_INTERNAL);
  EXPECT_THAT(backend_->message(), HasSubstr("aclnnExp touches device memory that is not allocated"));
  backend_->kernels().unbind(bound);
  backend_->kernels().release(kernel);
  api().free(device(), out);
}

TEST_F(NpuDevice, SixtyFourBitLabelsAreUnsupportedAndTheReasonSaysSo) {
  Open();
  Tensor labels{SY_I64, {2}, {0, 1}};
  sy_cross_entropy_attributes a{};
  a.ignore_index = -100;
  const Result refused =
      backend_->Run(Op("cross_entropy", a), {F32({2, 3}, {1, 2, 3, 4, 5, 6}), labels}, {F32({2}), F32({2})});
  EXPECT_EQ(refused.status, SY_UNSUPPORTED);
  EXPECT_THAT(refused.message, HasSubstr("64-bit"));
}

TEST_F(NpuDevice, ScratchBeyondTheLimitIsRefusedWithBothSizes) {
  Open();
  const std::vector<sy_tensor> in = {Describe(F32({2, 33, 3, 1, 4}))},
                               out = {Describe(F32({2, 33, 1, 4})), Describe(F32({2, 1, 33}))};
  sy_attention_attributes a{};
  a.scale = 0.5f;
  const Op op("attention", a);
  sy_prepare_request request = backend_->Request(op, in, out);
  request.workspace_limit = 1000;
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  EXPECT_EQ(backend_->kernels().prepare(device(), &request, &kernel, &info, error()), SY_UNSUPPORTED);
  EXPECT_THAT(backend_->message(), HasSubstr("allowed are 1000"));
}

TEST_F(NpuDevice, AnOperatorThatCannotBeMadeRepeatableIsPlannedAtEveryLaunch) {
  Open();
  setenv("SWITCHYARD_NPU_SIMULATOR_ONCE", "aclnnReduceSum", 1);
  sy_reduce_attributes a{};
  a.axes = 2;
  a.scale = 1;
  for (int round = 0; round < 2; ++round) {
    const Result sums = backend_->Run(Op("reduce", a), {F32({2, 3}, {1, 2, 3, 4, 5, 6})}, {F32({2})});
    ASSERT_EQ(sums.status, SY_OK) << sums.message;
    EXPECT_THAT(sums[0], ElementsAre(6, 15));
  }
  unsetenv("SWITCHYARD_NPU_SIMULATOR_ONCE");
}

// The graph x → matmul → reshape → gelu → reshape → matmul, of which a region takes all.
TEST_F(NpuDevice, ARegionIsOneKernelForSeveralNodes) {
  Open();
  const auto& regions = *static_cast<const sy_region_v1*>(backend_->plugin().interface("region/1"));
  sy_matmul_attributes product{SY_HEADER(sy_matmul_attributes)};
  product.alpha = 1;
  sy_pointwise_attributes relu{SY_HEADER(sy_pointwise_attributes)};
  relu.instruction_count = relu.output_count = 1;
  relu.instructions[0].op = SY_PW_RELU;
  relu.outputs[0] = 1;
  // 0 x, 1 w, 2 x·w, 3 as (1, 2, 2), 4 relu, 5 as (2, 2), 6 v, 7 result
  const std::vector<sy_tensor> tensors = {Describe(F32({2, 1})),    Describe(F32({1, 2})),    Describe(F32({2, 2})),
                                          Describe(F32({1, 2, 2})), Describe(F32({1, 2, 2})), Describe(F32({2, 2})),
                                          Describe(F32({2, 1})),    Describe(F32({2, 1}))};
  const uint32_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const uint32_t second[] = {5, 6}, ends[] = {0, 1, 6};
  const std::vector<sy_region_node> nodes = {{"matmul", &product, sizeof product, 2, 1, &ids[0], &ids[2]},
                                             {"reshape", nullptr, 0, 1, 1, &ids[2], &ids[3]},
                                             {"pointwise", &relu, sizeof relu, 1, 1, &ids[3], &ids[4]},
                                             {"reshape", nullptr, 0, 1, 1, &ids[4], &ids[5]},
                                             {"matmul", &product, sizeof product, 2, 1, second, &ids[7]}};
  const sy_region graph{SY_HEADER(sy_region), 8, 5, 3, 1, tensors.data(), nodes.data(), ends, &ids[7]};
  std::vector<uint32_t> claims(5, 99);
  ASSERT_EQ(regions.partition(device(), &graph, claims.data(), error()), SY_OK) << backend_->message();
  EXPECT_THAT(claims, ElementsAre(1, 1, 1, 1, 1));

  sy_kernel* kernel = nullptr;
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  ASSERT_EQ(regions.prepare(device(), &graph, 1 << 20, &kernel, &info, error()), SY_OK) << backend_->message();
  std::vector<sy_buffer*> buffers = {
      backend_->Upload(Encode(F32({2, 1}, {1, 2}))), backend_->Upload(Encode(F32({1, 2}, {3, -4}))),
      backend_->Upload(Encode(F32({2, 1}, {10, 100}))), Allocate(8), Allocate(info.workspace_bytes)};
  const std::vector<sy_place> inputs = {At(buffers[0]), At(buffers[1]), At(buffers[2])};
  const sy_place output = At(buffers[3]);
  const sy_binding binding{SY_HEADER(sy_binding), inputs.data(), &output, At(buffers[4]), {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_->kernels().bind(kernel, &binding, &bound, &launch, error()), SY_OK) << backend_->message();
  ASSERT_EQ(launch(bound, stream(), error()), SY_OK) << backend_->message();
  Tensor result = F32({2, 1});
  Decode(backend_->Download(buffers[3], 8), &result);
  EXPECT_THAT(result.values, ElementsAre(30, 60));
  backend_->kernels().unbind(bound);
  backend_->kernels().release(kernel);
  for (sy_buffer* buffer : buffers) api().free(device(), buffer);
}

TEST_F(NpuDevice, ARegionLeavesOutWhatWouldRunBeforeItself) {
  Open();
  const auto& regions = *static_cast<const sy_region_v1*>(backend_->plugin().interface("region/1"));
  sy_matmul_attributes first{SY_HEADER(sy_matmul_attributes)}, second = first;
  first.alpha = second.alpha = 1;
  first.activation = SY_ACTIVATION_RELU;
  sy_pointwise_attributes negate{SY_HEADER(sy_pointwise_attributes)};
  negate.instruction_count = negate.output_count = 1;
  negate.instructions[0].op = SY_PW_NEG;
  negate.outputs[0] = 1;
  // 2 = relu(0·1); 3 = −2, outside; 4 = 2·3: the second product needs what is made from the first one outside.
  const std::vector<sy_tensor> tensors(5, Describe(F32({2, 2})));
  const uint32_t ids[] = {0, 1, 2, 3, 4};
  const std::vector<sy_region_node> nodes = {{"matmul", &first, sizeof first, 2, 1, &ids[0], &ids[2]},
                                             {"pointwise", &negate, sizeof negate, 1, 1, &ids[2], &ids[3]},
                                             {"matmul", &second, sizeof second, 2, 1, &ids[2], &ids[4]}};
  const sy_region graph{SY_HEADER(sy_region), 5, 3, 2, 1, tensors.data(), nodes.data(), ids, &ids[4]};
  std::vector<uint32_t> claims(3, 99);
  ASSERT_EQ(regions.partition(device(), &graph, claims.data(), error()), SY_OK) << backend_->message();
  EXPECT_THAT(claims, ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace switchyard::test
