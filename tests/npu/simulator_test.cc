// The simulator keeps the rules of the real device: without these, tests on it would prove little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "backends/npu/acl.h"

namespace {

using testing::HasSubstr;

class Simulator : public testing::Test {
 protected:
  Simulator() {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtCreateStreamWithConfig(&stream_, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  }
  ~Simulator() override {
    aclrtSetDevice(0);
    aclrtSynchronizeStream(stream_);
    aclrtDestroyStream(stream_);
    for (void* address : memory_) aclrtFree(address);
    for (const aclTensor* tensor : tensors_) aclDestroyTensor(tensor);
  }
  static std::string Words() {
    const char* words = aclGetRecentErrMsg();
    return words == nullptr ? "" : words;
  }
  void* Allocate(size_t bytes) {
    void* address = nullptr;
    EXPECT_EQ(aclrtMalloc(&address, bytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << Words();
    memory_.push_back(address);
    return address;
  }
  aclTensor* Vector(int64_t count, aclDataType dtype = ACL_FLOAT) {
    const int64_t stride = 1;
    tensors_.push_back(aclCreateTensor(&count, 1, dtype, &stride, 0, ACL_FORMAT_ND, &count, 1,
                                       Allocate(static_cast<size_t>(count) * 8)));
    return tensors_.back();
  }

  aclrtStream stream_ = nullptr;
  std::vector<void*> memory_;
  std::vector<aclTensor*> tensors_;
  uint64_t workspace_bytes_ = 0;
  aclOpExecutor* executor_ = nullptr;
};

TEST_F(Simulator, AThreadNeedsAContextOfItsOwn) {
  std::thread([] {
    void* address = nullptr;
    EXPECT_EQ(aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_THAT(Words(), HasSubstr("aclrtSetDevice first"));
    EXPECT_EQ(Words(), "") << "an error is told once";
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    aclrtFree(address);
  }).join();
}

TEST_F(Simulator, AStreamBelongsToItsDevice) {
  ASSERT_EQ(aclrtSetDevice(5), ACL_SUCCESS);
  void* address = Allocate(64);
  EXPECT_EQ(aclrtMemsetAsync(address, 64, 0, 64, stream_), ACL_ERROR_RT_STREAM_CONTEXT);
  EXPECT_THAT(Words(), HasSubstr("not of the current device"));
}

TEST_F(Simulator, ThereAreEightDevices) {
  EXPECT_EQ(aclrtSetDevice(7), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetDevice(8), ACL_ERROR_RT_INVALID_DEVICEID);
}

TEST_F(Simulator, AStreamWaitsForAValueThatTheHostWrites) {
  auto* value = static_cast<char*>(Allocate(16));
  uint64_t host = 0;
  const auto write = [&](uint64_t now) { return aclrtMemcpy(value, 8, &now, 8, ACL_MEMCPY_HOST_TO_DEVICE); };
  ASSERT_EQ(write(1), ACL_SUCCESS);
  ASSERT_EQ(aclrtValueWait(value, 3, ACL_STREAM_WAIT_VALUE_GEQ, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemsetAsync(value, 8, 9, 8, stream_), ACL_SUCCESS);
  for (const uint64_t now : {1, 2}) {
    ASSERT_EQ(write(now), ACL_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(aclrtMemcpy(&host, 8, value, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(host, now) << "the stream goes on too early";
  }
  ASSERT_EQ(write(4), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(&host, 8, value, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(host, 0x0909090909090909u);
  EXPECT_NE(aclrtValueWait(value + 4, 1, ACL_STREAM_WAIT_VALUE_GEQ, stream_), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("at a multiple of 8"));
}

TEST_F(Simulator, OtherShapesAreRefusedWhenAnOperatorIsPlanned) {
  EXPECT_NE(aclnnMulGetWorkspaceSize(Vector(4), Vector(3), Vector(4), &workspace_bytes_, &executor_), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("do not broadcast"));
  EXPECT_NE(aclnnMulGetWorkspaceSize(Vector(4), Vector(1), Vector(5), &workspace_bytes_, &executor_), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("expected shape (4), found (5)"));
}

TEST_F(Simulator, LabelsOf64BitsAreRefused) {
  EXPECT_NE(aclnnEqTensorGetWorkspaceSize(Vector(4, ACL_INT64), Vector(4, ACL_INT64), Vector(4, ACL_BOOL),
                                          &workspace_bytes_, &executor_),
            ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("64-bit"));
  EXPECT_EQ(aclnnEqTensorGetWorkspaceSize(Vector(4, ACL_INT32), Vector(4, ACL_INT32), Vector(4, ACL_BOOL),
                                          &workspace_bytes_, &executor_),
            ACL_SUCCESS);
  EXPECT_EQ(aclnnEqTensor(nullptr, 0, executor_, stream_), ACL_SUCCESS);
}

TEST_F(Simulator, AnOperatorNeedsTheWorkspaceThatItAskedFor) {
  const int64_t dims[] = {2, 2}, strides[] = {2, 1};
  std::vector<aclTensor*> matrices;
  for (int i = 0; i < 3; ++i) {
    matrices.push_back(aclCreateTensor(dims, 2, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, dims, 2, Allocate(16)));
  }
  ASSERT_EQ(aclnnMatmulGetWorkspaceSize(matrices[0], matrices[1], matrices[2], 0, &workspace_bytes_, &executor_),
            ACL_SUCCESS);
  ASSERT_GT(workspace_bytes_, 0u);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor_), ACL_SUCCESS);
  EXPECT_NE(aclnnMatmul(nullptr, 0, executor_, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclnnMatmul(Allocate(workspace_bytes_), workspace_bytes_, executor_, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclnnMatmul(Allocate(workspace_bytes_), workspace_bytes_, executor_, stream_), ACL_SUCCESS) << "repeatable";
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS) << Words();
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), ACL_SUCCESS);
  for (const aclTensor* matrix : matrices) aclDestroyTensor(matrix);
}

TEST_F(Simulator, ACopyOntoItselfCannotBeMadeRepeatable) {
  aclTensor* vector = Vector(4);
  ASSERT_EQ(aclnnInplaceCopyGetWorkspaceSize(vector, vector, &workspace_bytes_, &executor_), ACL_SUCCESS);
  EXPECT_NE(aclSetAclOpExecutorRepeatable(executor_), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), ACL_SUCCESS);
}

TEST_F(Simulator, AnIndexOutOfRangeFailsTheStreamAndIsToldOnce) {
  const int64_t dims[] = {2, 2}, strides[] = {2, 1}, picked[] = {1, 2};
  aclTensor *table = aclCreateTensor(dims, 2, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, dims, 2, Allocate(16)),
            *out = aclCreateTensor(picked, 2, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, picked, 2, Allocate(8));
  aclTensor* index = Vector(1, ACL_INT32);  // new memory holds −1
  ASSERT_EQ(aclnnIndexSelectGetWorkspaceSize(table, 0, index, out, &workspace_bytes_, &executor_), ACL_SUCCESS)
      << Words();
  ASSERT_EQ(aclnnIndexSelect(nullptr, 0, executor_, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_ERROR_RT_AICORE_EXCEPTION);
  EXPECT_THAT(Words(), HasSubstr("index -1 is out of range"));
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS);
  aclDestroyTensor(table);
  aclDestroyTensor(out);
}

TEST_F(Simulator, ATensorThatWasDestroyedFailsTheTaskThatReadsIt) {
  aclTensor *x = Vector(4), *y = Vector(4);
  const int64_t count = 4, stride = 1;
  aclTensor* early = aclCreateTensor(&count, 1, ACL_FLOAT, &stride, 0, ACL_FORMAT_ND, &count, 1, Allocate(16));
  ASSERT_EQ(aclnnMulGetWorkspaceSize(x, early, y, &workspace_bytes_, &executor_), ACL_SUCCESS) << Words();
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor_), ACL_SUCCESS);
  ASSERT_EQ(aclnnMul(nullptr, 0, executor_, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream_), ACL_SUCCESS) << Words();
  aclDestroyTensor(early);
  ASSERT_EQ(aclnnMul(nullptr, 0, executor_, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream_), ACL_ERROR_RT_AICORE_EXCEPTION);
  EXPECT_THAT(Words(), HasSubstr("a tensor that was destroyed"));
  EXPECT_EQ(aclDestroyAclOpExecutor(executor_), ACL_SUCCESS);
}

TEST_F(Simulator, ACopyFromMemoryThatIsNotPinnedHasRunWhenItsCallReturns) {
  setenv("SWITCHYARD_NPU_SIMULATOR_DELAY_US", "500000", 1);
  aclrtStream slow = nullptr;
  ASSERT_EQ(aclrtCreateStreamWithConfig(&slow, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  setenv("SWITCHYARD_NPU_SIMULATOR_DELAY_US", "20", 1);
  void *device = Allocate(64), *pinned = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, 64), ACL_SUCCESS);
  char pageable[64] = {};
  const auto milliseconds = [&](void* host) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(aclrtMemcpyAsync(device, 64, host, 64, ACL_MEMCPY_HOST_TO_DEVICE, slow), ACL_SUCCESS) << Words();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  EXPECT_LT(milliseconds(pinned), 400);
  EXPECT_GE(milliseconds(pageable), 400);
  EXPECT_EQ(aclrtSynchronizeStream(slow), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  EXPECT_NE(aclrtFreeHost(pageable), ACL_SUCCESS) << "which nobody pinned";
  aclrtDestroyStream(slow);
}

TEST_F(Simulator, AnEventRecordedAnewHoldsUpWhoWaitedForTheRecordBefore) {
  aclrtStream idle = nullptr, waiting = nullptr;
  for (aclrtStream* stream : {&idle, &waiting})
    ASSERT_EQ(aclrtCreateStreamWithConfig(stream, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  aclrtEvent event = nullptr;
  ASSERT_EQ(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS), ACL_SUCCESS);
  auto* gate = static_cast<char*>(Allocate(16));
  char* const written = gate + 8;
  uint64_t host = 0;
  ASSERT_EQ(aclrtMemcpy(gate, 8, &host, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(written, 8, &host, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtValueWait(gate, 1, ACL_STREAM_WAIT_VALUE_GEQ, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  ASSERT_EQ(aclrtStreamWaitEvent(waiting, event), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemsetAsync(written, 8, 9, 8, waiting), ACL_SUCCESS);
  ASSERT_EQ(aclrtRecordEvent(event, idle), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS) << "the host waits for the latest record alone";
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(aclrtMemcpy(&host, 8, written, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(host, 0u) << "the stream goes on too early";
  const uint64_t open = 1;
  ASSERT_EQ(aclrtMemcpy(gate, 8, &open, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(waiting), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(&host, 8, written, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(host, 0x0909090909090909u);
  aclrtDestroyEvent(event);
  for (const aclrtStream stream : {idle, waiting}) aclrtDestroyStream(stream);
}

TEST_F(Simulator, AnEventServesWhomItWasMadeFor) {
  aclrtEvent for_streams = nullptr, for_host = nullptr;
  aclrtEventRecordedStatus status;
  ASSERT_EQ(aclrtCreateEventExWithFlag(&for_streams, ACL_EVENT_SYNC), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateEventExWithFlag(&for_host, ACL_EVENT_CAPTURE_STREAM_PROGRESS), ACL_SUCCESS);
  for (const aclrtEvent event : {for_streams, for_host}) ASSERT_EQ(aclrtRecordEvent(event, stream_), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(stream_, for_streams), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(for_host), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventStatus(for_host, &status), ACL_SUCCESS);
  EXPECT_NE(aclrtStreamWaitEvent(stream_, for_host), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("not for streams"));
  EXPECT_NE(aclrtSynchronizeEvent(for_streams), ACL_SUCCESS);
  EXPECT_NE(aclrtQueryEventStatus(for_streams, &status), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("not for the host"));
  for (const aclrtEvent event : {for_streams, for_host}) aclrtDestroyEvent(event);
}

// On a device that no other test uses.
TEST_F(Simulator, ALostDeviceAnswersNothingButWhatEndsThings) {
  ASSERT_EQ(aclrtSetDevice(7), ACL_SUCCESS);
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  setenv("SWITCHYARD_NPU_SIMULATOR_LOST_AT", "1", 1);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  unsetenv("SWITCHYARD_NPU_SIMULATOR_LOST_AT");
  ASSERT_EQ(aclrtMemsetAsync(memory, 64, 0, 64, stream), ACL_SUCCESS);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_LOST_HEARTBEAT);
    EXPECT_THAT(Words(), HasSubstr("the device is lost"));
  }
  void* more = nullptr;
  EXPECT_EQ(aclrtMalloc(&more, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_LOST_HEARTBEAT);
  EXPECT_EQ(aclrtMemsetAsync(memory, 64, 0, 64, stream), ACL_ERROR_RT_LOST_HEARTBEAT);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
}

TEST_F(Simulator, AnotherDevicesMemoryIsReachedByQueuedCopiesOnceThatIsAllowed) {
  void* own = Allocate(64);
  char byte = 3, back = 0;
  ASSERT_EQ(aclrtMemcpy(own, 1, &byte, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  void* other = Allocate(64);
  EXPECT_NE(aclrtMemcpy(&back, 1, own, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("takes queued copies inside devices only"));
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpyAsync(other, 1, own, 1, ACL_MEMCPY_DEVICE_TO_DEVICE, stream), ACL_SUCCESS);
  EXPECT_NE(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("device 1 was not allowed to reach device 0"));
  ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH), ACL_SUCCESS);
  ASSERT_EQ(aclrtDeviceEnablePeerAccess(0, 0), ACL_SUCCESS) << Words();
  ASSERT_EQ(aclrtMemcpyAsync(other, 1, own, 1, ACL_MEMCPY_DEVICE_TO_DEVICE, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << Words();
  ASSERT_EQ(aclrtMemcpy(&back, 1, other, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(back, 3);
  aclrtDestroyStream(stream);
}

TEST_F(Simulator, AKeyIsOfWholePagesForOtherProcessesAndClosedBeforeTheMemoryGoes) {
  constexpr auto kAnybody = ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
  void* address = nullptr;
  ASSERT_EQ(aclrtMalloc(&address, 8192, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  char key[ACL_IPC_MEM_KEY_BYTES] = {}, byte = 7, back = 0;
  ASSERT_EQ(aclrtMemcpy(address, 1, &byte, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  EXPECT_NE(aclrtIpcMemGetExportKey(address, 100, key, sizeof key, kAnybody), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("whole pages"));
  EXPECT_NE(aclrtIpcMemGetExportKey(address, 8192, key, 64, kAnybody), ACL_SUCCESS);
  ASSERT_EQ(aclrtIpcMemGetExportKey(address, 8192, key, sizeof key, kAnybody), ACL_SUCCESS) << Words();
  ASSERT_EQ(aclrtMemcpy(&back, 1, address, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(back, 7) << "what it held before it had a key";
  void* imported = nullptr;
  EXPECT_NE(aclrtIpcMemImportByKey(&imported, key, 0), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("for other processes"));
  EXPECT_NE(aclrtFree(address), ACL_SUCCESS);
  EXPECT_THAT(Words(), HasSubstr("aclrtIpcMemClose first"));
  EXPECT_EQ(aclrtIpcMemClose(key), ACL_SUCCESS);
  EXPECT_NE(aclrtIpcMemClose(key), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(address), ACL_SUCCESS);
}

}  // namespace
