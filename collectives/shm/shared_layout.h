// What lies in the control segment that all ranks of a communicator map: one page of counters, one record per rank, the
// rings for messages (one per ordered pair of ranks), and two staging slots per rank. A fresh segment is all zeros,
// which is a valid start for everything here.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "collectives/shm/waiting.h"
#include "core/abi/collective_class.h"

namespace shm {

constexpr size_t kSlotBytes = 1u << 20;  // of one staging slot: two per rank, so that one fills while the other is read
// Of the message rings from one rank to all others together, and the limits of one: what rings take grows with the
// ranks, not with their square, and up to eight ranks each has the largest.
constexpr size_t kRingBytesOfARank = 2u << 20, kLargestRing = 256u << 10, kSmallestRing = 1u << 10;

// What a rank says about the call it is in, for the others to compare and to know where its data lies.
struct CallHeader : switchyard::CallSignature {
  int32_t direct;                         // this rank's addresses allow the others to reach them
  int32_t send_segment, receive_segment;  // index of an owned segment, -1: memory of its own
  uint64_t send_offset, receive_offset;   // bytes from the start of this rank's part of it
  int32_t values[2];                      // split: color and key; buffer_alloc: did it work
};

struct alignas(64) RankRecord {
  Bell arrived;               // number of barriers that this rank has reached
  alignas(64) Bell doorbell;  // rung when a ring that concerns this rank has changed
  alignas(64)
      CallHeader headers[2];  // of the current and the previous call: written for call n while others may read n - 1
  char socket_name[96];       // split: where the first rank of a group hands out its segment
  uint64_t cores[16];         // on which this rank may run, one bit each
};

// A byte stream from one rank to another. `written` and `taken` only grow.
struct alignas(64) RingHeader {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> taken;
};

struct alignas(64) ControlPage {
  std::atomic<uint32_t> aborted_by;  // rank + 1
};

// Byte offsets in the control segment of `size` ranks.
struct Layout {
  explicit Layout(int size)
      : ring_bytes(
            std::clamp(std::bit_floor(kRingBytesOfARank / static_cast<size_t>(size)), kSmallestRing, kLargestRing)),
        ranks(sizeof(ControlPage)),
        rings(ranks + sizeof(RankRecord) * static_cast<size_t>(size)),
        ring_data(rings + sizeof(RingHeader) * static_cast<size_t>(size) * static_cast<size_t>(size)),
        slots((ring_data + ring_bytes * static_cast<size_t>(size) * static_cast<size_t>(size) + 4095) / 4096 * 4096),
        total(slots + 2 * kSlotBytes * static_cast<size_t>(size)) {}
  size_t ring_bytes;  // of one ring's data; a power of two
  size_t ranks, rings, ring_data, slots, total;
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace shm
