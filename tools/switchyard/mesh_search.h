// `explain --search`: the ways to divide a run over so many ranks, which need not be there, that fit into a device's
// memory. Each is planned as a run would be, so that bytes and FLOPs are exact; times are estimates by stated rates.
// The samples of an update stay the same: micro-batches and recomputation are added only where a way would not fit
// without, and --offload only where no way does. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/settings/settings.h"
#include "core/train/trainable_model.h"
#include "core/train/world.h"
#include "tools/switchyard/update_cost.h"

namespace switchyard {

// A way to divide a run, and what it takes.
struct MeshChoice {
  int data = 1, tensor = 1, pipeline = 1;
  bool sequence = false;
  int zero = 0;
  std::string recompute = "none", offload = "none";
  int64_t batch_size = 1, micro_batches = 1;  // of a rank
  std::optional<double> bucket_mb;            // where larger ones do not fit; else the run's own
  UpdateCost cost;
};

struct MeshSearch {
  int64_t samples = 0;  // of an update
  int ranks = 1;
  double available = 0;                // bytes
  std::vector<MeshChoice> fitting;     // by most_seconds where rates are stated, else by work, waiting and traffic
  int refused = 0, too_large = 0;      // combinations, of the last --offload and --bucket_mb that were tried
  std::optional<MeshChoice> smallest;  // of those that are too large
};

// given: which axes the user fixed; the others are tried in powers of 2, tensor and pipeline up to 8. config: resolved,
// on `ranks` ranks. InvalidArgument where no way divides ranks and samples, with what the passes say.
StatusOr<MeshSearch> SearchMeshes(const Settings& given, const TrainConfig& config, const TrainableModel& model,
                                  World& here, int ranks, int64_t updates, double available, const StatedRates& rates);

// ResourceExhausted where nothing fits: says what the smallest would take.
Status CheckFound(const MeshSearch& search);
std::string TextOf(const MeshSearch& search, const StatedRates& rates);
nlohmann::ordered_json JsonOf(const MeshSearch& search);

}  // namespace switchyard
