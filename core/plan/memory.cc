#include "core/plan/memory.h"

#include <cstring>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "fmt/ranges.h"

namespace switchyard {

Layout::Layout(uint64_t alignment, int io_slots, int gradients_group)
    : alignment_(alignment),
      arenas_{{.name = "state"},
              {.name = "gradients", .space = Arena::Space::kCollective, .group = gradients_group},
              {.name = "activations", .lifetime = Arena::Lifetime::kStep},
              {.name = "scratch", .lifetime = Arena::Lifetime::kStep},
              {.name = "io", .lifetime = Arena::Lifetime::kSlot, .slots = io_slots},
              {.name = "persistent", .lifetime = Arena::Lifetime::kSlot, .slots = io_slots},
              {.name = "constants"},
              {.name = "host state", .space = Arena::Space::kHost},
              {.name = "host step", .space = Arena::Space::kHost, .lifetime = Arena::Lifetime::kStep},
              {.name = "host scratch", .space = Arena::Space::kHost, .lifetime = Arena::Lifetime::kStep}},
      slot_bytes_(arenas_.size(), 0) {}

uint64_t Layout::bytes() const {
  uint64_t total = 0;
  for (int i = 0; i < static_cast<int>(arenas_.size()); ++i) total += on_host(i) ? 0 : bytes(i);
  return total;
}

uint64_t Layout::host_bytes() const {
  uint64_t total = 0;
  for (int i = 0; i < static_cast<int>(arenas_.size()); ++i) total += on_host(i) ? bytes(i) : 0;
  return total;
}

const Layout::Entry& Layout::Place(const std::string& name, int arena, const TensorType& type, uint64_t bytes) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) {
    if (found->second.bytes != bytes || found->second.arena != arena) {
      throw BuildError(fmt::format("{} has {} bytes of {} in one plan and {} bytes of {} in another", name,
                                   found->second.bytes, this->arena(found->second.arena).name, bytes,
                                   this->arena(arena).name));
    }
    return found->second;
  }
  if (this->arena(arena).lifetime == Arena::Lifetime::kStep)
    throw BuildError(fmt::format("{} would have a name in {}, which is of one run", name, this->arena(arena).name));
  uint64_t& end = slot_bytes_[static_cast<size_t>(arena)];
  Entry entry;
  entry.arena = arena;
  entry.offset = end;
  entry.bytes = bytes;
  entry.type = type;
  end += Align(std::max<uint64_t>(bytes, 1));
  return entries_.emplace(name, entry).first->second;
}

const Layout::Entry* Layout::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

void Layout::Reserve(int arena, uint64_t bytes) {
  if (this->arena(arena).lifetime != Arena::Lifetime::kStep && this->arena(arena).space != Arena::Space::kCollective)
    throw BuildError(fmt::format("nobody else has a say in how large {} is", this->arena(arena).name));
  uint64_t& size = slot_bytes_[static_cast<size_t>(arena)];
  size = std::max(size, Align(bytes));
}

StatusOr<HostMemory> Memory::HostMemoryFor(int arena, const std::string& what) const {
  const uint64_t bytes = layout_->bytes(arena);
  const bool of_state = arena == kHostStateArena;
  if (of_state && on_host_.folder) {
    auto memory = device_->AllocateInFile(*on_host_.folder, bytes);
    if (memory.ok()) return memory;
    return FailedPrecondition("--offload_dir={}, for {} ({}): {}", Printable(*on_host_.folder, 4096), what,
                              layout_->arena(arena).name, Message(memory.status()));
  }
  const auto refused = [&](const std::string& why) {
    std::vector<std::string> ways = on_host_.ways_to_less;
    if (of_state) ways.push_back("--offload_dir on a disk");
    return FailedPrecondition("{} bytes of host memory for {} ({}): {}; use {}", bytes, what,
                              layout_->arena(arena).name, why, fmt::join(ways, ", or "));
  };
  // The system gives more than there is, and ends whoever fills it.
  if (const auto available = AvailableHostBytes(); available && *available < bytes)
    return refused(fmt::format("{} are left", *available));
  auto memory = device_->AllocateHost(bytes);
  if (!memory.ok()) return refused(Message(memory.status()));
  std::memset(memory->data(), 0, bytes);
  return memory;
}

StatusOr<HostMemory> Memory::AllocateForCopy(int arena) const {
  return HostMemoryFor(arena, "the copy that checkpoints are written from");
}

Status Memory::AllocateOnHost(int arena, Device* host) {
  const auto at = static_cast<size_t>(arena);
  if (host == nullptr)
    return FailedPrecondition("{} bytes of {}, and no backend whose kernels run on the host", layout_->bytes(arena),
                              layout_->arena(arena).name);
  SY_ASSIGN_OR_RETURN(host_memory_[at], HostMemoryFor(arena, "what --offload keeps there"));
  SY_ASSIGN_OR_RETURN(buffers_[at],
                      host->Import(host_memory_[at].data(), host->info().memory_kind, layout_->bytes(arena)));
  return OkStatus();
}

StatusOr<std::unique_ptr<Memory>> Memory::Allocate(Layout& layout, Device& device, const GroupCommunicators& groups,
                                                   Device* host, HostPlacement on_host) {
  std::unique_ptr<Memory> memory(new Memory);
  memory->on_host_ = std::move(on_host);
  memory->layout_ = &layout;
  memory->device_ = &device;
  memory->host_memory_.resize(layout.arenas().size());
  memory->buffers_.resize(layout.arenas().size());
  // Null: the memory is this rank's alone.
  const auto giver = [&](const Arena& arena) -> Communicator* {
    if (arena.space != Arena::Space::kCollective) return nullptr;
    Communicator* const communicator = groups[static_cast<size_t>(arena.group)];
    return communicator != nullptr && communicator->size() > 1 ? communicator : nullptr;
  };
  for (size_t i = 0; i < layout.arenas().size(); ++i) {
    Communicator* const communicator = giver(layout.arenas()[i]);
    if (communicator == nullptr) continue;
    auto most = static_cast<int64_t>(layout.bytes(static_cast<int>(i)));
    SY_RETURN_IF_ERROR(communicator->AllReduce("memory", &most, &most, 1, SY_I64, SY_MAX));
    layout.Reserve(static_cast<int>(i), static_cast<uint64_t>(most));
  }
  // Where not all may be held, nothing is taken.
  if (device.held_bytes() + layout.bytes() > device.memory_limit())
    return ResourceExhausted("--memory_limit allows {} bytes of device {}: {} bytes are planned, {} held by this rank",
                             device.memory_limit(), device.info().index, layout.bytes(), device.held_bytes());
  for (size_t i = 0; i < layout.arenas().size(); ++i) {
    const Arena& arena = layout.arenas()[i];
    const uint64_t bytes = layout.bytes(static_cast<int>(i));
    if (bytes == 0) continue;
    if (arena.space == Arena::Space::kHost) {
      SY_RETURN_IF_ERROR(memory->AllocateOnHost(static_cast<int>(i), host));
      continue;
    }
    if (Communicator* const communicator = giver(arena)) {
      auto shared = communicator->AllocateShared(bytes);
      if (shared.ok()) {
        memory->buffers_[i] = std::move(*shared);
      } else if (shared.status().code() != absl::StatusCode::kUnimplemented) {
        return shared.status();
      }
    }
    if (!memory->buffers_[i]) {
      auto buffer = device.Allocate(bytes);
      if (!buffer.ok()) return Annotate(buffer.status(), fmt::format("allocating {} bytes for {}", bytes, arena.name));
      memory->buffers_[i] = std::move(*buffer);
    }
    // Gaps between aligned tensors take part in reductions and norms over whole buckets: they must be zero.
    SY_RETURN_IF_ERROR(device.Fill(Stream(), memory->buffers_[i].at(0), 0, bytes));
  }
  SY_RETURN_IF_ERROR(device.Synchronize());
  for (const auto& [name, entry] : layout.entries()) {
    if (entry.content != nullptr)
      SY_RETURN_IF_ERROR(memory->Upload(name, entry.content->data(), entry.content->size()));
  }
  return memory;
}

uint64_t Memory::allocated_bytes() const {
  uint64_t total = 0;
  for (size_t i = 0; i < buffers_.size(); ++i) total += host_memory_[i].bytes() > 0 ? 0 : buffers_[i].bytes();
  return total;
}

uint64_t Memory::host_allocated_bytes() const {
  uint64_t total = 0;
  for (const HostMemory& memory : host_memory_) total += memory.bytes();
  return total;
}

Status Memory::Upload(const std::string& name, const void* data, uint64_t bytes) {
  const Layout::Entry* entry = layout_->Find(name);
  if (entry == nullptr || entry->bytes != bytes)
    return Internal("upload of {}: {} bytes, expected {}", name, bytes, entry == nullptr ? 0 : entry->bytes);
  if (layout_->on_host(entry->arena)) {
    std::memcpy(host_address(entry->arena) + entry->offset, data, bytes);
    return OkStatus();
  }
  if (entry->arena == kStateArena) state_reading_.AboutToWrite(entry->offset, entry->offset + entry->bytes);
  return device_->Upload(place(entry->arena, entry->offset, 0), data, bytes);
}

Status Memory::Download(const std::string& name, void* data, uint64_t bytes, int slot) const {
  const Layout::Entry* entry = layout_->Find(name);
  if (entry == nullptr || entry->bytes != bytes)
    return Internal("download of {}: {} bytes, expected {}", name, bytes, entry == nullptr ? 0 : entry->bytes);
  if (layout_->on_host(entry->arena)) {
    std::memcpy(data, host_address(entry->arena) + entry->offset, bytes);
    return OkStatus();
  }
  return device_->Download(data, place(entry->arena, entry->offset, slot), bytes);
}

}  // namespace switchyard
