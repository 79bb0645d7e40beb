// Asking a backend for kernels, once per distinct op, attributes and shapes: identical layers share one kernel with
// many bindings. Not thread-safe. Must outlive the plans made with it, and be destroyed before its Device.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/passes/rewrite.h"
#include "core/runtime/device/device.h"

namespace switchyard {

struct KernelOptions {
  uint64_t workspace_limit = uint64_t{1} << 32;
  bool deterministic = true;
  int tuning = SY_TUNING_HEURISTIC;
};

class KernelCache {
 public:
  KernelCache(Device& device, const KernelOptions& options) : device_(device), options_(options) {}

  // The kernel for a node; nullptr if the backend does not offer it; an error only where the plugin failed.
  StatusOr<Kernel*> Find(const Graph& graph, const Node& node) { return Find(graph, node, false, nullptr); }
  // For a forward/backward pair: the forward may leave residual bytes, the backward gets the forward's kernel.
  // accumulate: a flag for each result that is added to what its place holds; empty: none is.
  StatusOr<Kernel*> Find(const Graph& graph, const Node& node, bool paired_forward, Kernel* forward,
                         const std::vector<uint8_t>& accumulate = {});
  // The kernel of a region that the plugin claimed; regions with equal keys share one. nullptr: the plugin refuses it
  // after all.
  StatusOr<Kernel*> FindRegion(const std::string& key, const sy_region& region);
  // As a predicate for passes. Failures of the plugin are kept in status().
  CanPrepare Predicate();
  const Status& status() const { return status_; }
  Device& device() { return device_; }
  int prepared() const { return static_cast<int>(kernels_.size()); }
  double seconds() const { return seconds_; }  // that the plugin has taken to prepare them, or to refuse
  // Why Find(graph, node) gave nullptr, in the plugin's words; "" where it gave a kernel, or was not asked.
  std::string Refusal(const Graph& graph, const Node& node) const;

 private:
  Device& device_;
  KernelOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels_;  // nullptr: refused
  Status status_;
  double seconds_ = 0;
  std::unordered_map<std::string, std::string> refusals_;  // by the key of the kernel
};

}  // namespace switchyard
