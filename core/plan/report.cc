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

std::string PlanReport::FallbackList() const {
  std::map<std::string, std::pair<int, const Fallback*>> by_op;
  for (const Fallback& f : fallbacks) {
    auto& entry = by_op[f.op];
    ++entry.first;
    entry.second = &f;
  }
  std::string text;
  for (const auto& [op, entry] : by_op)
    text += fmt::format("  {} × {} (first: {}; {})\n", op, entry.first, entry.second->node, entry.second->reason);
  return text;
}

std::string PlanReport::ToText() const {
  std::string text = fmt::format("nodes {}, launches {}, copies {}, collectives {}, distinct kernels {}\n", nodes,
                                 launches, copies, collectives, kernels);
  if (regions > 0)
    text += fmt::format("regions compiled whole by the plugin: {} of {} nodes in all\n", regions, region_nodes);
  text += fmt::format("compute {:.3f} GFLOP, tensor traffic {}\n\n", flops / 1e9, Bytes(bytes));
  text += fmt::format("{:<26}{:>8}{:>14}{:>8}{:>14}\n", "op", "count", "GFLOP", "share", "traffic");
  for (const OpLine& line : ops) {
    text += fmt::format("{:<26}{:>8}{:>14.3f}{:>7.1f}%{:>14}\n", line.op, line.count, line.flops / 1e9,
                        flops > 0 ? 100 * line.flops / flops : 0, Bytes(line.bytes));
  }
  text += "\nmemory by class\n";
  double total = 0;
  for (int i = 0; i < kArenaCount; ++i) {
    text += fmt::format("  {:<14}{:>14}\n", NameOf(static_cast<Arena>(i)), Bytes(static_cast<double>(arena_bytes[i])));
    total += static_cast<double>(arena_bytes[i]);
  }
  text += fmt::format("  {:<14}{:>14}\n", "total", Bytes(total));
  text += fmt::format("\ntraffic per rank and step: {} in {} collectives, {} on the wire\n",
                      Bytes(static_cast<double>(collective_bytes)), collectives, Bytes(wire_bytes));
  if (fallbacks.empty()) {
    text += "fallbacks to the reference plugin: none\n";
  } else {
    double staged = 0;
    for (const Fallback& f : fallbacks) staged += static_cast<double>(f.bytes);
    text += fmt::format("fallbacks to the reference plugin: {} nodes, {} staged per step\n{}", fallbacks.size(),
                        Bytes(staged), FallbackList());
  }
  return text;
}

}  // namespace switchyard
