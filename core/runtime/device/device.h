// A device that a backend plugin opened, with its memory, streams, events and kernels: the C interfaces of core/abi
// with C++ lifetimes and absl::Status. Nothing here adds cost to a launch: a BoundKernel holds the plugin's own
// function pointer.
//
// A synchronous plugin (no SY_DEVICE_ASYNC) is made to look like any other: its streams are empty handles, its events
// are always complete. Thread-safe as the ABI says: different objects concurrently; one stream or kernel by one thread
// at a time; Allocate and Buffer's destructor from any thread. Every object must be destroyed before the Device it came
// from.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/base/status.h"
#include "core/runtime/plugins/abi_status.h"
#include "core/runtime/plugins/device_info.h"
#include "core/runtime/plugins/plugin.h"

namespace switchyard {

class Device;

// Device memory. Move-only; freed with the last owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, sy_buffer* handle, uint64_t bytes) : device_(device), handle_(handle), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }
  void reset();
  sy_buffer* handle() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  sy_place at(uint64_t offset) const { return {handle_, nullptr, offset}; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Device* device_ = nullptr;
  sy_buffer* handle_ = nullptr;
  uint64_t bytes_ = 0;
};
inline sy_place HostPlace(const void* address) { return {nullptr, const_cast<void*>(address), 0}; }

// Host memory that this device copies quickly (pinned where the plugin offers it), or what lies in a file. Move-only.
class HostMemory {
 public:
  enum class Kind { kOrdinary, kPinned, kFile };
  HostMemory() = default;
  // data: `bytes` inside the memory at `address`.
  HostMemory(Device* device, void* address, void* data, uint64_t bytes, Kind kind)
      : device_(device), address_(address), data_(data), bytes_(bytes), kind_(kind) {}
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory() { reset(); }
  void reset();
  char* data() const { return static_cast<char*>(data_); }  // aligned to 64 bytes
  uint64_t bytes() const { return bytes_; }
  bool in_file() const { return kind_ == Kind::kFile; }

 private:
  Device* device_ = nullptr;
  void* address_ = nullptr;  // what is given back
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  Kind kind_ = Kind::kOrdinary;
};

class Stream {
 public:
  Stream() = default;
  Stream(Device* device, sy_stream* handle) : device_(device), handle_(handle) {}
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  ~Stream() { reset(); }
  void reset();
  sy_stream* handle() const { return handle_; }  // nullptr on a synchronous device
  sy_stream* release() { return std::exchange(handle_, nullptr); }

 private:
  Device* device_ = nullptr;
  sy_stream* handle_ = nullptr;
};

class Event {
 public:
  Event() = default;
  Event(Device* device, sy_event* handle) : device_(device), handle_(handle) {}
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event() { reset(); }
  void reset();
  Status Record(const Stream& stream);
  Status Wait();                        // the host waits
  StatusOr<bool> Done();                // never blocks
  Status Before(const Stream& stream);  // later work on `stream` waits for this event

 private:
  Device* device_ = nullptr;
  sy_event* handle_ = nullptr;
};

// A count that the host raises and streams wait for (semaphore/1). Signal from any thread.
class Semaphore {
 public:
  Semaphore() = default;
  Semaphore(Device* device, sy_semaphore* handle) : device_(device), handle_(handle) {}
  Semaphore(Semaphore&& other) noexcept { *this = std::move(other); }
  Semaphore& operator=(Semaphore&& other) noexcept;
  ~Semaphore() { reset(); }
  void reset();
  Status Signal(uint64_t value);
  Status Before(const Stream& stream, uint64_t value);  // later work on `stream` waits until the count is at least that
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Device* device_ = nullptr;
  sy_semaphore* handle_ = nullptr;
};

// A prepared kernel (one op at fixed shapes) and what it asked for. Its bindings are destroyed before it.
class Kernel {
 public:
  struct Info {
    uint64_t workspace_bytes = 0, persistent_bytes = 0, constant_bytes = 0, residual_bytes = 0;
    std::vector<int> inplace;  // per output: the input whose place it may share, or -1
    uint32_t determinism = 0;
    bool capturable = false;
    std::string second_choice;  // why the plugin's faster way was not taken; empty: this is its first choice
  };
  Kernel() = default;
  Kernel(const Device* device, sy_kernel* handle, Info info)
      : device_(device), handle_(handle), info_(std::move(info)) {}
  Kernel(Kernel&& other) noexcept { *this = std::move(other); }
  Kernel& operator=(Kernel&& other) noexcept;
  ~Kernel() { reset(); }
  void reset();
  const Info& info() const { return info_; }
  sy_kernel* handle() const { return handle_; }

 private:
  const Device* device_ = nullptr;
  sy_kernel* handle_ = nullptr;
  Info info_;
};

// A kernel at fixed places. Launch is the plugin's function itself. Whoever destroys it has waited for its launches.
class BoundKernel {
 public:
  BoundKernel() = default;
  BoundKernel(const Device* device, sy_bound* handle, sy_launch launch)
      : device_(device), handle_(handle), launch_(launch) {}
  BoundKernel(BoundKernel&& other) noexcept { *this = std::move(other); }
  BoundKernel& operator=(BoundKernel&& other) noexcept;
  ~BoundKernel() { reset(); }
  void reset();
  sy_status Launch(sy_stream* stream, sy_error* error) const { return launch_(handle_, stream, error); }

 private:
  const Device* device_ = nullptr;
  sy_bound* handle_ = nullptr;
  sy_launch launch_ = nullptr;
};

inline constexpr uint64_t kNoMemoryLimit = std::numeric_limits<uint64_t>::max();

struct OpenOptions {
  std::optional<int> threads;  // host threads for a device that computes on host cores; else its own choice
  std::vector<int> cores;      // pin to these; empty: do not pin
  bool deterministic = true;
  uint64_t memory_limit = kNoMemoryLimit;  // bytes that may be held at once through this Device
};

class Device {
 public:
  static StatusOr<std::unique_ptr<Device>> Open(const Plugin& plugin, int index, const OpenOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  sy_device* handle() const { return handle_; }
  bool async() const { return info_.async(); }

  // Out of memory names the size asked for, and what is free or what limit is reached.
  StatusOr<Buffer> Allocate(uint64_t bytes);
  // Bytes allocated through this Device now, and the most ever: what "planned bytes equal allocated bytes" is checked
  // against.
  uint64_t allocated_bytes() const;
  uint64_t peak_allocated_bytes() const;
  // With what Import brought, which counts against the limit too.
  uint64_t held_bytes() const;
  uint64_t peak_held_bytes() const;
  uint64_t memory_limit() const { return memory_limit_; }
  // Memory that somebody else owns (a collective's segment) as a buffer; kUnimplemented where the plugin cannot.
  StatusOr<Buffer> Import(void* address, const std::string& memory_kind, uint64_t bytes);
  // The address that a collective which reaches info().memory_kind can use; kUnimplemented where there is none.
  StatusOr<void*> AddressOf(const Buffer& buffer);
  // The stream as a collective of this device's memory kind knows it; kUnimplemented where there is no such handle.
  StatusOr<void*> NativeStream(const Stream& stream);

  // peer/1: memory that other devices and other processes of this host copy from and to.
  bool reaches_peers() const { return peers_ != nullptr; }
  StatusOr<Buffer> AllocateExportable(uint64_t bytes);
  // What another process needs to reach it: at most SY_MEMORY_DESCRIPTION_BYTES.
  StatusOr<std::string> Export(const Buffer& buffer);
  // For copies and fills, not for kernels; freed before its owner frees it. kUnimplemented where it is out of reach.
  StatusOr<Buffer> ImportPeer(const std::string& description, uint64_t bytes);

  bool offers_pinned_memory() const;
  // At least 64-byte aligned; ordinary memory where the plugin offers no pinned memory, or none is wanted.
  StatusOr<HostMemory> AllocateHost(uint64_t bytes, bool pinned = true);
  // Zeros in a file of `folder` without a name, mapped into memory: it goes with whoever holds it, however that ends.
  // Its place on the disk is reserved, so that nothing fails later: ResourceExhausted where there is too little.
  StatusOr<HostMemory> AllocateInFile(const std::string& folder, uint64_t bytes);

  StatusOr<Stream> NewStream(int priority = 0);
  StatusOr<Event> NewEvent();
  StatusOr<Semaphore> NewSemaphore();  // kUnimplemented where the plugin has none
  // In order on `stream`; on a synchronous device finished on return. Where the device moves whole lines and what is
  // copied or filled does not, the host waits (line_copy.h).
  Status Copy(const Stream& stream, sy_place destination, sy_place source, uint64_t bytes);
  Status Fill(const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes);
  // The same of whole lines only: the plugin's own functions.
  Status CopyWhole(const Stream& stream, sy_place destination, sy_place source, uint64_t bytes);
  Status FillWhole(const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes);
  Status Synchronize(const Stream& stream);
  Status Synchronize();  // everything
  // From now on no memory of it is freed, and it is not closed: somebody who does not answer may still use them.
  void KeepMemory();
  bool keeps_memory() const;  // its streams may then wait for ever
  // How often the host has waited for this device (Synchronize and Event::Wait); 0 for ever on a synchronous one.
  int64_t host_waits() const;
  // Copies and waits.
  Status Upload(sy_place destination, const void* source, uint64_t bytes);
  Status Download(void* destination, sy_place source, uint64_t bytes);

  bool has_kernels() const { return kernels_ != nullptr; }
  // kUnimplemented: the plugin does not take this op, dtype or shape. request.header and the error are filled here.
  StatusOr<Kernel> Prepare(const sy_prepare_request& request);
  bool claims_regions() const { return regions_ != nullptr; }
  // The number of the region that the plugin takes each node for, 0 for none. claims: one for each node, 0.
  // kUnimplemented: it takes none.
  Status Partition(const sy_region& graph, std::span<uint32_t> claims);
  // As Prepare, for a whole subgraph that Partition claimed.
  StatusOr<Kernel> PrepareRegion(const sy_region& region, uint64_t workspace_limit);
  // Fills `constants`, info().constant_bytes of the kernel, in order on `stream`.
  Status WriteConstants(const Kernel& kernel, const Stream& stream, sy_place constants);
  StatusOr<BoundKernel> Bind(const Kernel& kernel, const sy_binding& binding);

  const Plugin& plugin() const { return *plugin_; }
  const sy_device_v2* api() const { return api_; }
  const sy_capture_v2* capture() const { return capture_; }  // nullptr: the plugin cannot capture

 private:
  Device() = default;
  friend class Buffer;
  friend class HostMemory;
  friend class Event;
  friend class Kernel;
  friend class BoundKernel;
  friend class Semaphore;
  struct Impl;
  StatusOr<Kernel> Accept(const std::string& what, sy_kernel* handle, const sy_kernel_info& info,
                          std::vector<int32_t> inplace, uint32_t input_count, uint64_t workspace_limit);
  StatusOr<Buffer> Allocate(uint64_t bytes, const sy_alloc_options* options);
  StatusOr<Buffer> AllocateHeld(uint64_t bytes, const sy_alloc_options* options);
  Status Hold(uint64_t bytes);
  Status Transfer(sy_place destination, sy_place source, uint64_t bytes);
  const Plugin* plugin_ = nullptr;  // lives as long as the process
  DeviceInfo info_;
  uint64_t memory_limit_ = kNoMemoryLimit;
  sy_device* handle_ = nullptr;
  const sy_device_v2* api_ = nullptr;
  const sy_kernel_v2* kernels_ = nullptr;
  const sy_memory_ext_v2* memory_ext_ = nullptr;
  const sy_semaphore_v1* semaphores_ = nullptr;
  const sy_peer_v1* peers_ = nullptr;
  const sy_capture_v2* capture_ = nullptr;
  const sy_region_v2* regions_ = nullptr;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
