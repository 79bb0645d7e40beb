// How the samples of one update are divided over ranks and micro-steps: global batch = batch_size · ranks ·
// accumulation. A run keeps its global batch, with it its updates per epoch, its schedule and its length; what it is
// divided into may change from one start to the next. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace switchyard {

struct BatchDivision {
  int64_t batch_size = 1;  // per rank and micro-step
  int64_t accumulation = 1;
};

struct BatchRequest {  // what the user says of it
  std::optional<int64_t> batch_size, accumulation;
};

// Fills what `given` leaves open so that batch_size · world · accumulation is `global_batch`. Where both are open
// the batch of a rank is the largest that divides its share and is not above `most`, which fitted into memory before;
// where some do, a multiple of `unit`, the least of which may be above `most`. InvalidArgument where it cannot be: says
// which ranks, --batch_size or --accumulation would do.
StatusOr<BatchDivision> DivideGlobalBatch(int64_t global_batch, int world, const BatchRequest& given, int64_t most,
                                          int64_t unit = 1);

// The global batches next to `wanted`, at most one below and one above, that `world` ranks can share and that divide
// `samples`: with them a run can go on that stands so many samples into an epoch. As text: "24 or 32", "" if none.
std::string GlobalBatchesThatFit(int64_t samples, int world, int64_t wanted);

}  // namespace switchyard
