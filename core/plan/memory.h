// Where a plan's bytes live. Five arena classes; a plan knows offsets into them, Memory holds one buffer for each, and
// binding a plan to a Memory makes an Instance. Named things (parameters, optimizer state, gradient buckets, batch
// inputs, host-readable outputs) have one place for all plans that share a Layout: training, accumulation and
// evaluation run side by side over the same state. Not thread-safe.
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

// Named places, in order of first mention. Offsets are aligned to the device's alignment.
class Layout {
 public:
  struct Entry {
    Arena arena;
    uint64_t offset, bytes;
    TensorType type;
    Role role = Role::kState;  // of graph inputs
    Initializer initializer;
  };
  explicit Layout(uint64_t alignment) : alignment_(alignment) {}
  // The place of `name`, made at first mention; a later mention with another size is a logic error (BuildError).
  const Entry& Place(const std::string& name, Arena arena, const TensorType& type, uint64_t bytes);
  const Entry* Find(const std::string& name) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& mutable_entries() { return entries_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t Align(uint64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
  // Raises the size of an anonymous arena (activations, scratch) to at least `bytes`.
  void Reserve(Arena arena, uint64_t bytes);
  uint64_t bytes(Arena arena) const { return bytes_[static_cast<int>(arena)]; }

 private:
  uint64_t alignment_;
  std::map<std::string, Entry> entries_;
  std::array<uint64_t, kArenaCount> bytes_{};
};

// The buffers themselves. The gradients arena is memory of the collective where it offers some.
class Memory {
 public:
  static StatusOr<std::unique_ptr<Memory>> Allocate(const Layout& layout, Device& device, Communicator* communicator);
  const Buffer& buffer(Arena arena) const { return buffers_[static_cast<int>(arena)]; }
  bool gradients_are_shared() const { return gradients_are_shared_; }
  uint64_t allocated_bytes() const;
  // Host copies of named places (they wait).
  Status Upload(const std::string& name, const void* data, uint64_t bytes);
  Status Download(const std::string& name, void* data, uint64_t bytes) const;
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
