// What the cpu plugin says when the system gives it fewer threads than it asks for.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>

#include "tests/backends/backend.h"

namespace {
std::atomic<int> threads_left{INT_MAX};  // that pthread_create may still start
}  // namespace

// A sanitizer that is linked into the program has its own, which must know of each thread.
extern "C" __attribute__((weak)) int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*),
                                                                  void*);

// In place of the C library's, for this program and the plugins that it loads.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* data) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = __interceptor_pthread_create
                                 ? &__interceptor_pthread_create
                                 : reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attributes, body, data);
}

namespace switchyard::test {
namespace {

constexpr int kThreads = 4;
constexpr char kRefusal[] = "cpu: the system gives 2 of 4 threads; raise its limits or lower --threads";

class CpuThreads : public testing::Test {
 protected:
  ~CpuThreads() override { threads_left = INT_MAX; }
  sy_device* OpenDevice() {
    sy_open_options options{SY_HEADER(sy_open_options)};
    options.threads = kThreads;
    sy_device* device = nullptr;
    status_ = backend_.api().open(backend_.instance(), 0, &options, &device, backend_.error());
    return device;
  }
  Backend backend_{"cpu"};
  sy_status status_ = SY_OK;
};

TEST_F(CpuThreads, ADeviceOpensOnlyWithAllOfThem) {
  std::thread([&] {  // whose team is new
    threads_left = 1;
    EXPECT_EQ(OpenDevice(), nullptr);
    EXPECT_EQ(status_, SY_INTERNAL);
    EXPECT_STREQ(backend_.message(), kRefusal);
    threads_left = INT_MAX;
    sy_device* const device = OpenDevice();
    EXPECT_EQ(status_, SY_OK) << backend_.message();
    backend_.api().close(device);
  })
      .join();
}

// Each thread that launches has a team of its own.
TEST_F(CpuThreads, ALaunchOnAnotherThreadThanTheOpenersSaysWhatIsMissing) {
  sy_device* const device = OpenDevice();
  ASSERT_EQ(status_, SY_OK) << backend_.message();
  const std::vector<sy_tensor> inputs = {Describe(F32({1000}))}, outputs = {Describe(F32({1}))};
  const Op op("squared_norm");
  const sy_prepare_request request = backend_.Request(op, inputs, outputs);
  std::vector<int32_t> inplace(1, -1);
  sy_kernel_info info{SY_HEADER(sy_kernel_info)};
  info.inplace = inplace.data();
  sy_kernel* kernel = nullptr;
  ASSERT_EQ(backend_.kernels().prepare(device, &request, &kernel, &info, backend_.error()), SY_OK)
      << backend_.message();
  std::vector<float> values(1000, 1.0f), workspace(info.workspace_bytes / sizeof(float) + 1);
  float norm = 0;
  const sy_place from = {nullptr, values.data(), 0}, to = {nullptr, &norm, 0};
  const sy_binding binding{SY_HEADER(sy_binding), &from, &to, {nullptr, workspace.data(), 0}, {}, {}, {}};
  sy_bound* bound = nullptr;
  sy_launch launch = nullptr;
  ASSERT_EQ(backend_.kernels().bind(device, kernel, &binding, &bound, &launch, backend_.error()), SY_OK);
  std::thread([&] {
    threads_left = 1;
    EXPECT_EQ(launch(bound, nullptr, backend_.error()), SY_INTERNAL);
    EXPECT_STREQ(backend_.message(), kRefusal);
    EXPECT_EQ(launch(bound, nullptr, backend_.error()), SY_INTERNAL);  // and goes on saying it
    threads_left = INT_MAX;
    EXPECT_EQ(launch(bound, nullptr, backend_.error()), SY_OK) << backend_.message();
    EXPECT_EQ(norm, 1000);
  }).join();
  backend_.kernels().unbind(device, bound);
  backend_.kernels().release(device, kernel);
  backend_.api().close(device);
}

}  // namespace
}  // namespace switchyard::test
