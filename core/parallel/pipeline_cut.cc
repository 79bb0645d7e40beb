#include "core/parallel/pipeline_cut.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/half_weights.h"
#include "core/parallel/pipeline.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// Batch, constants, and state that belongs to no weight, as the loss scale.
bool AllStagesHave(const InputInfo& info) {
  return info.role == Role::kBatch || info.role == Role::kConstant ||
         (info.role == Role::kState && !info.of_model && !info.average);
}

// By node: the block in which it runs; kAnywhere for what follows alone from what all stages have.
std::vector<int> PlacesOf(const Graph& graph) {
  const auto size = static_cast<size_t>(graph.size());
  std::vector<int> block(size, kAnywhere);
  std::vector<bool> anywhere(size, false);
  for (size_t id = 0; id < size; ++id) {
    const Node& node = graph.node(static_cast<int>(id));
    anywhere[id] = node.input ? AllStagesHave(*node.input)
                              : std::all_of(node.inputs.begin(), node.inputs.end(), [&](const Ref& input) {
                                  return anywhere[static_cast<size_t>(input.node)];
                                });
    if (node.input || anywhere[id] || IsLate(node)) continue;
    block[id] = node.block;
    for (const Ref& input : node.inputs) block[id] = std::max(block[id], block[static_cast<size_t>(input.node)]);
  }
  // Parameters, and what follows from them alone, run where they or their half copies are read.
  const auto users = graph.Users();
  const auto copies = HalfWeightsOf(graph);
  std::vector<int> copy_of(size, -1);
  for (const auto& [copy, parameter] : copies) copy_of[static_cast<size_t>(parameter)] = copy;
  for (size_t id = size; id-- > 0;) {
    if (block[id] >= 0 || anywhere[id] || IsLate(graph.node(static_cast<int>(id)))) continue;
    for (const int node : {static_cast<int>(id), copy_of[id]}) {
      for (const int user : node < 0 ? std::span<const int>() : users[node]) {
        const int reader = block[static_cast<size_t>(user)];
        if (reader >= 0 && (block[id] < 0 || reader < block[id])) block[id] = reader;
      }
    }
    block[id] = std::max(block[id], 0);
  }
  for (const auto& [copy, parameter] : copies) block[static_cast<size_t>(copy)] = block[static_cast<size_t>(parameter)];
  // A backward node runs where its forward node does, and never behind the gradients that it reads.
  for (size_t id = 0; id < size; ++id) {
    const Node& node = graph.node(static_cast<int>(id));
    if (node.input || anywhere[id] || !IsLate(node)) continue;
    int forward = node.block, gradient = kAnywhere;
    for (const Ref& input : node.inputs) {
      const int of = block[static_cast<size_t>(input.node)];
      if (of < 0) continue;
      if (IsLate(graph.node(input.node))) {
        gradient = gradient < 0 ? of : std::min(gradient, of);
      } else if (node.block < 0) {
        forward = std::max(forward, of);
      }
    }
    block[id] = gradient < 0 ? std::max(forward, 0) : forward < 0 ? gradient : std::min(forward, gradient);
  }
  return block;
}

// The weight that an input is, or whose average or half copy it is; "": none.
std::string WeightOf(const Node& node) {
  if (!node.input) return "";
  if (node.input->average) return node.name.substr(AverageOf("").size());
  if (node.input->role == Role::kParameter || node.input->of_model) return node.name;
  return CopiedBy(node);
}

}  // namespace

bool IsLate(const Node& node) { return node.phase != Phase::kForward || node.repeats >= 0; }

void CutGraph::Needs(Ref value, int stage) {
  const int from = StageOf(value.node);
  if (from == kAnywhere || stage == kAnywhere || from == stage) return;
  const Node& node = graph.node(value.node);
  if (node.input) {
    throw BuildError(fmt::format(
        "the pipeline stages {} and {} both read {}; use fewer stages, or none, for a model that shares weights "
        "between blocks",
        from, stage, node.name));
  }
  messages.insert({value, stage});
}

CutGraph Cut(const NamedGraph& plan, const StageCut& stages) {
  CutGraph cut{plan.graph, stages.stages, PlacesOf(plan.graph), {}};
  for (int& place : cut.parts) {
    if (place != kAnywhere)
      place = stages.part_of_block[std::min(static_cast<size_t>(place), stages.part_of_block.size() - 1)];
  }
  for (int id = 0; id < plan.graph.size(); ++id) {
    const auto weight = stages.part_of_weight.find(WeightOf(plan.graph.node(id)));
    if (weight != stages.part_of_weight.end()) cut.parts[static_cast<size_t>(id)] = weight->second;
  }
  for (int id = 0; id < plan.graph.size(); ++id) {
    const Node& node = plan.graph.node(id);
    if (IsOutput(node)) continue;  // all stages get it where the step ends
    const int stage = IsAssign(node) ? cut.StageOf(node.inputs[0].node) : cut.StageOf(id);
    for (const Ref& input : node.inputs) cut.Needs(input, stage);
  }
  for (const auto& [parameter, gradient] : plan.gradients) {
    if (gradient.node >= 0) cut.Needs(gradient, cut.StageOf(parameter.node));
  }
  return cut;
}

std::vector<Node> WeightsElsewhere(const NamedGraph& plan, const StageCut& stages, int stage) {
  const CutGraph cut = Cut(plan, stages);
  std::vector<Node> weights;
  for (int id = 0; id < plan.graph.size(); ++id) {
    const Node& node = plan.graph.node(id);
    if (node.input && (node.input->role == Role::kParameter || node.input->of_model) && cut.StageOf(id) != stage)
      weights.push_back(node);
  }
  return weights;
}

StageTimes TrainingTimes(const StageCut& stages, int micro_batches) {
  StageTimes table;
  for (int s = 0; s < stages.stages; ++s)
    table.steps.push_back(InterleavedSteps(s, stages.stages, stages.chunks, micro_batches));
  const auto parts = static_cast<size_t>(stages.stages * stages.chunks);
  table.spans =
      TimesOf(std::vector<double>(parts, 1), std::vector<double>(parts, 2), stages.stages, micro_batches).steps;
  return table;
}

StageTimes EvaluationTimes(const StageCut& stages) {
  StageTimes table;
  for (int s = 0; s < stages.stages; ++s) {
    table.steps.emplace_back();
    table.spans.emplace_back();
    for (int chunk = 0; chunk < stages.chunks; ++chunk) {
      const double begin = chunk * stages.stages + s;
      table.steps.back().push_back({false, 0, chunk});
      table.spans.back().push_back({begin, begin + 1});
    }
  }
  return table;
}

std::vector<Transfer> MessagesOf(const CutGraph& cut, const StageTimes& times) {
  std::vector<Transfer> messages;
  for (const auto& [value, to] : cut.messages) {
    const int from = cut.StageOf(value.node);
    const bool backward = IsLate(cut.graph.node(value.node));
    const auto stage = static_cast<size_t>(from);
    for (size_t i = 0; i < times.steps[stage].size(); ++i) {
      const StageStep& step = times.steps[stage][i];
      if (step.backward == backward && step.chunk == cut.PartOf(value.node) / cut.stages)
        messages.push_back({times.spans[stage][i].end, backward, from, to, step.micro_batch, value});
    }
  }
  std::sort(messages.begin(), messages.end(),
            [](const Transfer& a, const Transfer& b) { return a.Order() < b.Order(); });
  return messages;
}

std::vector<int> PartsOfBlocks(const Graph& graph, int stages, int interleave) {
  const std::vector<int> block = PlacesOf(graph);
  std::vector<double> costs;
  for (const Node& node : graph.nodes()) {
    if (node.block >= static_cast<int>(costs.size())) costs.resize(static_cast<size_t>(node.block) + 1);
  }
  for (int id = 0; id < graph.size(); ++id) {
    const int of = block[static_cast<size_t>(id)];
    const Node& node = graph.node(id);
    if (of < 0 || of >= static_cast<int>(costs.size()) || node.input || IsKept(node) || IsLate(node)) continue;
    costs[static_cast<size_t>(of)] += CostOf(graph, node).flops;
  }
  const auto cut = CutIntoStages(costs, stages * interleave);
  if (cut.ok()) return *cut;
  const int blocks = std::max(1, static_cast<int>(costs.size()));
  const std::string less = blocks >= stages  ? fmt::format("--pp_interleave={}, a smaller --pp", blocks / stages)
                           : interleave == 1 ? fmt::format("--pp={}", blocks)
                                             : fmt::format("--pp={} --pp_interleave=1", blocks);
  throw BuildError(
      fmt::format("{}; use at most {}, or a deeper model (--depth, where it has that)", Message(cut.status()), less));
}

}  // namespace switchyard
