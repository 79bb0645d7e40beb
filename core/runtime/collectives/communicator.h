// A group of ranks joined by a collective plugin. Adds to the plugin: sequence numbers, staging of memory that the
// plugin cannot touch (device memory through a pinned host buffer made when the call is prepared; host memory, for a
// plugin that reaches only a device's, through a device buffer; between ranks of one node whose devices have peer/1,
// from device to device, peer_memory.h), composition of missing collectives from send_recv_batch, and waits that end:
// when a peer dies or freezes (the Status names it), when a peer has said goodbye, or after the time limit of a call
// (SWITCHYARD_COLLECTIVE_TIMEOUT seconds, default 600). After an error the communicator is of no more use; where its
// plugin went on with a call after being aborted, the device's memory is not freed any more (Device::KeepMemory). One
// communicator is used by one thread at a time; Abort from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/status.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "core/runtime/processes/process_map.h"
#include "core/runtime/processes/rendezvous.h"

namespace switchyard {

// What a collective does. `count`: elements as in core/abi/collective.h (all_reduce, broadcast: of the whole;
// reduce_scatter: that each rank receives; all_gather: that each rank sends; all_to_all: for each pair of ranks;
// a message: its length).
struct Collective {
  enum Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kSend, kReceive } kind = kAllReduce;
  uint64_t count = 0;
  sy_dtype dtype = SY_F32;
  int reduction = SY_SUM;
  int peer = 0;  // broadcast: the root; kSend, kReceive: the other rank of the group
};

class Communicator {
 public:
  // Joins all ranks of `processes`; waits for them at most timeout_ms, naming the ranks that did not come. With one
  // rank, `plugin` may be null: every collective is then the identity. `device` may be null: only host addresses are
  // used. `rendezvous`, `device` must outlive it.
  static StatusOr<std::unique_ptr<Communicator>> Join(std::shared_ptr<Plugin> plugin, const ProcessMap& processes,
                                                      Rendezvous& rendezvous, Device* device, const std::string& name,
                                                      int timeout_ms);
  ~Communicator();
  // Ranks with equal `color` form a new communicator, ordered by `key`; null with color -1. Called by all ranks; `name`
  // must be new in the run.
  StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, const std::string& name);

  int rank() const;
  int size() const;
  const CollectiveInfo& info() const;
  const std::string& plugin_name() const;  // "none" with one rank
  bool goes_through_peer_memory() const;   // what would be staged through host memory: see peer_memory.h
  uint64_t peer_memory_bytes() const;      // that it holds on the device for that
  // Gives that memory back: from now on its calls go through host memory, and those of what is split from it. All ranks
  // call it, before any call is prepared.
  void LeavePeerMemory();

  // Host memory; each returns when it has finished. In place as in core/abi/collective.h.
  Status AllReduce(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status AllGather(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype);
  Status ReduceScatter(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status AllToAll(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype);
  Status Broadcast(const char* tag, void* address, uint64_t count, sy_dtype dtype, int root);
  Status Barrier(const char* tag);
  Status SendReceive(const char* tag, const std::vector<sy_transfer>& transfers);

  // Device memory, for plans. Prepared once: decides between the plugin's own access and staging, and makes room for
  // staging: what the plugin cannot touch is staged, and so is what the core composes where the host cannot read it.
  // Launch allocates nothing where the plugin has the collective. With completion on a stream it only enqueues then;
  // otherwise it synchronises `stream`, performs the call and returns when the result is in device memory.
  struct DeviceCall;
  struct DevicePlace {
    const Buffer* buffer = nullptr;
    uint64_t offset = 0;  // bytes
  };
  // In place where send and receive are one place. A call beyond its buffer is InvalidArgument.
  StatusOr<std::shared_ptr<DeviceCall>> Prepare(const std::string& tag, const Collective& what, DevicePlace send,
                                                DevicePlace receive);
  Status Launch(DeviceCall& call, const Stream& stream);
  // Several calls of which none needs what another leaves, in one group of the plugin (group_begin, group_end), so that
  // they proceed together; those of one communicator in the order in which they stand here. Only where each
  // GoesInGroups and all communicators share a plugin. Allocates nothing. Events are recorded behind them afterwards.
  struct Grouped {
    Communicator* communicator = nullptr;
    DeviceCall* call = nullptr;
    const Stream* stream = nullptr;
  };
  static Status LaunchTogether(std::span<const Grouped> calls);
  // Launch only enqueues it, and the plugin has groups. Messages go alone: a group ends as a whole, and all ranks of a
  // collective are held up alike, but what waits for a send here may be what the peer of a receive beside it waits for.
  bool GoesInGroups(const DeviceCall& call) const;
  bool SharesPlugin(const Communicator& other) const;
  // May a capture of the device record Launch of this call, so that replays make it?
  bool MayBeCaptured(const DeviceCall& call) const;
  // The same where Launch would block: on the communicator's own thread, once `ready` has happened (null: at once).
  // Calls run in the order in which they were started; every other function that communicates waits for them first.
  // Before: what stands on `stream` from now on begins behind the call; the device waits where it has semaphores, the
  // host where it has none. Finish: the host waits; its answer is how the call ended, which Before does not tell where
  // the device waits. Start answers how the call ended when it was started before, if nobody asked. Allocate nothing.
  Status Start(DeviceCall& call, Event* ready, const Stream& stream);
  Status Before(DeviceCall& call, const Stream& stream);
  Status Finish(DeviceCall& call);
  // Waits as Finish does, in any thread, and leaves the answer to Finish.
  Status Await(const DeviceCall& call);
  // Said once: where `call` is started, the communicator's thread calls `await` before it begins. Calls of another
  // communicator are awaited so, and not by the stream: what was started before `call` waits for all of the stream.
  static void BeginsBehind(DeviceCall& call, std::function<Status()> await);
  // Would Launch hold up the host while the device or a network works, and may it run beside what the host launches?
  // Then the call is better started. On a synchronous device only calls that need none of its copies.
  bool BetterStarted(const DeviceCall& call) const;
  // Wait for an event or for all work of a stream that may hold collectives of this communicator: like the device's own
  // waits, but they end with an error when a peer is gone, a collective has failed on the stream, or the time limit of
  // a call has passed.
  Status Wait(Event& event);
  Status Synchronize(const Stream& stream);

  // Memory that the collective owns, where it can skip a copy; kUnimplemented where the plugin (or with AllocateShared
  // the device) does not know such: allocate normally then. Freed with the communicator. Collective: all ranks call it
  // with equal sizes in equal order.
  StatusOr<void*> AllocateOwned(uint64_t bytes);
  StatusOr<Buffer> AllocateShared(uint64_t bytes);  // as a buffer of the device

  // Total milliseconds spent waiting in collectives since the last call of it (for the log).
  double TakeWaitMilliseconds();
  uint64_t bytes_sent() const;    // payload handed to collectives so far
  Status health() const;          // OK while all ranks are there; else who is missing, as calls would say
  void CountSent(int64_t bytes);  // beside what the functions above count: a replay sends it, a capture does not
  void Abort();

 private:
  Communicator();
  void Drain();
  Status LaunchNow(DeviceCall& call, const Stream& stream);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The communicators of a rank, by the group that a collective node names; null: the rank is alone in it. One
// communicator stands for all ranks and, in a run that is only data parallel, for its data group.
class GroupCommunicators {
 public:
  GroupCommunicators(Communicator* all) : groups_{all, all} {}  // NOLINT: one communicator is the common case
  explicit GroupCommunicators(std::vector<Communicator*> groups) : groups_(std::move(groups)) {}
  size_t size() const { return groups_.size(); }
  Communicator* operator[](size_t group) const { return group < groups_.size() ? groups_[group] : nullptr; }

 private:
  std::vector<Communicator*> groups_;
};

}  // namespace switchyard
