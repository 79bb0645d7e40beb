// How ranks find each other before any collective works, and how they notice that one is gone. Every rank keeps one
// connection that leads to rank 0, found through PMIx where the launcher offers it, else at MASTER_ADDR:MASTER_PORT:
// its own, or, on several nodes, that of the neighbour which relays for its node (relay.h), so that rank 0 has one a
// node. Over it run a key-value store that rank 0 holds, and the liveness watch: end-of-file without a goodbye = dead,
// silence = frozen; each watches those with whom it has a connection, and what it sees goes on to all. Every survivor
// then gets a Status that names the rank: "rank 1 (pid 4711 on host a) died". A thread per rank serves its connections;
// it sleeps in epoll(7) and wakes twice per heartbeat. Of W ranks on N nodes, rank 0 sends and receives O(W) messages
// to meet, and O(N) to pass a barrier, to leave and where all get one value; where the launcher says that all are
// on one node, it has a connection to each, and N is W. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/status.h"
#include "core/runtime/processes/process_map.h"
#include "core/runtime/processes/time_limits.h"

namespace switchyard {

struct RankMeeting;

struct WatchOptions {
  int heartbeat_ms = 500;                // how often; every rank of a run takes the same
  int freeze_limit_ms = kFreezeLimitMs;  // silence after which a rank counts as frozen; 0 = never
};

class Rendezvous {
 public:
  // Connects all ranks of the map (fills hosts, host_names, pids; nodes and local ranks by what was found), within
  // timeout_ms; the error names the ranks that did not come. With one rank it opens no socket and starts no thread.
  static StatusOr<std::unique_ptr<Rendezvous>> Connect(ProcessMap& processes, int timeout_ms,
                                                       const WatchOptions& watch);
  // Of all ranks of a run that are threads of this process, by rank; fills all of `processes`, which has an entry for
  // each. Each is destroyed on a thread of its own, or they wait for each other's goodbye.
  static StatusOr<std::vector<std::unique_ptr<Rendezvous>>> ConnectThreads(std::vector<ProcessMap>& processes,
                                                                           const WatchOptions& watch);
  // A clean goodbye: peers do not take it for death. Rank 0, and who relays, lingers up to a second for the goodbyes of
  // the others.
  ~Rendezvous();

  // A key is put once in a run; with its value it may have a little under 16 MiB. Get waits for it; timeout_ms 0 asks
  // whether it has arrived, and makes it come if it exists.
  Status Put(const std::string& key, const std::string& value);
  StatusOr<std::string> Get(const std::string& key, int timeout_ms);
  // Of all ranks; names one that did not come, or who relays for it and says nothing, up to a second after the time. OK
  // where the last one comes in that second. The name has at most 4 KiB.
  Status Barrier(const std::string& name, int timeout_ms);
  const sy_store* store() const;  // the same, for plugins

  // OK while all ranks live; else who died, froze or failed. Cheap: one atomic load when OK.
  Status health() const;
  // Runs once, on the watch thread, when a peer fails; at once, on this thread, when one has failed already. Several
  // may be given.
  void OnFailure(std::function<void(const Status&)> callback);
  // This rank cannot go on: every other rank's health() becomes "rank 1 (…) failed: <message>" and its waits end. Call
  // it before the destructor.
  void ReportFailure(const Status& reason);
  // A rank that has said goodbye, as "rank 2 (pid 12 on host b)", or "" while nobody has: whoever waits for it in a
  // collective waits in vain.
  std::string departed() const;

 private:
  Rendezvous();
  static StatusOr<std::unique_ptr<Rendezvous>> Begin(RankMeeting meeting, const ProcessMap& processes,
                                                     const WatchOptions& watch);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
