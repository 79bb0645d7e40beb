// Where a plan's bytes live. Five arena classes; a plan knows offsets into them, Memory holds one buffer for each, and
// binding a plan to a Memory makes an Instance. Named things (parameters, optimizer state, gradient buckets, batch
// inputs, host-readable outputs) have one place for all plans that share a Layout: training, accumulation and
// evaluation run side by side over the same state. The io arena (batch inputs, outputs that the host reads) exists once
// per slot: with two, the next batch is copied in, and the last step's outputs are read, while a step runs. Not
// thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/runtime/communicator.h"
#include "core/runtime/device.h"

namespace switchyard {

enum class Arena { kState, kGradients, kActivations, kScratch, kIo };
constexpr int kArenaCount = 5;
const char* NameOf(Arena arena);

// How many slots pay on a device: 2 where copies run beside kernels, else 1.
inline int IoSlots(const Device& device) { return device.async() ? 2 : 1; }

// Named places, in order of first mention. Offsets are aligned to the device's alignment; those of the io arena are
// within slot 0.
class Layout {
 public:
  struct Entry {
    Arena arena;
    uint64_t offset, bytes;
    TensorType type;
    Role role = Role::kState;  // of graph inputs
    Initializer initializer;
  };
  explicit Layout(uint64_t alignment, int io_slots = 1) : alignment_(alignment), io_slots_(io_slots) {}
  // The place of `name`, made at first mention; a later mention with another size is a logic error (BuildError).
  const Entry& Place(const std::string& name, Arena arena, const TensorType& type, uint64_t bytes);
  const Entry* Find(const std::string& name) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& mutable_entries() { return entries_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t Align(uint64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
  // Raises the size of an anonymous arena (activations, scratch) to at least `bytes`.
  void Reserve(Arena arena, uint64_t bytes);
  uint64_t bytes(Arena arena) const {  // of all slots
    return bytes_[static_cast<int>(arena)] * static_cast<uint64_t>(arena == Arena::kIo ? io_slots_ : 1);
  }
  int io_slots() const { return io_slots_; }
  uint64_t io_slot_bytes() const { return bytes_[static_cast<int>(Arena::kIo)]; }

 private:
  uint64_t alignment_;
  int io_slots_;
  std::map<std::string, Entry> entries_;
  std::array<uint64_t, kArenaCount> bytes_{};
};

// The buffers themselves. The gradients arena is memory of the collective where it offers some.
class Memory {
 public:
  static StatusOr<std::unique_ptr<Memory>> Allocate(const Layout& layout, Device& device, Communicator* communicator);
  const Buffer& buffer(Arena arena) const { return buffers_[static_cast<int>(arena)]; }
  // A place in an arena as a plan knows it, for the instance that uses io slot `slot`.
  sy_place place(Arena arena, uint64_t offset, int slot) const {
    return buffer(arena).at(arena == Arena::kIo ? offset + layout_->io_slot_bytes() * static_cast<uint64_t>(slot)
                                                : offset);
  }
  bool gradients_are_shared() const { return gradients_are_shared_; }
  uint64_t allocated_bytes() const;
  // Host copies of named places (they wait).
  Status Upload(const std::string& name, const void* data, uint64_t bytes);
  Status Download(const std::string& name, void* data, uint64_t bytes, int slot = 0) const;
  const Layout& layout() const { return *layout_; }
  Device& device() const { return *device_; }

 private:
  Memory() = default;
  const Layout* layout_ = nullptr;
  Device* device_ = nullptr;
  std::array<Buffer, kArenaCount> buffers_;
  bool gradients_are_shared_ = false;
};

}  // namespace switchyard
