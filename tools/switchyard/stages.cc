#include "tools/switchyard/stages.h"

#include <algorithm>
#include <numeric>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/pipeline_cut.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

StageReport RankOf(const TrainingPlans& plans, int number) {
  const StageCut& cut = plans.program.stages;
  StageReport stage;
  stage.chunks.resize(static_cast<size_t>(cut.chunks));
  stage.bytes = plans.PlannedBytes();
  stage.memory = plans.Report().memory;
  const Graph& graph = plans.program.Find("update")->graph;
  for (const Node& node : graph.nodes()) {
    if (node.input) {
      const bool held = !node.input->part || node.input->part->end > 0;
      if (held && node.input->role == Role::kParameter) stage.parameters += node.outputs[0].elements();
      continue;
    }
    if (IsKept(node) || node.phase == Phase::kUpdate) continue;
    const size_t block = std::min(static_cast<size_t>(std::max(node.block, 0)), cut.part_of_block.size() - 1);
    StageReport::Chunk& chunk = node.block >= 0
                                    ? stage.chunks[static_cast<size_t>(cut.part_of_block[block] / cut.stages)]
                                : number + 1 == cut.stages ? stage.chunks.back()
                                                           : stage.chunks.front();
    (IsLate(node) ? chunk.backward : chunk.forward) += CostOf(graph, node).flops;
    if (IsLate(node) || node.block < 0) continue;
    if (chunk.first_block < 0) chunk.first_block = node.block;
    chunk.first_block = std::min(chunk.first_block, node.block);
    chunk.last_block = std::max(chunk.last_block, node.block);
  }
  return stage;
}

// Ranks of a stage have the same blocks, and parts of them that may be of unequal size.
StageReport Larger(StageReport a, const StageReport& b) {
  if (a.chunks.empty()) return b;
  for (size_t c = 0; c < a.chunks.size(); ++c) {
    a.chunks[c].forward = std::max(a.chunks[c].forward, b.chunks[c].forward);
    a.chunks[c].backward = std::max(a.chunks[c].backward, b.chunks[c].backward);
  }
  a.parameters = std::max(a.parameters, b.parameters);
  if (b.bytes > a.bytes) {
    a.bytes = b.bytes;
    a.memory = b.memory;
  }
  return a;
}

}  // namespace

nlohmann::ordered_json ByClass(std::span<const ArenaBytes> memory) {
  nlohmann::ordered_json classes;
  for (const ArenaBytes& line : memory) {
    if (!line.host || line.bytes > 0) classes[line.arena] = line.bytes;
  }
  return classes;
}

double StageReport::Flops() const {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0,
                         [](double sum, const Chunk& chunk) { return sum + chunk.forward + chunk.backward; });
}

PipelineReport ReportOf(const Replica& replica, const Mesh& mesh, int micro_batches) {
  PipelineReport report;
  report.micro_batches = micro_batches;
  for (int stage = 0; stage < mesh.pipeline; ++stage) {
    report.stages.emplace_back();
    for (int rank = stage * mesh.tensor; rank < (stage + 1) * mesh.tensor; ++rank)
      report.stages.back() = Larger(report.stages.back(), RankOf(*replica[static_cast<size_t>(rank)], stage));
  }
  std::vector<double> forward, backward;  // of a micro-batch, by part of the model
  for (size_t c = 0; c < report.stages[0].chunks.size(); ++c) {
    for (const StageReport& stage : report.stages) {
      forward.push_back(stage.chunks[c].forward / micro_batches);
      backward.push_back(stage.chunks[c].backward / micro_batches);
    }
  }
  report.bubble = TimesOf(forward, backward, mesh.pipeline, micro_batches).bubble;
  return report;
}

std::string TextOf(const PipelineReport& report, int above) {
  std::string text = fmt::format(
      "--pp={}: an update is {} micro-batches, above for stage {}; by their FLOPs, stages wait for each other in "
      "{:.1f} "
      "% of the time\n{:<7}{:<12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
      report.stages.size(), report.micro_batches, above, 100 * report.bubble, "stage", "blocks", "parameters", "GFLOP",
      "MB", "state", "gradients", "activations", "rest");
  for (size_t s = 0; s < report.stages.size(); ++s) {
    const StageReport& stage = report.stages[s];
    std::string blocks;
    for (const StageReport::Chunk& chunk : stage.chunks)
      blocks += fmt::format("{}{} to {}", blocks.empty() ? "" : ", ", chunk.first_block, chunk.last_block);
    text += fmt::format("{:<7}{:<12}{:>12}{:>12.3f}{:>12.1f}", s, blocks, stage.parameters, stage.Flops() / 1e9,
                        static_cast<double>(stage.bytes) / 1e6);
    auto rest = static_cast<double>(stage.bytes);
    for (const char* name : {"state", "gradients", "activations"}) {
      const auto line = std::find_if(stage.memory.begin(), stage.memory.end(),
                                     [&](const ArenaBytes& one) { return one.arena == name; });
      const double bytes = line == stage.memory.end() ? 0 : static_cast<double>(line->bytes);
      rest -= bytes;
      text += fmt::format("{:>12.1f}", bytes / 1e6);
    }
    text += fmt::format("{:>12.1f}\n", rest / 1e6);
  }
  return text;
}

nlohmann::ordered_json JsonOf(const PipelineReport& report) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageReport& stage : report.stages) {
    nlohmann::ordered_json chunks = nlohmann::ordered_json::array();
    for (const StageReport::Chunk& chunk : stage.chunks)
      chunks.push_back({{"first_block", chunk.first_block}, {"last_block", chunk.last_block}});
    stages.push_back({{"chunks", chunks},
                      {"parameters", stage.parameters},
                      {"gflop_per_update", stage.Flops() / 1e9},
                      {"memory_bytes", stage.bytes},
                      {"memory_by_class", ByClass(stage.memory)}});
  }
  return {{"micro_batches", report.micro_batches}, {"bubble", report.bubble}, {"stages", stages}};
}

}  // namespace switchyard
