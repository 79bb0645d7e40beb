#include "core/train/replicas.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/base/log_rank.h"

namespace switchyard {
namespace {

constexpr std::chrono::seconds kPatience(10);

// What the threads tell the one that started them.
struct Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  Status first;  // failure
  std::exception_ptr thrown;

  void Fail(int rank, const Status& status, std::exception_ptr exception) {
    const std::lock_guard lock(mutex);
    if (!first.ok()) return;
    first = Annotate(status, fmt::format("replica {}", rank));
    thrown = std::move(exception);
    changed.notify_all();
  }
  void End() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  }
  // Until all have ended, or one has failed and the others have had their time.
  bool AllEnded() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return running == 0 || !first.ok(); });
    return changed.wait_for(lock, kPatience, [this] { return running == 0; });
  }
};

// What one thread does: its rank's part of the run.
void Replicate(const WorldRequest& request, const ProcessMap& place, std::shared_ptr<Rendezvous> rendezvous,
               absl::FunctionRef<Status(World&)> body, Outcome& outcome) {
  SetLogRankOfThread(place.rank, place.world);
  const auto fail = [&](const Status& status, std::exception_ptr exception = nullptr) {
    outcome.Fail(place.rank, status, std::move(exception));  // before the others can fail because of it
    if (rendezvous) rendezvous->ReportFailure(status);
  };
  try {
    auto world = World::Join(request, place, rendezvous);
    const Status status = world.ok() ? body(**world) : world.status();
    if (!status.ok()) fail(status);  // before the world ends
  } catch (const std::exception& exception) {
    fail(Internal("{}", exception.what()), std::current_exception());
  }
  rendezvous.reset();
  outcome.End();
}

}  // namespace

Status OnReplicas(const WorldRequest& request, int count, absl::FunctionRef<Status(World&)> body,
                  const std::function<void(const Status&)>& give_up) {
  if (count < 1) return InvalidArgument("expected at least one replica, found {}", count);
  const StopSignals before_any_thread;
  std::vector<ProcessMap> places(static_cast<size_t>(count));
  WatchOptions watch;
  watch.freeze_limit_ms = request.freeze_limit_ms;
  SY_ASSIGN_OR_RETURN(auto connected, Rendezvous::ConnectThreads(places, watch));
  if (count == 1) connected[0].reset();
  Outcome outcome;
  outcome.running = count;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    std::shared_ptr<Rendezvous> rendezvous = std::move(connected[rank]);
    try {
      threads.emplace_back(Replicate, std::cref(request), std::cref(places[rank]), rendezvous, body, std::ref(outcome));
    } catch (const std::system_error& error) {
      const Status status = ResourceExhausted("cannot start a thread for it: {}", error.what());
      outcome.Fail(rank, status, nullptr);
      if (rendezvous) rendezvous->ReportFailure(status);
      outcome.End();
    }
  }
  if (!outcome.AllEnded() && give_up) give_up(outcome.first);
  for (std::thread& thread : threads) thread.join();
  if (outcome.thrown) std::rethrow_exception(outcome.thrown);
  return outcome.first;
}

}  // namespace switchyard
