// A cpu device: threads, cores and a memory limit. Everything is synchronous, so that streams and events do not exist.
// Its OpenMP threads belong to whichever host thread launches. Enter, the first line of every prepare, gives the
// calling thread the device's thread count and pins its team once per (thread, device); EnterToLaunch, the first line
// of every launch, also finds out once whether the system gave the whole team. Thread-safe: the allocation counter is
// atomic, the rest is fixed at open.
#pragma once

#include <dnnl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/device.h"
#include "core/abi/host_device.h"
#include "core/abi/plugin.h"
#include "core/abi/tuning.h"

struct sy_buffer {
  char* address = nullptr;
  uint64_t bytes = 0;
  uint64_t mapped = 0;  // bytes from mmap; 0: from aligned_alloc, or not ours
  bool owned = false;
  std::shared_ptr<const switchyard::SharedMemory> shared = nullptr;  // in which it lies: exportable, or imported
  // Fresh pages are zero, and filling them with zeros would only touch them. True until somebody asks where they lie.
  std::atomic<bool> untouched{false};
};

struct sy_device {
  int32_t index = 0;
  int threads = 1;
  std::vector<int32_t> cores;  // empty: not pinned
  uint64_t memory_limit = 0;   // bytes
  std::atomic<uint64_t> allocated{0};
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;

  void Enter() const {
    if (entered != serial) EnterSlowly();
  }
  sy_status EnterToLaunch(sy_error* error) const {
    return complete == serial && entered == serial ? SY_OK : CompleteTeam(error);
  }
  // Between ways of computing an op (ways.h), on CPUs of this name; read when first asked for.
  switchyard::TuningCache& Choices() const;

 private:
  void EnterSlowly() const;
  sy_status CompleteTeam(sy_error* error) const;
  mutable std::once_flag choices_read;
  mutable std::unique_ptr<switchyard::TuningCache> choices;
  static inline std::atomic<uint64_t> opened{0};
  const uint64_t serial = ++opened;       // never used again, unlike an address
  static thread_local uint64_t entered;   // the device that this thread prepared for or launched on last
  static thread_local uint64_t complete;  // the device for which it last had a whole team
};

namespace switchyard {

const sy_device_v2& DeviceInterface();
const sy_memory_ext_v2& MemoryInterface();
const sy_semaphore_v1& SemaphoreInterface();
const sy_peer_v1& PeerInterface();

// Chooses the instruction set of this process, for every instance, unless it is chosen already: SWITCHYARD_CPU_ISA of
// the first instance that asks, or the best one. Why that setting cannot be followed, because it names what this CPU
// lacks, or nothing; nullptr if it can.
const char* InstructionSetRefusal(const sy_instance& instance);
// Whether oneDNN has bf16 arithmetic of this CPU to use: AVX-512 bf16 or AMX. Elsewhere halves are computed as f32.
bool MultipliesBf16();

// Whether `bytes` from the place on lie inside its buffer.
inline bool Fits(const sy_place& place, uint64_t bytes) {
  return place.buffer ? place.offset <= place.buffer->bytes && bytes <= place.buffer->bytes - place.offset
                      : place.host != nullptr;
}

// Where a place is in this process; whoever asks may write there.
inline char* Address(const sy_place& place) {
  if (place.buffer == nullptr) return static_cast<char*>(place.host);
  place.buffer->untouched.store(false, std::memory_order_relaxed);
  return place.buffer->address + place.offset;
}

}  // namespace switchyard
