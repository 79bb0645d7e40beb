// The plan: a graph turned into an ordered list of prepared kernels at fixed offsets. Compile does all the searching,
// sizing and placing; an Instance binds the plan to memory; Run only launches. Memory is planned by liveness, so that
// bytes are known exactly before anything is allocated, also for a world that is not there.
//
// What the planner does, in order: decompose what the backend lacks (with --compile=0 also every op of
// OpTraits::fused), fuse, prepare kernels (a node that neither the backend nor a decomposition covers runs on the
// reference plugin through host memory, and is reported), give every value a place (views share the place of their
// source; parts of a bucket are written where the bucket lies; a new value of a state is written over the old one where
// the kernel allows), give places offsets by liveness, put every step on a stream (compute, or the communication of a
// group) with its waits for other streams as edges, and bind. Not thread-safe; different Instances over different
// streams may run concurrently.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/plan/kernels.h"
#include "core/plan/memory.h"
#include "core/plan/schedule.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/device/device.h"

namespace switchyard {

struct PlanOptions {
  bool fuse = true;     // --compile=0 sets it to false: no fusion, no op of OpTraits::fused, no regions
  bool capture = true;  // replay runs of launches with one call where the device can
  bool overlap = true;  // collectives start as soon as their input is complete; else right before their first reader
  uint64_t prefetch_bytes = uint64_t{128} << 20;  // with overlap: of gathered shards that nobody has read yet
  bool debug_sync = false;                        // wait after every step and name the node that failed
  bool debug_nan = false;                         // and look for inf and nan in every floating output
  double max_fallback = std::numeric_limits<double>::infinity();  // nodes that may run on the reference plugin
  bool count_second_choice = false;  // max_fallback counts kernels too that are the backend's second choice
  std::vector<int> group_sizes;      // ranks of the groups that collectives name, for traffic in the report; none: 1
  std::vector<bool> group_spans;     // of them, those known to have ranks on several nodes; none: nothing is known
};

struct ArenaBytes {
  std::string arena;
  uint64_t bytes = 0;
  bool host = false;  // it lies in the memory of the host, beside the device's
  bool file = false;  // or in a file there
};
std::vector<ArenaBytes> MemoryOf(const Layout& layout);  // by arena
// Of the device and a collective, by what it is for: weights, gradients, optimizer state, activations (the batches
// among them), workspace of kernels. The sum is layout.bytes().
std::vector<ArenaBytes> MemoryByUse(const Layout& layout);

// What a plan needs and does; all numbers are exact (FLOPs by each op's formula).
struct PlanReport {
  struct Fallback {
    std::string node, op, reason;
    uint64_t bytes = 0;  // staged per run
  };
  int nodes = 0, launches = 0, copies = 0, collectives = 0, kernels = 0;
  int host_launches = 0;                      // of `launches`, on the host
  uint64_t store_bytes = 0, fetch_bytes = 0;  // that a run copies to the host and back
  int edges = 0;                              // waits of one stream for another
  bool overlap = true;                        // PlanOptions::overlap
  int regions = 0, region_nodes = 0;          // subgraphs that the plugin compiled whole, and the nodes in them
  double kernel_seconds = 0;  // that the plugin took for the distinct kernels of this plan and those before it
  double flops = 0, bytes = 0;
  std::vector<ArenaBytes> memory;       // by arena
  uint64_t collective_bytes = 0;        // payload per rank and run
  bool reaches_peers = false;           // the device has peer/1 for its own memory
  uint64_t peer_memory_bytes = 0;       // that the run's communicators then hold, beside `memory`, where it fits
  uint64_t checkpoint_bytes = 0;        // of the copy that a first save makes on the device, beside `memory`
  uint64_t checkpoint_host_bytes = 0;   // and in host memory, of ranks that write, with what they gather
  double wire_bytes_between_nodes = 0;  // of wire_bytes, those of groups with ranks on several nodes
  double wire_bytes = 0;                // sent per rank and run by a ring: 2(W−1)/W of an all-reduce's payload
  std::map<int, double> wire_bytes_of_group;  // of wire_bytes, by the group of the collective
  std::vector<Fallback> fallbacks;
  std::vector<Fallback> second_choices;  // nodes that the backend computes in a way that it did not want, and why
  struct OpLine {
    std::string op;
    int count = 0;
    double flops = 0, bytes = 0;
  };
  std::vector<OpLine> ops;  // by op, most FLOPs first
  std::string ToText() const;
  // One line for each op and reason, with the number of nodes and the first of them.
  std::string FallbackList() const { return List(fallbacks); }
  std::string SecondChoiceList() const { return List(second_choices); }
  static std::string List(const std::vector<Fallback>& nodes);
};

class Plan {
 public:
  // `reference` runs what `cache.device()` cannot; nullptr: such a node is an error. `host` has the kernels of nodes
  // that run on the host; nullptr: there must be none. Names go into `layout`, shared by all plans over one state.
  static StatusOr<std::unique_ptr<Plan>> Compile(const Graph& graph, KernelCache& cache, KernelCache* reference,
                                                 Layout& layout, const PlanOptions& options,
                                                 KernelCache* host = nullptr);
  ~Plan();
  const PlanReport& report() const;
  const Graph& graph() const;  // as lowered
  const StepSchedule& schedule() const;

 private:
  friend class Instance;
  Plan();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A plan bound to memory, ready to run. Instances of one plan with different io slots differ in where their inputs and
// outputs lie, and in the persistent memory of their kernels; they run one after the other.
class Instance {
 public:
  static StatusOr<std::unique_ptr<Instance>> Bind(const Plan& plan, Memory& memory,
                                                  const GroupCommunicators& communicators, int io_slot = 0);
  ~Instance();
  // Submits one run on the compute stream. No allocation, no search; on an ASYNC device no host wait, unless a
  // host-request collective meets a device without semaphores. An error names the node and the line that built it.
  Status Run(const Stream& stream);
  // How the host-request collectives of the last run ended, for which the host waits. A device that waited for them by
  // semaphores knows no failure: ask before what it computed is believed. At once where the stream was waited for.
  Status Finish();
  // From now on every step is waited for and timed, and nothing is replayed, as with debug_sync; or no longer.
  void Record(bool on);
  // The steps of the last run in their order, where they were recorded or debug_sync is set; else empty. Times are ns
  // of the steady clock.
  struct Timing {
    int step = 0;  // of the plan's schedule
    uint64_t start_ns = 0, end_ns = 0;
  };
  const std::vector<Timing>& timings() const;
  static uint64_t Now();            // on that clock
  double fallback_seconds() const;  // in all runs so far
  int captured_launches() const;    // launches of a run that are replayed as part of captured segments

 private:
  Instance();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
