// What a Device counts and keeps, for the files that implement it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "core/runtime/device/device.h"

namespace switchyard {

struct Device::Impl {
  std::atomic<uint64_t> allocated{0}, peak{0};
  std::atomic<int64_t> host_waits{0};
  std::atomic<bool> keeps_memory{false};
  std::mutex mutex;                         // guards what follows
  std::unordered_set<sy_buffer*> imported;  // buffers whose memory is not ours to count
  sy_stream* transfer_stream = nullptr;     // of Upload and Download on an asynchronous device
};

}  // namespace switchyard
