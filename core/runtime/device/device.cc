#include "core/runtime/device/device.h"

#include <algorithm>
#include <mutex>

#include "core/base/logging.h"
#include "core/runtime/device/device_impl.h"
#include "core/runtime/device/kept.h"
#include "core/runtime/device/line_copy.h"

namespace switchyard {
namespace {

// Bytes of the pattern that Fill copies from where the plugin has no fill of its own.
constexpr uint64_t kFillPattern = 1 << 20;

}  // namespace

StatusOr<std::unique_ptr<Device>> Device::Open(const Plugin& plugin, int index, const OpenOptions& options) {
  const auto* api = plugin.Interface<sy_device_v2>("device/2");
  if (api == nullptr) {
    return FailedPrecondition("{} ({}) has no device/2: it is not a backend", plugin.name(), plugin.path());
  }
  if (options.threads && *options.threads < 1)
    return InvalidArgument("{}: {} threads: expected a positive number", plugin.name(), *options.threads);
  std::unique_ptr<Device> device(new Device());
  SY_ASSIGN_OR_RETURN(device->info_, plugin.Describe(index));
  device->plugin_ = &plugin;
  device->memory_limit_ = options.memory_limit;
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
  const int threads = options.threads.value_or(static_cast<int>(options.cores.size()));
  std::vector<int32_t> cores;
  for (int i = 0; !options.cores.empty() && i < threads; ++i) cores.push_back(options.cores[i % options.cores.size()]);
  sy_open_options open{};
  open.header = SY_HEADER(sy_open_options);
  open.threads = threads;
  open.cores = cores.empty() ? nullptr : cores.data();
  open.deterministic = options.deterministic;
  sy_error error = EmptyError();
  const std::lock_guard lock(plugin.opening());
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
  const std::lock_guard lock(plugin_->opening());
  api_->close(handle_);
}

bool Device::keeps_memory() const { return impl_->keeps_memory; }

void Device::KeepMemory() {
  if (impl_->keeps_memory.exchange(true)) return;
  LogWarning("the memory of {} is not freed any more: somebody may still use it", info_.name);
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

}  // namespace switchyard
