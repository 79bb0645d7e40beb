// What a rendezvous holds, its links and what it says over them: private to its sources. rendezvous.cc is the store and
// the watch over all ranks, barrier.cc the barriers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/message_link.h"
#include "core/runtime/processes/pmix_bootstrap.h"
#include "core/runtime/processes/poller.h"
#include "core/runtime/processes/rendezvous.h"

namespace switchyard {

struct Rendezvous::Impl {
  using Clock = std::chrono::steady_clock;

  int rank = 0, world = 1;
  std::vector<int> pids;  // by rank
  std::vector<std::string> host_names;
  std::string key;  // of the store's digests
  WatchOptions options;

  mutable std::mutex mutex;  // of everything below
  std::condition_variable changed;
  std::vector<std::unique_ptr<MessageLink>> links;  // by peer: rank_meeting.h
  std::vector<int> neighbours;                      // who has a link
  int parent = -1;                                  // the neighbour that leads to rank 0; -1: this is rank 0
  std::vector<std::pair<int, int>> wards;  // whom it watches for the others, and the neighbour that leads there
  std::set<int> relays;                    // of rank 0: neighbours that lead to others
  size_t led_here = 1;                     // of the others: how many lead through this one, itself included
  size_t watched = 0;                      // once this rank is done: the wards behind these have left
  std::vector<int> unsent;                 // neighbours to whom something was said that is not sent yet
  std::vector<bool> awaits_room;           // by neighbour: the poller tells when the link takes more
  double lived_ms = 0;                     // the watch's own clock
  std::vector<double> heard_at;            // on that clock, by neighbour
  double look_at = 0;                      // on that clock: when somebody's silence may have lasted too long
  std::vector<bool> departed;
  std::string first_departed;
  std::vector<std::string> departures;  // of who relays: what rank 0 does not know of them yet
  struct Arrivals {
    int count = 0;
    std::vector<bool> came;  // by rank
    // Where somebody waits in vain.
    std::vector<std::string> askers;  // ranks that are not answered yet
    bool relays_asked = false;        // they then say at once who comes
    std::set<int> silent;             // relays that have not said yet who had come
    Clock::time_point until;          // they are not waited for any longer
  };
  struct Gathered {
    size_t count = 0;
    std::vector<std::string> unsaid;  // ranks of whom rank 0 does not know yet
    bool at_once = false;             // rank 0 has asked
  };
  std::map<std::string, std::string> values;        // rank 0: the store; elsewhere: what has arrived of it
  std::map<std::string, std::vector<int>> awaited;  // which neighbours asked for a key that is not in `values`
  std::set<std::string> asked;                      // elsewhere than on rank 0: keys asked for
  std::map<std::string, int> barriers;              // how often each was reached
  std::map<std::string, Arrivals> arrivals;         // rank 0: of barriers that wait
  std::map<std::string, Gathered> gathered;         // elsewhere: of barriers to which not all have come that lead here
  std::set<std::string> waiting;                    // barriers at which this rank waits
  Status failure;
  std::vector<std::function<void(const Status&)>> callbacks;
  bool stopping = false;
  Clock::time_point stop_by;

  std::atomic<bool> failed{false};
  std::unique_ptr<Poller> poller;
  int wake = -1;  // eventfd: the watch has something to look at
  std::thread thread;
  sy_store store{};

  void Wake() const {
    const uint64_t one = 1;
    if (wake >= 0) [[maybe_unused]]
      const ssize_t written = write(wake, &one, sizeof one);
  }
  std::string Name(int peer) const {  // "rank 1 (pid 4711 on host a)"
    return fmt::format("rank {} (pid {} on host {})", peer, pids[peer], host_names[peer]);
  }
  // Rank 0 and who relays go on serving for a while after their goodbye; the others do not listen any more.
  bool Serves(int peer) const {
    const bool relays_for_others = peer == parent || relays.count(peer) > 0;
    return links[peer] != nullptr && links[peer]->open() && (relays_for_others || !departed[peer]);
  }
  // It leaves with SendOut, which whoever says something calls at the end of what it does.
  void Say(int peer, MessageType type, const std::vector<std::string>& fields = {}) {
    links[peer]->Send(type, fields);
    unsent.push_back(peer);
  }
  void SendOut() {
    for (const int peer : unsent) {
      if (!links[peer]->open()) continue;
      links[peer]->Flush();  // where it fails, the poller tells the watch that the link has ended
      const bool more = links[peer]->wants_to_write();
      if (more != awaits_room[peer]) poller->Watch(links[peer]->descriptor(), peer, more);
      awaits_room[peer] = more;
    }
    unsent.clear();
  }
  void End(int peer) {
    if (links[peer]->open()) poller->Forget(links[peer]->descriptor());
    links[peer]->Close();
  }
  // What was said goes on from neighbour to neighbour: to all but `from`, -1 for news of our own.
  void Spread(MessageType type, const std::vector<std::string>& fields, int from = -1) {
    for (const int peer : neighbours) {
      if (peer != from && Serves(peer)) Say(peer, type, fields);
    }
  }
  void SendUp(MessageType type, const std::vector<std::string>& fields) {
    if (Serves(parent)) Say(parent, type, fields);
  }
  // Who has left, for whoever needs the way to rank 0.
  std::string Leaver() const { return Name(departed[0] ? 0 : parent); }
  // The first failure wins.
  void Fail(const std::string& text, int from = -1) {
    if (failed) return;
    failure = Unavailable("{}", text);
    failed = true;
    TellLauncher(text);
    pmix::Abandon();
    Spread(MessageType::kFailure, {text}, from);
    changed.notify_all();
  }
  void Store(const std::string& key, const std::string& value) {
    values[key] = value;
    if (const auto waiting = awaited.extract(key)) {
      for (const int peer : waiting.mapped()) {
        if (Serves(peer)) Say(peer, MessageType::kValue, {key, value});
      }
    }
    changed.notify_all();
  }
  // Asks rank 0, once.
  void Ask(const std::string& key) {
    if (parent >= 0 && asked.insert(key).second) SendUp(MessageType::kGet, {key});
  }
  // All hear of the first goodbye. Rank 0 hears of every one, from who relays by one message once nobody is left there.
  void Depart(int peer, int from) {
    departed[peer] = true;
    if (first_departed.empty()) {
      first_departed = Name(peer);
      Spread(MessageType::kDeparture, {std::to_string(peer)}, from);
    } else if (parent >= 0 && from != parent) {
      departures.push_back(std::to_string(peer));
    }
    const auto stays = [&](const auto& ward) { return !departed[ward.first]; };
    if (!departures.empty() && std::none_of(wards.begin(), wards.end(), stays))
      SendUp(MessageType::kDeparture, std::exchange(departures, {}));
    changed.notify_all();
  }
  bool AreRanks(std::vector<std::string>::const_iterator from, std::vector<std::string>::const_iterator to) const {
    return std::all_of(from, to, [&](const std::string& text) {
      const int number = std::atoi(text.c_str());
      return number >= 0 && number < world;
    });
  }
  // Barriers (barrier.cc).
  void Gather(const std::string& barrier, const std::string& who);
  void SayWhoCame(const std::string& barrier);
  void Arrive(const std::string& barrier, int peer);
  void Release(const std::string& barrier);
  void Miss(const std::string& barrier, const std::string& asker);
  void FindMissing(const std::string& barrier, const std::string& asker);
  void Answer(const std::string& barrier, int relay);
  void NameMissing(const std::string& barrier, Arrivals& here);
  // The watch and its messages.
  void Handle(int peer, const Frame& message);
  void Serve(int peer);
  void Watch();
  void FlushAll(Clock::duration limit);
  void LookForFrozen();
  bool MayStop();
};

}  // namespace switchyard
