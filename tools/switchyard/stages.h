// What the stages of a pipeline hold and compute, as `explain` shows it. Pure functions; thread-safe.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/train/plans.h"

namespace switchyard {

// Of a stage's rank; where several divide it (--tp), of that which has most.
struct StageReport {
  // A run of the model's blocks; what stands before the model's first and behind its last goes with them.
  struct Chunk {
    int first_block = -1, last_block = -1;
    double forward = 0, backward = 0;  // FLOPs of an update, over all its micro-batches
  };
  std::vector<Chunk> chunks;  // one, or --pp_interleave
  int64_t parameters = 0;
  uint64_t bytes = 0;              // that it allocates
  std::vector<ArenaBytes> memory;  // by arena
  double Flops() const;
};

struct PipelineReport {
  std::vector<StageReport> stages;
  int micro_batches = 1;
  double bubble = 0;  // the share of an update in which stages wait, where FLOPs alone take time
};

// replica: the plans of a replica's ranks (TrainingPlans::OfReplica), of which each stage has `mesh.tensor`.
PipelineReport ReportOf(const Replica& replica, const Mesh& mesh, int micro_batches);
std::string TextOf(const PipelineReport& report, int above);  // above: the stage of which all is told before
// {"state": bytes, …}; of the host what there is.
nlohmann::ordered_json ByClass(std::span<const ArenaBytes> memory);
nlohmann::ordered_json JsonOf(const PipelineReport& report);

}  // namespace switchyard
