// What measuring on the device takes: operands of random numbers, the time of launches, and a cache of the choices that
// came of it, which lies in the user's cache folder, in a file per GPU model and version of the library that was
// measured, since they are good for nothing else. Measurements wait for the device, so they are for prepare.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "backends/cuda/kernel.h"

namespace switchyard {

// Whether times may decide: they may do so differently in another run.
inline bool Measures(const Request& request) { return request.tuning == SY_TUNING_MEASURE && !request.deterministic; }

// From keys, one word each, to a line of words. Thread-safe.
class TuningCache {
 public:
  // `version`: names the library and its version, for the file's name.
  TuningCache(const sy_device& device, const std::string& version);
  std::optional<std::string> Find(const std::string& key);
  // `measured`: also for later processes. A file that cannot be written is no error.
  void Keep(const std::string& key, const std::string& value, bool measured);

 private:
  std::string path_;  // empty: there is no cache folder
  std::mutex mutex_;
  std::unordered_map<std::string, std::string> values_;  // guarded by mutex_
};

// Device memory for a measurement, filled with random numbers of any dtype: a product of zeros takes less power than
// one of numbers, so that the clock, and with it the choice, may be another.
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
