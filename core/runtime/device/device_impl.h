// What a Device counts and keeps, for the files that implement it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "core/runtime/device/device.h"

namespace switchyard {

// Bytes now, and the most ever.
class ByteCount {
 public:
  uint64_t now() const { return now_; }
  uint64_t peak() const { return peak_; }
  // False, and nothing is added, where that would be more than `limit`.
  bool Add(uint64_t bytes, uint64_t limit = kNoMemoryLimit) {
    uint64_t before = now_;
    do {
      if (before > limit || bytes > limit - before) return false;
    } while (!now_.compare_exchange_weak(before, before + bytes));
    return true;
  }
  void Remove(uint64_t bytes) { now_ -= bytes; }
  // What was added is really there.
  void NotePeak() {
    const uint64_t now = now_;
    uint64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }

 private:
  std::atomic<uint64_t> now_{0}, peak_{0};
};

struct Device::Impl {
  ByteCount allocated, held;
  std::atomic<int64_t> host_waits{0};
  std::atomic<bool> keeps_memory{false};
  // Held in a plugin's prepare, partition and release of kernels, of which the ABI allows one at a time on a device.
  std::mutex preparing;
  std::mutex mutex;  // guards what follows
  // Buffers whose memory somebody else owns, with the bytes of it that this device holds all the same.
  std::unordered_map<sy_buffer*, uint64_t> imported;
  sy_stream* transfer_stream = nullptr;  // of Upload and Download on an asynchronous device
};

}  // namespace switchyard
