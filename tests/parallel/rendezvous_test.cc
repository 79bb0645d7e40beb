// Ranks as threads of one process: the rendezvous has no state outside its objects.
#include "core/runtime/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <latch>
#include <thread>

#include "core/runtime/meeting.h"
#include "core/runtime/message_link.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

int FreePort() {
  const int listener = *ListenOn("127.0.0.1", 0);
  const int port = *PortOf(listener);
  close(listener);
  return port;
}

ProcessMap Place(int rank, int world, int port) {
  ProcessMap map;
  map.rank = rank;
  map.world = map.local_world = world;
  map.launcher = "env";
  map.master_address = "127.0.0.1";
  map.master_port = port;
  return map;
}

using Body = std::function<void(int rank, Rendezvous&, const ProcessMap&)>;
void OnRanks(int world, const Body& body) {
  const int port = FreePort();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([=, &body] {
      ProcessMap map = Place(rank, world, port);
      auto rendezvous = Rendezvous::Connect(map, 10000, {});
      ASSERT_TRUE(rendezvous.ok()) << Message(rendezvous.status());
      body(rank, **rendezvous, map);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(Rendezvous, EverybodyLearnsWhereTheOthersAre) {
  OnRanks(3, [](int rank, Rendezvous&, const ProcessMap& map) {
    EXPECT_EQ(map.pids, std::vector<int>(3, getpid()));
    EXPECT_EQ(map.hosts, std::vector<int>(3, 0));
    EXPECT_EQ(map.local_rank, rank);
    EXPECT_EQ(map.local_world, 3);
    EXPECT_EQ(map.nodes, 1);
  });
}

TEST(Rendezvous, ValuesReachWhoeverAsksBeforeOrAfter) {
  OnRanks(3, [](int rank, Rendezvous& rendezvous, const ProcessMap&) {
    const std::string value(100000, static_cast<char>('a' + rank));
    if (rank == 1) usleep(50000);
    ASSERT_TRUE(rendezvous.Put(fmt::format("of/{}", rank), value + '\0').ok());
    for (int peer = 0; peer < 3; ++peer) {
      const auto got = rendezvous.Get(fmt::format("of/{}", peer), 5000);
      ASSERT_TRUE(got.ok()) << Message(got.status());
      std::string theirs(100000, static_cast<char>('a' + peer));
      theirs.push_back('\0');
      EXPECT_EQ(*got, theirs);
    }
  });
}

TEST(Rendezvous, AMissingValueTimesOut) {
  OnRanks(2, [](int, Rendezvous& rendezvous, const ProcessMap&) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(rendezvous.Get("never", 30).status()));
    EXPECT_TRUE(rendezvous.Barrier("end", 5000).ok());
  });
}

TEST(Rendezvous, TheStoreForPluginsIsTheSame) {
  OnRanks(2, [](int rank, Rendezvous& rendezvous, const ProcessMap&) {
    const sy_store& store = *rendezvous.store();
    sy_error error{SY_HEADER(sy_error)};
    char value[8];
    uint32_t bytes = 0;
    if (rank == 0) {
      EXPECT_EQ(store.put(store.context, "key", "a\0b", 3, &error), SY_OK);
    }
    EXPECT_EQ(store.get(store.context, "key", value, sizeof value, &bytes, 5000, &error), SY_OK);
    EXPECT_EQ(std::string(value, bytes), std::string("a\0b", 3));
    EXPECT_EQ(store.get(store.context, "key", value, 2, &bytes, 5000, &error), SY_INVALID);
    EXPECT_EQ(store.get(store.context, "absent", value, 2, &bytes, 10, &error), SY_TIMEOUT);
  });
}

TEST(Rendezvous, ABarrierWaitsForAllEveryTime) {
  std::atomic<int> came{0};
  OnRanks(3, [&](int, Rendezvous& rendezvous, const ProcessMap&) {
    for (int round = 1; round <= 5; ++round) {
      ++came;
      ASSERT_TRUE(rendezvous.Barrier("again", 5000).ok());
      EXPECT_GE(came.load(), 3 * round);
    }
  });
}

TEST(Rendezvous, MissingRanksAreNamed) {
  ProcessMap map = Place(0, 4, FreePort());
  std::thread second([port = map.master_port] {
    ProcessMap own = Place(2, 4, port);
    const auto rendezvous = Rendezvous::Connect(own, 1000, {});
    EXPECT_THAT(Message(rendezvous.status()), HasSubstr("ranks 1, 3 of 4 did not come"));
  });
  const auto rendezvous = Rendezvous::Connect(map, 600, {});
  EXPECT_THAT(Message(rendezvous.status()), HasSubstr("ranks 1, 3 of 4 did not come"));
  second.join();
}

TEST(Rendezvous, TwoProcessesOfOneRankAreRefused) {
  const int port = FreePort();
  std::vector<std::thread> twins;
  for (int twin = 0; twin < 2; ++twin) {
    twins.emplace_back([port] {
      ProcessMap map = Place(1, 3, port);
      EXPECT_THAT(Message(Rendezvous::Connect(map, 3000, {}).status()),
                  HasSubstr("two processes say that they are rank 1"));
    });
  }
  ProcessMap map = Place(0, 3, port);
  EXPECT_THAT(Message(Rendezvous::Connect(map, 3000, {}).status()),
              HasSubstr("two processes say that they are rank 1"));
  for (auto& twin : twins) twin.join();
}

TEST(Rendezvous, WorldSizesThatDisagreeAreRefusedOnBothSides) {
  ProcessMap map = Place(0, 3, FreePort());
  std::thread other([port = map.master_port] {
    ProcessMap own = Place(1, 2, port);
    EXPECT_THAT(Message(Rendezvous::Connect(own, 3000, {}).status()),
                ContainsRegex("rank 1 .pid .*. says that there are 2 ranks, but rank 0 was started with 3"));
  });
  EXPECT_THAT(Message(Rendezvous::Connect(map, 3000, {}).status()), HasSubstr("but rank 0 was started with 3"));
  other.join();
}

TEST(Rendezvous, AnotherVersionOfTheProgramIsRefused) {
  ProcessMap map = Place(0, 2, FreePort());
  std::thread other([port = map.master_port] {
    StatusOr<int> socket = Unavailable("not yet");
    for (int attempt = 0; attempt < 200 && !socket.ok(); ++attempt) {
      socket = ConnectTo("127.0.0.1", port, 1000);
      if (!socket.ok()) usleep(5000);
    }
    ASSERT_TRUE(socket.ok());
    MessageLink link(*socket);
    link.Send(MessageType::kHello, {"rank", "", "0.0.9/1", "1", "2", "old-host", "4711", "node"});
    link.Flush();
    std::vector<Frame> answer;
    for (int waited = 0; waited < 2000 && answer.empty() && link.Receive(&answer); ++waited) usleep(1000);
    ASSERT_EQ(answer.size(), 1u);
    EXPECT_EQ(answer[0].type, MessageType::kFailure);
    EXPECT_THAT(answer[0].fields[0], HasSubstr("runs version 0.0.9/1"));
  });
  EXPECT_THAT(Message(Rendezvous::Connect(map, 3000, {}).status()),
              HasSubstr("rank 1 (pid 4711 on host old-host) runs version 0.0.9/1, but rank 0 runs " + EngineVersion()));
  other.join();
}

TEST(Rendezvous, AnotherRunsRankIsSentAway) {
  const int port = FreePort();
  std::thread other([port] {
    ProcessMap map = Place(1, 2, port);
    map.run_token = "another run";
    EXPECT_THAT(Message(Rendezvous::Connect(map, 300, {}).status()), HasSubstr("closed the connection"));
  });
  ProcessMap map = Place(0, 2, port);
  map.run_token = "this run";
  EXPECT_THAT(Message(Rendezvous::Connect(map, 1500, {}).status()), HasSubstr("rank 1 of 2 did not come"));
  other.join();
}

TEST(Rendezvous, AWrongAddressAndATakenPortAreNamed) {
  ProcessMap map = Place(1, 2, FreePort());
  const auto nobody = Rendezvous::Connect(map, 100, {});
  EXPECT_THAT(Message(nobody.status()),
              HasSubstr(fmt::format("127.0.0.1 port {}: Connection refused", map.master_port)));
  EXPECT_THAT(Message(nobody.status()), HasSubstr("check that rank 0 runs and that MASTER_ADDR"));
  map.master_address = "no.such.host.invalid";
  EXPECT_THAT(Message(Rendezvous::Connect(map, 100, {}).status()),
              HasSubstr("cannot find the address of host \"no.such.host.invalid\""));
  const int listener = *ListenOn("127.0.0.1", 0);
  ProcessMap first = Place(0, 2, *PortOf(listener));
  const auto taken = Rendezvous::Connect(first, 100, {});
  EXPECT_THAT(Message(taken.status()), HasSubstr("Address already in use"));
  EXPECT_THAT(Message(taken.status()), HasSubstr("choose another MASTER_PORT"));
  close(listener);
}

TEST(Rendezvous, StrangersAndNonsenseAreSentAway) {
  const int port = FreePort();
  std::thread stranger([port] {
    for (int attempt = 0; attempt < 100; ++attempt) {
      const auto socket = ConnectTo("127.0.0.1", port, 1000);
      if (!socket.ok()) {
        usleep(5000);
        continue;
      }
      const std::string request(5000, 'G');
      [[maybe_unused]] const ssize_t sent = send(*socket, request.data(), request.size(), MSG_NOSIGNAL);
      usleep(20000);
      close(*socket);
      return;
    }
  });
  std::thread other([port] {
    usleep(200000);
    ProcessMap map = Place(1, 2, port);
    EXPECT_TRUE(Rendezvous::Connect(map, 5000, {}).ok());
  });
  ProcessMap map = Place(0, 2, port);
  const auto rendezvous = Rendezvous::Connect(map, 5000, {});
  EXPECT_TRUE(rendezvous.ok()) << Message(rendezvous.status());
  stranger.join();
  other.join();
}

TEST(Rendezvous, AReportedFailureReachesAllAndCallsBackOnce) {
  std::atomic<int> calls{0};
  std::latch registered(3);  // a barrier of the rendezvous could fail where the report comes before its end is known
  OnRanks(3, [&](int rank, Rendezvous& rendezvous, const ProcessMap&) {
    rendezvous.OnFailure([&](const Status&) { ++calls; });
    registered.arrive_and_wait();
    if (rank == 2) rendezvous.ReportFailure(DataLoss("bad file"));
    for (int waited = 0; waited < 2000 && rendezvous.health().ok(); ++waited) usleep(1000);
    EXPECT_THAT(Message(rendezvous.health()), HasSubstr("rank 2 (pid"));
    EXPECT_THAT(Message(rendezvous.health()), HasSubstr("failed: bad file"));
    EXPECT_FALSE(rendezvous.Get("anything", 5000).ok());
    for (int waited = 0; waited < 2000 && calls < 3; ++waited) usleep(1000);  // nobody leaves before all were called
  });
  EXPECT_EQ(calls.load(), 3);
}

TEST(Rendezvous, AGoodbyeIsNoFailure) {
  OnRanks(3, [](int rank, Rendezvous& rendezvous, const ProcessMap&) {
    if (rank == 1) return;
    for (int waited = 0; waited < 2000 && rendezvous.departed().empty(); ++waited) usleep(1000);
    EXPECT_THAT(rendezvous.departed(), HasSubstr("rank 1"));
    EXPECT_TRUE(rendezvous.health().ok());
  });
}

TEST(MessageLink, ListensToBothFamiliesAndKnowsItsOwnAddresses) {
  const int listener = *ListenOn("", 0);
  const auto connected = ConnectTo("127.0.0.1", *PortOf(listener), 1000);
  ASSERT_TRUE(connected.ok()) << Message(connected.status());
  close(*connected);
  close(listener);
  EXPECT_TRUE(*IsOwnAddress("127.0.0.1"));
  EXPECT_FALSE(*IsOwnAddress("192.0.2.1"));  // of documentation: RFC 5737
  EXPECT_FALSE(IsOwnAddress("no.such.host.invalid").ok());
}

TEST(Meeting, NumbersAreNamedInRanges) {
  EXPECT_EQ(NameNumbers("rank", {3}), "rank 3");
  EXPECT_EQ(NameNumbers("rank", {1, 3}), "ranks 1, 3");
  EXPECT_EQ(NameNumbers("node", {1, 2, 5, 6, 7, 9}), "nodes 1, 2, 5-7, 9");
}

TEST(MessageLink, RefusesMalformedFrames) {
  for (const std::string& bytes : {std::string(16, 'x'), std::string("SYLK\1\0\0\0\377\0\0\0\4\0\0\0abcd", 20),
                                   std::string("SYLK\1\0\0\0\1\0\0\0\377\377\377\177", 16),
                                   std::string("SYLK\1\0\0\0\1\0\0\0\4\0\0\0\377\0\0\0", 20),
                                   std::string("SYLK\1\0\0\0\0\0\0\0\4\0\0\0\377\0\0\0", 20)}) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    MessageLink link(pair[0]);
    ASSERT_EQ(write(pair[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    std::vector<Frame> frames;
    EXPECT_FALSE(link.Receive(&frames));
    EXPECT_TRUE(frames.empty());
    close(pair[1]);
  }
}

}  // namespace
}  // namespace switchyard
