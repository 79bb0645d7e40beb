// What measuring on the device takes: operands of random numbers, the time of launches, and the name of the cache of
// the choices that came of it. Measurements wait for the device, so they are for prepare.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "backends/cuda/kernel.h"
#include "core/abi/tuning.h"

namespace switchyard {

// Whether times may decide: they may do so differently in another run.
inline bool Measures(const Request& request) { return request.tuning == SY_TUNING_MEASURE && !request.deterministic; }

// A file per GPU model and version of the library that was measured, since choices are good for nothing else; "" where
// the device does not say what it is.
std::string TuningCacheName(const sy_device& device, const std::string& version);

// Device memory for a measurement, filled with NumbersToMeasureOn.
class Scratch {
 public:
  explicit Scratch(const sy_device& device) : device_(device) {}
  Scratch(Scratch&& other) noexcept : device_(other.device_), address_(std::exchange(other.address_, nullptr)) {}
  ~Scratch();
  sy_status Allocate(int64_t bytes, cudaStream_t stream, sy_error* error);
  char* address() const { return static_cast<char*>(address_); }

 private:
  const sy_device& device_;
  void* address_ = nullptr;
};

// How long what `run` enqueues on `stream` takes, ms.
sy_status MeasureRuns(const sy_device& device, cudaStream_t stream, const std::function<sy_status()>& run, float* ms,
                      sy_error* error);
// The same of a launch of `kernel`, on operands of its own.
sy_status MeasureKernel(const Kernel& kernel, float* ms, sy_error* error);

}  // namespace switchyard
