// The cpu device by itself: memory, limits, copies, imported memory and threads.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

class CpuDevice : public testing::Test {
 protected:
  const sy_memory_ext_v1& memory() const {
    return *static_cast<const sy_memory_ext_v1*>(backend_.plugin().interface("memory_ext/1"));
  }
  Backend backend_{"cpu"};
};

TEST_F(CpuDevice, DescribesItself) {
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(backend_.api().query(0, &info, backend_.error()), SY_OK);
  EXPECT_EQ(info.address_kind, uint32_t{SY_ADDRESS_HOST});
  EXPECT_EQ(info.flags, uint32_t{SY_DEVICE_SHAREABLE | SY_DEVICE_CPU_CORES});
  EXPECT_EQ(info.alignment, 64u);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_EQ(backend_.api().query(100000, &info, backend_.error()), SY_INVALID);
}

TEST_F(CpuDevice, FillsNoMoreOfAnOlderStructThanItHolds) {
  struct {
    sy_device_info info;
  } old{SY_HEADER(sy_device_info)};
  old.info.header.size = offsetof(sy_device_info, memory_bytes);
  old.info.memory_bytes = 77;
  ASSERT_EQ(backend_.api().query(0, &old.info, nullptr), SY_OK);
  EXPECT_EQ(old.info.memory_bytes, 77u);
}

TEST_F(CpuDevice, RefusesMoreThanItsMemoryAndGoesOn) {
  setenv("SWITCHYARD_CPU_MEMORY", "1000000", 1);
  sy_device* device = nullptr;
  const sy_status opened = backend_.api().open(0, nullptr, &device, backend_.error());
  unsetenv("SWITCHYARD_CPU_MEMORY");
  ASSERT_EQ(opened, SY_OK);
  sy_buffer *first = nullptr, *second = nullptr;
  EXPECT_EQ(backend_.api().alloc(device, 900000, &first, backend_.error()), SY_OK);
  EXPECT_EQ(backend_.api().alloc(device, 200000, &second, backend_.error()), SY_OUT_OF_MEMORY);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(backend_.api().alloc(device, ~uint64_t{0}, &second, backend_.error()), SY_OUT_OF_MEMORY);
  backend_.api().free(device, first);
  EXPECT_EQ(backend_.api().alloc(device, 200000, &second, backend_.error()), SY_OK);
  backend_.api().free(device, second);
  backend_.api().close(device);
}

TEST_F(CpuDevice, CopiesAtOddSizesAndOffsetsAndRefusesToLeaveABuffer) {
  for (const uint64_t bytes : {uint64_t{100}, uint64_t{5} << 20}) {
    sy_buffer* buffer = nullptr;
    ASSERT_EQ(backend_.api().alloc(backend_.device(), bytes, &buffer, backend_.error()), SY_OK);
    std::vector<char> pattern(37), back(37);
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<char>(i * 7);
    ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, 13}, {nullptr, pattern.data(), 0}, 37,
                                  backend_.error()),
              SY_OK);
    ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, back.data(), 0}, {buffer, nullptr, 13}, 37,
                                  backend_.error()),
              SY_OK);
    EXPECT_EQ(pattern, back);
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, bytes - 36},
                                  {nullptr, pattern.data(), 0}, 37, backend_.error()),
              SY_INVALID);
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, back.data(), 0}, {buffer, nullptr, bytes - 36},
                                  37, backend_.error()),
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
  ASSERT_EQ(backend_.api().alloc(backend_.device(), kBytes, &buffer, backend_.error()), SY_OK);
  const auto fill = [&](uint8_t value) {
    return backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 0}, value, kBytes, backend_.error());
  };
  const auto byte = [&](uint64_t offset) {
    unsigned char read = 0x77;
    EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {nullptr, &read, 0}, {buffer, nullptr, offset}, 1,
                                  backend_.error()),
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
                                {nullptr, const_cast<unsigned char*>(&one), 0}, 1, backend_.error()),
            SY_OK);
  ASSERT_EQ(fill(0), SY_OK);
  EXPECT_EQ(byte(12345), 0);
  ASSERT_EQ(fill(0x5A), SY_OK);
  EXPECT_EQ(byte(kBytes / 2), 0x5A);
  ASSERT_EQ(fill(0), SY_OK);
  EXPECT_EQ(byte(kBytes / 2), 0);
  void* native = nullptr;
  int32_t kind = -1;
  sy_buffer* shown = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), kBytes, &shown, backend_.error()), SY_OK);
  ASSERT_EQ(memory().native_address(backend_.device(), shown, &native, &kind, backend_.error()), SY_OK);
  static_cast<char*>(native)[99] = 7;
  ASSERT_EQ(backend_.api().fill(backend_.device(), nullptr, {shown, nullptr, 0}, 0, kBytes, backend_.error()), SY_OK);
  EXPECT_EQ(static_cast<char*>(native)[99], 0);
  backend_.api().free(backend_.device(), shown);
  backend_.api().free(backend_.device(), buffer);
}

TEST_F(CpuDevice, ImportedMemoryIsUsedInPlaceAndNotFreed) {
  void* address = nullptr;
  ASSERT_EQ(memory().host_alloc(backend_.device(), 256, &address, backend_.error()), SY_OK);
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(memory().import_memory(backend_.device(), address, SY_MEMORY_HOST, 256, &buffer, backend_.error()), SY_OK);
  ASSERT_EQ(backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 3}, 0x5A, 200, backend_.error()), SY_OK);
  EXPECT_EQ(static_cast<char*>(address)[202], 0x5A);
  void* native = nullptr;
  int32_t kind = -1;
  ASSERT_EQ(memory().native_address(backend_.device(), buffer, &native, &kind, backend_.error()), SY_OK);
  EXPECT_EQ(native, address);
  backend_.api().free(backend_.device(), buffer);
  std::memset(address, 0, 256);
  memory().host_free(backend_.device(), address);
  EXPECT_EQ(memory().import_memory(backend_.device(), address, SY_MEMORY_CUDA, 256, &buffer, backend_.error()),
            SY_UNSUPPORTED);
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
    ASSERT_EQ(backend_.api().open(0, &options, &device, backend_.error()), SY_OK);
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_EQ(CPU_COUNT(&after), 1);
    EXPECT_TRUE(CPU_ISSET(core, &after));
    backend_.api().close(device);
  }).join();
}

}  // namespace
}  // namespace switchyard::test
