#include "tools/conform/collective_checks.h"

#include <map>

#include "tools/conform/child.h"

namespace switchyard::conform {
namespace {

using nlohmann::json;

// The first real error of any rank; unsupported only where all agree on it.
std::map<std::string, Status> Merge(const std::vector<ChildResults>& ranks, int ignored_rank) {
  std::map<std::string, Status> merged;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (rank == ignored_rank) continue;
    for (const auto& [name, status] : ranks[rank]) {
      auto [entry, added] = merged.try_emplace(name, status);
      const bool worse = entry->second.ok() || entry->second.code() == absl::StatusCode::kUnimplemented ||
                         entry->second.code() == absl::StatusCode::kAborted;
      if (!added && worse && !status.ok()) entry->second = status;
    }
  }
  return merged;
}

void Record(Recorder& recorder, const std::string& suffix, const std::map<std::string, Status>& merged) {
  for (const auto& [name, status] : merged) {
    const std::string full = fmt::format("collective/{}/{}", name.empty() ? "join" : name, suffix);
    if (recorder.Wants(full)) recorder.Add(full, status);
  }
}

}  // namespace

void CheckCollective(Recorder& recorder, const Plugin& plugin, const Options& options) {
  ChildOptions child;
  child.self = options.self;
  const auto run = [&](const char* mode, int size, int dies) -> StatusOr<std::map<std::string, Status>> {
    child.dies = dies;
    SY_ASSIGN_OR_RETURN(const auto ranks, RunChildren({{"mode", mode}, {"plugin", plugin.path()}}, size, child));
    return Merge(ranks, dies);
  };
  const auto failed_to_join = [](const StatusOr<std::map<std::string, Status>>& merged) {
    return merged.ok() && merged->count("") > 0;
  };
  // Two ranks tell how ranks of this plugin must be started.
  auto two = run("mismatch", 2, -1);
  if (failed_to_join(two)) {
    child.mpirun = true;
    auto launched = run("mismatch", 2, -1);
    if (launched.ok() && launched->count("") == 0) {
      two = std::move(launched);
    } else {
      child.mpirun = false;
    }
  }
  if (!two.ok()) {
    recorder.Add("collective/join", two.status());
    return;
  }
  Record(recorder, "2_ranks", *two);
  if (two->count("") > 0) return;
  for (const int size : options.ranks) {
    const std::string suffix = fmt::format("{}_rank{}", size, size == 1 ? "" : "s");
    const auto merged = run("data", size, -1);
    if (merged.ok()) {
      Record(recorder, suffix, *merged);
    } else {
      recorder.Add("collective/data/" + suffix, merged.status());
    }
  }
  if (child.mpirun) {
    recorder.Add("collective/death/3_ranks", Unimplemented("mpirun itself ends the ranks whose peer died"));
  } else if (const auto merged = run("death", 3, 2); merged.ok()) {
    Record(recorder, "3_ranks", *merged);
  } else {
    recorder.Add("collective/death/3_ranks", merged.status());
  }
}

}  // namespace switchyard::conform
