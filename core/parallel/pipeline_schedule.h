// How a model is cut into the stages of a pipeline, and in which order a stage works on the micro-batches of an update
// (1F1B: Narayanan et al. 2019, "PipeDream"; the flushing variant and the interleaved one of Narayanan et al. 2021,
// "Efficient Large-Scale Language Model Training", section 2.2).
//
// With interleaved stages the model is cut into `chunks` times as many parts, and stage s of S has the parts s, S + s,
// 2·S + s, …, its chunks: a stage begins sooner and waits less, and sends more. Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/base/status.h"

namespace switchyard {

// What a stage does in one go: all of the forward or of the backward part of one of its chunks, of one micro-batch.
struct StageStep {
  bool backward = false;
  int micro_batch = 0;
  int chunk = 0;
  bool operator==(const StageStep&) const = default;
};

// The steps of one update on stage `stage` of `stages`: min(stages − stage − 1, micro_batches) forwards, then pairs of
// one forward and one backward, then the backwards that are left. So at most stages − stage micro-batches are held.
std::vector<StageStep> OneForwardOneBackward(int stage, int stages, int micro_batches);

// The same of a stage of several chunks: `stages` micro-batches at a time go through all of them. `stages` divides
// micro_batches. One chunk: OneForwardOneBackward.
std::vector<StageStep> InterleavedSteps(int stage, int stages, int chunks, int micro_batches);

// The stage of each block where consecutive blocks share a stage, every stage has one at least and the most expensive
// stage is as cheap as possible; among such cuts, that with the shortest early stages, which hold most micro-batches.
// costs: of the blocks, in any unit. InvalidArgument where there are fewer blocks than stages.
StatusOr<std::vector<int>> CutIntoStages(const std::vector<double>& costs, int stages);

// When each step of `InterleavedSteps` begins and ends where nothing but the stages' own time counts.
struct PipelineTimes {
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> steps;  // by stage, in the stage's order
  double makespan = 0;
  double bubble = 0;  // the share of all stages' time in which they wait: (S−1)/(M+S−1) where all cost the same
};
// forward, backward: of a micro-batch, by part (`stages` times the chunks), in any unit, above 0.
PipelineTimes TimesOf(const std::vector<double>& forward, const std::vector<double>& backward, int stages,
                      int micro_batches);

}  // namespace switchyard
