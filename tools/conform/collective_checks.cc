#include "tools/conform/collective_checks.h"

#include <algorithm>
#include <map>

#include "tools/conform/child.h"

namespace switchyard::conform {
namespace {

using nlohmann::json;

constexpr int kMostRestarts = 12;

// One check as all ranks saw it: the first real error of any; unsupported only where all agree on it.
struct Merged {
  std::string name;
  Status status;
  double milliseconds = 0;
};

// How much an outcome says about a fault: what another rank's failure brought about says little.
int Weight(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kUnimplemented:
      return 1;
    case absl::StatusCode::kCancelled:
      return 2;
    case absl::StatusCode::kUnavailable:
      return 3;
    case absl::StatusCode::kAborted:
      return 4;
    default:
      return 5;
  }
}

std::vector<Merged> Merge(const std::vector<ChildResults>& ranks, int ignored_rank) {
  std::vector<Merged> merged;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (rank == ignored_rank) continue;
    for (const ChildResult& result : ranks[rank]) {
      const Status status = result.lost ? Internal("rank {}: {}", rank, Message(result.status)) : result.status;
      auto entry =
          std::find_if(merged.begin(), merged.end(), [&](const Merged& one) { return one.name == result.name; });
      if (entry == merged.end()) {
        merged.push_back({result.name, status, result.milliseconds});
        continue;
      }
      if (Weight(status) > Weight(entry->status)) entry->status = status;
      entry->milliseconds = std::max(entry->milliseconds, result.milliseconds);
    }
  }
  return merged;
}

class Runner {
 public:
  Runner(Recorder& recorder, const Plugin& plugin, const Options& options)
      : recorder_(recorder), options_(options), path_(plugin.path()) {
    child_.self = options.self;
    child_.silence_s = options.check_timeout_s;
  }

  // Two ranks (one, where no more are wanted) tell how ranks of this plugin must be started; false: it cannot be tried.
  StatusOr<bool> FindLauncher(int size) {
    SY_ASSIGN_OR_RETURN(auto direct, RunChildren(Task("join", size), size, child_));
    std::vector<Merged> refused = Merge(direct, -1);
    if (!refused.empty()) {
      child_.mpirun = true;
      const auto launched = RunChildren(Task("join", size), size, child_);
      if (launched.ok() && Merge(*launched, -1).empty()) return true;
      child_.mpirun = false;
      for (const Merged& one : refused) Record(one, "join/" + Suffix(size));
    }
    return refused.empty();
  }

  // Ranks that do all checks of a mode; where one failed, new ranks do the rest.
  Status Run(const std::string& mode, int size) {
    json task = Task(mode, size);
    for (int start = 0; start <= kMostRestarts; ++start) {
      SY_ASSIGN_OR_RETURN(const auto ranks, RunChildren(task, size, child_));
      bool rest = false, progress = false;
      for (const Merged& one : Merge(ranks, -1)) {
        const bool left_out = one.status.code() == absl::StatusCode::kCancelled;
        rest = rest || left_out;
        if (left_out && start < kMostRestarts) continue;
        Record(one, fmt::format("{}/{}", mode, Suffix(size)));
        task["done"].push_back(one.name);
        progress = progress || !one.name.empty();
      }
      if (progress) largest_ = std::max(largest_, size);
      if (!rest || !progress) return OkStatus();
    }
    return OkStatus();
  }
  // The largest number of ranks that could be tried.
  int largest() const { return largest_; }

  // The last rank dies; what it had to say does not count.
  Status RunDeath(const std::string& mode, int size) {
    const std::string name = fmt::format("collective/{}/{}", mode, Suffix(size));
    if (!recorder_.Wants(name)) return OkStatus();
    SY_ASSIGN_OR_RETURN(const auto ranks, RunChildren(Task(mode, size), size, child_));
    for (const Merged& one : Merge(ranks, size - 1)) Record(one, fmt::format("{}/{}", mode, Suffix(size)));
    return OkStatus();
  }

 private:
  static std::string Suffix(int size) { return fmt::format("{}_rank{}", size, size == 1 ? "" : "s"); }
  json Task(const std::string& mode, int size) const {
    return {{"mode", mode},          {"plugin", path_},           {"suffix", Suffix(size)},
            {"only", options_.only}, {"device", options_.device}, {"device_plugin", options_.device_plugin},
            {"done", json::array()}};
  }
  void Record(const Merged& one, const std::string& nameless) {
    recorder_.Add(one.name.empty() ? "collective/" + nameless : one.name, one.status, one.milliseconds);
  }

  Recorder& recorder_;
  const Options& options_;
  const std::string path_;
  ChildOptions child_;
  int largest_ = 0;
};

}  // namespace

Status CheckCollective(Recorder& recorder, const Plugin& plugin, const Options& options) {
  const int most = *std::max_element(options.ranks.begin(), options.ranks.end());
  Runner runner(recorder, plugin, options);
  SY_ASSIGN_OR_RETURN(const bool runs, runner.FindLauncher(std::min(2, most)));
  if (!runs) return OkStatus();
  for (const int size : options.ranks) SY_RETURN_IF_ERROR(runner.Run("data", size));
  if (most < 2) return OkStatus();
  SY_RETURN_IF_ERROR(runner.Run("trouble", 2));
  SY_RETURN_IF_ERROR(runner.Run("dropped", 2));
  for (const char* mode : {"death/in_init", "death/in_call", "death/between_calls"}) {
    SY_RETURN_IF_ERROR(runner.RunDeath(mode, std::max(2, std::min(3, runner.largest()))));
  }
  return OkStatus();
}

}  // namespace switchyard::conform
