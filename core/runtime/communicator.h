// A group of ranks joined by a collective plugin. Adds to the plugin: sequence numbers, staging of device memory that the plugin cannot
// touch (through host buffers made once per call site), composition of missing collectives from send_recv_batch, and waits that end when the
// watchdog reports a dead peer. One communicator is used by one thread at a time; Abort from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/status.h"
#include "core/runtime/device.h"
#include "core/runtime/plugin.h"
#include "core/runtime/process_map.h"
#include "core/runtime/rendezvous.h"

namespace switchyard {

class Communicator {
 public:
  // Joins all ranks of `processes`; waits for them at most timeout_ms, naming the ranks that did not come. With one rank, `plugin` may be null: every
  // collective is then the identity. `device` may be null: only host addresses are used.
  static StatusOr<std::unique_ptr<Communicator>> Join(std::shared_ptr<Plugin> plugin, const ProcessMap& processes, Rendezvous& rendezvous,
                                                      Device* device, const std::string& name, int timeout_ms);
  ~Communicator();

  int rank() const;
  int size() const;
  const sy_collective_info& info() const;
  const std::string& plugin_name() const;  // "none" with one rank

  // Host memory; each returns when it has finished.
  Status AllReduce(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status AllGather(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype);
  Status ReduceScatter(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status Broadcast(const char* tag, void* address, uint64_t count, sy_dtype dtype, int root);
  Status Barrier(const char* tag);

  // Device memory, for plans. Prepared once: decides between the plugin's own access and staging, and allocates staging buffers.
  // Launch performs no allocation. On a device stream (completion on stream) it only enqueues; otherwise it synchronises `stream`, performs the
  // call and returns when the result is in device memory.
  struct DeviceCall;
  StatusOr<std::shared_ptr<DeviceCall>> PrepareAllReduce(const std::string& tag, const Buffer& buffer, uint64_t offset, uint64_t count, sy_dtype dtype, int reduction);
  StatusOr<std::shared_ptr<DeviceCall>> PrepareBroadcast(const std::string& tag, const Buffer& buffer, uint64_t offset, uint64_t count, sy_dtype dtype, int root);
  Status Launch(DeviceCall& call, const Stream& stream);

  // Memory that the collective owns, as a device buffer, if the plugin and the device allow it; kUnimplemented else (allocate normally then).
  // Collective: all ranks call it with equal sizes in equal order.
  StatusOr<Buffer> AllocateShared(uint64_t bytes);

  // Total milliseconds spent waiting in collectives since the last call of it (for the log).
  double TakeWaitMilliseconds();
  uint64_t bytes_sent() const;  // payload handed to collectives so far
  void Abort();

 private:
  Communicator();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
