// Ranks as threads of one process, each with a rendezvous of its own, which has no state outside its objects.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/runtime/processes/rendezvous.h"
#include "tests/data/files_for_tests.h"
#include "tests/parallel/visitor.h"

namespace switchyard {

inline ProcessMap Place(int rank, int world, int port) {
  ProcessMap map;
  map.rank = rank;
  map.world = map.local_world = world;
  map.launcher = "env";
  map.master_address = "127.0.0.1";
  map.master_port = port;
  return map;
}

// The user's own token is made in a folder of the test's.
inline const bool kOwnCache = [] {
  static TemporaryFolder folder;
  for (const char* name : {"SWITCHYARD_TOKEN", "SWITCHYARD_TOKEN_FILE"}) unsetenv(name);
  return setenv("XDG_CACHE_HOME", folder.path().c_str(), 1) == 0;
}();

using RankBody = std::function<void(int rank, Rendezvous&, const ProcessMap&)>;
// ranks_per_node: as if neighbours alone were on one node, of which the last relays to rank 0; 0: where they are.
inline void OnRanks(int world, const RankBody& body, int ranks_per_node = 0) {
  const int port = FreePort();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([=, &body] {
      ProcessMap map = Place(rank, world, port);
      if (ranks_per_node > 0) {
        map.node_identity = fmt::format("node {} of {}", rank / ranks_per_node, port);
        // Who comes first relays.
        if (rank > 0 && (rank + 1) % ranks_per_node != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      auto rendezvous = Rendezvous::Connect(map, 10000, {});
      ASSERT_TRUE(rendezvous.ok()) << Message(rendezvous.status());
      body(rank, **rendezvous, map);
    });
  }
  for (auto& rank : ranks) rank.join();
}

}  // namespace switchyard
