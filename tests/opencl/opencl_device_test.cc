// The opencl plugin by itself, through the ABI: what it says of its device, the folder of compiled kernels, spans of
// the profiler, pinned host memory, threads.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

class OpenClDevice : public testing::Test {
 protected:
  void SetUp() override {
    int32_t count = 0;
    ASSERT_EQ(backend_.api().count(backend_.instance(), &count, backend_.error()), SY_OK) << backend_.message();
    ASSERT_GT(count, 0) << backend_.message();
  }
  Result Softmax(Backend& backend) {
    const Tensor x = F32({2, 3}, {1, 2, 3, 0, 0, 0});
    return backend.Run(Op("softmax"), {x}, {F32({2, 3})});
  }
  Backend backend_{"opencl"};
};

TEST_F(OpenClDevice, IsOpaqueAndAsynchronousAndOnACpuSharesItsCores) {
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &info, backend_.error()), SY_OK);
  EXPECT_EQ(info.address_kind, uint32_t{SY_ADDRESS_OPAQUE});
  EXPECT_TRUE(info.flags & SY_DEVICE_ASYNC);
  EXPECT_EQ(info.flags & SY_DEVICE_SHAREABLE ? 1 : 0, info.flags & SY_DEVICE_CPU_CORES ? 1 : 0);
  EXPECT_STREQ(info.memory_kind, "") << "nothing else reaches a cl_mem";
  EXPECT_GE(info.alignment, 128u);
  EXPECT_GT(info.largest_allocation, 0u);
  EXPECT_LE(info.largest_allocation, info.memory_bytes);
  EXPECT_EQ(backend_.api().query(backend_.instance(), 1000, &info, backend_.error()), SY_INVALID);
  EXPECT_NE(std::string(backend_.message()).find("no device 1000"), std::string::npos) << backend_.message();
}

TEST_F(OpenClDevice, RefusesAnAllocationBeyondTheLargestAndGoesOn) {
  sy_device_info info{SY_HEADER(sy_device_info)};
  ASSERT_EQ(backend_.api().query(backend_.instance(), 0, &info, nullptr), SY_OK);
  sy_buffer* buffer = nullptr;
  EXPECT_EQ(backend_.api().alloc(backend_.device(), info.largest_allocation + 1, nullptr, &buffer, backend_.error()),
            SY_OUT_OF_MEMORY);
  EXPECT_EQ(buffer, nullptr);
  EXPECT_EQ(Softmax(backend_).status, SY_OK);
}

TEST_F(OpenClDevice, OverlappingCopiesAreRefusedOrRightAndOthersAreNotTouched) {
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), 64, nullptr, &buffer, backend_.error()), SY_OK);
  EXPECT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, 60}, {buffer, nullptr, 0}, 8, nullptr,
                                backend_.error()),
            SY_INVALID);
  EXPECT_EQ(backend_.api().fill(backend_.device(), nullptr, {buffer, nullptr, 63}, 1, 2, nullptr, backend_.error()),
            SY_INVALID);
  EXPECT_EQ(Softmax(backend_).status, SY_OK);
  backend_.api().free(backend_.device(), buffer);
}

TEST_F(OpenClDevice, ThreadsLimitACpuDeviceAndTheResultsStayTheSame) {
  sy_open_options options{SY_HEADER(sy_open_options)};
  options.threads = 1;
  sy_device* device = nullptr;
  ASSERT_EQ(backend_.api().open(backend_.instance(), 0, &options, &device, backend_.error()), SY_OK)
      << backend_.message();
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(backend_.api().alloc(device, 256, nullptr, &buffer, backend_.error()), SY_OK) << backend_.message();
  std::vector<char> sent(256, 7), found(256);
  ASSERT_EQ(backend_.api().copy(device, nullptr, {buffer, nullptr, 0}, {nullptr, sent.data(), 0}, 256, nullptr,
                                backend_.error()),
            SY_OK);
  ASSERT_EQ(backend_.api().copy(device, nullptr, {nullptr, found.data(), 0}, {buffer, nullptr, 0}, 256, nullptr,
                                backend_.error()),
            SY_OK);
  EXPECT_EQ(found, sent);
  backend_.api().free(device, buffer);
  backend_.api().close(device);
}

TEST_F(OpenClDevice, PinnedHostMemoryIsCopiedFromAndGivenBack) {
  const auto& memory = *backend_.Interface<sy_memory_ext_v2>("memory_ext/2");
  void* address = nullptr;
  ASSERT_EQ(memory.host_alloc(backend_.device(), 1000, &address, backend_.error()), SY_OK) << backend_.message();
  std::memset(address, 0x5A, 1000);
  sy_buffer* buffer = nullptr;
  ASSERT_EQ(backend_.api().alloc(backend_.device(), 1000, nullptr, &buffer, backend_.error()), SY_OK);
  ASSERT_EQ(backend_.api().copy(backend_.device(), nullptr, {buffer, nullptr, 0}, {nullptr, address, 0}, 1000, nullptr,
                                backend_.error()),
            SY_OK);
  std::vector<char> found = backend_.Download(buffer, 1000);
  EXPECT_EQ(found, std::vector<char>(1000, 0x5A));
  backend_.api().free(backend_.device(), buffer);
  memory.host_free(backend_.device(), address);
  memory.host_free(backend_.device(), found.data());  // not from host_alloc: ignored
}

TEST_F(OpenClDevice, TheProfilerTellsWhenLaunchesRan) {
  const auto& profiler = *backend_.Interface<sy_profiler_v2>("profiler/2");
  ASSERT_EQ(Softmax(backend_).status, SY_OK);
  ASSERT_EQ(profiler.start(backend_.device(), backend_.error()), SY_OK);
  ASSERT_EQ(Softmax(backend_).status, SY_OK);
  ASSERT_EQ(profiler.stop(backend_.device(), backend_.error()), SY_OK);
  ASSERT_EQ(Softmax(backend_).status, SY_OK);
  sy_span spans[8];
  uint32_t count = 0;
  uint64_t offset = 0;
  ASSERT_EQ(profiler.drain(backend_.device(), spans, 8, &count, &offset, backend_.error()), SY_OK)
      << backend_.message();
  ASSERT_EQ(count, 1u);
  EXPECT_LT(spans[0].start_ns, spans[0].end_ns);
  EXPECT_NE(offset, 0u);
  ASSERT_EQ(profiler.drain(backend_.device(), spans, 8, &count, &offset, backend_.error()), SY_OK);
  EXPECT_EQ(count, 0u);
}

class KernelCache : public OpenClDevice {
 protected:
  KernelCache() : folder_(std::filesystem::temp_directory_path() / ("opencl_kernels." + std::to_string(getpid()))) {}
  ~KernelCache() override { std::filesystem::remove_all(folder_); }
  // The one file of the folder: its name and its inode, which changes when it is written anew.
  std::pair<std::string, ino_t> File() const {
    std::pair<std::string, ino_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_TRUE(found.first.empty()) << "also there: " << entry.path();
      struct stat status {};
      EXPECT_EQ(stat(entry.path().c_str(), &status), 0);
      found = {entry.path().string(), status.st_ino};
    }
    EXPECT_FALSE(found.first.empty()) << "no file in " << folder_;
    return found;
  }
  static void ExpectRight(const Result& result) {
    ASSERT_EQ(result.status, SY_OK) << result.message;
    EXPECT_NEAR(result[0][2], 0.66524096, 1e-6);
    EXPECT_NEAR(result[0][3], 1.0 / 3, 1e-6);
  }
  const std::filesystem::path folder_;
  const std::map<std::string, std::string> settings_{{"OPENCL_CACHE", folder_}};
};

TEST_F(KernelCache, ASecondDeviceReadsWhatTheFirstCompiled) {
  {
    Backend first("opencl", settings_);
    ExpectRight(Softmax(first));
  }
  const auto before = File();
  Backend second("opencl", settings_);
  ExpectRight(Softmax(second));
  EXPECT_EQ(File(), before);
}

TEST_F(KernelCache, IsThatOfTheInstanceWhoseSettingNamesIt) {
  Backend with("opencl", settings_), without("opencl", {{"OPENCL_CACHE", "off"}});
  ExpectRight(Softmax(without));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  ExpectRight(Softmax(with));
  File();
}

TEST_F(KernelCache, ADamagedFileIsCompiledAnew) {
  {
    Backend first("opencl", settings_);
    ExpectRight(Softmax(first));
  }
  const auto before = File();
  const auto size = std::filesystem::file_size(before.first);
  const auto damage = [&](const char* how) {
    SCOPED_TRACE(how);
    const auto damaged = File();
    {
      Backend next("opencl", settings_);
      ExpectRight(Softmax(next));
    }
    const auto anew = File();
    EXPECT_NE(anew.second, damaged.second) << "was not written again";
    Backend after("opencl", settings_);
    ExpectRight(Softmax(after));
    EXPECT_EQ(File(), anew) << "could not be read";
  };
  std::filesystem::resize_file(before.first, size / 2);
  damage("cut short");
  {
    std::fstream file(File().first, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size) - 100);
    file.write("0123456789", 10);
  }
  damage("ten bytes changed");
  std::ofstream(File().first) << "";
  damage("empty");
}

TEST_F(KernelCache, AFolderThatCannotBeWrittenCostsNothingButTime) {
  std::ofstream(folder_.string()) << "a file where the folder should be";
  Backend backend("opencl", settings_);
  ExpectRight(Softmax(backend));
}

}  // namespace
}  // namespace switchyard::test
