// How the samples of one update are divided over ranks and micro-steps: global batch = batch_size · ranks ·
// accumulation. A run keeps its global batch, with it its updates per epoch, its schedule and its length; what it is
// divided into may change from one start to the next. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct BatchDivision {
  int64_t batch_size = 1;  // per rank and micro-step
  int64_t accumulation = 1;
};

struct BatchRequest {  // what the user says of it
  std::optional<int64_t> batch_size, accumulation;
};

// "4", "2 or 4", "1, 2 or 4".
std::string Alternatives(const std::vector<int64_t>& numbers);

// Fills what `given` leaves open so that batch_size · world · accumulation is `global_batch` and batch_size a multiple
// of `unit`. Where both are open the batch of a rank is the largest such that divides its share and is not above
// `most`, which fitted into memory before; the least of them may be. InvalidArgument where it cannot be: says which
// ranks, --batch_size or --accumulation would do. world: of data-parallel ranks.
StatusOr<BatchDivision> DivideGlobalBatch(int64_t global_batch, int world, const BatchRequest& given, int64_t most,
                                          int64_t unit = 1);

// Into how many micro-batches of multiples of `unit` images the `images` that a rank has of an update can be divided
// for `stages` stages of `chunks` chunks each (pipeline_schedule.h): as many as stages or more, and with several chunks
// a multiple of them. Ascending.
std::vector<int64_t> MicroBatchesOfStages(int64_t images, int64_t unit, int64_t stages, int64_t chunks);

// The global batches next to `wanted`, at most one below and one above, that `world` ranks can share and that divide
// `samples`: with them a run can go on that stands so many samples into an epoch. As text: "24 or 32", "" if none.
std::string GlobalBatchesThatFit(int64_t samples, int world, int64_t wanted);

}  // namespace switchyard
