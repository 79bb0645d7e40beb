#include "core/train/state_copy.h"

#include <algorithm>
#include <cstring>

#include "core/base/logging.h"

namespace switchyard {
StateCopy::~StateCopy() {
  if (copies_.handle() == nullptr) return;
  (void)engine_.world().device->Synchronize(copies_);
  (void)engine_.Synchronize();  // the steps have waited for begun_
}

Status StateCopy::Reserve() {
  if (of_host_.bytes() > 0 || engine_.layout().bytes(kHostStateArena) == 0) return OkStatus();
  SY_ASSIGN_OR_RETURN(HostMemory of_host, engine_.memory().AllocateForCopy(kHostStateArena));
  SY_ASSIGN_OR_RETURN(host_, engine_.memory().AllocateForCopy(kStateArena));
  of_host_ = std::move(of_host);
  return OkStatus();
}

Status StateCopy::Allocate() {
  if (allocated_) return OkStatus();
  SY_RETURN_IF_ERROR(Reserve());
  Device& device = *engine_.world().device;
  const uint64_t bytes = engine_.layout().bytes(kStateArena);
  if (host_.bytes() == 0) {
    SY_ASSIGN_OR_RETURN(host_, device.AllocateHost(bytes));
  }
  if (engine_.async()) {
    SY_ASSIGN_OR_RETURN(copies_, device.NewStream());
    SY_ASSIGN_OR_RETURN(begun_, device.NewEvent());
    SY_ASSIGN_OR_RETURN(done_, device.NewEvent());
    auto beside = device.Allocate(bytes);
    if (beside.ok()) {
      beside_ = std::move(*beside);
    } else {
      LogWarning("each checkpoint holds up a step while it is copied, for lack of {:.1f} MB of device memory",
                 static_cast<double>(bytes) / 1e6);
    }
  }
  allocated_ = true;
  return OkStatus();
}

StatusOr<std::shared_ptr<const void>> StateCopy::Begin() {
  SY_RETURN_IF_ERROR(Allocate());
  Device& device = *engine_.world().device;
  const sy_place state = engine_.memory().place(kStateArena, 0, 0);
  if (of_host_.bytes() > 0)
    std::memcpy(of_host_.data(), engine_.memory().host_address(kHostStateArena), of_host_.bytes());
  if (!engine_.async()) {
    const std::lock_guard lock(mutex_);
    unread_.clear();
    kept_ = OkStatus();
    kept_bytes_ = 0;
    for (const auto& [name, entry] : engine_.layout().entries()) {
      if (entry.arena != kStateArena) continue;
      uint64_t& bytes = unread_[entry.offset].bytes;
      bytes = std::max(bytes, entry.bytes);
    }
    engine_.memory().state_reading().Begin([this](uint64_t begin, uint64_t end) { Keep(begin, end); });
  } else if (beside_.bytes() == 0) {
    SY_RETURN_IF_ERROR(device.Download(host_.data(), state, host_.bytes()));
  } else {
    SY_RETURN_IF_ERROR(device.Copy(copies_, beside_.at(0), state, host_.bytes()));
    SY_RETURN_IF_ERROR(begun_.Record(copies_));
    SY_RETURN_IF_ERROR(engine_.StartAfter(begun_));
    SY_RETURN_IF_ERROR(device.Copy(copies_, HostPlace(host_.data()), beside_.at(0), host_.bytes()));
    SY_RETURN_IF_ERROR(done_.Record(copies_));
  }
  return std::shared_ptr<const void>(this, [this](const void*) { End(); });
}

Status StateCopy::Wait() { return beside_.bytes() > 0 ? done_.Wait() : OkStatus(); }

bool StateCopy::IsReadInPlace(const Layout::Entry& entry) const {
  return !engine_.async() && entry.arena == kStateArena;
}

void StateCopy::Announce(const Layout::Entry& entry, uint64_t bytes) {
  if (!IsReadInPlace(entry)) return;
  const std::lock_guard lock(mutex_);
  Unread& unread = unread_.at(entry.offset);
  unread.to_read = unread.to_read.value_or(0) + bytes;
}

void StateCopy::AllAnnounced() {
  const std::lock_guard lock(mutex_);
  for (auto& [offset, unread] : unread_) unread.to_read = unread.to_read.value_or(0);
}

Status StateCopy::Read(const Layout::Entry& entry, uint64_t begin, std::span<std::byte> to) {
  if (!IsReadInPlace(entry)) {
    std::memcpy(to.data(), At(entry) + begin, to.size());
    return OkStatus();
  }
  const std::lock_guard lock(mutex_);
  SY_RETURN_IF_ERROR(kept_);
  Unread& unread = unread_.at(entry.offset);
  if (unread.taken) return Internal("the copy of the state is read where it was taken to be changed");
  if (unread.copied) {
    std::memcpy(to.data(), At(entry) + begin, to.size());
  } else {
    SY_RETURN_IF_ERROR(engine_.world().device->Copy(
        Stream(), HostPlace(to.data()), engine_.memory().place(kStateArena, entry.offset + begin, 0), to.size()));
  }
  if (unread.to_read) *unread.to_read -= std::min<uint64_t>(*unread.to_read, to.size());
  return OkStatus();
}

StatusOr<std::byte*> StateCopy::Take(const Layout::Entry& entry) {
  if (IsReadInPlace(entry)) {
    const std::lock_guard lock(mutex_);
    SY_RETURN_IF_ERROR(kept_);
    Unread& unread = unread_.at(entry.offset);
    SY_RETURN_IF_ERROR(CopyToHost(entry.offset, unread));
    unread.taken = true;
  }
  return At(entry);
}

void StateCopy::End() {
  Wait().IgnoreError();  // where nobody has
  if (engine_.async()) return;
  const std::lock_guard lock(mutex_);  // not while a step keeps something
  engine_.memory().state_reading().End();
}

Status StateCopy::CopyToHost(uint64_t offset, Unread& unread) {
  if (unread.copied) return OkStatus();
  SY_RETURN_IF_ERROR(engine_.world().device->Copy(Stream(), HostPlace(host_.data() + offset),
                                                  engine_.memory().place(kStateArena, offset, 0), unread.bytes));
  unread.copied = true;
  return OkStatus();
}

// In the thread of the steps, of which one is about to write.
void StateCopy::Keep(uint64_t begin, uint64_t end) {
  const std::lock_guard lock(mutex_);
  auto at = unread_.upper_bound(begin);
  if (at != unread_.begin()) --at;  // which may reach into the range
  for (; at != unread_.end() && at->first < end && kept_.ok(); ++at) {
    auto& [offset, unread] = *at;
    if (offset + unread.bytes <= begin || unread.copied || unread.to_read == 0) continue;
    kept_ = CopyToHost(offset, unread);
    kept_bytes_ += unread.bytes;
  }
}

}  // namespace switchyard
