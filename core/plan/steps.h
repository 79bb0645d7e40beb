// The compiled form of a plan: steps over symbolic places. Internal to core/plan.
#pragma once

#include <string>
#include <vector>

#include "core/plan/placement.h"
#include "core/plan/plan.h"

namespace switchyard {

struct PlanPlace {
  Arena arena = Arena::kActivations;
  uint64_t offset = 0;
};

struct Step {
  enum Kind {
    kLaunch,      // kernel on the compute stream
    kFallback,    // kernel of the reference plugin, through host memory
    kCopy,        // inputs[0] → outputs[0], `bytes`
    kReady,       // what collective `node` reads is complete, and what it writes is free: record its event
    kCollective,  // after its kReady event: on the communication stream, or started; or left to its kJoin (instance.cc)
    kJoin         // the compute stream waits for collective `node`
  } kind = kLaunch;
  int node = -1;
  Kernel* kernel = nullptr;
  std::vector<PlanPlace> inputs, outputs;
  uint64_t bytes = 0;
  bool has_residual = false;
  PlanPlace residual, persistent;  // persistent: of io slot 0, those of the others follow
};

struct Plan::Impl {
  Graph graph;
  Device* device = nullptr;
  Device* reference = nullptr;
  PlanOptions options;
  std::vector<Step> steps;
  PlanReport report;
};

}  // namespace switchyard
