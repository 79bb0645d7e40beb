#include "core/plan/plan.h"

#include <algorithm>
#include <set>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/passes/decompose.h"
#include "core/graph/passes/fusion.h"
#include "core/plan/accumulation.h"
#include "core/plan/launch_order.h"
#include "core/plan/regions.h"
#include "core/plan/steps.h"

namespace switchyard {
namespace {

// Kernels for every node, forward/backward pairs together.
Status SelectKernels(RegionGraph& lowered, KernelCache& cache, KernelCache* reference,
                     std::vector<PlannedNode>& planned, PlanReport& report) {
  Graph& graph = lowered.graph;
  auto accumulate = ResultsToAccumulate(graph, cache.device().info().alignment);
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (node.op == "accumulate") {
      const Ref added = AddedBy(graph, id);
      const auto& flags = planned[added.node].accumulate;
      planned[id].absorbed = !flags.empty() && flags[static_cast<size_t>(added.output)] != 0;
      if (planned[id].absorbed) continue;
      BecomeSum(graph, id);
    }
    if (IsStructural(node.op) || IsCollective(node.op)) continue;
    PlannedNode& plan = planned[id];
    if (const auto region = lowered.regions.find(id); region != lowered.regions.end()) {
      plan.kernel = region->second.kernel;
      ++report.regions;
      report.region_nodes += region->second.nodes;
      continue;
    }
    if (node.forward >= 0 && planned[node.forward].kernel != nullptr && !planned[node.forward].fallback) {
      // A pair: the forward may leave residual bytes if the backward is there to read them.
      const Node& forward = graph.node(node.forward);
      SY_ASSIGN_OR_RETURN(Kernel * paired, cache.Find(graph, forward, true, nullptr));
      if (paired != nullptr && paired->info().residual_bytes > 0) {
        SY_ASSIGN_OR_RETURN(Kernel * backward, cache.Find(graph, node, false, paired));
        if (backward != nullptr) {
          planned[node.forward].kernel = paired;
          planned[node.forward].paired = true;
          plan.kernel = backward;
          continue;
        }
      }
    }
    if (!accumulate[id].empty()) {
      SY_ASSIGN_OR_RETURN(plan.kernel, cache.Find(graph, node, false, nullptr, accumulate[id]));
      if (plan.kernel != nullptr) {
        plan.accumulate = std::move(accumulate[id]);
        continue;
      }
    }
    SY_ASSIGN_OR_RETURN(plan.kernel, cache.Find(graph, node));
    if (plan.kernel != nullptr) continue;
    const std::string reason = cache.Refusal(graph, node);
    if (reference != nullptr) {
      SY_ASSIGN_OR_RETURN(plan.kernel, reference->Find(graph, node));
    }
    if (plan.kernel == nullptr) {
      return Unimplemented(
          "{} ({}, built at {}:{}): the {} plugin does not offer it ({}), it has no decomposition that it offers, and "
          "{}",
          node.name, node.op, node.where.file_name(), node.where.line(), cache.device().info().plugin, reason,
          reference == nullptr
              ? "there is no reference plugin"
              : "the reference plugin does not offer it either (" + reference->Refusal(graph, node) + ")");
    }
    plan.fallback = true;
    uint64_t bytes = 0;
    for (const Ref& input : node.inputs) bytes += static_cast<uint64_t>(graph.type(input).bytes());
    for (const TensorType& output : node.outputs) bytes += static_cast<uint64_t>(output.bytes());
    report.fallbacks.push_back({node.name, node.op, reason, bytes});
  }
  return OkStatus();
}

int RanksOf(const PlanOptions& options, const Node& collective) {
  const auto group = static_cast<size_t>(collective.attributes.as<sy_collective_attributes>().group);
  return group < options.group_sizes.size() ? options.group_sizes[group] : 1;
}

// What a rank sends where the collective goes by a ring; `bytes`: of the larger of what is sent and received.
double WireBytes(const std::string& op, double bytes, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == "all_reduce") return 2 * others * bytes;
  if (op == "receive") return 0;
  return op == "send" ? bytes : others * bytes;
}

// The step of collective `id`, counted in the report.
template <typename PlaceOf>
Step CollectiveStep(const Graph& graph, int id, const PlanOptions& options, const Placement& placement, PlaceOf place,
                    PlanReport& report) {
  const Node& node = graph.node(id);
  Step step;
  step.kind = Step::kCollective;
  step.node = id;
  uint64_t bytes = 0;
  // In place, what is sent lies where the result will be.
  const bool in_place = node.op == "all_reduce" || node.op == "broadcast";
  for (const Ref& input : node.inputs) {
    step.inputs.push_back(place(in_place ? placement.spots[id][0] : placement.spots[input.node][input.output]));
    bytes = std::max(bytes, static_cast<uint64_t>(graph.type(input).bytes()));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    step.outputs.push_back(place(placement.spots[id][o]));
    bytes = std::max(bytes, static_cast<uint64_t>(node.outputs[o].bytes()));
  }
  step.bytes = bytes;
  ++report.collectives;
  report.collective_bytes += bytes;
  report.wire_bytes += WireBytes(node.op, static_cast<double>(bytes), RanksOf(options, node));
  return step;
}

Graph Lower(const Graph& source, KernelCache& cache, bool fuse) {
  Graph graph = Decompose(RemoveDeadNodes(source), cache.Predicate());
  return fuse ? Fuse(graph, cache.Predicate()) : std::move(graph);
}

}  // namespace

Plan::Plan() : impl_(new Impl) {}
Plan::~Plan() = default;
const PlanReport& Plan::report() const { return impl_->report; }
const Graph& Plan::graph() const { return impl_->graph; }

StatusOr<std::unique_ptr<Plan>> Plan::Compile(const Graph& source, KernelCache& cache, KernelCache* reference,
                                              Layout& layout, const PlanOptions& options) {
  std::unique_ptr<Plan> plan(new Plan);
  Impl& impl = *plan->impl_;
  impl.device = &cache.device();
  impl.reference = reference == nullptr ? nullptr : &reference->device();
  impl.options = options;
  Graph lowered = Lower(source, cache, options.fuse);
  SY_RETURN_IF_ERROR(cache.status());
  RegionGraph claimed{std::move(lowered), {}};
  if (options.fuse) {
    SY_ASSIGN_OR_RETURN(claimed, ClaimRegions(std::move(claimed.graph), cache));
  }
  PlanReport& report = impl.report;

  std::vector<PlannedNode> planned(claimed.graph.size());
  SY_RETURN_IF_ERROR(SelectKernels(claimed, cache, reference, planned, report));
  impl.graph = std::move(claimed.graph);
  const Graph& graph = impl.graph;
  if (options.max_fallback >= 0 && static_cast<double>(report.fallbacks.size()) > options.max_fallback) {
    return FailedPrecondition(
        "{} nodes would run on the reference plugin, more than --max_fallback={} allows; the {} plugin lacks:\n{}",
        report.fallbacks.size(), options.max_fallback, impl.device->info().plugin, report.FallbackList());
  }

  const std::vector<int> order = LaunchOrder(graph, options.overlap);
  const Placement placement = PlaceValues(graph, order, planned, layout);
  const auto place = [&](const Spot& spot) {
    const Storage& storage = placement.storages[spot.storage];
    return PlanPlace{storage.arena, storage.offset + spot.offset};
  };
  const auto copy_step = [&](const PlannedCopy& copy) {
    Step step;
    step.kind = Step::kCopy;
    step.node = copy.node;
    step.inputs = {place(copy.source)};
    step.outputs = {place(copy.destination)};
    step.bytes = copy.bytes;
    ++report.copies;
    return step;
  };

  uint64_t scratch = 0;
  std::set<int> joined;
  std::map<std::string, PlanReport::OpLine> by_op;
  for (const int id : order) {
    const Node& node = graph.node(id);
    for (const Ref& input : node.inputs) {
      if (IsCollective(graph.node(input.node).op) && joined.insert(input.node).second)
        impl.steps.push_back({Step::kJoin, input.node});
    }
    for (const PlannedCopy& copy : placement.copies[id]) impl.steps.push_back(copy_step(copy));
    if (IsCollective(node.op)) {
      impl.steps.push_back({Step::kReady, id});
      impl.steps.push_back(CollectiveStep(graph, id, options, placement, place, report));
    } else if (planned[id].kernel != nullptr && !placement.elided[id]) {
      Step step;
      step.kind = planned[id].fallback ? Step::kFallback : Step::kLaunch;
      step.node = id;
      step.kernel = planned[id].kernel;
      for (const Ref& input : node.inputs) step.inputs.push_back(place(placement.spots[input.node][input.output]));
      for (const Spot& spot : placement.spots[id]) step.outputs.push_back(place(spot));
      const Kernel::Info& info = step.kernel->info();
      if (!planned[id].fallback) scratch = std::max(scratch, info.workspace_bytes);
      if (info.persistent_bytes > 0 && !planned[id].fallback) {
        // It belongs to a binding, and there is one for each io slot.
        const uint64_t all = layout.Align(info.persistent_bytes) * static_cast<uint64_t>(layout.io_slots());
        const auto& entry = layout.Place(fmt::format("persistent/{}/{}", layout.entries().size(), node.name),
                                         Arena::kState, {DType::kU8, {static_cast<int64_t>(all)}}, all);
        step.persistent = {entry.arena, entry.offset};
      }
      const int forward = planned[id].paired ? id : node.forward;
      if (forward >= 0 && placement.residuals[forward].storage >= 0) {
        step.has_residual = true;
        step.residual = place(placement.residuals[forward]);
      }
      impl.steps.push_back(std::move(step));
      ++report.launches;
      const auto region = claimed.regions.find(id);
      const Cost cost = region == claimed.regions.end() ? CostOf(graph, node) : region->second.cost;
      report.flops += cost.flops;
      report.bytes += cost.bytes;
      auto& line = by_op[node.op];
      line.op = node.op;
      ++line.count;
      line.flops += cost.flops;
      line.bytes += cost.bytes;
    }
  }
  for (int id = 0; id < graph.size(); ++id) {
    if (IsCollective(graph.node(id).op) && joined.insert(id).second) impl.steps.push_back({Step::kJoin, id});
  }
  for (const PlannedCopy& copy : placement.final_copies) impl.steps.push_back(copy_step(copy));

  layout.Reserve(Arena::kScratch, scratch);
  report.nodes = graph.size();
  report.kernels = cache.prepared();
  report.arena_bytes[static_cast<int>(Arena::kScratch)] = layout.Align(scratch);
  uint64_t activations = 0;
  for (const Storage& storage : placement.storages) {
    if (storage.arena == Arena::kActivations)
      activations = std::max(activations, storage.offset + layout.Align(std::max<uint64_t>(storage.bytes, 1)));
  }
  report.arena_bytes[static_cast<int>(Arena::kActivations)] = activations;
  for (const Arena arena : {Arena::kState, Arena::kGradients, Arena::kIo})
    report.arena_bytes[static_cast<int>(arena)] = layout.bytes(arena);
  for (auto& [op, line] : by_op) report.ops.push_back(line);
  std::stable_sort(report.ops.begin(), report.ops.end(),
                   [](const auto& a, const auto& b) { return a.flops > b.flops; });
  return plan;
}

}  // namespace switchyard
