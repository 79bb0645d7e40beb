#include "core/runtime/processes/rendezvous.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/base/secret.h"
#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/rank_meeting.h"
#include "core/runtime/processes/rendezvous_impl.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kLongestFailure = 8 << 10;     // characters of what is told of one
constexpr auto kLastWords = milliseconds(300);  // for the news of a failure to leave this process
constexpr int kWoken = -1;                      // the poller's id of `wake`; those of links are their peers

sy_status ToAbi(const Status& status, sy_error* error) {
  if (status.ok()) return SY_OK;
  if (error != nullptr) snprintf(error->message, sizeof error->message, "%s", Message(status).c_str());
  if (absl::IsDeadlineExceeded(status)) return SY_TIMEOUT;
  return absl::IsUnavailable(status) ? SY_ABORTED : SY_INVALID;
}

}  // namespace

void Rendezvous::Impl::Handle(int peer, const Frame& message) {
  heard_at[peer] = lived_ms;
  const auto& fields = message.fields;
  const auto is = [&](MessageType type, size_t count) { return message.type == type && fields.size() == count; };
  if (is(MessageType::kHeartbeat, 0)) return;
  const bool from_below = peer != parent;
  if (is(MessageType::kGoodbye, 0)) {
    Depart(peer, peer);
  } else if (is(MessageType::kFailure, 1)) {
    Fail(fields[0], peer);
  } else if (from_below && is(MessageType::kPut, 2)) {
    rank == 0 ? Store(fields[0], fields[1]) : SendUp(message.type, fields);
  } else if (from_below && is(MessageType::kGet, 1)) {
    if (const auto found = values.find(fields[0]); found != values.end()) {
      Say(peer, MessageType::kValue, {found->first, found->second});
    } else {
      awaited[fields[0]].push_back(peer);
      Ask(fields[0]);
    }
  } else if (!from_below && is(MessageType::kValue, 2)) {
    Store(fields[0], fields[1]);
  } else if (from_below && message.type == MessageType::kArrive && !fields.empty() &&
             AreRanks(fields.begin() + 1, fields.end())) {
    for (size_t i = 1; i < fields.size(); ++i)
      rank == 0 ? Arrive(fields[0], std::atoi(fields[i].c_str())) : Gather(fields[0], fields[i]);
    if (rank == 0) Answer(fields[0], peer);
  } else if (!from_below && is(MessageType::kRelease, 1)) {
    Release(fields[0]);
  } else if (from_below && is(MessageType::kMissing, 2) && AreRanks(fields.begin() + 1, fields.end())) {
    Miss(fields[0], fields[1]);
  } else if (!from_below && is(MessageType::kMissing, 1)) {
    gathered[fields[0]].at_once = true;
    SayWhoCame(fields[0]);
  } else if (message.type == MessageType::kDeparture && AreRanks(fields.begin(), fields.end())) {
    for (const std::string& who : fields) Depart(std::atoi(who.c_str()), peer);
  } else {
    Fail(fmt::format("{} sent a message that nobody understands (type {}); are all ranks of the same version?",
                     Name(peer), static_cast<uint32_t>(message.type)));
  }
}

void Rendezvous::Impl::Serve(int peer) {
  MessageLink& link = *links[peer];
  if (awaits_room[peer]) unsent.push_back(peer);  // SendOut looks whether it still does
  std::vector<Frame> messages;
  const bool alive = link.Receive(&messages) && link.Flush();
  for (const Frame& message : messages) Handle(peer, message);
  if (alive) return;
  End(peer);
  changed.notify_all();
  if (peer == parent && departed[peer]) {
    // The way to rank 0 has ended, so it ends for those behind us.
    for (const int other : neighbours) {
      links[other]->Send(MessageType::kGoodbye);
      links[other]->Flush();
      End(other);
    }
  }
  // Whoever is between us and rank 0 may leave while our own goodbye is on its way.
  const bool leaving = stopping && peer == parent;
  if (!departed[peer] && !leaving) Fail(Name(peer) + " died");
}

// After the goodbye: who watches others stays until they have left as well, so that it can pass on a failure among
// them.
bool Rendezvous::Impl::MayStop() {
  if (!stopping) return false;
  if (Clock::now() >= stop_by) return true;
  const auto unsent_to = [&](int peer) { return links[peer]->open() && links[peer]->wants_to_write(); };
  const auto attended = [&](const auto& ward) { return links[ward.second]->open() && !departed[ward.first]; };
  while (watched > 0 && !attended(wards[watched - 1])) --watched;  // nobody comes back
  return std::none_of(neighbours.begin(), neighbours.end(), unsent_to) && (failed || watched == 0);
}

// The callbacks of a failure may end the process. Whoever has not heard of it by then would take that for a death.
void Rendezvous::Impl::FlushAll(Clock::duration limit) {
  SendOut();
  for (const auto deadline = Clock::now() + limit;;) {
    const auto unsent_to = [&](int peer) { return links[peer]->Flush() && links[peer]->wants_to_write(); };
    if (std::count_if(neighbours.begin(), neighbours.end(), unsent_to) == 0 || MillisecondsUntil(deadline) == 0) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void Rendezvous::Impl::LookForFrozen() {
  look_at = std::numeric_limits<double>::infinity();
  if (options.freeze_limit_ms == 0 || failed) return;
  for (const int peer : neighbours) {
    if (!links[peer]->open() || departed[peer]) continue;
    const double silent_ms = lived_ms - heard_at[peer];
    if (silent_ms > options.freeze_limit_ms) {
      Fail(fmt::format("{} froze: no sign of life for {:.1f} s (stopped, or its host is gone)", Name(peer),
                       silent_ms / 1000));
      return;
    }
    look_at = std::min(look_at, heard_at[peer] + options.freeze_limit_ms + 1);
  }
}

void Rendezvous::Impl::Watch() {
  auto last = Clock::now(), next_heartbeat = last + milliseconds(options.heartbeat_ms);
  std::unique_lock lock(mutex);
  bool told = false;
  for (const int peer : neighbours) Serve(peer);  // what came together with the welcome
  while (!MayStop()) {
    if (last >= next_heartbeat) {
      next_heartbeat = last + milliseconds(options.heartbeat_ms);
      for (const int peer : neighbours) {
        if (links[peer]->open() && !departed[peer]) Say(peer, MessageType::kHeartbeat);
      }
    }
    if (lived_ms >= look_at) LookForFrozen();
    auto next = next_heartbeat;
    for (auto& [barrier, here] : arrivals) {
      if (here.askers.empty()) continue;
      if (here.until <= last) {
        NameMissing(barrier, here);
      } else {
        next = std::min(next, here.until);
      }
    }
    if (failed && !told) {
      told = true;
      const auto calls = std::move(callbacks);
      callbacks.clear();
      FlushAll(kLastWords);
      lock.unlock();
      for (const auto& call : calls) call(failure);
      lock.lock();
      continue;
    }
    SendOut();
    const double until_look = std::max(1.0, look_at - lived_ms);
    const int until_next = std::max(1, MillisecondsUntil(next));
    const int wait_ms = stopping ? 5 : static_cast<int>(std::min<double>(until_next, until_look));
    lock.unlock();
    const std::vector<int>& ready = poller->Wait(wait_ms);
    lock.lock();
    // A pause of our own (a stopped or starved process) says nothing about the peers: it counts as two heartbeats at
    // most.
    const auto now = Clock::now();
    lived_ms += std::min(std::chrono::duration<double, std::milli>(now - last).count(), 2.0 * options.heartbeat_ms);
    last = now;
    for (const int id : ready) {
      uint64_t ignored;
      if (id == kWoken) [[maybe_unused]]
        const ssize_t got = read(wake, &ignored, sizeof ignored);
      // Serving the way to rank 0 may have closed the other links: what they said no longer counts.
      if (id != kWoken && links[id]->open()) Serve(id);
    }
  }
}

Rendezvous::Rendezvous() : impl_(std::make_unique<Impl>()) {}

StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Connect(ProcessMap& processes, int timeout_ms,
                                                          const WatchOptions& watch) {
  const bool several = processes.world > 1;
  if (several) TellLauncherOfMeeting(processes.rank);
  SY_ASSIGN_OR_RETURN(RankMeeting meeting, MeetRanks(processes, timeout_ms));
  if (several) TellLauncherAllMet();
  return Begin(std::move(meeting), processes, watch);
}

StatusOr<std::vector<std::unique_ptr<Rendezvous>>> Rendezvous::ConnectThreads(std::vector<ProcessMap>& processes,
                                                                              const WatchOptions& watch) {
  SY_ASSIGN_OR_RETURN(std::vector<RankMeeting> meetings, MeetThreads(processes));
  std::vector<std::unique_ptr<Rendezvous>> ranks;
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    SY_ASSIGN_OR_RETURN(ranks.emplace_back(), Begin(std::move(meetings[rank]), processes[rank], watch));
  }
  return ranks;
}

StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Begin(RankMeeting meeting, const ProcessMap& processes,
                                                        const WatchOptions& watch) {
  std::unique_ptr<Rendezvous> rendezvous(new Rendezvous);
  Impl& impl = *rendezvous->impl_;
  impl.rank = processes.rank;
  impl.world = processes.world;
  impl.options = watch;
  impl.links = std::move(meeting.links);
  impl.key = std::move(meeting.key);
  impl.heard_at.assign(impl.world, 0);
  impl.awaits_room.assign(impl.world, false);
  impl.departed.assign(impl.world, false);
  impl.pids = processes.pids;
  impl.host_names = processes.host_names;
  impl.parent = impl.rank == 0 ? -1 : meeting.via[impl.rank] == impl.rank ? 0 : meeting.via[impl.rank];
  for (int peer = 0; peer < impl.world; ++peer) {
    if (impl.links[peer] != nullptr) impl.neighbours.push_back(peer);
    const bool is_ward = impl.rank == 0 ? peer != 0 : peer != impl.rank && meeting.via[peer] == impl.rank;
    const int way = impl.rank == 0 ? meeting.via[peer] : peer;
    if (way != peer) impl.relays.insert(way);
    if (is_ward && impl.links[way] != nullptr) impl.wards.emplace_back(peer, way);  // else it died as all had met
  }
  impl.led_here = impl.wards.size() + 1;
  impl.watched = impl.wards.size();
  impl.store = {
      SY_HEADER(sy_store), rendezvous.get(),
      [](void* self, const char* key, const void* value, uint32_t bytes, sy_error* error) {
        return ToAbi(static_cast<Rendezvous*>(self)->Put(key, std::string(static_cast<const char*>(value), bytes)),
                     error);
      },
      [](void* self, const char* key, void* value, uint32_t capacity, uint32_t* bytes, uint64_t limit,
         sy_error* error) {
        auto found = static_cast<Rendezvous*>(self)->Get(key, static_cast<int>(std::min<uint64_t>(limit, 1 << 30)));
        if (!found.ok()) return ToAbi(found.status(), error);
        if (found->size() > capacity)
          return ToAbi(InvalidArgument("value of {} has {} bytes, room for {}", key, found->size(), capacity), error);
        std::memcpy(value, found->data(), found->size());
        *bytes = static_cast<uint32_t>(found->size());
        return sy_status{SY_OK};
      },
      [](void* self, const void* data, uint32_t bytes, unsigned char* digest) {
        const std::string_view message(static_cast<const char*>(data), bytes);
        const std::string result = HmacSha256(static_cast<Rendezvous*>(self)->impl_->key, message);
        std::memcpy(digest, result.data(), result.size());
      }};
  if (impl.world == 1) return rendezvous;
  SY_ASSIGN_OR_RETURN(impl.poller, Poller::Make());
  for (const int peer : impl.neighbours) {
    if (!impl.poller->Watch(impl.links[peer]->descriptor(), peer))
      return Unavailable("cannot watch the connection to {}: {}", impl.Name(peer), std::strerror(errno));
  }
  impl.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (impl.wake < 0 || !impl.poller->Watch(impl.wake, kWoken)) return Internal("eventfd: {}", std::strerror(errno));
  sigset_t all, before;  // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl.thread = std::thread([&impl] { impl.Watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return rendezvous;
}

Rendezvous::~Rendezvous() {
  if (!impl_->thread.joinable()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [barrier, here] : impl_->gathered) impl_->SayWhoCame(barrier);
    for (const int peer : impl_->neighbours) {
      // Also to who has said it already: rank 0 lingers until it has heard it from everybody.
      if (!impl_->failed && impl_->links[peer]->open()) impl_->Say(peer, MessageType::kGoodbye);
    }
    impl_->stopping = true;
    impl_->stop_by = Clock::now() + milliseconds(impl_->failed ? 200 : 1000);
  }
  impl_->Wake();
  impl_->thread.join();
  close(impl_->wake);
}

Status Rendezvous::Put(const std::string& key, const std::string& value) {
  if (!MessageLink::Fits({key, value}))
    return InvalidArgument("cannot put {}: a value of {} bytes is too long, expected less than {} with its key", key,
                           value.size(), kLargestFrame);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->failed) return impl_->failure;
  if (impl_->rank == 0) {
    impl_->Store(key, value);
  } else {
    if (!impl_->Serves(impl_->parent)) return Unavailable("cannot put {}: {} has left the run", key, impl_->Leaver());
    impl_->SendUp(MessageType::kPut, {key, value});
  }
  impl_->SendOut();
  return OkStatus();
}

StatusOr<std::string> Rendezvous::Get(const std::string& key, int timeout_ms) {
  if (!MessageLink::Fits({key}))
    return InvalidArgument("cannot get a value: its key of {} bytes is too long, expected less than {}", key.size(),
                           kLargestFrame);
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  std::unique_lock lock(impl_->mutex);
  if (impl_->world > 1 && impl_->values.count(key) == 0) {
    impl_->Ask(key);
    impl_->SendOut();
  }
  for (;;) {
    if (const auto found = impl_->values.find(key); found != impl_->values.end()) return found->second;
    if (impl_->failed) return impl_->failure;
    if (impl_->rank != 0 && !impl_->Serves(impl_->parent))
      return Unavailable("cannot get {}: {} has left the run", key, impl_->Leaver());
    if (MillisecondsUntil(deadline) == 0) return DeadlineExceeded("nobody put {} within {} ms", key, timeout_ms);
    impl_->changed.wait_until(lock, deadline);
  }
}

const sy_store* Rendezvous::store() const { return &impl_->store; }

Status Rendezvous::health() const {
  if (!impl_->failed) return OkStatus();
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

void Rendezvous::OnFailure(std::function<void(const Status&)> callback) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->failed) {
      impl_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback(health());
}

void Rendezvous::ReportFailure(const Status& reason) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->failed || impl_->world == 1) return;
  impl_->Fail(fmt::format("{} failed: {}", impl_->Name(impl_->rank), Message(reason)).substr(0, kLongestFailure));
  impl_->Wake();
}

std::string Rendezvous::departed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->first_departed;
}

}  // namespace switchyard
