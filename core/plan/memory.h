// Where a plan's bytes live. Arenas are described as data; a plan knows offsets into them, Memory holds one buffer for
// each, and binding a plan to a Memory makes an Instance. Named things (parameters, optimizer state, gradient buckets,
// batch inputs, host-readable outputs) have one place for all plans that share a Layout: training, accumulation and
// evaluation run side by side over the same state. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/plan/state_reading.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/device/device.h"

namespace switchyard {

// A class of memory.
struct Arena {
  enum class Space {
    kDevice,      // of the device
    kCollective,  // of the collective, where that offers memory that the device can use; else of the device
    kHost         // of the host, pinned where the device can; kernels of the host's backend read and write it
  };
  enum class Lifetime {
    kState,  // what has a name is kept from run to run
    kStep,   // of one run: nothing in it has a name, and the plan that needs most says how much there is
    kSlot    // as kState, once for each slot: while the instance of one slot runs, others may be filled and read
  };
  std::string name;
  Space space = Space::kDevice;
  Lifetime lifetime = Lifetime::kState;
  int slots = 1;  // more than one: kSlot
  int group = 0;  // kCollective: of which ranks, as collective nodes name groups
};

// The planner's own, by index into Layout::arenas().
enum : int {
  kStateArena,
  kGradientsArena,
  kActivationsArena,
  kScratchArena,
  kIoArena,          // batch inputs, outputs that the host reads
  kPersistentArena,  // of kernels
  kConstantsArena,   // of kernels: what all their bindings read; of the engine: what an update began with
  kHostStateArena,   // state inputs that lie on the host
  kHostStepArena,    // what a step brings to the host or computes there
  kHostScratchArena  // workspace of kernels that run there
};
// Of which arena is what a step computes on the device, or on the host?
constexpr int StepArena(bool host) { return host ? kHostStepArena : kActivationsArena; }
constexpr bool IsStepArena(int arena) { return arena == kActivationsArena || arena == kHostStepArena; }
constexpr bool IsStateArena(int arena) { return arena == kStateArena || arena == kHostStateArena; }

// How many slots of batches and outputs pay on a device: with two, the next batch is copied in, and the last step's
// outputs are read, while a step runs; that takes copies beside kernels.
inline int IoSlots(const Device& device) { return device.async() ? 2 : 1; }

// Named places, in order of first mention. Offsets are aligned to the device's alignment; in an arena with slots they
// are within slot 0.
class Layout {
 public:
  struct Entry {
    int arena;
    uint64_t offset, bytes;
    TensorType type;
    Role role = Role::kState;  // of graph inputs
    Initializer initializer;
    bool of_model = false;                                  // state of the model itself
    bool of_rank = false;                                   // state that each rank of a data group has for itself
    std::optional<Part> part;                               // where this rank holds a part of the tensor
    std::shared_ptr<const std::vector<std::byte>> content;  // of a constant that the graph knows; else null
    // What files of weights hold: parameters, and state of the model.
    bool is_weight() const { return role == Role::kParameter || of_model; }
    const Shape& whole_shape() const { return part ? WholeShape(*part) : type.shape; }
  };
  // gradients_group: whose collective reduces the buckets of gradients, and so gives their memory.
  explicit Layout(uint64_t alignment, int io_slots = 1, int gradients_group = 0);
  // The place of `name`, made at first mention; a later mention with another size or arena is a logic error
  // (BuildError).
  const Entry& Place(const std::string& name, int arena, const TensorType& type, uint64_t bytes);
  const Entry* Find(const std::string& name) const;
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& mutable_entries() { return entries_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t Align(uint64_t bytes) const { return (bytes + alignment_ - 1) / alignment_ * alignment_; }
  // Raises the size of an arena that others have a say in to at least `bytes`: of lifetime kStep the other plans, of a
  // collective's memory, which is as large on all ranks of its group, those.
  void Reserve(int arena, uint64_t bytes);
  const std::vector<Arena>& arenas() const { return arenas_; }
  const Arena& arena(int index) const { return arenas_[static_cast<size_t>(index)]; }
  uint64_t slot_bytes(int arena) const { return slot_bytes_[static_cast<size_t>(arena)]; }
  uint64_t bytes(int index) const { return slot_bytes(index) * static_cast<uint64_t>(arena(index).slots); }
  bool on_host(int index) const { return arena(index).space == Arena::Space::kHost; }
  uint64_t bytes() const;       // of all arenas that the device or a collective holds
  uint64_t host_bytes() const;  // of the others

 private:
  uint64_t alignment_;
  std::vector<Arena> arenas_;
  std::vector<uint64_t> slot_bytes_;  // by arena
  std::map<std::string, Entry> entries_;
};

// Of what lies on the host.
struct HostPlacement {
  std::optional<std::string> folder;  // its state lies in a file there; else in memory
  // What a user may do so that there is less of it, for the words of a refusal.
  std::vector<std::string> ways_to_less = {"a smaller --offload_optim_frac"};
};

// The buffers themselves.
class Memory {
 public:
  // All zero, but for the constants that graphs know. Collective over the groups that give memory: `layout` becomes as
  // large as it is on any of their ranks where that must be so. It must outlive the memory. ResourceExhausted, with
  // nothing allocated, where that is more than the device's memory_limit allows. host: whose kernels run on the host;
  // needed where something lies there, and then FailedPrecondition says that the host has too little.
  static StatusOr<std::unique_ptr<Memory>> Allocate(Layout& layout, Device& device, const GroupCommunicators& groups,
                                                    Device* host = nullptr, HostPlacement on_host = {});
  // On the host, as much as an arena of state takes, and of the host's state where that lies: for the copy that
  // checkpoints are written from. Errors as Allocate's of the host.
  StatusOr<HostMemory> AllocateForCopy(int arena) const;
  const Buffer& buffer(int arena) const { return buffers_[static_cast<size_t>(arena)]; }
  // A place in an arena as a plan knows it, for the instance of slot `slot`; in one of the host, for its kernels.
  sy_place place(int arena, uint64_t offset, int slot) const {
    const bool slots = layout_->arena(arena).slots > 1;
    return buffer(arena).at(offset + (slots ? layout_->slot_bytes(arena) * static_cast<uint64_t>(slot) : 0));
  }
  // Where an arena of the host lies.
  std::byte* host_address(int arena) const {
    return reinterpret_cast<std::byte*>(host_memory_[static_cast<size_t>(arena)].data());
  }
  // A place for a copy of the device: of the host, an address.
  sy_place copy_place(int arena, uint64_t offset, int slot) const {
    return layout_->on_host(arena) ? HostPlace(host_address(arena) + offset) : place(arena, offset, slot);
  }
  // True once for each kernel: whoever is told so writes its constants, which all instances read.
  bool TakesConstantsOf(const Kernel* kernel) { return constants_.insert(kernel).second; }
  uint64_t allocated_bytes() const;                         // of the device and of a collective
  uint64_t host_allocated_bytes() const;                    // of the host
  StateReading& state_reading() { return state_reading_; }  // told by steps and uploads before they write
  // Host copies of named places (they wait).
  Status Upload(const std::string& name, const void* data, uint64_t bytes);
  Status Download(const std::string& name, void* data, uint64_t bytes, int slot = 0) const;
  const Layout& layout() const { return *layout_; }
  Device& device() const { return *device_; }

 private:
  Memory() = default;
  StatusOr<HostMemory> HostMemoryFor(int arena, const std::string& what) const;
  Status AllocateOnHost(int arena, Device* host);
  const Layout* layout_ = nullptr;
  Device* device_ = nullptr;
  HostPlacement on_host_;
  std::vector<HostMemory> host_memory_;  // by arena; of those that lie on the host
  std::vector<Buffer> buffers_;          // by arena; over host_memory_, what kernels of the host are bound to
  std::set<const Kernel*> constants_;
  StateReading state_reading_;
};

}  // namespace switchyard
