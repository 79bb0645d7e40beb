#include "core/runtime/device/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/runtime/device/kept.h"
#include "core/runtime/device/line_copy.h"

namespace switchyard {
namespace {

// Bytes of the pattern that Fill copies from where the plugin has no fill of its own.
constexpr uint64_t kFillPattern = 1 << 20;

uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

struct Device::Impl {
  std::atomic<uint64_t> allocated{0}, peak{0};
  std::atomic<int64_t> host_waits{0};
  std::atomic<bool> keeps_memory{false};
  std::mutex mutex;                         // guards what follows
  std::unordered_set<sy_buffer*> imported;  // buffers whose memory is not ours to count
  sy_stream* transfer_stream = nullptr;     // of Upload and Download on an asynchronous device
};

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
    bool ours = true;
    {
      const std::lock_guard lock(impl.mutex);
      ours = impl.imported.erase(handle_) == 0;
    }
    device_->api_->free(device_->handle_, handle_);
    if (ours) impl.allocated -= bytes_;
  }
  handle_ = nullptr;
  bytes_ = 0;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Stream::reset() {
  if (handle_ != nullptr) device_->api()->stream_destroy(device_->handle(), handle_);
  handle_ = nullptr;
}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Event::reset() {
  if (handle_ != nullptr) device_->api()->event_destroy(device_->handle(), handle_);
  handle_ = nullptr;
}

Status Event::Record(const Stream& stream) {
  if (handle_ == nullptr) return OkStatus();
  sy_error error = EmptyError();
  const sy_status status = device_->api()->event_record(device_->handle(), handle_, stream.handle(), &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, device_->info().plugin + ": event_record");
}

Status Event::Wait() {
  if (handle_ == nullptr) return OkStatus();
  ++device_->impl_->host_waits;
  sy_error error = EmptyError();
  const sy_status status = device_->api()->event_synchronize(device_->handle(), handle_, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, device_->info().plugin + ": event_synchronize");
}

StatusOr<bool> Event::Done() {
  if (handle_ == nullptr) return true;
  sy_error error = EmptyError();
  const sy_status status = device_->api()->event_query(device_->handle(), handle_, &error);
  if (status == SY_IN_PROGRESS) return false;
  if (status != SY_OK) return FromAbi(status, error, device_->info().plugin + ": event_query");
  return true;
}

Status Event::Before(const Stream& stream) {
  if (handle_ == nullptr) return OkStatus();
  sy_error error = EmptyError();
  const sy_status status = device_->api()->stream_wait(device_->handle(), stream.handle(), handle_, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, device_->info().plugin + ": stream_wait");
}

Semaphore& Semaphore::operator=(Semaphore&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Semaphore::reset() {
  if (handle_ == nullptr) return;
  if (device_->impl_->keeps_memory)
    KeepForever(handle_);
  else
    device_->semaphores_->destroy(device_->handle_, handle_);
  handle_ = nullptr;
}

Status Semaphore::Signal(uint64_t value) {
  sy_error error = EmptyError();
  const sy_status status = device_->semaphores_->signal(device_->handle_, handle_, value, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, device_->info_.plugin + ": semaphore signal");
}

Status Semaphore::Before(const Stream& stream, uint64_t value) {
  sy_error error = EmptyError();
  const sy_status status = device_->semaphores_->stream_wait(device_->handle_, stream.handle(), handle_, value, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, device_->info_.plugin + ": semaphore stream_wait");
}

Kernel& Kernel::operator=(Kernel&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
    info_ = std::move(other.info_);
  }
  return *this;
}

void Kernel::reset() {
  if (handle_ != nullptr) device_->kernels_->release(device_->handle_, handle_);
  handle_ = nullptr;
}

BoundKernel& BoundKernel::operator=(BoundKernel&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    handle_ = std::exchange(other.handle_, nullptr);
    launch_ = std::exchange(other.launch_, nullptr);
  }
  return *this;
}

void BoundKernel::reset() {
  if (handle_ != nullptr) device_->kernels_->unbind(device_->handle_, handle_);
  handle_ = nullptr;
}

StatusOr<std::unique_ptr<Device>> Device::Open(const Plugin& plugin, int index, const OpenOptions& options) {
  const auto* api = plugin.Interface<sy_device_v2>("device/2");
  if (api == nullptr) {
    return FailedPrecondition("{} ({}) has no device/2: it is not a backend", plugin.name(), plugin.path());
  }
  std::unique_ptr<Device> device(new Device());
  SY_ASSIGN_OR_RETURN(device->info_, plugin.Describe(index));
  device->plugin_ = &plugin;
  device->api_ = api;
  device->kernels_ = plugin.Interface<sy_kernel_v2>("kernel/2");
  device->memory_ext_ = plugin.Interface<sy_memory_ext_v2>("memory_ext/2");
  device->semaphores_ = plugin.Interface<sy_semaphore_v1>("semaphore/1");
  device->peers_ = plugin.Interface<sy_peer_v1>("peer/1");
  if (device->peers_ != nullptr && (!device->peers_->export_memory || !device->peers_->import_memory))
    device->peers_ = nullptr;
  device->capture_ = plugin.Interface<sy_capture_v2>("capture/2");
  // A region's kernel is bound and launched like any other.
  if (device->kernels_ != nullptr) device->regions_ = plugin.Interface<sy_region_v2>("region/2");
  device->impl_ = std::make_unique<Impl>();
  if (device->async() && (!api->stream_create || !api->stream_destroy || !api->event_create || !api->event_destroy ||
                          !api->event_record || !api->event_query || !api->event_synchronize || !api->stream_wait)) {
    return Internal("{}: device {} says that it is asynchronous, but the plugin lacks stream or event functions",
                    plugin.name(), index);
  }
  // The interface wants exactly `threads` core ids; with fewer cores than threads they are taken in turn.
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(options.cores.size());
  std::vector<int32_t> cores;
  for (int i = 0; !options.cores.empty() && i < threads; ++i) cores.push_back(options.cores[i % options.cores.size()]);
  sy_open_options open{};
  open.header = SY_HEADER(sy_open_options);
  open.threads = threads;
  open.cores = cores.empty() ? nullptr : cores.data();
  open.deterministic = options.deterministic;
  sy_error error = EmptyError();
  const sy_status status = api->open(plugin.table().instance, index, &open, &device->handle_, &error);
  if (status != SY_OK) {
    device->handle_ = nullptr;
    return FromAbi(status, error, fmt::format("{}: open of device {}", plugin.name(), index));
  }
  if (device->handle_ == nullptr)
    return Internal("{}: open of device {} succeeded without a handle", plugin.name(), index);
  return device;
}

Device::~Device() {
  if (handle_ == nullptr) return;
  if (impl_->keeps_memory) {
    KeepForever(handle_);
    return;
  }
  if (impl_->transfer_stream != nullptr) api_->stream_destroy(handle_, impl_->transfer_stream);
  api_->close(handle_);
}

void Device::KeepMemory() {
  if (impl_->keeps_memory.exchange(true)) return;
  LogWarning("the memory of {} is not freed any more: somebody may still use it", info_.name);
}

StatusOr<Buffer> Device::Allocate(uint64_t bytes) { return Allocate(bytes, nullptr); }

StatusOr<Buffer> Device::Allocate(uint64_t bytes, const sy_alloc_options* options) {
  sy_error error = EmptyError();
  sy_buffer* handle = nullptr;
  const uint64_t rounded = RoundUp(std::max<uint64_t>(bytes, 1), info_.copy_granularity);
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
  const uint64_t now = impl_->allocated += bytes;
  uint64_t peak = impl_->peak;
  while (now > peak && !impl_->peak.compare_exchange_weak(peak, now)) {
  }
  return Buffer(this, handle, bytes);
}

uint64_t Device::allocated_bytes() const { return impl_->allocated; }
uint64_t Device::peak_allocated_bytes() const { return impl_->peak; }

StatusOr<Buffer> Device::Import(void* address, const std::string& memory_kind, uint64_t bytes) {
  if (memory_ext_ == nullptr || memory_ext_->import_memory == nullptr) {
    return Unimplemented("{}: the plugin cannot import memory", info_.plugin);
  }
  sy_error error = EmptyError();
  sy_buffer* handle = nullptr;
  const sy_status status = memory_ext_->import_memory(handle_, address, memory_kind.c_str(), bytes, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, fmt::format("{}: import of {} bytes", info_.plugin, bytes));
  const std::lock_guard lock(impl_->mutex);
  impl_->imported.insert(handle);
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
  impl_->imported.insert(handle);
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

StatusOr<HostMemory> Device::AllocateHost(uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  if (memory_ext_ != nullptr && memory_ext_->host_alloc != nullptr && memory_ext_->host_free != nullptr) {
    sy_error error = EmptyError();
    void* address = nullptr;
    const sy_status status = memory_ext_->host_alloc(handle_, bytes, &address, &error);
    if (status == SY_OK) return HostMemory(this, address, bytes, true);
    if (status != SY_UNSUPPORTED)
      return FromAbi(status, error, fmt::format("{}: {} bytes of pinned host memory", info_.plugin, bytes));
  }
  void* const address = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (address == nullptr) return ResourceExhausted("{} bytes of host memory: none is left", bytes);
  return HostMemory(this, address, bytes, false);
}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  device_ = std::exchange(other.device_, nullptr);
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  pinned_ = other.pinned_;
  return *this;
}

void HostMemory::reset() {
  if (address_ == nullptr) return;
  if (device_->impl_->keeps_memory)
    KeepForever(address_);
  else if (pinned_)
    device_->memory_ext_->host_free(device_->handle_, address_);
  else
    std::free(address_);
  address_ = nullptr;
  bytes_ = 0;
}

StatusOr<void*> Device::NativeStream(const Stream& stream) {
  if (memory_ext_ == nullptr || memory_ext_->native_stream == nullptr) {
    return Unimplemented("{}: the plugin does not tell the native handles of its streams", info_.plugin);
  }
  sy_error error = EmptyError();
  void* native = nullptr;
  const sy_status status = memory_ext_->native_stream(handle_, stream.handle(), &native, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": native_stream");
  return native;
}

StatusOr<Stream> Device::NewStream(int priority) {
  if (!async()) return Stream(this, nullptr);
  sy_stream_options options{};
  options.header = SY_HEADER(sy_stream_options);
  options.priority = priority;
  sy_error error = EmptyError();
  sy_stream* handle = nullptr;
  const sy_status status = api_->stream_create(handle_, &options, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": stream_create");
  return Stream(this, handle);
}

StatusOr<Event> Device::NewEvent() {
  if (!async()) return Event(this, nullptr);
  sy_error error = EmptyError();
  sy_event* handle = nullptr;
  const sy_status status = api_->event_create(handle_, nullptr, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": event_create");
  return Event(this, handle);
}

StatusOr<Semaphore> Device::NewSemaphore() {
  if (semaphores_ == nullptr || !async()) return Unimplemented("{}: the plugin has no semaphores", info_.plugin);
  sy_error error = EmptyError();
  sy_semaphore* handle = nullptr;
  const sy_status status = semaphores_->create(handle_, nullptr, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": semaphore create");
  return Semaphore(this, handle);
}

Status Device::Copy(const Stream& stream, sy_place destination, sy_place source, uint64_t bytes) {
  if (destination.buffer == nullptr && source.buffer == nullptr) {
    return InvalidArgument("{}: copy of {} bytes: neither place is device memory", info_.plugin, bytes);
  }
  if (info_.copy_granularity > 1) return CopyLines(*this, stream, destination, source, bytes);
  return CopyWhole(stream, destination, source, bytes);
}

Status Device::CopyWhole(const Stream& stream, sy_place destination, sy_place source, uint64_t bytes) {
  sy_error error = EmptyError();
  const sy_status status = api_->copy(handle_, stream.handle(), destination, source, bytes, nullptr, &error);
  return status == SY_OK ? OkStatus()
                         : FromAbi(status, error, fmt::format("{}: copy of {} bytes", info_.plugin, bytes));
}

Status Device::Fill(const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes) {
  if (info_.copy_granularity > 1) return FillLines(*this, stream, destination, value, bytes);
  return FillWhole(stream, destination, value, bytes);
}

Status Device::FillWhole(const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes) {
  if (api_->fill != nullptr) {
    sy_error error = EmptyError();
    const sy_status status = api_->fill(handle_, stream.handle(), destination, value, bytes, nullptr, &error);
    return status == SY_OK ? OkStatus()
                           : FromAbi(status, error, fmt::format("{}: fill of {} bytes", info_.plugin, bytes));
  }
  const std::vector<uint8_t> pattern(std::min(bytes, kFillPattern), value);
  for (uint64_t done = 0; done < bytes; done += pattern.size()) {
    sy_place part = destination;
    part.offset += done;
    SY_RETURN_IF_ERROR(
        CopyWhole(stream, part, HostPlace(pattern.data()), std::min<uint64_t>(pattern.size(), bytes - done)));
  }
  if (stream.handle() == nullptr) return OkStatus();  // each copy had finished on return
  return Synchronize(stream);                         // the pattern must outlive the copies
}

Status Device::Synchronize(const Stream& stream) {
  if (async() && stream.handle() == nullptr) {
    return InvalidArgument("{}: Synchronize was given no stream; Synchronize() waits for all of them", info_.plugin);
  }
  if (async()) ++impl_->host_waits;
  sy_error error = EmptyError();
  const sy_status status = api_->synchronize(handle_, stream.handle(), nullptr, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, info_.plugin + ": synchronize");
}

int64_t Device::host_waits() const { return impl_->host_waits; }

Status Device::Synchronize() {
  if (async()) ++impl_->host_waits;
  sy_error error = EmptyError();
  const sy_status status = api_->synchronize(handle_, nullptr, nullptr, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, info_.plugin + ": synchronize");
}

Status Device::Upload(sy_place destination, const void* source, uint64_t bytes) {
  return Transfer(destination, HostPlace(source), bytes);
}

Status Device::Download(void* destination, sy_place source, uint64_t bytes) {
  return Transfer(HostPlace(destination), source, bytes);
}

// On an asynchronous device: on a stream of its own, made anew after an error because a failed stream stays failed.
Status Device::Transfer(sy_place destination, sy_place source, uint64_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  Stream stream(this, nullptr);
  if (async()) {
    if (impl_->transfer_stream != nullptr) {
      stream = Stream(this, std::exchange(impl_->transfer_stream, nullptr));
    } else {
      SY_ASSIGN_OR_RETURN(stream, NewStream());
    }
  }
  SY_RETURN_IF_ERROR(Copy(stream, destination, source, bytes));
  SY_RETURN_IF_ERROR(Synchronize(stream));
  impl_->transfer_stream = stream.release();
  return OkStatus();
}

StatusOr<Kernel> Device::Prepare(const sy_prepare_request& request) {
  const std::string what = fmt::format("{}: prepare of {}", info_.plugin, request.op);
  if (kernels_ == nullptr) return Unimplemented("{}: it has no kernels", what);
  sy_prepare_request call = request;
  call.header = SY_HEADER(sy_prepare_request);
  std::vector<int32_t> inplace(std::max<uint32_t>(request.output_count, 1), -1);
  sy_kernel_info info{};
  info.header = SY_HEADER(sy_kernel_info);
  info.inplace = inplace.data();
  sy_error error = EmptyError();
  sy_kernel* handle = nullptr;
  const sy_status status = kernels_->prepare(handle_, &call, &handle, &info, &error);
  if (status != SY_OK) return FromAbi(status, error, what);
  inplace.resize(request.output_count);
  return Accept(what, handle, info, std::move(inplace), request.input_count, request.workspace_limit);
}

StatusOr<Kernel> Device::PrepareRegion(const sy_region& region, uint64_t workspace_limit) {
  const std::string what = fmt::format("{}: prepare of a region of {} nodes", info_.plugin, region.node_count);
  if (regions_ == nullptr) return Unimplemented("{}: it claims no regions", what);
  std::vector<int32_t> inplace(std::max<uint32_t>(region.output_count, 1), -1);
  sy_kernel_info info{};
  info.header = SY_HEADER(sy_kernel_info);
  info.inplace = inplace.data();
  sy_error error = EmptyError();
  sy_kernel* handle = nullptr;
  const sy_status status = regions_->prepare(handle_, &region, workspace_limit, &handle, &info, &error);
  if (status != SY_OK) return FromAbi(status, error, what);
  inplace.resize(region.output_count);
  return Accept(what, handle, info, std::move(inplace), region.input_count, workspace_limit);
}

// The plugin's answer to a prepare, checked.
StatusOr<Kernel> Device::Accept(const std::string& what, sy_kernel* handle, const sy_kernel_info& info,
                                std::vector<int32_t> inplace, uint32_t input_count, uint64_t workspace_limit) {
  if (handle == nullptr) return Internal("{} succeeded without a kernel", what);
  Kernel::Info answer;
  answer.workspace_bytes = info.workspace_bytes;
  answer.persistent_bytes = info.persistent_bytes;
  answer.constant_bytes = info.constant_bytes;
  answer.residual_bytes = info.residual_bytes;
  answer.inplace.assign(inplace.begin(), inplace.end());
  answer.determinism = info.determinism;
  answer.capturable = info.capturable != 0;
  Kernel kernel(this, handle, std::move(answer));
  if (info.constant_bytes > 0 && kernels_->write_constants == nullptr) {
    return Internal("{} asks for {} constant bytes, but kernel/2 lacks write_constants", what, info.constant_bytes);
  }
  for (const int input : kernel.info().inplace) {
    if (input < -1 || input >= static_cast<int>(input_count)) {
      return Internal("{} declared input {} as in-place; there are {} inputs", what, input, input_count);
    }
  }
  if (kernel.info().workspace_bytes > workspace_limit) {
    return Internal("{} asked for {} bytes of workspace; the limit was {}", what, kernel.info().workspace_bytes,
                    workspace_limit);
  }
  return kernel;
}

Status Device::WriteConstants(const Kernel& kernel, const Stream& stream, sy_place constants) {
  sy_error error = EmptyError();
  const sy_status status = kernels_->write_constants(handle_, kernel.handle(), stream.handle(), constants, &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, info_.plugin + ": write_constants");
}

StatusOr<BoundKernel> Device::Bind(const Kernel& kernel, const sy_binding& binding) {
  sy_binding call = binding;
  call.header = SY_HEADER(sy_binding);
  sy_error error = EmptyError();
  sy_bound* handle = nullptr;
  sy_launch launch = nullptr;
  const sy_status status = kernels_->bind(handle_, kernel.handle(), &call, &handle, &launch, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": bind");
  BoundKernel bound(this, handle, launch);
  if (launch == nullptr) return Internal("{}: bind succeeded without a launch function", info_.plugin);
  return bound;
}

}  // namespace switchyard
