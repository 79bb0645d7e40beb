#include "tools/switchyard/stages.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/pipeline_cut.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

StageReport RankOf(const TrainingPlans& plans) {
  StageReport stage;
  stage.bytes = plans.PlannedBytes();
  const Graph& graph = plans.program.Find("update")->graph;
  for (const Node& node : graph.nodes()) {
    if (node.input) {
      const bool held = !node.input->part || node.input->part->end > 0;
      if (held && node.input->role == Role::kParameter) stage.parameters += node.outputs[0].elements();
      continue;
    }
    if (IsKept(node) || node.phase == Phase::kUpdate) continue;
    (IsLate(node) ? stage.backward : stage.forward) += CostOf(graph, node).flops;
    if (IsLate(node) || node.block < 0) continue;
    if (stage.first_block < 0) stage.first_block = node.block;
    stage.first_block = std::min(stage.first_block, node.block);
    stage.last_block = std::max(stage.last_block, node.block);
  }
  return stage;
}

// Ranks of a stage have the same blocks, and parts of them that may be of unequal size.
StageReport Larger(const StageReport& a, const StageReport& b) {
  return {.first_block = b.first_block,
          .last_block = b.last_block,
          .parameters = std::max(a.parameters, b.parameters),
          .forward = std::max(a.forward, b.forward),
          .backward = std::max(a.backward, b.backward),
          .bytes = std::max(a.bytes, b.bytes)};
}

}  // namespace

PipelineReport ReportOf(const std::vector<TrainingPlans>& replica, const Mesh& mesh, int micro_batches) {
  PipelineReport report;
  report.micro_batches = micro_batches;
  std::vector<double> forward, backward;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    report.stages.emplace_back();
    for (int rank = stage * mesh.tensor; rank < (stage + 1) * mesh.tensor; ++rank)
      report.stages.back() = Larger(report.stages.back(), RankOf(replica[static_cast<size_t>(rank)]));
    forward.push_back(report.stages.back().forward / micro_batches);
    backward.push_back(report.stages.back().backward / micro_batches);
  }
  report.bubble = TimesOf(forward, backward, micro_batches).bubble;
  return report;
}

std::string TextOf(const PipelineReport& report) {
  std::string text = fmt::format(
      "--pp={}: an update is {} micro-batches, above for stage 0; by their FLOPs, stages wait for each other in {:.1f} "
      "% of the time\n{:<7}{:<12}{:>12}{:>12}{:>12}\n",
      report.stages.size(), report.micro_batches, 100 * report.bubble, "stage", "blocks", "parameters", "GFLOP", "MB");
  for (size_t s = 0; s < report.stages.size(); ++s) {
    const StageReport& stage = report.stages[s];
    text += fmt::format("{:<7}{:<12}{:>12}{:>12.3f}{:>12.1f}\n", s,
                        fmt::format("{} to {}", stage.first_block, stage.last_block), stage.parameters,
                        (stage.forward + stage.backward) / 1e9, static_cast<double>(stage.bytes) / 1e6);
  }
  return text;
}

nlohmann::ordered_json JsonOf(const PipelineReport& report) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageReport& stage : report.stages) {
    stages.push_back({{"first_block", stage.first_block},
                      {"last_block", stage.last_block},
                      {"parameters", stage.parameters},
                      {"gflop_per_update", (stage.forward + stage.backward) / 1e9},
                      {"memory_bytes", stage.bytes}});
  }
  return {{"micro_batches", report.micro_batches}, {"bubble", report.bubble}, {"stages", stages}};
}

}  // namespace switchyard
