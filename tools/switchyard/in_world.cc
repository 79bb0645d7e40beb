#include "tools/switchyard/in_world.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/processes/launch_report.h"
#include "core/train/replicas.h"
#include "core/train/told_by_another.h"

namespace switchyard {
namespace {

constexpr int kPeerFailed = 3;  // exit status

// How soon whoever started the ranks ends all of them where one has died.
constexpr std::chrono::seconds kUntilEnded(1);

bool joining = false;  // the ranks are meeting, or have met, for the command itself

// "rank 1 (pid 12 on host a) failed" of "… failed: why", which that rank says itself.
std::string WithoutReason(const std::string& failure) {
  const size_t reason = failure.find(" failed: ");
  return reason == std::string::npos ? failure : failure.substr(0, reason + 7);
}

// The main thread may sit in a kernel for long: it is not waited for longer than survivors may take to leave.
[[noreturn]] void LeaveAfterPeer(const Status& failure) {
  const std::string text = Message(failure);
  const bool is_own = text.find(fmt::format("(pid {} on host {})", getpid(), HostName())) != std::string::npos;
  // What this rank has itself reported, it has said before.
  if (!is_own && !LeaveErrorToLauncher(text)) LogError("{}; leaving", WithoutReason(text));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  _exit(kPeerFailed);
}

// A replica has failed, and another is still in a kernel or in a library that nobody can end.
void LeaveReplicas(const Status& failure) {
  LogError("{}; leaving without the replicas that go on", Message(failure));
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

Status InWorld(const TrainConfig& config, const ProcessMap& ranks, absl::FunctionRef<Status(World&)> body) {
  WorldRequest request = WorldRequestOf(config);
  if (ranks.threads) return OnReplicas(request, ranks.world, body, LeaveReplicas);
  request.on_peer_failure = LeaveAfterPeer;
  joining = true;
  SY_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Join(request));
  const Status status = body(*world);
  if (!status.ok() && world->size() > 1) {
    // Of a peer's end LeaveAfterPeer tells, on another thread; what another rank has told all is for that one to
    // report.
    if (!world->rendezvous->health().ok() || WasToldByAnother(status))
      std::this_thread::sleep_for(std::chrono::seconds(2));
    if (!LeaveErrorToLauncher(Message(status))) LogError("{}", Message(status));
    std::fflush(nullptr);
    world->rendezvous->ReportFailure(status);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watch thread sends it
    _exit(ExitStatusOf(status));
  }
  return status;
}

void SayFailure(const Status& failure) {
  constexpr int kMeetingMs = 10000, kAnswerMs = 2000;  // ranks of a busy machine begin seconds apart
  constexpr char kKey[] = "failure";
  const std::string text = Message(failure);
  // A rank that is gone before all have met may be one that was ended because another died, which had not come yet. Who
  // started them ends this one then as well, and knows the culprit.
  if (joining && absl::IsUnavailable(failure)) std::this_thread::sleep_for(kUntilEnded);
  if (LeaveErrorToLauncher(text)) return;
  auto ranks = ProcessMap::FromEnvironment();
  const bool several = ranks.ok() && ranks->world > 1 && !joining;
  const bool first = !several || ranks->rank == 0;
  if (!first) SetLogRank(ranks->rank, ranks->world);
  if (first) LogError("{}", text);
  if (!several) return;
  const auto rendezvous = Rendezvous::Connect(*ranks, kMeetingMs, WatchOptions());
  StatusOr<std::string> said = text;
  if (rendezvous.ok() && first) (*rendezvous)->Put(kKey, text).IgnoreError();
  if (!first) said = rendezvous.ok() ? (*rendezvous)->Get(kKey, kAnswerMs) : rendezvous.status();
  if (!said.ok() || *said != text) LogError("{}", text);
  if (!rendezvous.ok() || (*rendezvous)->Barrier(kKey, kAnswerMs).ok()) return;
  (*rendezvous)->ReportFailure(failure);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watch thread sends it
}

}  // namespace switchyard
