// What one rank of a collective check does, as its task says. The checks are spread over four files: data (every
// function, dtype, reduction and count against known results), sharing (several communicators and instances, groups,
// split, owned memory, threads, leaks), requests (kept, and dropped before their call has ended) and trouble (structs
// and wrong arguments, ranks that disagree, that do not come, that die, abort).
#pragma once

#include <set>
#include <string>

#include "core/runtime/plugins/plugin.h"
#include "tools/conform/collective_rank.h"
#include "tools/conform/name_filter.h"
#include "tools/conform/result_log.h"

namespace switchyard::conform {

// task: "mode" ("join", "data", "trouble", "dropped", "death/in_init", "death/in_call" or "death/between_calls"),
// "rank", "size", "folder", "suffix" (the end of the names of checks), "only", "done" (checks of earlier processes),
// "device_plugin" and "device".
Status RunRank(const Plugin& plugin, const nlohmann::json& task, ResultLog& log);

// The checks of one rank, in the same order on all of them. After each the ranks tell each other how it went: where one
// has failed they no longer agree on what comes next, so all stop, and new processes do the rest.
class Checklist {
 public:
  Checklist(Rank& rank, const nlohmann::json& task, ResultLog& log);
  // `offered`: the plugin has the functions for it.
  void Run(const std::string& name, bool offered, const std::function<Status()>& check);
  bool stopped() const { return stopped_; }

 private:
  Rank& rank_;
  NameFilter only_;
  std::set<std::string> done_;
  std::string suffix_;
  ResultLog& log_;
  bool stopped_ = false;
};

void CheckData(Checklist& list, Link& link);
void CheckSharing(Checklist& list, Link& link);
// Two more instances of the plugin in every process, each with a communicator.
Status CheckInstances(Rank& rank, const Plugin& plugin, const nlohmann::json& task);
void CheckRequests(Checklist& list, Rank& rank);
// In processes of their own: a library below the plugin may be of no use to them afterwards.
void CheckDroppedRequests(Checklist& list, Rank& rank);
void CheckTrouble(Checklist& list, Rank& rank);
// The last rank dies: while it joins, inside of a call, or between two. What the others see.
Status CheckDeath(Rank& rank, const std::string& mode);

}  // namespace switchyard::conform
