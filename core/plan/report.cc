#include <algorithm>

#include "core/plan/plan.h"

namespace switchyard {
namespace {

std::string Bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

}  // namespace

std::string PlanReport::List(const std::vector<Fallback>& nodes) {
  struct Line {
    int nodes = 0;
    const Fallback* first = nullptr;
  };
  std::map<std::pair<std::string, std::string>, Line> lines;  // by op and reason
  for (const Fallback& f : nodes) {
    Line& line = lines[{f.op, f.reason}];
    if (line.nodes++ == 0) line.first = &f;
  }
  std::string text;
  for (const auto& [key, line] : lines)
    text += fmt::format("  {} × {} (first: {}; {})\n", key.first, line.nodes, line.first->node, key.second);
  return text;
}

std::string PlanReport::ToText() const {
  std::string text = fmt::format("nodes {}, launches {}, copies {}, collectives {}, distinct kernels {}\n", nodes,
                                 launches, copies, collectives, kernels);
  if (edges > 0) text += fmt::format("waits between computing and communicating {}\n", edges);
  if (regions > 0)
    text += fmt::format("regions compiled whole by the plugin: {} of {} nodes in all\n", regions, region_nodes);
  text += fmt::format("compute {:.3f} GFLOP, tensor traffic {}\n\n", flops / 1e9, Bytes(bytes));
  text += fmt::format("{:<26}{:>8}{:>14}{:>8}{:>14}\n", "op", "count", "GFLOP", "share", "traffic");
  for (const OpLine& line : ops) {
    text += fmt::format("{:<26}{:>8}{:>14.3f}{:>7.1f}%{:>14}\n", line.op, line.count, line.flops / 1e9,
                        flops > 0 ? 100 * line.flops / flops : 0, Bytes(line.bytes));
  }
  text += "\nmemory by class\n";
  double total = 0, on_host = 0, in_file = 0;
  for (const ArenaBytes& line : memory) {
    if (line.host) (line.file ? in_file : on_host) += static_cast<double>(line.bytes);
    if (line.host) continue;
    text += fmt::format("  {:<14}{:>14}\n", line.arena, Bytes(static_cast<double>(line.bytes)));
    total += static_cast<double>(line.bytes);
  }
  text += fmt::format("  {:<14}{:>14}\n", "total", Bytes(total));
  if (on_host > 0) {
    text += fmt::format("  in host memory beside it {}:", Bytes(on_host));
    for (const ArenaBytes& line : memory) {
      if (line.host && !line.file && line.bytes > 0)
        text +=
            fmt::format(" {} {},", line.arena.substr(line.arena.find(' ') + 1), Bytes(static_cast<double>(line.bytes)));
    }
    text.back() = ';';
    text += fmt::format(" {} launches run on the host, {} go there and {} come back each step\n", host_launches,
                        Bytes(static_cast<double>(store_bytes)), Bytes(static_cast<double>(fetch_bytes)));
  }
  if (in_file > 0)
    text += fmt::format(
        "  in a file of --offload_dir {}: state; each rank that writes checkpoints has as much again, a copy to "
        "write\n",
        Bytes(in_file));
  if (on_host + in_file > 0 && checkpoint_host_bytes > 0)
    text += fmt::format("  in host memory of each rank that writes checkpoints {} more, a copy to write\n",
                        Bytes(static_cast<double>(checkpoint_host_bytes)));
  if (checkpoint_bytes > 0)
    text += fmt::format(
        "  beside it, from the first checkpoint on, {}: a copy of the state, which steps need not wait for; without "
        "room for it they do\n",
        Bytes(static_cast<double>(checkpoint_bytes)));
  text += fmt::format("\ntraffic per rank and step: {} in {} collectives, {} on the wire{}\n",
                      Bytes(static_cast<double>(collective_bytes)), collectives, Bytes(wire_bytes),
                      wire_bytes_between_nodes > 0
                          ? fmt::format(", of which {} in groups of several nodes", Bytes(wire_bytes_between_nodes))
                          : "");
  if (reaches_peers && peer_memory_bytes > 0 && collectives > 0)
    text += fmt::format(
        "ranks of one node: what the collective does not reach goes from device to device (peer/1), through {} of "
        "windows beside the total\n",
        Bytes(static_cast<double>(peer_memory_bytes)));
  if (fallbacks.empty()) {
    text += "fallbacks to the reference plugin: none\n";
  } else {
    double staged = 0;
    for (const Fallback& f : fallbacks) staged += static_cast<double>(f.bytes);
    text += fmt::format("fallbacks to the reference plugin: {} nodes, {} staged per step\n{}", fallbacks.size(),
                        Bytes(staged), FallbackList());
  }
  if (!second_choices.empty())
    text += fmt::format("kernels that are the backend's second choice: {} nodes\n{}", second_choices.size(),
                        SecondChoiceList());
  return text;
}

}  // namespace switchyard
