// What no call of the ABI provokes: a failure on the device (here an event of the test's own fails, and what hangs on
// it), and a driver that tells late of what has finished (here the test stands between the plugin and the driver).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "backends/opencl/semaphore.h"

namespace {

bool tells_late = false;
std::vector<std::function<void()>> untold;

}  // namespace

extern "C" cl_int CL_API_CALL clSetEventCallback(cl_event event, cl_int kind,
                                                 void(CL_CALLBACK* tell)(cl_event, cl_int, void*), void* data) {
  static const auto driver = reinterpret_cast<decltype(&clSetEventCallback)>(dlsym(RTLD_NEXT, "clSetEventCallback"));
  if (!tells_late) return driver(event, kind, tell, data);
  untold.push_back([=] { tell(event, CL_COMPLETE, data); });
  return CL_SUCCESS;
}

namespace switchyard {
namespace {

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    cl_platform_id platform = nullptr;
    cl_device_id device = nullptr;
    cl_uint count = 0;
    if (clGetPlatformIDs(1, &platform, &count) != CL_SUCCESS || count == 0) GTEST_SKIP() << "no OpenCL platform";
    ASSERT_EQ(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, &count), CL_SUCCESS);
    cl_int code;
    context_ = ContextHandle(clCreateContext(nullptr, 1, &device, nullptr, nullptr, &code));
    ASSERT_EQ(code, CL_SUCCESS);
    for (auto* stream : {&first_, &second_}) ASSERT_EQ(Stream::Make(context_.get(), device, stream, &error_), SY_OK);
  }
  // Lets `stream` wait for an event that then fails.
  void FailOnDevice(Stream& stream) {
    cl_int code;
    const EventHandle event(clCreateUserEvent(context_.get(), &code));
    ASSERT_EQ(code, CL_SUCCESS);
    const cl_event raw = event.get();
    ASSERT_EQ(stream.WaitFor(raw, nullptr, &error_), SY_OK) << error_.message;
    ASSERT_EQ(clSetUserEventStatus(raw, CL_OUT_OF_RESOURCES), CL_SUCCESS);
  }
  sy_error error_{SY_HEADER(sy_error)};
  ContextHandle context_;
  std::shared_ptr<Stream> first_, second_;
};
using FailingStream = Streams;

TEST_F(FailingStream, StaysFailedWithItsFirstMessage) {
  FailOnDevice(*first_);
  EXPECT_EQ(first_->Drain(&error_), SY_INTERNAL);
  const std::string message = error_.message;
  EXPECT_NE(message.find("failed on the device"), std::string::npos) << message;
  EXPECT_NE(error_.native_code, 0);
  EXPECT_EQ(first_->Queued(CL_OUT_OF_HOST_MEMORY, "a later call", &error_), SY_INTERNAL);
  EXPECT_EQ(message, error_.message);
  EXPECT_EQ(first_->Drain(&error_), SY_INTERNAL);
  EXPECT_EQ(message, error_.message);
  EXPECT_EQ(second_->Drain(&error_), SY_OK);
}

TEST_F(FailingStream, PassesItsMessageToEventsAndToStreamsThatWaitForThem) {
  Event event;
  EXPECT_EQ(event.Query(&error_), SY_OK) << "never recorded";
  FailOnDevice(*first_);
  ASSERT_EQ(event.Record(*first_, &error_), SY_OK);
  ASSERT_EQ(event.Before(*second_, &error_), SY_OK);
  EXPECT_EQ(event.Wait(&error_), SY_INTERNAL);
  const std::string message = error_.message;
  EXPECT_NE(message.find("failed on the device"), std::string::npos) << message;
  EXPECT_EQ(event.Query(&error_), SY_INTERNAL);
  EXPECT_EQ(message, error_.message);
  std::memset(error_.message, 0, sizeof error_.message);
  EXPECT_EQ(second_->Drain(&error_), SY_INTERNAL);
  EXPECT_EQ(message, error_.message);
}

TEST_F(FailingStream, AnswersWhereStreamsWaitForEachOther) {
  Event event, back;
  ASSERT_EQ(event.Record(*first_, &error_), SY_OK);
  ASSERT_EQ(event.Before(*second_, &error_), SY_OK);
  ASSERT_EQ(back.Record(*second_, &error_), SY_OK);
  ASSERT_EQ(back.Before(*first_, &error_), SY_OK);
  EXPECT_EQ(first_->Drain(&error_), SY_OK) << error_.message;
  FailOnDevice(*second_);
  EXPECT_EQ(second_->Drain(&error_), SY_INTERNAL);
  EXPECT_EQ(first_->Drain(&error_), SY_INTERNAL);
}

// And the driver may tell when the semaphore is gone.
TEST_F(Streams, TheCountIsThereBeforeALateDriverTells) {
  tells_late = true;
  {
    Semaphore semaphore;
    ASSERT_EQ(semaphore.Before(context_.get(), *second_, 1, &error_), SY_OK) << error_.message;
    ASSERT_EQ(semaphore.SignalAfter(*first_, 1, &error_), SY_OK) << error_.message;
    ASSERT_EQ(first_->Drain(&error_), SY_OK) << error_.message;
    uint64_t count = 0;
    EXPECT_EQ(semaphore.Query(&count, &error_), SY_OK);
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(second_->Drain(&error_), SY_OK) << "whoever asks also lets go those that wait";
    ASSERT_EQ(semaphore.SignalAfter(*first_, 2, &error_), SY_OK) << error_.message;
    ASSERT_EQ(first_->Drain(&error_), SY_OK) << error_.message;
    EXPECT_EQ(semaphore.Wait(2, 0, &error_), SY_OK) << error_.message;
  }
  tells_late = false;
  ASSERT_EQ(untold.size(), 2u);
  for (const auto& tell : std::exchange(untold, {})) tell();
}

TEST_F(FailingStream, DoesNotRaiseASemaphoreAndPassesItsMessageToThoseThatWait) {
  Semaphore semaphore;
  ASSERT_EQ(semaphore.Before(context_.get(), *second_, 2, &error_), SY_OK) << error_.message;
  ASSERT_EQ(semaphore.SignalAfter(*first_, 1, &error_), SY_OK) << error_.message;
  ASSERT_EQ(semaphore.Wait(1, 20000, &error_), SY_OK) << error_.message;
  FailOnDevice(*first_);
  ASSERT_EQ(semaphore.SignalAfter(*first_, 2, &error_), SY_OK) << error_.message;
  EXPECT_EQ(semaphore.Wait(2, 20000, &error_), SY_INTERNAL);
  const std::string message = error_.message;
  EXPECT_NE(message.find("failed on the device"), std::string::npos) << message;
  uint64_t count = 99;
  EXPECT_EQ(semaphore.Query(&count, &error_), SY_INTERNAL);
  EXPECT_EQ(count, 1u) << "what was signalled before the failure";
  EXPECT_EQ(semaphore.Wait(1, 0, &error_), SY_OK);
  std::memset(error_.message, 0, sizeof error_.message);
  EXPECT_EQ(second_->Drain(&error_), SY_INTERNAL);
  EXPECT_EQ(message, error_.message);
}

TEST(Status, OfOpenClNamesTheCallAndTheCode) {
  sy_error error{SY_HEADER(sy_error)};
  EXPECT_EQ(Failed(&error, CL_MEM_OBJECT_ALLOCATION_FAILURE, "clSomething"), SY_OUT_OF_MEMORY);
  EXPECT_STREQ(error.message, "clSomething failed with CL_MEM_OBJECT_ALLOCATION_FAILURE");
  EXPECT_EQ(error.native_code, CL_MEM_OBJECT_ALLOCATION_FAILURE);
  EXPECT_EQ(StatusOf(CL_DEVICE_NOT_AVAILABLE), SY_DEVICE_LOST);
  EXPECT_EQ(CodeName(-9999), "OpenCL status -9999");
}

}  // namespace
}  // namespace switchyard
