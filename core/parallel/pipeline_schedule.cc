#include "core/parallel/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace switchyard {

std::vector<StageStep> OneForwardOneBackward(int stage, int stages, int micro_batches) {
  const int ahead = std::min(stages - stage - 1, micro_batches);
  std::vector<StageStep> steps;
  for (int f = 0; f < ahead; ++f) steps.push_back({false, f});
  for (int b = 0; b < micro_batches; ++b) {
    if (b + ahead < micro_batches) steps.push_back({false, b + ahead});
    steps.push_back({true, b});
  }
  return steps;
}

std::vector<StageStep> InterleavedSteps(int stage, int stages, int chunks, int micro_batches) {
  if (chunks == 1) return OneForwardOneBackward(stage, stages, micro_batches);
  const int all = micro_batches * chunks, ahead = std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, all);
  // Of the k-th forward or backward step.
  const auto step = [&](bool backward, int k) {
    const int chunk = k / stages % chunks;
    return StageStep{backward, k / (stages * chunks) * stages + k % stages, backward ? chunks - 1 - chunk : chunk};
  };
  std::vector<StageStep> steps;
  for (int f = 0; f < ahead; ++f) steps.push_back(step(false, f));
  for (int b = 0; b < all; ++b) {
    if (b + ahead < all) steps.push_back(step(false, b + ahead));
    steps.push_back(step(true, b));
  }
  return steps;
}

StatusOr<std::vector<int>> CutIntoStages(const std::vector<double>& costs, int stages) {
  const auto blocks = static_cast<int>(costs.size());
  if (stages < 1 || blocks < stages) {
    return InvalidArgument(
        "{} pipeline stages of a model of {} block{}: expected at least 1 stage, and a block for each (with "
        "--pp_interleave, for each of a stage's parts)",
        stages, blocks, blocks == 1 ? "" : "s");
  }
  // least[s][b]: of the cuts of the blocks from b on into s stages, the cost of the dearest stage of the best.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(static_cast<size_t>(stages) + 1,
                                         std::vector<double>(static_cast<size_t>(blocks) + 1, kNever));
  least[0][static_cast<size_t>(blocks)] = 0;
  const auto best = [&](int left, int from, int* end) {
    double found = kNever, cost = 0;
    for (int to = from + 1; to <= blocks; ++to) {
      cost += costs[static_cast<size_t>(to - 1)];
      const double dearest = std::max(cost, least[static_cast<size_t>(left - 1)][static_cast<size_t>(to)]);
      if (dearest >= found) continue;
      found = dearest;
      *end = to;
    }
    return found;
  };
  int end = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int b = 0; b < blocks; ++b) least[static_cast<size_t>(s)][static_cast<size_t>(b)] = best(s, b, &end);
  }
  std::vector<int> stage_of;
  for (int stage = 0; stage < stages; ++stage) {
    best(stages - stage, static_cast<int>(stage_of.size()), &end);
    stage_of.resize(static_cast<size_t>(end), stage);
  }
  return stage_of;
}

PipelineTimes TimesOf(const std::vector<double>& forward, const std::vector<double>& backward, int stages,
                      int micro_batches) {
  const size_t parts = forward.size(), ranks = static_cast<size_t>(stages);
  const auto count = static_cast<size_t>(micro_batches);
  PipelineTimes times;
  times.steps.resize(ranks);
  std::vector<std::vector<StageStep>> orders;
  for (int s = 0; s < stages; ++s)
    orders.push_back(InterleavedSteps(s, stages, static_cast<int>(parts) / stages, micro_batches));
  // When each part has done a micro-batch; negative: not yet.
  std::vector<std::vector<double>> forwards(parts, std::vector<double>(count, -1)), backwards = forwards;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < ranks; ++s) {
      while (times.steps[s].size() < orders[s].size()) {
        const StageStep step = orders[s][times.steps[s].size()];
        const auto m = static_cast<size_t>(step.micro_batch);
        const size_t part = static_cast<size_t>(step.chunk) * ranks + s;
        double ready = 0;
        if (step.backward) {
          ready = part + 1 == parts ? forwards[part][m] : backwards[part + 1][m];
        } else if (part > 0) {
          ready = forwards[part - 1][m];
        }
        if (ready < 0) break;
        const double begin = std::max(ready, times.steps[s].empty() ? 0 : times.steps[s].back().end);
        const double end = begin + (step.backward ? backward : forward)[part];
        (step.backward ? backwards : forwards)[part][m] = end;
        times.steps[s].push_back({begin, end});
        times.makespan = std::max(times.makespan, end);
        moved = true;
      }
    }
  }
  const double work =
      (std::accumulate(forward.begin(), forward.end(), 0.0) + std::accumulate(backward.begin(), backward.end(), 0.0)) *
      micro_batches;
  times.bubble = 1 - work / (stages * times.makespan);
  return times;
}

}  // namespace switchyard
