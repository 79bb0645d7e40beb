#include "core/runtime/collectives/watched_collective.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/device/kept.h"

namespace switchyard {
namespace {

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
constexpr double kLookEveryMs = 100;        // how often a wait looks for the rarer ends of it
constexpr double kDepartureGraceMs = 2000;  // what a rank that said goodbye may have left for the others to finish
// A poll that takes no longer has found nothing to do (one that moves data, or that sleeps, does). Once that has gone
// on for a while, the core may be of more use to the rank that is waited for, or to somebody else.
constexpr auto kIdlePoll = std::chrono::microseconds(5);
constexpr auto kIdlePollAfterSleep = std::chrono::microseconds(50);  // MPI's progress, out of cold caches
constexpr auto kSpinLimit = std::chrono::microseconds(200);
constexpr std::chrono::steady_clock::duration kShortestSleep = std::chrono::microseconds(20),
                                              kLongestSleep = std::chrono::microseconds(500);
constexpr double kAbortPatienceMs = 5000;  // for a plugin to give a request up after abort
constexpr int kPatienceMs = 500;           // a plugin may see the loss of a peer a little earlier than the watch does

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

struct WatchedCollective::AbortHandle {
  std::mutex mutex;
  const sy_collective_v2* api = nullptr;
  sy_communicator* handle = nullptr;
  void Abort() {
    const std::lock_guard lock(mutex);
    if (handle != nullptr) api->abort(handle);
  }
};

WatchedCollective::WatchedCollective(std::shared_ptr<Plugin> plugin, const sy_collective_v2* api,
                                     Rendezvous& rendezvous, Device* device)
    : plugin_(std::move(plugin)),
      api_(api),
      rendezvous_(&rendezvous),
      device_(device),
      abort_handle_(std::make_shared<AbortHandle>()) {}

WatchedCollective::~WatchedCollective() {
  {
    const std::lock_guard lock(abort_handle_->mutex);
    abort_handle_->handle = nullptr;
  }
  if (deaf_) {
    KeepForever(handle_);
  } else if (handle_ != nullptr) {
    api_->destroy(handle_);
  }
}

// --- joining ---

StatusOr<std::unique_ptr<WatchedCollective>> WatchedCollective::Query(std::shared_ptr<Plugin> plugin,
                                                                      Rendezvous& rendezvous, Device* device) {
  const auto* const api = plugin->Interface<sy_collective_v2>("collective/2");
  if (api == nullptr)
    return FailedPrecondition("plugin {} at {} offers no collective/2", plugin->name(), plugin->path());
  std::unique_ptr<WatchedCollective> collective(new WatchedCollective(std::move(plugin), api, rendezvous, device));
  if (const auto seconds = EnvironmentInt("SWITCHYARD_COLLECTIVE_TIMEOUT"); seconds && *seconds > 0)
    collective->call_limit_ms_ = *seconds * 1e3;
  SY_ASSIGN_OR_RETURN(collective->info_, collective->plugin_->DescribeCollective());
  return collective;
}

Status WatchedCollective::Init(sy_init_request request, int timeout_ms) {
  const std::string what = fmt::format("joining {} ranks", request.size);
  rank_ = request.rank;
  request.timeout_ms = static_cast<uint64_t>(call_limit_ms_);
  const auto start = Clock::now();
  sy_error error = EmptyError();
  sy_status status = api_->init(instance(), &request, &handle_, &error);
  if (status == SY_OK) {
    Watch();
    status = SY_IN_PROGRESS;
  }
  while (status == SY_IN_PROGRESS) {
    status = api_->poll(handle_, &error);
    if (status != SY_IN_PROGRESS) break;
    if (const Status health = rendezvous_->health(); !health.ok())
      return Annotate(health, fmt::format("{}: {}", plugin_name(), what));
    if (MillisecondsSince(start) > timeout_ms)
      return DeadlineExceeded("{}: {}: not all ranks came within {} ms", plugin_name(), what, timeout_ms);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  SY_RETURN_IF_ERROR(Explain(status, error, what));
  return OpenStream();
}

StatusOr<std::unique_ptr<WatchedCollective>> WatchedCollective::Split(int color, int key, const std::string& name,
                                                                      int rank) {
  if (!Has(&sy_collective_v2::split)) return Unimplemented("{} cannot split a communicator", plugin_name());
  std::unique_ptr<WatchedCollective> group(new WatchedCollective(plugin_, api_, *rendezvous_, device_));
  group->info_ = info_;
  group->call_limit_ms_ = call_limit_ms_;
  group->rank_ = rank;
  sy_error error = EmptyError();
  const sy_status status = api_->split(handle_, color, key, name.c_str(), &group->handle_, &error);
  SY_RETURN_IF_ERROR(Explain(status, error, fmt::format("split into \"{}\"", name)));
  if (group->handle_ == nullptr) return nullptr;
  group->Watch();
  SY_RETURN_IF_ERROR(group->OpenStream());
  return group;
}

void WatchedCollective::Watch() {
  abort_handle_->api = api_;
  abort_handle_->handle = handle_;
  rendezvous_->OnFailure([weak = std::weak_ptr<AbortHandle>(abort_handle_)](const Status&) {
    if (const auto held = weak.lock()) held->Abort();
  });
}

// What host calls of a plugin that works on streams need.
Status WatchedCollective::OpenStream() {
  if (!completes_on_stream()) return OkStatus();
  if (device_ == nullptr) {
    return FailedPrecondition("{} works on the streams of a device, and this communicator has none", plugin_name());
  }
  SY_ASSIGN_OR_RETURN(stream_, device_->NewStream(1));
  SY_ASSIGN_OR_RETURN(event_, device_->NewEvent());
  return OkStatus();
}

// --- calls ---

Status WatchedCollective::Run(const char* what, const char* tag, const Stream* stream, uint64_t* counter, Start start) {
  if (const Status health = rendezvous_->health(); !health.ok())
    return Annotate(health, fmt::format("{} \"{}\"", what, tag));
  const bool waits = stream == nullptr && completes_on_stream();
  const Stream* const on = waits ? &stream_ : stream;
  sy_call call{SY_HEADER(sy_call), tag, (*counter)++, on == nullptr ? nullptr : on->handle(), nullptr};
  if (on != nullptr && completes_on_stream()) {
    SY_ASSIGN_OR_RETURN(call.native_stream, device_->NativeStream(*on));
  }
  sy_request* request = nullptr;
  sy_error error = EmptyError();
  const auto began = Clock::now();
  Status reason;
  sy_status status = start(&call, &request, &error);
  if (status == SY_OK && request != nullptr) {
    status = Wait(request, began, &error, &reason);
    if (deaf_)
      KeepForever(request);
    else
      api_->request_release(handle_, request);
  }
  if (status == SY_OK && waits) {
    SY_RETURN_IF_ERROR(event_.Record(stream_));
    reason = WaitFor(event_, what);
    wait_ms_ += MillisecondsSince(began);
    return reason.ok() ? OkStatus()
                       : Annotate(reason, fmt::format("\"{}\" (call {} of rank {})", tag, call.sequence, rank_));
  }
  wait_ms_ += MillisecondsSince(began);
  if (status == SY_OK) return OkStatus();
  if (reason.ok() && status == SY_INTERNAL) reason = PeerFailure(50);
  const std::string where = fmt::format("{} \"{}\" (call {} of rank {})", what, tag, call.sequence, rank_);
  return reason.ok() ? Explain(status, error, where) : Annotate(reason, fmt::format("{}: {}", plugin_name(), where));
}

Status WatchedCollective::SendReceive(const char* tag, std::span<const sy_transfer> transfers, const Stream* stream) {
  return Run("send_recv_batch", tag, stream, &batches_,
             [&](const sy_call* call, sy_request** request, sy_error* error) {
               return api_->send_recv_batch(handle_, call, transfers.data(), static_cast<uint32_t>(transfers.size()),
                                            request, error);
             });
}

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
    if (waited_ms > call_limit_ms_) {
      *reason = Overdue();
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
  // The plugin now gives the request up; its answer is not of interest. One that does not may go on to read and write
  // what the caller is about to free.
  const auto aborted = Clock::now();
  while (api_->request_poll(handle_, request, error) == SY_IN_PROGRESS) {
    if (MillisecondsSince(aborted) > kAbortPatienceMs) {
      deaf_ = true;
      LogWarning("{} did not give a call up within {:.0f} s of being aborted", plugin_name(), kAbortPatienceMs / 1000);
      if (device_ != nullptr) device_->KeepMemory();
      break;
    }
    std::this_thread::sleep_for(kShortestSleep);
  }
  return SY_ABORTED;
}

// Looks for lost peers, and for failures that only the plugin knows of.
Status WatchedCollective::WaitFor(Event& finished, const char* what) {
  const auto start = Clock::now();
  double looked_ms = 0;
  for (;;) {
    SY_ASSIGN_OR_RETURN(const bool done, finished.Done());
    if (done) return OkStatus();
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
        reason = PeerFailure(kPatienceMs);
        if (reason.ok()) reason = FromAbi(status, error, plugin_name());
      }
    }
    if (reason.ok() && waited_ms > call_limit_ms_) reason = Overdue();
    if (reason.ok()) continue;
    api_->abort(handle_);
    return Annotate(reason, what);
  }
}

Status WatchedCollective::Synchronize(const Stream& stream, const char* what) {
  SY_RETURN_IF_ERROR(event_.Record(stream));
  return WaitFor(event_, what);
}

// --- who is at fault ---

Status WatchedCollective::PeerFailure(int patience_ms) const {
  for (int waited = 0; waited < patience_ms && rendezvous_->health().ok(); ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return rendezvous_->health();
}

Status WatchedCollective::Overdue() const {
  return DeadlineExceeded(
      "not finished after {:.0f} s; another rank is stuck or in another call (SWITCHYARD_COLLECTIVE_TIMEOUT changes "
      "the "
      "limit)",
      call_limit_ms_ / 1000);
}

Status WatchedCollective::Explain(sy_status status, const sy_error& error, const std::string& what) const {
  if (status == SY_OK) return OkStatus();
  const std::string where = fmt::format("{}: {}", plugin_name(), what);
  if (status == SY_ABORTED) {
    if (const Status failure = PeerFailure(kPatienceMs); !failure.ok()) return Annotate(failure, where);
    // Another rank may have given up because somebody left: that one is the cause, not the messenger.
    if (const std::string departed = rendezvous_->departed(); !departed.empty())
      return Annotate(Unavailable("{} has left the run", departed), where);
  }
  return FromAbi(status, error, where);
}

void WatchedCollective::Abort() { abort_handle_->Abort(); }

}  // namespace switchyard
