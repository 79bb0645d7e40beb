// The state of a run (parameters, moments, counters) as it was at one moment, to be read while the run goes on. On an
// asynchronous device the bytes go to a second place on the device, which takes no time to speak of, and from there to
// the host beside the steps that follow; that place is taken with the first copy and kept. Where the device has no
// memory left for it, the bytes go to the host at once, as what lies in host memory does. There the copy takes as much
// again, so that it is to be reserved before a run counts on it. A synchronous device copies in the thread that asks:
// there the state is read from where it lies, and what a step is about to write before it was read is copied then, in
// the thread of the steps (StateReading): all that lies between the first and the last byte that it writes.
//
// Begin from the thread that runs the steps; all else from one other. What Begin returned may be let go in either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "core/train/engine.h"

namespace switchyard {

class StateCopy {
 public:
  explicit StateCopy(Engine& engine) : engine_(engine) {}
  ~StateCopy();
  StateCopy(const StateCopy&) = delete;
  StateCopy& operator=(const StateCopy&) = delete;

  // Takes the host memory of all copies now, where state lies there, so that no later Begin is refused it. Once.
  // FailedPrecondition where there is too little (Memory::AllocateForCopy).
  Status Reserve();
  // Of the state as the steps begun so far leave it; they must have ended (Engine::Synchronize). Steps may begin when
  // it returns. It can be read until the last holder of what is returned lets go of it, which is to be before the next
  // Begin and before the engine is destroyed.
  StatusOr<std::shared_ptr<const void>> Begin();
  Status Wait();  // until it can be read
  // Who will read `bytes` bytes of an entry says so before the first is read, and once all have, nothing else will be:
  // what nobody is to read any more is not copied for the sake of a step that writes it.
  void Announce(const Layout::Entry& entry, uint64_t bytes);
  void AllAnnounced();
  // Puts bytes of an entry from `begin` on into `to`, as they were at Begin.
  Status Read(const Layout::Entry& entry, uint64_t begin, std::span<std::byte> to);
  uint64_t kept_bytes() const { return kept_bytes_; }  // since Begin, for the sake of steps
  // The whole entry in the copy's memory, to be changed there; it stands until the next Begin. Not one that is read
  // too.
  StatusOr<std::byte*> Take(const Layout::Entry& entry);

 private:
  // A part of the state of a synchronous device.
  struct Unread {
    uint64_t bytes = 0;
    std::optional<uint64_t> to_read;  // bytes; none: nobody has said so yet
    bool copied = false;              // to host_
    bool taken = false;
  };

  Status Allocate();
  void End();
  void Keep(uint64_t begin, uint64_t end);
  Status CopyToHost(uint64_t offset, Unread& unread);
  std::byte* At(const Layout::Entry& entry) {
    const HostMemory& copied = entry.arena == kHostStateArena ? of_host_ : host_;
    return reinterpret_cast<std::byte*>(copied.data()) + entry.offset;
  }
  bool IsReadInPlace(const Layout::Entry& entry) const;

  Engine& engine_;
  bool allocated_ = false;
  HostMemory host_, of_host_;  // of_host_: of the state that lies in host memory
  Buffer beside_;              // on the device; empty: there was no memory left, or the device is synchronous
  Stream copies_;
  Event begun_, done_;  // beside_ holds the state; host_ does

  std::mutex mutex_;                   // of what follows, which both threads use; held while the state is read
  std::map<uint64_t, Unread> unread_;  // by their offset in the state arena
  Status kept_;                        // an error of a copy in the thread of the steps
  std::atomic<uint64_t> kept_bytes_ = 0;
};

}  // namespace switchyard
