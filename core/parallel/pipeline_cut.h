// A graph cut into the stages of a pipeline: where each node runs, which values stages send one another, and in which
// order they do. Pure functions; thread-safe.
#pragma once

#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/parallel/pipeline_schedule.h"
#include "core/parallel/program.h"

namespace switchyard {

constexpr int kAnywhere = -1;  // the stage of what follows from the batch, constants and the loss scale alone

// Does the node run in a micro-batch's backward step? Second computations of the forward part do.
bool IsLate(const Node& node);

// A graph with the part of the model that each of its nodes belongs to, and which of their values other stages need.
struct CutGraph {
  const Graph& graph;
  int stages;
  std::vector<int> parts;                  // by node
  std::set<std::pair<Ref, int>> messages;  // a value and a stage that receives it

  int PartOf(int node) const { return parts[static_cast<size_t>(node)]; }
  int StageOf(int node) const { return PartOf(node) == kAnywhere ? kAnywhere : PartOf(node) % stages; }
  void Needs(Ref value, int stage);  // adds a message where it takes one; BuildError for a parameter
};

// The plan's graph, which must outlive the result, and the messages that its nodes and gradients take. BuildError where
// two stages read a parameter.
CutGraph Cut(const NamedGraph& plan, const StageCut& stages);

// The plan's parameters, and state of the model itself, of which `stage` holds nothing.
std::vector<Node> WeightsElsewhere(const NamedGraph& plan, const StageCut& stages, int stage);

// What all stages do in one run of a plan, and when.
struct StageTimes {
  std::vector<std::vector<StageStep>> steps;  // by stage
  std::vector<std::vector<PipelineTimes::Span>> spans;
};
StageTimes TrainingTimes(const StageCut& stages, int micro_batches);  // 1F1B, interleaved where stages have chunks
StageTimes EvaluationTimes(const StageCut& stages);                   // the forward part of one micro-batch

// A value on its way from a stage to another.
struct Transfer {
  double time = 0;  // when it has been computed
  bool backward = false;
  int from = 0, to = 0, micro_batch = 0;
  Ref value;
  auto Order() const { return std::tie(time, backward, micro_batch, from, to, value); }
};

// All messages of a run in the order in which ranks take them.
std::vector<Transfer> MessagesOf(const CutGraph& cut, const StageTimes& times);

}  // namespace switchyard
