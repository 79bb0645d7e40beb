#include <chrono>

#include "core/runtime/processes/rendezvous_impl.h"

namespace switchyard {
namespace {

constexpr int kNamesMs = 1000;                             // for rank 0 to say who did not come
constexpr auto kAnswers = std::chrono::milliseconds(700);  // of that, for relays to say who came to them
constexpr size_t kLongestBarrier = 4 << 10;                // bytes, of a name

// Where rank 0 tells a rank for whom it waits in vain.
std::string MissingKey(const std::string& barrier, const std::string& asker) {
  return fmt::format("missing at {} for {}", barrier, asker);
}

}  // namespace

// Of who is not rank 0: tells it once all have come that lead here, or at once where it is leaving itself.
void Rendezvous::Impl::Gather(const std::string& barrier, const std::string& who) {
  Gathered& here = gathered[barrier];
  here.unsaid.push_back(who);
  const bool all = ++here.count == led_here;
  if (all || here.at_once || stopping) SayWhoCame(barrier);
  if (all) gathered.erase(barrier);
}

void Rendezvous::Impl::SayWhoCame(const std::string& barrier) {
  std::vector<std::string> fields = {barrier};
  if (const auto here = gathered.find(barrier); here != gathered.end())
    for (std::string& who : std::exchange(here->second.unsaid, {})) fields.push_back(std::move(who));
  SendUp(MessageType::kArrive, fields);
}

// Of rank 0: counts, and lets all go once all have come. One message in and one out for each neighbour.
void Rendezvous::Impl::Arrive(const std::string& barrier, int peer) {
  Arrivals& here = arrivals[barrier];
  here.came.resize(static_cast<size_t>(world));
  if (here.came[static_cast<size_t>(peer)]) return;
  here.came[static_cast<size_t>(peer)] = true;
  if (++here.count < world) return;
  NameMissing(barrier, here);
  arrivals.erase(barrier);
  Release(barrier);
}

void Rendezvous::Impl::Release(const std::string& barrier) {
  waiting.erase(barrier);
  gathered.erase(barrier);
  for (const int peer : neighbours) {
    if (peer != parent && Serves(peer)) Say(peer, MessageType::kRelease, {barrier});
  }
  changed.notify_all();
}

// Somebody waits there in vain and wants to know for whom. Before it asks, rank 0 knows who has come to it.
void Rendezvous::Impl::Miss(const std::string& barrier, const std::string& asker) {
  if (rank == 0) return FindMissing(barrier, asker);
  SayWhoCame(barrier);
  SendUp(MessageType::kMissing, {barrier, asker});
}

// Of rank 0: relays are asked first for what they have heard and not said.
void Rendezvous::Impl::FindMissing(const std::string& barrier, const std::string& asker) {
  const auto found = arrivals.find(barrier);
  if (found == arrivals.end()) return Store(MissingKey(barrier, asker), "");  // all have come
  Arrivals& here = found->second;
  here.askers.push_back(asker);
  if (!here.relays_asked) {
    here.relays_asked = true;
    here.until = Clock::now() + kAnswers;
    for (const int relay : relays) {
      if (!Serves(relay)) continue;
      Say(relay, MessageType::kMissing, {barrier});
      here.silent.insert(relay);
    }
  }
  if (here.silent.empty() || Clock::now() >= here.until) NameMissing(barrier, here);
  Wake();
}

void Rendezvous::Impl::Answer(const std::string& barrier, int relay) {
  const auto found = arrivals.find(barrier);
  if (found != arrivals.end() && found->second.silent.erase(relay) > 0 && found->second.silent.empty())
    NameMissing(barrier, found->second);
}

// To those who asked: a rank of which is known that it did not come, else a relay that does not answer; "": all came.
void Rendezvous::Impl::NameMissing(const std::string& barrier, Arrivals& here) {
  std::string name, silent;
  if (!here.came[0]) name = Name(0);
  for (const auto& [ward, way] : wards) {
    if (here.came[static_cast<size_t>(ward)]) continue;
    const bool known = here.silent.count(way) == 0;
    if (known && name.empty()) name = Name(ward);
    if (!known && silent.empty()) silent = Name(way);
  }
  for (const std::string& asker : std::exchange(here.askers, {}))
    Store(MissingKey(barrier, asker), name.empty() ? silent : name);
}

Status Rendezvous::Barrier(const std::string& name, int timeout_ms) {
  if (impl_->world == 1) return OkStatus();
  if (name.size() > kLongestBarrier)
    return InvalidArgument("a barrier's name of {} bytes is too long, expected at most {}", name.size(),
                           kLongestBarrier);
  const auto deadline = Impl::Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock lock(impl_->mutex);
  if (impl_->failed) return impl_->failure;
  const std::string key = fmt::format("{}/{}", name, impl_->barriers[name]++), self = std::to_string(impl_->rank);
  impl_->waiting.insert(key);
  impl_->rank == 0 ? impl_->Arrive(key, 0) : impl_->Gather(key, self);
  impl_->SendOut();
  const auto passed = [&] { return impl_->waiting.count(key) == 0; };
  const auto lost = [&] { return impl_->failed || (impl_->rank != 0 && !impl_->Serves(impl_->parent)); };
  impl_->changed.wait_until(lock, deadline, [&] { return passed() || lost(); });
  StatusOr<std::string> missing = std::string();
  if (!passed() && !lost()) {
    impl_->Miss(key, self);
    impl_->SendOut();
    lock.unlock();
    missing = Get(MissingKey(key, self), kNamesMs);
    lock.lock();
  }
  if (passed()) return OkStatus();  // also where the last one came while rank 0 was asked
  impl_->waiting.erase(key);
  if (impl_->failed) return impl_->failure;
  if (lost()) return Unavailable("barrier \"{}\": {} has left the run", name, impl_->Leaver());
  return DeadlineExceeded("barrier \"{}\": {} did not come within {} ms", name,
                          missing.ok() && !missing->empty() ? *missing : "a rank", timeout_ms);
}

}  // namespace switchyard
