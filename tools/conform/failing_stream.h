// A stream with work that fails, for checks of what that does to others. Whoever uses it has a process to itself: a
// driver may crash on such work, or lose its device. One thread.
#pragma once

#include <memory>

#include "core/runtime/device/device.h"
#include "tools/conform/bound_pair.h"
#include "tools/conform/values.h"

namespace switchyard::conform {

class FailingStream {
 public:
  // Before any stream waits: it frees memory, for which a device may wait until all its streams are idle. kUnimplemented
  // where the device notices that.
  static StatusOr<std::unique_ptr<FailingStream>> Make(Device& device);
  // Queues a copy beyond the end of a buffer, or where the call notices that, a launch whose memory is gone.
  // kUnimplemented where the call notices both. Whether the work fails then only the stream can tell.
  Status Fail();
  const Stream& stream() const { return stream_; }

 private:
  explicit FailingStream(Device& device) : device_(device) {}
  Status QueueLongCopy();

  static constexpr uint64_t kBytes = 64, kFreed = 32 << 20;  // so much that a device unmaps it
  Device& device_;
  Buffer buffer_;
  Stream stream_;
  Bytes data_ = Bytes(1 << 16);
  std::unique_ptr<BoundPair> pair_;  // of a device whose calls notice the copy
};

}  // namespace switchyard::conform
