// Two kernels that turn the number x into 2·(x + 1) by way of a second buffer: enough to see whether, how often and in
// which order launches run. For the checks of capture/2 and profiler/2. One thread.
#pragma once

#include <memory>

#include "core/runtime/device/device.h"

namespace switchyard::conform {

class BoundPair {
 public:
  // kUnimplemented where the device has no kernel for it.
  // The buffers have `bytes`, of which the first number is used.
  static StatusOr<std::unique_ptr<BoundPair>> Make(Device& device, const char* tag, uint64_t bytes = sizeof(float));
  ~BoundPair();  // waits for all work of the device
  BoundPair(const BoundPair&) = delete;
  BoundPair& operator=(const BoundPair&) = delete;
  Status Launch(const Stream& stream);
  Status Set(float value);
  StatusOr<float> Get();
  void FreeMemory();  // under the kernels' feet
  bool capturable() const { return add_.info().capturable && scale_.info().capturable; }
  static float After(float value, int runs);

 private:
  BoundPair() = default;
  Device* device_ = nullptr;
  Buffer value_, between_;
  Kernel add_, scale_;
  BoundKernel bound_add_, bound_scale_;
};

}  // namespace switchyard::conform
