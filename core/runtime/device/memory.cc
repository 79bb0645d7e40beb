// Memory of a device: buffers, host memory that it copies quickly, and what it shares with others.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "core/base/file.h"
#include "core/runtime/device/device_impl.h"
#include "core/runtime/device/kept.h"

namespace switchyard {
namespace {

// Of all host memory that is given out, as backends that compute there may ask of what they import.
constexpr uint64_t kHostAlignment = 64;

uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Buffer::reset() {
  if (handle_ == nullptr) return;
  Device::Impl& impl = *device_->impl_;
  if (impl.keeps_memory) {
    KeepForever(handle_);
  } else {
    uint64_t own = bytes_, held = bytes_;
    {
      const std::lock_guard lock(impl.mutex);
      const auto imported = impl.imported.find(handle_);
      if (imported != impl.imported.end()) {
        own = 0, held = imported->second;
        impl.imported.erase(imported);
      }
    }
    device_->api_->free(device_->handle_, handle_);
    impl.allocated.Remove(own);
    impl.held.Remove(held);
  }
  handle_ = nullptr;
  bytes_ = 0;
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  device_ = std::exchange(other.device_, nullptr);
  address_ = std::exchange(other.address_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  kind_ = other.kind_;
  return *this;
}

void HostMemory::reset() {
  if (address_ == nullptr) return;
  if (device_->impl_->keeps_memory)
    KeepForever(address_);
  else if (kind_ == Kind::kPinned)
    device_->memory_ext_->host_free(device_->handle_, address_);
  else if (kind_ == Kind::kFile)
    ::munmap(address_, bytes_);
  else
    std::free(address_);
  address_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

StatusOr<Buffer> Device::Allocate(uint64_t bytes) { return Allocate(bytes, nullptr); }

// Counts what is about to be held; more than the limit allows is refused before the plugin is asked.
Status Device::Hold(uint64_t bytes) {
  if (impl_->held.Add(bytes, memory_limit_)) return OkStatus();
  return ResourceExhausted("--memory_limit allows {} bytes of device {}: {} bytes asked for, {} held by this rank",
                           memory_limit_, info_.index, bytes, held_bytes());
}

StatusOr<Buffer> Device::Allocate(uint64_t bytes, const sy_alloc_options* options) {
  SY_RETURN_IF_ERROR(Hold(bytes));
  auto buffer = AllocateHeld(bytes, options);
  if (!buffer.ok()) {
    impl_->held.Remove(bytes);
    return buffer;
  }
  impl_->allocated.Add(bytes);
  impl_->allocated.NotePeak();
  impl_->held.NotePeak();
  return buffer;
}

StatusOr<Buffer> Device::AllocateHeld(uint64_t bytes, const sy_alloc_options* options) {
  sy_error error = EmptyError();
  sy_buffer* handle = nullptr;
  const uint64_t rounded = RoundUp(std::max<uint64_t>(bytes, 1), info_.copy_granularity);
  if (rounded > info_.largest_allocation)
    return ResourceExhausted(
        "device {} of {} gives at most {} bytes in one allocation (largest_allocation), and {} bytes are asked for",
        info_.index, info_.plugin, info_.largest_allocation, bytes);
  const sy_status status = api_->alloc(handle_, rounded, options, &handle, &error);
  if (status == SY_OUT_OF_MEMORY) {
    sy_device_info now{};
    now.header = SY_HEADER(sy_device_info);
    sy_error ignored = EmptyError();
    const bool known =
        api_->query(plugin_->table().instance, info_.index, &now, &ignored) == SY_OK && now.free_bytes > 0;
    return Annotate(
        FromAbi(status, error, fmt::format("{}: alloc of {} bytes", info_.plugin, bytes)),
        fmt::format("device {} is out of memory: {} bytes asked for, {} free of {}, {} held by this process",
                    info_.index, bytes, known ? std::to_string(now.free_bytes) : "an unknown number",
                    info_.memory_bytes, allocated_bytes()));
  }
  if (status != SY_OK) return FromAbi(status, error, fmt::format("{}: alloc of {} bytes", info_.plugin, bytes));
  if (handle == nullptr) return Internal("{}: alloc of {} bytes succeeded without a buffer", info_.plugin, bytes);
  return Buffer(this, handle, bytes);
}

uint64_t Device::allocated_bytes() const { return impl_->allocated.now(); }
uint64_t Device::peak_allocated_bytes() const { return impl_->allocated.peak(); }
uint64_t Device::held_bytes() const { return impl_->held.now(); }
uint64_t Device::peak_held_bytes() const { return impl_->held.peak(); }

StatusOr<Buffer> Device::Import(void* address, const std::string& memory_kind, uint64_t bytes) {
  if (memory_ext_ == nullptr || memory_ext_->import_memory == nullptr) {
    return Unimplemented("{}: the plugin cannot import memory", info_.plugin);
  }
  SY_RETURN_IF_ERROR(Hold(bytes));
  sy_error error = EmptyError();
  sy_buffer* handle = nullptr;
  const sy_status status = memory_ext_->import_memory(handle_, address, memory_kind.c_str(), bytes, &handle, &error);
  if (status != SY_OK) {
    impl_->held.Remove(bytes);
    return FromAbi(status, error, fmt::format("{}: import of {} bytes", info_.plugin, bytes));
  }
  impl_->held.NotePeak();
  const std::lock_guard lock(impl_->mutex);
  impl_->imported.emplace(handle, bytes);
  return Buffer(this, handle, bytes);
}

StatusOr<Buffer> Device::AllocateExportable(uint64_t bytes) {
  sy_alloc_options options{};
  options.header = SY_HEADER(sy_alloc_options);
  options.exportable = 1;
  return Allocate(bytes, &options);
}

StatusOr<std::string> Device::Export(const Buffer& buffer) {
  if (peers_ == nullptr) return Unimplemented("{}: the plugin has no peer/1", info_.plugin);
  std::string description(SY_MEMORY_DESCRIPTION_BYTES, '\0');
  uint32_t bytes = 0;
  sy_error error = EmptyError();
  const sy_status status = peers_->export_memory(handle_, buffer.handle(), description.data(),
                                                 static_cast<uint32_t>(description.size()), &bytes, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": export_memory");
  if (bytes > description.size())
    return Internal("{}: export_memory wrote {} bytes where there is room for {}", info_.plugin, bytes,
                    description.size());
  description.resize(bytes);
  return description;
}

StatusOr<Buffer> Device::ImportPeer(const std::string& description, uint64_t bytes) {
  if (peers_ == nullptr) return Unimplemented("{}: the plugin has no peer/1", info_.plugin);
  sy_error error = EmptyError();
  sy_buffer* handle = nullptr;
  const sy_status status =
      peers_->import_memory(handle_, description.data(), static_cast<uint32_t>(description.size()), &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": import_memory of another process");
  const std::lock_guard lock(impl_->mutex);
  impl_->imported.emplace(handle, 0);
  return Buffer(this, handle, bytes);
}

StatusOr<void*> Device::AddressOf(const Buffer& buffer) {
  if (memory_ext_ == nullptr || memory_ext_->native_address == nullptr || info_.memory_kind.empty()) {
    return Unimplemented("{}: the plugin does not tell native addresses", info_.plugin);
  }
  sy_error error = EmptyError();
  void* address = nullptr;
  const sy_status status = memory_ext_->native_address(handle_, buffer.handle(), &address, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": native_address");
  return address;
}

bool Device::offers_pinned_memory() const {
  return memory_ext_ != nullptr && memory_ext_->host_alloc != nullptr && memory_ext_->host_free != nullptr;
}

StatusOr<HostMemory> Device::AllocateHost(uint64_t bytes, bool pinned) {
  bytes = std::max<uint64_t>(bytes, 1);
  if (pinned && offers_pinned_memory()) {
    sy_error error = EmptyError();
    void* address = nullptr;
    // The plugin may give any address: with so much more an aligned one has `bytes` behind it.
    const sy_status status = memory_ext_->host_alloc(handle_, bytes + kHostAlignment - 1, &address, &error);
    if (status == SY_OK) {
      auto* const data = reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(address), kHostAlignment));
      return HostMemory(this, address, data, bytes, HostMemory::Kind::kPinned);
    }
    if (status != SY_UNSUPPORTED)
      return FromAbi(status, error, fmt::format("{}: {} bytes of pinned host memory", info_.plugin, bytes));
  }
  void* const address = std::aligned_alloc(kHostAlignment, RoundUp(bytes, kHostAlignment));
  if (address == nullptr) return ResourceExhausted("{} bytes of host memory: none is left", bytes);
  return HostMemory(this, address, address, bytes, HostMemory::Kind::kOrdinary);
}

StatusOr<HostMemory> Device::AllocateInFile(const std::string& folder, uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  std::string path = folder + "/switchyard-XXXXXX";
  const Descriptor file(::mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) return FileError("make a file in", folder, errno);
  ::unlink(path.c_str());
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) return FileError(fmt::format("reserve {} bytes in", bytes), folder, error);
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return FileError(fmt::format("map {} bytes of a file in", bytes), folder, errno);
  return HostMemory(this, address, address, bytes, HostMemory::Kind::kFile);
}

}  // namespace switchyard
