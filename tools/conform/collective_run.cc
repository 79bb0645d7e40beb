#include "tools/conform/collective_run.h"

#include "core/runtime/collectives/composition.h"

namespace switchyard::conform {
namespace {

constexpr uint64_t kVerdictMs = 30000;

}  // namespace

Checklist::Checklist(Rank& rank, const nlohmann::json& task, ResultLog& log)
    : rank_(rank), only_(task.value("only", "")), suffix_(task.value("suffix", "")), log_(log) {
  for (const auto& name : task.value("done", nlohmann::json::array())) done_.insert(name.get<std::string>());
}

void Checklist::Run(const std::string& name, bool offered, const std::function<Status()>& check) {
  const std::string full = fmt::format("collective/{}/{}", name, suffix_);
  if (!only_.Matches(full) || done_.count(full) > 0) return;
  if (stopped_) {
    // The parent sees that it was left out, and starts new ranks for it.
    log_.End(full, Status(absl::StatusCode::kCancelled, "not tried after an earlier failure"));
    return;
  }
  log_.Begin(full);
  Status status = offered ? Caught(check) : Unimplemented("not offered");
  const bool failed = !status.ok() && status.code() != absl::StatusCode::kUnimplemented;
  const auto key = [&](int rank) { return fmt::format("verdict/{}/{}", full, rank); };
  rank_.store().Put(key(rank_.rank()), failed ? "failed" : "passed");
  if (failed) rank_.store().Put("failed", std::to_string(rank_.rank()));
  stopped_ = failed;
  for (int rank = 0; rank < rank_.size() && !stopped_; ++rank) {
    std::string verdict;
    for (uint64_t waited = 0;
         !rank_.store().Wait(key(rank), verdict, 50) && rank_.Health().ok() && waited < kVerdictMs;)
      waited += 50;
    if (verdict != "passed") stopped_ = true;
    if (verdict.empty()) status = Unavailable("rank {} gave no answer", rank);
  }
  log_.End(full, failed ? Annotate(status, fmt::format("rank {}", rank_.rank())) : status);
}

Status RunRank(const Plugin& plugin, const nlohmann::json& task, ResultLog& log) {
  if (plugin.Interface<sy_collective_v2>("collective/2") == nullptr) {
    return FailedPrecondition("{} has no collective/2", plugin.name());
  }
  Rank rank(*plugin.Interface<sy_collective_v2>("collective/2"), plugin.table().instance, task);
  SY_RETURN_IF_ERROR(rank.Open());
  const std::string mode = task.value("mode", "");
  Checklist list(rank, task, log);
  if (mode == "dropped") {
    CheckDroppedRequests(list, rank);
    return OkStatus();
  }
  if (mode == "trouble") {
    CheckRequests(list, rank);
    if (rank.size() > 1) list.Run("instances", true, [&] { return CheckInstances(rank, plugin, task); });
    CheckTrouble(list, rank);
    return OkStatus();
  }
  if (mode.rfind("death/", 0) == 0) {
    const std::string name = fmt::format("collective/{}/{}", mode, task.value("suffix", ""));
    log.Begin(name);
    log.End(name, Caught([&] { return CheckDeath(rank, mode); }));
    return OkStatus();
  }
  SY_ASSIGN_OR_RETURN(const auto link, rank.Join("conform"));
  if (mode == "join") return OkStatus();
  CheckData(list, *link);
  CheckSharing(list, *link);
  return OkStatus();
}

}  // namespace switchyard::conform
