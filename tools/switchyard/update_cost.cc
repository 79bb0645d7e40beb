#include "tools/switchyard/update_cost.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/text.h"
#include "core/base/units.h"
#include "tools/switchyard/stages.h"

namespace switchyard {
namespace {

// Of a late update of the run on a rank, its micro-batches one after the other.
double SecondsOf(const TrainingPlans& plans, const DeviceRates& rates) {
  double seconds = 0;
  for (const Action& action : plans.program.schedule) {
    if (!action.RunsIn(kForEver)) continue;
    for (const FamilyWork& work : FamiliesOf(*plans.plans[static_cast<size_t>(action.plan)], rates))
      seconds += work.least_seconds;
  }
  return seconds;
}

// Of a run of the plan.
double HostTrafficOf(const Plan& plan) {
  double bytes = 0;
  for (const Step& step : plan.schedule().steps) {
    if (step.stream == kStoreStream || step.stream == kFetchStream) bytes += static_cast<double>(step.inputs[0].bytes);
    if (step.stream == kHostStream) bytes += step.cost.bytes;
  }
  return bytes;
}

// Data sheets' dense rates of one device: products of f32 without TF32, and of halves; its memory; NVLink in one
// direction; and its share of the network of NVIDIA's own machines (DGX A100: 200 Gbit/s a GPU, DGX H100 and H200:
// 400).
struct Machine {
  const char *name, *title;
  double f32, half, memory, link, node_link;
};
constexpr Machine kMachines[] = {
    {"a100", "an A100 (SXM, 80 GB)", 19.5e12, 312e12, 2.039e12, 300e9, 25e9},
    {"h100", "an H100 (SXM)", 67e12, 989e12, 3.35e12, 450e9, 50e9},
    {"h200", "an H200 (SXM)", 67e12, 989e12, 4.8e12, 450e9, 50e9},
};

// "312 TFLOP/s".
std::string Scaled(double rate, const char* unit) {
  for (const auto& [factor, prefix] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}}) {
    if (rate >= factor) return fmt::format("{:.4g} {}{}/s", rate / factor, prefix, unit);
  }
  return fmt::format("{:.4g} {}/s", rate, unit);
}

}  // namespace

Status ParseRates(const std::string& text, bool halves, StatedRates* rates) {
  static constexpr Unit kUnits[] = {{"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"", 1}};
  if (text.empty()) return OkStatus();
  const std::array<std::pair<std::string, double*>, 5> known = {{{"compute", &rates->device.flops_per_s},
                                                                 {"memory", &rates->device.bytes_per_s},
                                                                 {"link", &rates->link_bytes_per_s},
                                                                 {"node_link", &rates->node_link_bytes_per_s},
                                                                 {"host", &rates->host_bytes_per_s}}};
  const std::vector<std::string> pieces = absl::StrSplit(text, ',');
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto machine = std::find_if(std::begin(kMachines), std::end(kMachines),
                                      [&](const Machine& m) { return i == 0 && m.name == pieces[i]; });
    if (machine != std::end(kMachines)) {
      rates->device = {halves ? machine->half : machine->f32, machine->memory};
      rates->link_bytes_per_s = machine->link;
      rates->node_link_bytes_per_s = machine->node_link;
      rates->machine = fmt::format("{} by its data sheet{}", machine->title,
                                   pieces.size() > 1 ? " but for what --rates says besides" : "");
      continue;
    }
    const std::pair<std::string, std::string> word = absl::StrSplit(pieces[i], absl::MaxSplits(':', 1));
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == word.first; });
    const auto number = ParseQuantity(word.second, kUnits);
    if (found == known.end() || !number) {
      std::vector<std::string> names;
      for (const Machine& m : kMachines) names.push_back(m.name);
      return InvalidArgument(
          "--rates: expected compute:, memory:, link:, node_link: and host: with FLOP/s and bytes/s, as in "
          "compute:312T,memory:2T,link:300G,node_link:25G,host:25G, or first a machine, {}, found \"{}\"",
          fmt::join(names, ", "), Printable(pieces[i]));
    }
    *found->second = *number;
  }
  return OkStatus();
}

std::string TextOf(const StatedRates& rates) {
  std::string text = fmt::format("at {} and {}, links of {}", Scaled(rates.device.flops_per_s, "FLOP"),
                                 Scaled(rates.device.bytes_per_s, "B"), Scaled(rates.link_bytes_per_s, "B"));
  if (!rates.nodes) {
    text += ", all ranks on one node (--ranks_per_node makes more)";
  } else if (rates.node_link_bytes_per_s > 0) {
    text += fmt::format(" and {} between nodes", Scaled(rates.node_link_bytes_per_s, "B"));
  }
  if (!rates.machine.empty()) text += fmt::format(" ({})", rates.machine);
  return text;
}

UpdateCost CostOf(const Replica& replica, const Mesh& mesh, int micro_batches, double available,
                  const StatedRates& rates) {
  UpdateCost cost;
  uint64_t with_windows = 0;
  double computing = 0;
  for (const auto& of_rank : replica) {
    const TrainingPlans& plans = *of_rank;
    double wire = 0, between = 0, host = 0;
    for (const Action& action : plans.program.schedule) {
      if (!action.RunsIn(kForEver)) continue;
      const Plan& plan = *plans.plans[static_cast<size_t>(action.plan)];
      const PlanReport& report = plan.report();
      wire += report.wire_bytes, between += report.wire_bytes_between_nodes;
      host += HostTrafficOf(plan);
    }
    cost.bytes = std::max(cost.bytes, plans.PlannedBytes());
    with_windows = std::max(with_windows, plans.PlannedBytes() + plans.WindowBytes());
    cost.window_bytes = std::max(cost.window_bytes, plans.WindowBytes());
    cost.host_bytes = std::max(cost.host_bytes, plans.PlannedHostBytes() - plans.PlannedFileBytes());
    cost.flops = std::max(cost.flops, plans.UpdateFlops());
    cost.wire_bytes = std::max(cost.wire_bytes, wire);
    cost.wire_bytes_between_nodes = std::max(cost.wire_bytes_between_nodes, between);
    cost.host_traffic = std::max(cost.host_traffic, host);
    if (rates.complete()) computing = std::max(computing, SecondsOf(plans, rates.device));
  }
  cost.lacks_windows = cost.window_bytes > 0 && static_cast<double>(with_windows) > available;
  if (cost.lacks_windows) {
    cost.window_bytes = 0;
  } else {
    cost.bytes = with_windows;
  }
  if (mesh.pipeline > 1) cost.bubble = ReportOf(replica, mesh, micro_batches).bubble;
  if (!rates.complete()) return cost;
  computing /= 1 - cost.bubble;
  const double between = rates.node_link_bytes_per_s > 0 ? rates.node_link_bytes_per_s : rates.link_bytes_per_s;
  const double sending = (cost.wire_bytes - cost.wire_bytes_between_nodes) / rates.link_bytes_per_s +
                         cost.wire_bytes_between_nodes / between;
  const double on_host = cost.host_traffic / rates.host_bytes_per_s;
  cost.least_seconds = std::max({computing, sending, on_host});
  cost.most_seconds = computing + sending + on_host;
  return cost;
}

std::string HostRateText(const UpdateCost& cost, const StatedRates& rates) {
  if (cost.host_traffic == 0) return "";
  return fmt::format(
      "what goes to the host, comes back and is computed there is in it as if it were sent, at {:.3g} GB/s (host: in "
      "--rates)\n",
      rates.host_bytes_per_s / 1e9);
}

}  // namespace switchyard
