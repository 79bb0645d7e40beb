// Joining a run: who this process is, which device it drives, and how it reaches the others. Everything that a trainer
// needs from the layers below, opened in the right order and closed in the reverse one. Collective: every rank calls
// Join with the same request.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/parallel/mesh.h"
#include "core/plan/plan.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/device/device.h"
#include "core/runtime/device/device_choice.h"
#include "core/runtime/processes/process_map.h"
#include "core/runtime/processes/rendezvous.h"
#include "core/train/stopping.h"

namespace switchyard {

struct WorldRequest {
  std::string device = "auto", collective = "auto";
  std::optional<std::string> device_list;            // as DeviceRequest says
  std::optional<int> ranks_per_device, cpu_devices;  // the same
  std::optional<std::string> master_address;         // of rank 0, where MASTER_ADDR does not say it
  std::optional<int> threads;  // of a device that computes on host cores; else this rank's share of the node's cores
  bool deterministic = true;
  uint64_t memory_limit = kNoMemoryLimit;  // bytes of the device that this rank may hold
  bool computes_on_host = false;           // beside a device with memory of its own: `host` is opened
  int freeze_limit_ms = kFreezeLimitMs, init_timeout_ms = kInitTimeoutMs;
  int pipeline = 1, tensor = 1;        // neighbouring ranks that share one model: its stages, parts of its weights
  std::vector<std::string> interpose;  // around device and collective plugin: core/runtime/plugins/interpose.h
  // Called once when a peer has died, frozen or failed, on a thread of the rendezvous and before the other threads can
  // know; for programs that would rather leave than wait for a kernel to end. Empty: every wait ends with the Status.
  std::function<void(const Status&)> on_peer_failure;
};

struct World {
  StopSignals stop_signals;  // before any thread of what follows
  ProcessMap processes;
  Mesh mesh;
  DeviceChoice choice;
  int threads = 0;                             // that the device may use; 0 where it does not compute on host cores
  int host_threads = 1;                        // that preparing may use on the host
  std::shared_ptr<Rendezvous> rendezvous;      // null with one rank
  std::unique_ptr<Device> device, reference;   // reference: null where the plugin is missing or is the device itself
  std::unique_ptr<Device> host;                // computes on the host's cores beside the device; null: `reference` does
  std::unique_ptr<Communicator> communicator;  // one rank: every collective is the identity
  std::vector<std::unique_ptr<Communicator>> groups;  // of CommunicatorsOf
  int divisions = 0;                                  // calls of it so far: names of groups are new in the run
  int saves = 0;                                      // of checkpoints that ranks wrote together: the same on all
  std::string collective;                             // "none" with one rank
  std::string collective_why;

  int rank() const { return processes.rank; }
  int size() const { return processes.world; }
  // Along the data axis: ranks that share a model share its samples, its seeds and its metrics.
  int data_size() const { return mesh.data; }
  int data_rank() const { return mesh.DataRankOf(rank()); }
  int tensor_rank() const { return rank() % mesh.tensor; }
  bool first_of_model() const { return rank() % mesh.model_ranks() == 0; }  // of those that share a model
  Device* host_device() const { return host ? host.get() : reference.get(); }
  ~World();
  // Wait for work of the device that may hold collectives: see Communicator.
  Status Wait(Event& event) { return communicator ? communicator->Wait(event) : event.Wait(); }
  Status Synchronize(const Stream& stream) {
    return communicator ? communicator->Synchronize(stream) : device->Synchronize(stream);
  }

  // The communicators of the groups that this rank belongs to, made where they are not all ranks; new ones at each
  // call, as for several trainers in one world. Collective.
  StatusOr<GroupCommunicators> CommunicatorsOf(const std::vector<Group>& groups);

  // Of every rank's value, the same on all. Collective.
  StatusOr<double> Mean(const char* name, double value);
  StatusOr<uint64_t> Most(const char* name, uint64_t value);
  // Lines of names and values, as every rank has them. "": all ranks have those of rank 0; else the same words on all:
  // the first rank that differs and the first line in which it does. Collective.
  StatusOr<std::string> FirstDifference(const std::string& lines);
  // `text` becomes that of rank `root`. Collective, among two ranks or more.
  Status BroadcastText(std::string& text, int root);

  // With --collective=auto rank 0 chooses for all, so that every rank joins with the same plugin.
  // When a peer dies, freezes or fails, every wait for it ends with a Status that names it: collectives, waits for
  // device work that holds some, barriers and the store of the rendezvous. The world is of no more use then, but the
  // process is: nothing here ends it, and destroying the world waits for nobody.
  static StatusOr<std::unique_ptr<World>> Join(const WorldRequest& request);
  // The same for a rank whose place is known and who has met the others: a thread of a process with several ranks.
  static StatusOr<std::unique_ptr<World>> Join(const WorldRequest& request, const ProcessMap& processes,
                                               std::shared_ptr<Rendezvous> rendezvous);

 private:
  Status Open(const WorldRequest& request);
  Status OpenDevice(const WorldRequest& request);
  Status OpenHost(const WorldRequest& request, const std::vector<int>& cores);
  Status OpenCommunicator(const WorldRequest& request);
};

}  // namespace switchyard
