// send_recv_batch: one ring of bytes per ordered pair of ranks. A message is its length and then its bytes; it goes
// through in parts, so that any size fits. All messages of a batch move together; those between one pair of ranks, in
// order.
#include <string.h>

#include <algorithm>

#include "collectives/shm/communicator.h"
#include "core/abi/boundary.h"

namespace shm {
namespace {

constexpr uint64_t kLengthBytes = sizeof(uint64_t);

// A ring's memory; its size is a power of two.
struct Ring {
  char* data;
  uint64_t size;

  void Write(uint64_t at, const char* from, uint64_t bytes) const {
    if (bytes == 0) return;
    const uint64_t start = at & (size - 1), first = std::min(bytes, size - start);
    memcpy(data + start, from, first);
    memcpy(data, from + first, bytes - first);
  }
  void Read(uint64_t at, char* to, uint64_t bytes) const {
    if (bytes == 0) return;
    const uint64_t start = at & (size - 1), first = std::min(bytes, size - start);
    memcpy(to, data + start, first);
    memcpy(to + first, data, bytes - first);
  }
};

}  // namespace

sy_status ShmCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                          sy_request** request, sy_error* error) {
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].peer < 0 || transfers[i].peer >= size_)
      return SY_FAIL(error, SY_INVALID, "message %u: peer %d of %d ranks", i, transfers[i].peer, size_);
  }
  *request = &Queue(SignatureOf(kMessages, call, count, SY_U8, SY_SUM, 0), nullptr, nullptr, {transfers, count});
  return SY_OK;
}

// Moves as much as fits; true if anything moved.
bool ShmCommunicator::MoveSend(sy_request::Message& message) {
  const sy_transfer& transfer = message.transfer;
  const size_t pair = static_cast<size_t>(rank_) * size_ + transfer.peer;
  RingHeader& ring = rings_[pair];
  const Ring memory{control_.base() + layout_.ring_data + pair * layout_.ring_bytes, layout_.ring_bytes};
  uint64_t written = ring.written.load(std::memory_order_relaxed);
  uint64_t room = memory.size - (written - ring.taken.load(std::memory_order_acquire));
  const uint64_t before = message.done;
  if (message.done == 0 && room >= kLengthBytes) {
    memory.Write(written, reinterpret_cast<const char*>(&transfer.bytes), kLengthBytes);
    message.done = kLengthBytes;
    written += kLengthBytes;
    room -= kLengthBytes;
  }
  if (message.done >= kLengthBytes) {
    const uint64_t part = std::min(room, transfer.bytes + kLengthBytes - message.done);
    memory.Write(written, static_cast<const char*>(transfer.address) + message.done - kLengthBytes, part);
    message.done += part;
    written += part;
  }
  if (message.done == before) return false;
  ring.written.store(written, std::memory_order_release);
  Notify(record(transfer.peer).doorbell);
  return true;
}

bool ShmCommunicator::MoveReceive(sy_request::Message& message, sy_request& request, sy_status* status) {
  const sy_transfer& transfer = message.transfer;
  const size_t pair = static_cast<size_t>(transfer.peer) * size_ + rank_;
  RingHeader& ring = rings_[pair];
  const Ring memory{control_.base() + layout_.ring_data + pair * layout_.ring_bytes, layout_.ring_bytes};
  uint64_t taken = ring.taken.load(std::memory_order_relaxed);
  uint64_t available = ring.written.load(std::memory_order_acquire) - taken;
  const uint64_t before = message.done;
  if (message.done == 0 && available >= kLengthBytes) {
    memory.Read(taken, reinterpret_cast<char*>(&message.length_seen), kLengthBytes);
    message.done = kLengthBytes;
    taken += kLengthBytes;
    available -= kLengthBytes;
    if (message.length_seen != transfer.bytes) {
      *status = SY_FAIL(&request.error, SY_INVALID,
                        "ranks disagree: rank %d sends %llu bytes, rank %d expects %llu in send_recv_batch \"%.63s\"",
                        transfer.peer, static_cast<unsigned long long>(message.length_seen), rank_,
                        static_cast<unsigned long long>(transfer.bytes), request.header.tag);
      return true;
    }
  }
  if (message.done >= kLengthBytes) {
    const uint64_t part = std::min(available, transfer.bytes + kLengthBytes - message.done);
    memory.Read(taken, static_cast<char*>(transfer.address) + message.done - kLengthBytes, part);
    message.done += part;
    taken += part;
  }
  if (message.done == before) return false;
  ring.taken.store(taken, std::memory_order_release);
  Notify(record(transfer.peer).doorbell);
  return true;
}

sy_status ShmCommunicator::AdvanceMessages(sy_request& request) {
  Bell& doorbell = record(rank_).doorbell;
  for (;;) {
    const uint32_t seen = doorbell.value.load();
    bool moved = false, finished = true;
    for (size_t i = 0; i < request.messages.size(); ++i) {
      sy_request::Message& message = request.messages[i];
      if (message.IsThrough()) continue;
      finished = false;
      // Only the first unfinished message of a pair and direction moves.
      const bool blocked =
          std::any_of(request.messages.begin(), request.messages.begin() + static_cast<std::ptrdiff_t>(i),
                      [&](const auto& earlier) {
                        return earlier.transfer.peer == message.transfer.peer &&
                               earlier.transfer.is_send == message.transfer.is_send && !earlier.IsThrough();
                      });
      if (blocked) continue;
      sy_status status = SY_OK;
      moved |= message.transfer.is_send ? MoveSend(message) : MoveReceive(message, request, &status);
      if (status != SY_OK) return status;
    }
    if (finished) return SY_OK;
    if (moved) {
      request.slept = false;
      continue;
    }
    if (const sy_status interrupted = CheckInterrupted(request); interrupted != SY_OK) return interrupted;
    if (!WaitForChange(doorbell, seen, request.slept ? 0 : spins_)) {
      request.slept = true;
      return SY_IN_PROGRESS;
    }
  }
}

}  // namespace shm
