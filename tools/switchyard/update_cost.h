// What an update takes on the ranks that share a model: exact bytes and FLOPs, and an estimate of the time by stated
// rates. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/roofline.h"
#include "core/train/plans.h"

namespace switchyard {

// What a device and its links reach; 0: not stated.
struct StatedRates {
  DeviceRates device;
  double link_bytes_per_s = 0;       // that a rank sends
  double node_link_bytes_per_s = 0;  // in groups with ranks on several nodes; 0: as link_bytes_per_s
  // Of a rank's share of the host: what goes there and comes back, and what its cores read and write. As 16 lanes of
  // PCIe 4.0 reach, and an eighth of a server's memory.
  double host_bytes_per_s = 25e9;
  bool nodes = false;   // ranks are on several, as --ranks_per_node says
  std::string machine;  // "an A100 by its data sheet, …", where --rates named one or nothing; else ""
  bool complete() const { return device.flops_per_s > 0 && device.bytes_per_s > 0 && link_bytes_per_s > 0; }
};

// What is taken where nothing is said of ranks that need not be here.
inline constexpr const char* kUsualMachine = "a100";

// Adds "compute:312T,memory:2T,link:300G,node_link:25G,host:25G" (FLOP/s and bytes/s; K, M, G, T are powers of 1000) to
// `rates`, or first those of a machine of the table, "h100" or "h100,node_link:25G". halves: products are of bf16 or
// fp16. InvalidArgument for what is none of these.
Status ParseRates(const std::string& text, bool halves, StatedRates* rates);

// "at 312 TFLOP/s and 2.039 TB/s, links of 300 GB/s and 25 GB/s between nodes (an A100 …)".
std::string TextOf(const StatedRates& rates);

// Each of the rank that has the most of it.
struct UpdateCost {
  uint64_t bytes = 0;          // of the device, the windows among them
  uint64_t window_bytes = 0;   // of peer/1; 0 where collectives go through host memory
  bool lacks_windows = false;  // which they do because windows do not fit beside the plans (LeaveRoomForPlans)
  uint64_t host_bytes = 0;     // in host memory beside it
  double flops = 0;
  double wire_bytes = 0, wire_bytes_between_nodes = 0;  // sent; the second is part of the first
  double host_traffic = 0;  // bytes that go to the host and back, and that its cores read and write
  double bubble = 0;        // the share of an update in which stages of a pipeline wait
  // Where rates are complete: all sending, and all that concerns the host, is hidden behind computing, or none is. 0
  // else.
  double least_seconds = 0, most_seconds = 0;
};

// replica: TrainingPlans::OfReplica; micro_batches: of an update; available: bytes of each rank's device.
UpdateCost CostOf(const Replica& replica, const Mesh& mesh, int micro_batches, double available,
                  const StatedRates& rates);

// At which rate the estimate counts what goes to the host and is computed there; "" where nothing is.
std::string HostRateText(const UpdateCost& cost, const StatedRates& rates);

}  // namespace switchyard
