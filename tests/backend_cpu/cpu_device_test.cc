// The cpu device by itself: memory, limits, copies, imported memory and threads.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

class CpuDevice : public testing::Test {
 protected:
  const sy_memory_ext_v2& memory() const { return *backend_.Interface<sy_memory_ext_v2>("memory_ext/2"); }
  Backend backend_{"cpu"};
};

TEST_F(CpuDevice, DescribesItself) {
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &info, backend_.error()), SY_OK);
  EXPECT_EQ(info.address_kind, uint32_t{SY_ADDRESS_HOST});
  EXPECT_EQ(info.flags, uint32_t{SY_DEVICE_SHAREABLE | SY_DEVICE_CPU_CORES});
  EXPECT_EQ(info.alignment, 64u);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_STREQ(info.memory_kind, "host");
  EXPECT_EQ(backend_.api().query(backend_.instance(), 100000, &info, backend_.error()), SY_INVALID);
}

TEST_F(CpuDevice, FillsNoMoreOfAnOlderStructThanItHolds) {
  struct {
    sy_device_info info;
  } old{SY_HEADER(sy_device_info)};
  old.info.header.size = offsetof(sy_device_info, memory_bytes);
  old.info.memory_bytes = 77;
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &old.info, nullptr), SY_OK);
  EXPECT_EQ(old.info.memory_bytes, 77u);
}

TEST_F(CpuDevice, RefusesMoreThanItsMemoryAndGoesOn) {
  const Backend small("cpu", {{"CPU_MEMORY", "1000000"}});
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(small.api().query(small.instance(), 0, &info, nullptr), SY_OK);
  EXPECT_EQ(info.memory_bytes, 1000000u);
  EXPECT_LE(info.free_bytes, info.memory_bytes);
  const auto alloc = [&](uint64_t bytes, sy_buffer** buffer) {
    return small.api().alloc(small.device(), bytes, nullptr, buffer, nullptr);
  };
  sy_buffer *first = nullptr, *second = nullptr;
  EXPECT_EQ(alloc(900000, &first), SY_OK);
  EXPECT_EQ(alloc(200000, &second), SY_OUT_OF_MEMORY);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(alloc(~uint64_t{0}, &second), SY_OUT_OF_MEMORY);
  small.api().free(small.device(), first);
  EXPECT_EQ(alloc(200000, &second), SY_OK);
  small.api().free(small.device(), second);
}

TEST_F(CpuDevice, EachInstanceHasTheSettingsOfItsHost) {
  const Backend three("cpu", {{"CPU_DEVICES", "3"}});
  int32_t count = 0;
  ASSERT_EQ(three.api().count(three.instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 3);
  ASSERT_EQ(backend_.api().count(backend_.instance(), &count, nullptr), SY_OK);
  EXPECT_EQ(count, 1);
}

TEST_F(CpuDevice, BrokenCallsAreInvalid) {
  sy_buffer* buffer = nullptr;
  EXPECT_EQ(backend_.api().alloc(backend_.device(), 0, nullptr, &buffer, nullptr), SY_INVALID);
  char from[4] = {}, to[4] = {};
  EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, to, 0}, {nullptr, from, 0}, 4, nullptr, nullptr),
            SY_INVALID);
  buffer = backend_.Upload(std::vector<char>(16));
  const Op op("softmax");
  const std::vector<sy_tensor> four = {Describe(F32({4}))};
  const sy_prepare_request request = backend_.Request(op, four, four);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_.kernels().prepare(backend_.device(), &request, &kernel, &info, backend_.error()), SY_OK);
  sy_buffer* const scratch = backend_.Upload(std::vector<char>(info.workspace_bytes + 1));
  const sy_place inside{buffer, nullptr, 0}, outside{buffer, nullptr, 4}, nowhere{};
  const auto bind = [&](const sy_place& input, const sy_place& output) {
    const sy_binding binding{SY_HEADER(sy_binding), &input, &output, {scratch, nullptr, 0}, {}, {}, {}};
    sy_bound* bound = nullptr;
    sy_launch launch = nullptr;
    const sy_status status =
        backend_.kernels().bind(backend_.device(), kernel, &binding, &bound, &launch, backend_.error());
    if (bound) backend_.kernels().unbind(backend_.device(), bound);
    return status;
  };
  EXPECT_EQ(bind(inside, inside), SY_OK);
  EXPECT_EQ(bind(outside, inside), SY_INVALID);
  EXPECT_EQ(bind(inside, outside), SY_INVALID);
  EXPECT_STREQ(backend_.message(), "cpu: bind: an output of 16 bytes does not lie inside its buffer");
  EXPECT_EQ(bind(nowhere, inside), SY_INVALID);
  backend_.kernels().release(backend_.device(), kernel);
  for (sy_buffer* each : {buffer, scratch}) backend_.api().free(backend_.device(), each);
}

TEST_F(CpuDevice, CopiesAtOddSizesAndOffsetsAndRefusesToLeaveABuffer) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{5} << 20}) {
    sy_buffer* buffer = nullptr;
    ASSERT_EQ(backend_.api().alloc(backend_.device(), bytes, nullptr, &buffer, backend_.error()), SY_OK);
    std::vector<char> pattern(37), back(37);
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<char>(i * 7);
    ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, 13}, {nullptr, pattern.data(), 0}, 37,
                                  nullptr, backend_.error()),
              SY_OK);
    ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, back.data(), 0}, {buffer, nullptr, 13}, 37,
                                  nullptr, backend_.error()),
              SY_OK);
    EXPECT_EQ(pattern, back);
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, bytes - 36},
                                  {nullptr, pattern.data(), 0}, 37, nullptr, backend_.error()),
              SY_INVALID);
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, back.data(), 0}, {buffer, nullptr, bytes - 36},
                                  37, nullptr, backend_.error()),
              SY_INVALID);
    backend_.api().free(backend_.device(), buffer);
  }
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(CpuDevice, FillingFreshMemoryWithZerosDoesNotTouchIt) {
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), kBytes, nullptr, &buffer, backend_.error()), SY_OK);
  const auto fill = [&](uint8_t value) {
    return backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 0}, value, kBytes, nullptr,
                               backend_.error());
  };
  const auto byte = [&](uint64_t offset) {
    unsigned char read = 0x77;
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, &read, 0}, {buffer, nullptr, offset}, 1,
                                  nullptr, backend_.error()),
              SY_OK);
    return read;
  };
  const uint64_t before = ResidentBytes();
  ASSERT_EQ(fill(0), SY_OK);
  EXPECT_LT(ResidentBytes(), before + kBytes / 2);
  EXPECT_EQ(byte(kBytes - 1), 0);
  // Once anybody has written there, zeros are written too.
  const unsigned char one = 1;
  ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, 12345},
                                {nullptr, const_cast<unsigned char*>(&one), 0}, 1, nullptr, backend_.error()),
            SY_OK);
  ASSERT_EQ(fill(0), SY_OK);
  EXPECT_EQ(byte(12345), 0);
  ASSERT_EQ(fill(0x5A), SY_OK);
  EXPECT_EQ(byte(kBytes / 2), 0x5A);
  ASSERT_EQ(fill(0), SY_OK);
  EXPECT_EQ(byte(kBytes / 2), 0);
  void* native = nullptr;
  sy_buffer* shown = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), kBytes, nullptr, &shown, backend_.error()), SY_OK);
  ASSERT_EQ(memory().native_address(backend_.device(), shown, &native, backend_.error()), SY_OK);
  static_cast<char*>(native)[99] = 7;
  ASSERT_EQ(backend_.api().fill(backend_.device(), nullptr, {shown, nullptr, 0}, 0, kBytes, nullptr, backend_.error()),
            SY_OK);
  EXPECT_EQ(static_cast<char*>(native)[99], 0);
  backend_.api().free(backend_.device(), shown);
  backend_.api().free(backend_.device(), buffer);
}

TEST_F(CpuDevice, ImportedMemoryIsUsedInPlaceAndNotFreed) {
  void* address = nullptr;
  ASSERT_EQ(memory().host_alloc(backend_.device(), 256, &address, backend_.error()), SY_OK);
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(memory().import_memory(backend_.device(), address, "host", 256, &buffer, backend_.error()), SY_OK);
  ASSERT_EQ(backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 3}, 0x5A, 200, nullptr, backend_.error()),
            SY_OK);
  EXPECT_EQ(static_cast<char*>(address)[202], 0x5A);
  void* native = nullptr;
  ASSERT_EQ(memory().native_address(backend_.device(), buffer, &native, backend_.error()), SY_OK);
  EXPECT_EQ(native, address);
  backend_.api().free(backend_.device(), buffer);
  std::memset(address, 0, 256);
  memory().host_free(backend_.device(), address);
  EXPECT_EQ(memory().import_memory(backend_.device(), address, "cuda", 256, &buffer, backend_.error()), SY_UNSUPPORTED);
}

TEST_F(CpuDevice, PinsTheLaunchingThreadToTheDevicesCores) {
  std::thread([&] {
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int32_t core = 0;
    while (!CPU_ISSET(core, &before)) ++core;
    sy_open_options options{SY_HEADER(sy_open_options)};
    options.threads = 1;
    options.cores = &core;
    sy_device* device = nullptr;
    ASSERT_EQ(backend_.api().open(backend_.instance(), 0, &options, &device, backend_.error()), SY_OK);
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_EQ(CPU_COUNT(&after), 1);
    EXPECT_TRUE(CPU_ISSET(core, &after));
    backend_.api().close(device);
  }).join();
}

}  // namespace
}  // namespace switchyard::test
