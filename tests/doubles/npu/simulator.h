// The inside of the NPU simulator: a library that exports the vendor's C symbols (backends/npu/acl.h) and keeps the
// rules of the real device, in host memory, so that the npu plugin's own binary runs in ordinary tests:
//   device memory is not mapped at the addresses that aclrtMalloc gives: the host faults where it follows one;
//   streams are asynchronous, with latency; a failed task fails the stream, which skips the rest and tells once;
//   a queued copy from or to host memory that aclrtMallocHost did not give has run when the call returns;
//   an event is waited for by streams, or queried and waited for by the host, as its flags say;
//   operands outlive the launches of their executor: a task fails where a tensor of it was destroyed;
//   memory of another device is reached where aclrtDeviceEnablePeerAccess allowed it, and that of another process by a
//   key, both by queued copies inside devices alone;
//   every thread needs a context of its own (aclrtSetDevice), and a stream belongs to its device;
//   operators check shapes and dtypes when they are planned, an executor runs at those only, and once unless
//   repeatable; there are no 64-bit labels or indices, and no f64.
// Environment: SWITCHYARD_NPU_SIMULATOR_DEVICES (8, the most), _CANN, _MINOR_VERSION (of the toolkit and of AscendCL),
// _MEMORY (bytes of each, 2 GiB), _DELAY_US (before each task, 20), _FAIL_AT (the n-th task of the process fails;
// never), _ONCE (the operator, such as aclnnReduceSum, that cannot be made repeatable; none), _REFUSES (the operator
// that this product lacks; none), _STAYS (1: a failed stream tells its failure every time), _OUT_OF_MEMORY_AT (the n-th
// aclrtMalloc of the process fails; never), _LOST_AT (with the n-th task of the process its device is lost: it answers
// ACL_ERROR_RT_LOST_HEARTBEAT to all but what ends things; never). Thread-safe as the real one: a stream is fed by one
// thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/npu/acl.h"

#define NPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace simulator {

// Codes of aclnn functions (aclnn_return_code.md of github.com/hicann/ops-math).
inline constexpr aclnnStatus kNullPointer = 161001, kInvalid = 161002, kInner = 561103;

// Keeps `text` for aclGetRecentErrMsg of this thread and returns `code`.
aclError Fail(aclError code, const std::string& text);
int64_t NumberFromEnvironment(const char* name, int64_t otherwise);

// The current device of this thread; -1 without a context.
int CurrentDevice();

// Is the device lost? The text is then set.
bool IsLost(int device);
constexpr aclError kLost = ACL_ERROR_RT_LOST_HEARTBEAT;

// Has `device` been allowed to reach the memory of `other`?
bool MayReach(int device, int other);

// Where the `bytes` at a device address really are; nullptr where they were freed, were never allocated, or are another
// process's. Host addresses are not translated.
char* Translate(const void* device_address, size_t bytes);

// What a task answers: a code, and a text that the stream keeps with it.
struct Outcome {
  aclError code = ACL_SUCCESS;
  std::string text;
};
// What a call gives back that ended so; what went wrong is kept for aclGetRecentErrMsg.
inline aclError Told(const Outcome& outcome) {
  return outcome.code == ACL_SUCCESS ? ACL_SUCCESS : Fail(outcome.code, outcome.text);
}

using Work = std::function<Outcome()>;
// Runs `work` on the stream's worker, after what was queued before and the latency. Fails at once where the stream is
// not of the current device.
aclError Enqueue(aclrtStream stream, Work work);
// Waits until what is queued has run; a failure is told to the next who asks.
void WaitFor(aclrtStream stream);

}  // namespace simulator

struct aclScalar {
  double value;
  aclDataType dtype;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};
struct aclTensor {
  aclDataType dtype;
  std::vector<int64_t> dims, strides;
  int64_t offset;  // elements
  void* address;
  aclFormat format;
  // Shared with the executors that it was planned for; false once it was destroyed.
  std::shared_ptr<std::atomic<bool>> alive = std::make_shared<std::atomic<bool>>(true);
};
struct aclOpExecutor {
  const char* name;
  simulator::Work work;
  uint64_t workspace_bytes;
  bool may_repeat = true;  // false: what an aclnnInplaceCopy onto itself is refused for
  bool repeatable = false;
};

// As documented: runs the callback in the stream's order.
NPU_EXPORT aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType,
                                        aclrtStream stream);
