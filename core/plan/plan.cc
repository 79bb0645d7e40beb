#include "core/plan/plan.h"

#include <algorithm>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/structure.h"
#include "core/graph/passes/decompose.h"
#include "core/graph/passes/fusion.h"
#include "core/graph/verify.h"
#include "core/plan/accumulation.h"
#include "core/plan/compiled.h"
#include "core/plan/launch_order.h"
#include "core/plan/regions.h"
#include "core/plan/steps.h"
#include "core/runtime/collectives/peer_memory.h"
#include "core/runtime/plugins/collective_info.h"

namespace switchyard {
namespace {

// Of the host's backend. What a kernel keeps between runs has no place there.
StatusOr<Kernel*> HostKernel(const Graph& graph, const Node& node, KernelCache* host) {
  const auto refused = [&](const std::string& why) {
    return Unimplemented("{} ({}, built at {}:{}) is to run on the host: {}", node.name, node.op,
                         node.where.file_name(), node.where.line(), why);
  };
  if (host == nullptr) return refused("no backend is there whose kernels do");
  SY_ASSIGN_OR_RETURN(Kernel* const kernel, host->Find(graph, node));
  const std::string& plugin = host->device().info().plugin;
  if (kernel == nullptr)
    return refused(fmt::format("the {} plugin does not offer it ({})", plugin, host->Refusal(graph, node)));
  if (kernel->info().persistent_bytes + kernel->info().constant_bytes > 0)
    return refused(fmt::format("the kernel of the {} plugin keeps something between runs", plugin));
  return kernel;
}

// Kernels for every node, forward/backward pairs together.
Status SelectKernels(RegionGraph& lowered, KernelCache& cache, KernelCache* reference, KernelCache* host,
                     std::vector<PlannedNode>& planned, PlanReport& report) {
  Graph& graph = lowered.graph;
  // Of a pair, which leaves something to its backward, the kernel is another one.
  const auto adds = [&](int id, const std::vector<uint8_t>& flags) -> StatusOr<bool> {
    const Node& node = graph.node(id);
    if (node.host || lowered.regions.contains(id)) return false;
    if (node.forward >= 0) {
      SY_ASSIGN_OR_RETURN(const Kernel* paired, cache.Find(graph, graph.node(node.forward), true, nullptr));
      if (paired != nullptr && paired->info().residual_bytes > 0) return false;
    }
    SY_ASSIGN_OR_RETURN(const Kernel* kernel, cache.Find(graph, node, false, nullptr, flags));
    return kernel != nullptr;
  };
  SY_ASSIGN_OR_RETURN(auto accumulate, ResultsToAccumulate(graph, cache.device().info().alignment, adds));
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (IsAccumulate(node)) {
      const Ref added = AddedBy(graph, id);
      const auto& flags = planned[added.node].accumulate;
      planned[id].absorbed = !flags.empty() && flags[static_cast<size_t>(added.output)] != 0;
      if (planned[id].absorbed) continue;
      BecomeSum(graph, id);
      planned[id].sums = true;
    }
    if (IsStructural(node.op) || IsCollective(node.op)) continue;
    PlannedNode& plan = planned[id];
    if (node.host) {
      SY_ASSIGN_OR_RETURN(plan.kernel, HostKernel(graph, node, host));
      continue;
    }
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
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (planned[id].kernel == nullptr || planned[id].fallback || node.host) continue;
    const std::string& reason = planned[id].kernel->info().second_choice;
    if (!reason.empty()) report.second_choices.push_back({node.name, node.op, reason, 0});
  }
  Verify(graph, "the choice of kernels");
  return OkStatus();
}

// What --max_fallback does not allow.
Status CheckFallbacks(const PlanReport& report, const PlanOptions& options, const std::string& plugin) {
  const size_t counted = report.fallbacks.size() + (options.count_second_choice ? report.second_choices.size() : 0);
  if (static_cast<double>(counted) <= options.max_fallback) return OkStatus();
  if (!options.count_second_choice) {
    return FailedPrecondition(
        "{} nodes would run on the reference plugin, more than --max_fallback={} allows; the {} plugin lacks:\n{}",
        counted, options.max_fallback, plugin, report.FallbackList());
  }
  return FailedPrecondition(
      "{} nodes would run on the reference plugin and {} in a second choice of the {} plugin, more than "
      "--max_fallback={} with --count_second_choice allows:\n{}{}",
      report.fallbacks.size(), report.second_choices.size(), plugin, options.max_fallback, report.FallbackList(),
      report.SecondChoiceList());
}

int RanksOf(const PlanOptions& options, const Node& collective) {
  const auto group = static_cast<size_t>(collective.attributes.as<sy_collective_attributes>().group);
  return group < options.group_sizes.size() ? options.group_sizes[group] : 1;
}

bool SpansNodes(const PlanOptions& options, const Node& collective) {
  const auto group = static_cast<size_t>(collective.attributes.as<sy_collective_attributes>().group);
  return group < options.group_spans.size() && options.group_spans[group];
}

// What a rank sends where the collective goes by a ring; `bytes`: of the larger of what is sent and received.
double WireBytes(const Node& collective, double bytes, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (*ExchangeOf(collective)) {
    case Exchange::kAllReduce:
      return 2 * others * bytes;
    case Exchange::kSend:
      return bytes;
    case Exchange::kReceive:
      return 0;
    default:
      return others * bytes;
  }
}

// Counts what the steps do, each by itself, by kind and by op.
void Count(const Graph& graph, StepSchedule& schedule, const RegionGraph& lowered, const PlanOptions& options,
           PlanReport& report) {
  std::map<std::string, PlanReport::OpLine> by_op;
  for (Step& step : schedule.steps) {
    const Node& node = graph.node(step.node);
    if (step.kind == Step::kCopy) {
      ++report.copies;
      step.cost.bytes = 2 * static_cast<double>(step.inputs[0].bytes);
      if (step.stream == kStoreStream) report.store_bytes += step.inputs[0].bytes;
      if (step.stream == kFetchStream) report.fetch_bytes += step.inputs[0].bytes;
    } else if (step.kind == Step::kCollective) {
      uint64_t bytes = 0;
      for (const auto* places : {&step.inputs, &step.outputs}) {
        for (const PlanPlace& place : *places) bytes = std::max(bytes, place.bytes);
      }
      ++report.collectives;
      report.collective_bytes += bytes;
      step.cost.bytes = static_cast<double>(bytes);
      const double sent = WireBytes(node, static_cast<double>(bytes), RanksOf(options, node));
      report.wire_bytes += sent;
      report.wire_bytes_of_group[node.attributes.as<sy_collective_attributes>().group] += sent;
      if (SpansNodes(options, node)) report.wire_bytes_between_nodes += sent;
    } else {
      ++report.launches;
      report.host_launches += step.kind == Step::kHost;
      const auto region = lowered.regions.find(step.node);
      const Cost cost = step.cost = region == lowered.regions.end() ? CostOf(graph, node) : region->second.cost;
      report.flops += cost.flops;
      report.bytes += cost.bytes;
      auto& line = by_op[node.op];
      line.op = node.op;
      ++line.count;
      line.flops += cost.flops;
      line.bytes += cost.bytes;
    }
  }
  for (auto& [op, line] : by_op) report.ops.push_back(line);
  std::stable_sort(report.ops.begin(), report.ops.end(),
                   [](const auto& a, const auto& b) { return a.flops > b.flops; });
  report.edges = schedule.edges();
}

Graph Lower(const Graph& source, KernelCache& cache, KernelCache* host, bool fuse) {
  const CanPrepare on_host = host == nullptr ? cache.Predicate() : host->Predicate();
  const CanPrepare can_prepare = [&, on_device = cache.Predicate()](const Graph& graph, const Node& node) {
    return (fuse || !TraitsOf(node.op).fused) && (node.host ? on_host : on_device)(graph, node);
  };
  Graph graph = Decompose(RemoveDeadNodes(source), can_prepare);
  return fuse ? Fuse(std::move(graph), can_prepare) : std::move(graph);
}

// What kernels of this kind of step take while they run, one at a time.
uint64_t WorkspaceOf(const StepSchedule& schedule, Step::Kind kind) {
  uint64_t bytes = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind == kind) bytes = std::max(bytes, step.kernel->info().workspace_bytes);
  }
  return bytes;
}

}  // namespace

std::vector<ArenaBytes> MemoryOf(const Layout& layout) {
  std::vector<ArenaBytes> memory;
  for (const Arena& arena : layout.arenas())
    memory.push_back({arena.name, layout.bytes(static_cast<int>(memory.size())), arena.space == Arena::Space::kHost});
  return memory;
}

std::vector<ArenaBytes> MemoryByUse(const Layout& layout) {
  uint64_t weights = 0, sums = 0;  // of the state; the rest of it is the optimizer's
  for (const auto& [name, entry] : layout.entries()) {
    if (entry.arena != kStateArena) continue;
    const uint64_t bytes = layout.Align(std::max<uint64_t>(entry.bytes, 1));
    if (entry.is_weight() || entry.role == Role::kCopy || entry.role == Role::kConstant) weights += bytes;
    if (entry.role == Role::kGradient) sums += bytes;
  }
  return {{"weights", weights},
          {"gradients", layout.bytes(kGradientsArena) + sums},
          {"optimizer state", layout.bytes(kStateArena) - weights - sums},
          {"activations", layout.bytes(kActivationsArena) + layout.bytes(kIoArena)},
          {"workspace", layout.bytes(kScratchArena) + layout.bytes(kPersistentArena) + layout.bytes(kConstantsArena)}};
}

Plan::Plan() : impl_(new Impl) {}
Plan::~Plan() = default;
const PlanReport& Plan::report() const { return impl_->report; }
const Graph& Plan::graph() const { return impl_->graph; }
const StepSchedule& Plan::schedule() const { return impl_->schedule; }

StatusOr<std::unique_ptr<Plan>> Plan::Compile(const Graph& source, KernelCache& cache, KernelCache* reference,
                                              Layout& layout, const PlanOptions& options, KernelCache* host) {
  std::unique_ptr<Plan> plan(new Plan);
  Impl& impl = *plan->impl_;
  impl.device = &cache.device();
  impl.reference = reference == nullptr ? nullptr : &reference->device();
  impl.host = host == nullptr ? nullptr : &host->device();
  impl.options = options;
  Graph lowered = Lower(source, cache, host, options.fuse);
  SY_RETURN_IF_ERROR(cache.status());
  if (host != nullptr) SY_RETURN_IF_ERROR(host->status());
  RegionGraph claimed{std::move(lowered), {}};
  if (options.fuse) {
    SY_ASSIGN_OR_RETURN(claimed, ClaimRegions(std::move(claimed.graph), cache));
  }
  PlanReport& report = impl.report;

  std::vector<PlannedNode> planned(claimed.graph.size());
  SY_RETURN_IF_ERROR(SelectKernels(claimed, cache, reference, host, planned, report));
  impl.graph = std::move(claimed.graph);
  const Graph& graph = impl.graph;
  SY_RETURN_IF_ERROR(CheckFallbacks(report, options, impl.device->info().plugin));

  const std::vector<int> order = LaunchOrder(graph, options.overlap, options.prefetch_bytes);
  const Placement placement = PlaceValues(graph, order, planned, layout);
  impl.schedule.steps = BuildSteps(graph, order, planned, placement, layout);
  AddEdges(impl.schedule, graph, !options.overlap);
  Count(graph, impl.schedule, claimed, options, report);

  const uint64_t scratch = WorkspaceOf(impl.schedule, Step::kLaunch);
  const uint64_t host_scratch = WorkspaceOf(impl.schedule, Step::kHost);
  layout.Reserve(kScratchArena, scratch);
  layout.Reserve(kHostScratchArena, host_scratch);
  report.nodes = graph.size();
  report.overlap = options.overlap;
  // Every collective reaches what lies in the host's memory.
  report.reaches_peers = cache.device().reaches_peers() && cache.device().info().memory_kind != kHostMemory;
  if (report.reaches_peers && !options.group_sizes.empty()) {
    // Groups of all ranks share one communicator, the others have one each (World::CommunicatorsOf).
    const auto windows = [&](int ranks) { return PeerMemory::BytesFor(ranks, cache.device().info().alignment); };
    const int all = *std::max_element(options.group_sizes.begin(), options.group_sizes.end());
    report.peer_memory_bytes = windows(all);
    for (const int ranks : options.group_sizes) report.peer_memory_bytes += ranks < all ? windows(ranks) : 0;
  }
  report.kernels = cache.prepared();
  report.kernel_seconds = cache.seconds();
  report.memory = MemoryOf(layout);
  report.memory[kScratchArena].bytes = layout.Align(scratch);
  report.memory[kHostScratchArena].bytes = layout.Align(host_scratch);
  for (const bool on_host : {false, true}) report.memory[StepArena(on_host)].bytes = 0;
  for (const Storage& storage : placement.storages) {
    if (!IsStepArena(storage.arena)) continue;
    uint64_t& bytes = report.memory[static_cast<size_t>(storage.arena)].bytes;
    bytes = std::max(bytes, storage.offset + layout.Align(std::max<uint64_t>(storage.bytes, 1)));
  }
  return plan;
}

}  // namespace switchyard
