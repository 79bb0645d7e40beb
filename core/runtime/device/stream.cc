// Streams of a device, and what orders them among themselves and with the host.
#include "core/runtime/device/device_impl.h"
#include "core/runtime/device/kept.h"

namespace switchyard {

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
  if (handle == nullptr) return Internal("{}: stream_create succeeded without a stream", info_.plugin);
  return Stream(this, handle);
}

StatusOr<Event> Device::NewEvent() {
  if (!async()) return Event(this, nullptr);
  sy_error error = EmptyError();
  sy_event* handle = nullptr;
  const sy_status status = api_->event_create(handle_, nullptr, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": event_create");
  if (handle == nullptr) return Internal("{}: event_create succeeded without an event", info_.plugin);
  return Event(this, handle);
}

StatusOr<Semaphore> Device::NewSemaphore() {
  if (semaphores_ == nullptr || !async()) return Unimplemented("{}: the plugin has no semaphores", info_.plugin);
  sy_error error = EmptyError();
  sy_semaphore* handle = nullptr;
  const sy_status status = semaphores_->create(handle_, nullptr, &handle, &error);
  if (status != SY_OK) return FromAbi(status, error, info_.plugin + ": semaphore create");
  if (handle == nullptr) return Internal("{}: semaphore create succeeded without a semaphore", info_.plugin);
  return Semaphore(this, handle);
}

}  // namespace switchyard
