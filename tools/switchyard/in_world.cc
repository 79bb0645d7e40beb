#include "tools/switchyard/in_world.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/logging.h"
#include "core/train/replicas.h"

namespace switchyard {
namespace {

constexpr int kPeerFailed = 3;  // exit status

// The main thread may sit in a kernel for long: it is not waited for longer than survivors may take to leave.
[[noreturn]] void LeaveAfterPeer(const Status& failure) {
  LogError("{}; leaving", Message(failure));
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
  SY_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Join(request));
  const Status status = body(*world);
  if (!status.ok() && world->size() > 1) {
    // Of a peer's end LeaveAfterPeer tells, on another thread.
    if (!world->rendezvous->health().ok()) std::this_thread::sleep_for(std::chrono::seconds(2));
    LogError("{}", Message(status));
    std::fflush(nullptr);
    world->rendezvous->ReportFailure(status);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watch thread sends it
    _exit(1);
  }
  return status;
}

}  // namespace switchyard
