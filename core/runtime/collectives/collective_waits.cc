// How a WatchedCollective waits: for a request of the plugin's, and for device work that holds collectives.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/logging.h"
#include "core/runtime/collectives/watched_collective.h"

namespace switchyard {
namespace {

constexpr double kLookEveryMs = 100;        // how often a wait looks for the rarer ends of it
constexpr double kDepartureGraceMs = 2000;  // what a rank that said goodbye may have left for the others to finish
// A poll that takes no longer has found nothing to do (one that moves data, or that sleeps, does). Once that has gone
// on for a while, the core may be of more use to the rank that is waited for, or to somebody else.
constexpr auto kIdlePoll = std::chrono::microseconds(5);
constexpr auto kIdlePollAfterSleep = std::chrono::microseconds(50);  // MPI's progress, out of cold caches
constexpr auto kSpinLimit = std::chrono::microseconds(200);
constexpr std::chrono::steady_clock::duration kShortestSleep = std::chrono::microseconds(20),
                                              kLongestSleep = std::chrono::microseconds(500);
constexpr double kAbortPatienceMs = 5000;  // for a plugin to give a call up after abort
// How much longer than its limit we leave a request to a plugin, which knows for whom it waits: one may allow some
// ranks more than the limit, so that those beside the late one name it first.
constexpr double kPatience = 1.5, kPatienceMs = 500;

// How often this thread gave its core away: to sleep, and because it was somebody else's turn.
struct Switches {
  int64_t slept = 0, displaced = 0;
  static Switches Now() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return {usage.ru_nvcsw, usage.ru_nivcsw};
  }
};

}  // namespace

// Polls until the request has ended. *reason is set where the core gave up, not the plugin.
sy_status WatchedCollective::Wait(sy_request* request, Clock::time_point start, sy_error* error, Status* reason) {
  std::string departed;
  double departed_ms = 0, looked_ms = 0;  // since the start: when somebody was found to have left; when we last looked
  auto polled = Clock::now(), worked = polled;  // the last poll's end; when one last took its time
  bool slept = false;                           // just before this poll
  Switches switches = Switches::Now();
  for (uint64_t polls = 1;; ++polls) {
    const sy_status status = api_->request_poll(handle_, request, error);
    if (status != SY_IN_PROGRESS) return status;
    const auto now = Clock::now();
    if (now - polled > (slept ? kIdlePollAfterSleep : kIdlePoll)) {
      // One that only had to wait for its core has done nothing either.
      const Switches before = std::exchange(switches, Switches::Now());
      if (switches.displaced == before.displaced || switches.slept != before.slept) worked = now;
    }
    slept = false;
    polled = now;
    const auto idle = now - worked;
    if (idle > kSpinLimit) {
      std::this_thread::sleep_for(std::clamp<Clock::duration>(idle / 8, kShortestSleep, kLongestSleep));
      slept = true;
    } else if (polls % 16 != 0) {
      continue;
    } else {
      sched_yield();  // ranks may outnumber cores
    }
    switches = Switches::Now();
    polled = Clock::now();
    if (*reason = rendezvous_->health(); !reason->ok()) break;
    const double waited_ms = MillisecondsSince(start);
    if (waited_ms - looked_ms < kLookEveryMs) continue;
    looked_ms = waited_ms;
    if (const double limit_ms = kPatience * call_limit_ms_ + kPatienceMs; waited_ms > limit_ms) {
      *reason = Overdue(limit_ms);
      break;
    }
    if (departed.empty()) {
      departed = rendezvous_->departed();
      departed_ms = waited_ms;
    } else if (waited_ms - departed_ms > kDepartureGraceMs) {
      *reason = Unavailable("{} has left the run", departed);
      break;
    }
  }
  api_->abort(handle_);
  AwaitEnd([&] { return api_->request_poll(handle_, request, error) != SY_IN_PROGRESS; });
  return SY_ABORTED;
}

// After abort the plugin gives up what it was doing; its answer is not of interest. One that does not may go on to read
// and write what the caller is about to free.
void WatchedCollective::AwaitEnd(absl::FunctionRef<bool()> ended) {
  const auto aborted = Clock::now();
  while (!ended()) {
    if (MillisecondsSince(aborted) > kAbortPatienceMs) {
      deaf_ = true;
      LogWarning("{} did not give a call up within {:.0f} s of being aborted", plugin_name(), kAbortPatienceMs / 1000);
      if (device_ != nullptr) device_->KeepMemory();
      return;
    }
    std::this_thread::sleep_for(kShortestSleep);
  }
}

// Looks for lost peers, and for failures that only the plugin knows of.
Status WatchedCollective::WaitFor(Event& finished, const char* what) {
  const auto start = Clock::now();
  double looked_ms = 0;
  for (;;) {
    const auto done = finished.Done();
    if (!done.ok()) {
      const Status peer = PeerFailure();
      return Annotate(peer.ok() ? done.status() : peer, what);
    }
    if (*done) return OkStatus();
    const double waited_ms = MillisecondsSince(start);
    if (waited_ms < 1) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(waited_ms < 20 ? 50 : 500));
    if (waited_ms - looked_ms < 10) continue;
    looked_ms = waited_ms;
    Status reason = rendezvous_->health();
    sy_error error = EmptyError();
    if (reason.ok()) {
      if (const sy_status status = api_->poll(handle_, &error); status != SY_OK && status != SY_IN_PROGRESS) {
        reason = PeerFailure();
        if (reason.ok()) reason = FromAbi(status, error, plugin_name());
      }
    }
    if (reason.ok() && waited_ms > call_limit_ms_) reason = Overdue(call_limit_ms_);
    if (reason.ok()) continue;
    api_->abort(handle_);
    AwaitEnd([&finished] {
      const auto ended = finished.Done();
      return !ended.ok() || *ended;
    });
    return Annotate(reason, what);
  }
}

Status WatchedCollective::Synchronize(const Stream& stream, const char* what) {
  SY_RETURN_IF_ERROR(event_.Record(stream));
  return WaitFor(event_, what);
}

Status WatchedCollective::Overdue(double limit_ms) {
  return DeadlineExceeded(
      "not finished after {:.0f} s; another rank is stuck or in another call (SWITCHYARD_COLLECTIVE_TIMEOUT changes "
      "the limit)",
      limit_ms / 1000);
}

}  // namespace switchyard
