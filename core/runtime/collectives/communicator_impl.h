// What a communicator holds, and what it does on addresses that the plugin or the host reaches. Internal to
// core/runtime/collectives.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime/collectives/communicator.h"
#include "core/runtime/collectives/composition.h"
#include "core/runtime/collectives/peer_memory.h"
#include "core/runtime/collectives/progress_thread.h"
#include "core/runtime/collectives/watched_collective.h"

namespace switchyard {

struct Communicator::DeviceCall {
  std::string tag;
  Collective what;
  uint64_t send_bytes = 0, receive_bytes = 0;
  sy_place send{}, receive{};  // where the data lie on the device
  bool staged = false, through_peers = false;
  uint64_t send_at = 0;                // in the staging memory; what is received lies at its start
  const void* send_address = nullptr;  // the same for the plugin, unless staged
  void* receive_address = nullptr;
  Event* ready = nullptr;  // of the last Start; null: it waits for nothing
  std::vector<std::function<Status()>> behind;  // what it awaits before it begins
  const Stream* stream = nullptr;
  ProgressThread::Task task;
  uint64_t ticket = 0;  // of the last Start: Impl::done reaches it when the call has ended
};

struct Communicator::Impl {
  std::string plugin_name = "none";
  CollectiveInfo info{.memory_kinds = {kHostMemory}};
  Device* device = nullptr;
  int rank = 0, size = 1;
  bool several_hosts = false;
  bool leaves_peer_memory = false;
  std::atomic<double> wait_ms = 0;  // beside the plugin's; of whichever thread uses the communicator
  std::atomic<uint64_t> bytes_sent = 0;
  HostMemory staging;  // for device memory that the plugin cannot touch
  Buffer relay;        // for host memory that the plugin cannot touch
  Rendezvous* rendezvous = nullptr;
  std::unique_ptr<PeerMemory> peers;  // for device memory that the plugin cannot touch, where all ranks can
  // Null with one rank and no plugin. Ends before the memory that its calls use.
  std::unique_ptr<WatchedCollective> plugin;
  // Made by the first Start: what counts the calls that have ended, where the device has semaphores, and who makes
  // them, which ends before the plugin.
  Semaphore done;
  uint64_t started = 0;
  std::unique_ptr<ProgressThread> progress;

  bool completes_on_stream() const { return plugin != nullptr && plugin->completes_on_stream(); }
  bool reaches_host() const { return plugin == nullptr || plugin->reaches_host(); }
  template <typename Body>
  Status Relay(const void* send, uint64_t send_bytes, void* receive, uint64_t receive_bytes, Body body);
  Status Messages(const char* tag, const std::vector<sy_transfer>& transfers);
  Composition Composed(const char* tag);        // on host addresses only: the sums are the host's
  bool Composes(const Collective& what) const;  // because the plugin does not offer it
  bool Enqueues(const DeviceCall& call) const;  // Launch returns before it has finished
  Status JoinPeers(const std::string& name, int timeout_ms);
  uint64_t SendBytes(const Collective& what) const;
  uint64_t ReceiveBytes(const Collective& what) const;
  // On addresses that the plugin reaches, or the host where it is composed. Without a stream it has finished.
  Status Perform(const Collective& what, const char* tag, const Stream* stream, const void* send, void* receive);
  Status PerformOnHost(const Collective& what, const char* tag, const void* send, void* receive);
  Status Barrier(const char* tag);
};

}  // namespace switchyard
