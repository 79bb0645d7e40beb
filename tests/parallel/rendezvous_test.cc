#include "core/runtime/processes/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <latch>
#include <thread>

#include "core/runtime/processes/meeting.h"
#include "core/runtime/processes/message_link.h"
#include "tests/data/files_for_tests.h"
#include "tests/parallel/thread_ranks.h"
#include "tests/parallel/visitor.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

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

// The socket that took the last piece can take more, which nobody needs to hear.
TEST(Rendezvous, TheWatchSleepsAgainAfterAMessageThatWentInPieces) {
  std::vector<ProcessMap> maps(2);
  auto ranks = Rendezvous::ConnectThreads(maps, {.heartbeat_ms = 60000});
  ASSERT_TRUE(ranks.ok()) << Message(ranks.status());
  ASSERT_TRUE((*ranks)[1]->Put("large", std::string(8 << 20, 'x')).ok());
  ASSERT_TRUE((*ranks)[0]->Get("large", 20000).ok());
  const clock_t before = clock();
  usleep(400000);
  EXPECT_LT(clock() - before, CLOCKS_PER_SEC / 10) << "of processor time, while nothing happens";
  std::thread leaves([&] { (*ranks)[1].reset(); });
  (*ranks)[0].reset();
  leaves.join();
}

// A longer one would be taken for nonsense by whoever gets it, and its sender for dead.
TEST(Rendezvous, AValueThatNoMessageHoldsIsRefused) {
  OnRanks(2, [](int rank, Rendezvous& rendezvous, const ProcessMap&) {
    const std::string key = fmt::format("large/{}", rank), other = fmt::format("large/{}", 1 - rank);
    EXPECT_THAT(Message(rendezvous.Put(key, std::string(kLargestFrame, 'x'))),
                HasSubstr(fmt::format("cannot put {}: a value of {} bytes is too long", key, kLargestFrame)));
    const std::string longest(kLargestFrame - key.size() - 8, 'x');
    EXPECT_TRUE(rendezvous.Put(key, longest).ok());
    const auto got = rendezvous.Get(other, 20000);
    ASSERT_TRUE(got.ok()) << Message(got.status());
    EXPECT_EQ(got->size(), longest.size());
    EXPECT_TRUE(rendezvous.Barrier("end", 20000).ok());
    EXPECT_TRUE(rendezvous.health().ok()) << Message(rendezvous.health());
  });
}

TEST(Rendezvous, AKeyThatNoMessageHoldsIsRefused) {
  OnRanks(2, [](int, Rendezvous& rendezvous, const ProcessMap&) {
    EXPECT_THAT(Message(rendezvous.Get(std::string(kLargestFrame, 'k'), 1000).status()),
                HasSubstr(fmt::format("its key of {} bytes is too long", kLargestFrame)));
    EXPECT_THAT(Message(rendezvous.Barrier(std::string(4097, 'n'), 1000)),
                HasSubstr("a barrier's name of 4097 bytes is too long, expected at most 4096"));
    EXPECT_TRUE(rendezvous.Barrier("end", 20000).ok());
    EXPECT_TRUE(rendezvous.health().ok()) << Message(rendezvous.health());
  });
}

TEST(MessageLink, SendsNothingThatTheOtherSideWouldRefuse) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  MessageLink sender(ends[0]), receiver(ends[1]);
  const std::string longest(kLargestFrame - 8, 'x');  // with the two lengths
  EXPECT_FALSE(sender.Send(MessageType::kPut, {"", longest + 'x'}));
  EXPECT_FALSE(sender.wants_to_write());
  EXPECT_TRUE(sender.Send(MessageType::kPut, {"", longest}));
  std::vector<Frame> messages;
  for (int round = 0; round < 100000 && messages.empty(); ++round) {
    EXPECT_TRUE(sender.Flush());
    ASSERT_TRUE(receiver.Receive(&messages));
  }
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].fields[1], longest);
}

TEST(Rendezvous, TheStoresDigestsAreEqualOnAllRanksAndDifferBetweenRuns) {
  std::vector<std::string> digests(2);
  const auto digest = [](const Rendezvous& rendezvous, const std::string& text) {
    unsigned char bytes[32];
    const sy_store& store = *rendezvous.store();
    store.digest(store.context, text.data(), static_cast<uint32_t>(text.size()), bytes);
    return std::string(reinterpret_cast<char*>(bytes), sizeof bytes);
  };
  OnRanks(2, [&](int rank, Rendezvous& rendezvous, const ProcessMap&) { digests[rank] = digest(rendezvous, "a"); });
  EXPECT_EQ(digests[0], digests[1]);
  ProcessMap alone;
  const auto another = Rendezvous::Connect(alone, 1000, {});
  ASSERT_TRUE(another.ok());
  EXPECT_NE(digest(**another, "a"), digests[0]);
  EXPECT_NE(digest(**another, "b"), digest(**another, "a"));
}

TEST(Rendezvous, NobodyListensOnceAllRanksHaveCome) {
  const int port = FreePort();
  std::vector<std::thread> ranks;
  std::latch joined(2), looked(1);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ProcessMap map = Place(rank, 2, port);
      const auto rendezvous = Rendezvous::Connect(map, 10000, {});
      EXPECT_TRUE(rendezvous.ok()) << Message(rendezvous.status());
      joined.count_down();
      looked.wait();
    });
  }
  joined.wait();
  EXPECT_FALSE(ConnectTo("127.0.0.1", port, 1000).ok());
  looked.count_down();
  for (auto& rank : ranks) rank.join();
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

// Whoever relays tells rank 0 of its neighbours once all have come to it, and before where rank 0 has to say who is
// missing.
TEST(Rendezvous, WhoDidNotComeToABarrierIsNamedOnEveryNode) {
  for (int missing = 0; missing < 6; ++missing) {
    OnRanks(
        6,
        [&](int rank, Rendezvous& rendezvous, const ProcessMap&) {
          ASSERT_TRUE(rendezvous.Barrier("all", 5000).ok());
          if (rank != missing) {
            EXPECT_THAT(Message(rendezvous.Barrier("most", 300)),
                        HasSubstr(fmt::format("barrier \"most\": rank {} (pid", missing)));
          } else {
            ASSERT_TRUE(rendezvous.Get("told", 5000).ok());
          }
          if (rank == (missing + 1) % 6) {
            ASSERT_TRUE(rendezvous.Put("told", "").ok());
          }
          EXPECT_TRUE(rendezvous.Barrier("end", 5000).ok());
        },
        3);
  }
}

// Ranks 0 and 1 on a node, 2 and 3 on another, of which 3 relays. The leaver's neighbour comes before or after it has
// left.
TEST(Rendezvous, WhoLeavesWithoutComingToABarrierIsNamed) {
  for (const auto& [leaver, late] : {std::pair(2, false), {2, true}, {3, false}, {3, true}}) {
    std::latch leaves(1);
    OnRanks(
        4,
        [&](int rank, Rendezvous& rendezvous, const ProcessMap&) {
          if (rank == leaver) return leaves.wait();
          if (rank > 1) {
            std::thread let_go([&] {
              usleep(late ? 0 : 100000);
              leaves.count_down();
            });
            if (late) usleep(300000);
            // It may hear that the way to rank 0 has left.
            EXPECT_FALSE(rendezvous.Barrier("x", 2500).ok());
            let_go.join();
          } else {
            // Until after the leaver has ceased to pass on what others say.
            EXPECT_THAT(Message(rendezvous.Barrier("x", 1500)), HasSubstr(fmt::format("rank {} (pid", leaver)));
          }
        },
        2);
  }
}

// Rank 4 asks through 7 while 1 and 2 are missing, 7 asks when 1 has come. 3, through which it comes, says so although
// it asks for nothing yet.
TEST(Rendezvous, WhoAsksLaterIsToldWhoIsMissingThen) {
  OnRanks(
      8,
      [&](int rank, Rendezvous& rendezvous, const ProcessMap&) {
        if (rank == 4) {
          EXPECT_THAT(Message(rendezvous.Barrier("x", 200)), HasSubstr("rank 1 (pid"));
        } else if (rank == 2) {
          ASSERT_TRUE(rendezvous.Get("told", 10000).ok());
        } else {
          if (rank == 1) usleep(600000);
          EXPECT_THAT(Message(rendezvous.Barrier("x", rank == 3 ? 1500 : 1000)), HasSubstr("rank 2 (pid"));
        }
        if (rank == 3) {
          ASSERT_TRUE(rendezvous.Put("told", "").ok());
        }
        EXPECT_TRUE(rendezvous.Barrier("end", 10000).ok());
      },
      4);
}

// Two of a node give up and leave, the one that relays among them; what comes to it then still goes on.
TEST(Rendezvous, ABarrierIsPassedThoughWhoRelaysGaveUp) {
  std::latch gone(2);
  OnRanks(
      8,
      [&](int rank, Rendezvous& rendezvous, const ProcessMap&) {
        if (rank > 5) {
          EXPECT_FALSE(rendezvous.Barrier("x", 200).ok());
          return gone.count_down();
        }
        if (rank > 3) {
          gone.wait();
          usleep(rank == 5 ? 300000 : 150000);
        }
        const Status passed = rendezvous.Barrier("x", 3000);
        EXPECT_TRUE(passed.ok()) << "rank " << rank << ": " << Message(passed);
      },
      4);
}

// Of 2 and 3, which relays, on another node than 0 and 1, 2 comes to a barrier; then 3 is stopped, for good or until
// rank 0 has begun to ask.
TEST(Rendezvous, AStoppedRelayIsNamedAndNotItsNeighbour) {
  for (const bool goes_on : {false, true}) {
    const int port = FreePort();
    void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto& heard = *new (memory) std::atomic<int>(0);
    auto& stopped = *new (&heard + 1) std::atomic<int>(0);
    const auto run = [&](int rank) {  // the exit status
      ProcessMap map = Place(rank, 4, port);
      map.node_identity = fmt::format("node {} of {}", rank / 2, port);
      if (rank == 2) usleep(200000);
      const auto rendezvous = Rendezvous::Connect(map, 10000, {});
      if (!rendezvous.ok()) return 2;
      if (rank == 3) return pause();
      if (rank == 2) return (*rendezvous)->Put("here", "").ok() && (*rendezvous)->Barrier("x", 8000).ok() ? 3 : 0;
      if (!(*rendezvous)->Get("here", 10000).ok()) return 4;
      for (++heard; stopped == 0;) usleep(1000);
      const std::string text = Message((*rendezvous)->Barrier("x", 300));
      if (text.find("rank 3 (pid") != std::string::npos) return 0;
      std::fprintf(stderr, "rank %d: %s\n", rank, text.c_str());
      return 1;
    };
    std::vector<pid_t> pids;
    for (int rank = 0; rank < 4; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) _exit(run(rank));
      pids.push_back(pid);
    }
    while (heard < 2) usleep(1000);
    usleep(200000);  // for 2 to have come to 3
    kill(pids[3], SIGSTOP);
    stopped = 1;
    if (goes_on) {
      usleep(600000);
      kill(pids[3], SIGCONT);
    }
    for (int rank = 0; rank < 4; ++rank) {
      if (rank > 1) kill(pids[static_cast<size_t>(rank)], SIGKILL);
      int status = 0;
      ASSERT_EQ(waitpid(pids[static_cast<size_t>(rank)], &status, 0), pids[static_cast<size_t>(rank)]);
      if (rank < 2) {
        EXPECT_EQ(status, 0) << "of rank " << rank << (goes_on ? ", 3 goes on" : "");
      }
    }
    munmap(memory, 4096);
  }
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

TEST(Rendezvous, AnotherRunsRankIsSentAway) {
  const int port = FreePort();
  std::thread other([port] {
    ProcessMap map = Place(1, 2, port);
    map.run_id = "another run";
    EXPECT_THAT(Message(Rendezvous::Connect(map, 300, {}).status()), HasSubstr("closed the connection"));
  });
  ProcessMap map = Place(0, 2, port);
  map.run_id = "this run";
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
  setenv("SWITCHYARD_TOKEN", "beyond the loopback there must be one", 1);
  EXPECT_THAT(Message(Rendezvous::Connect(map, 100, {}).status()),
              HasSubstr("cannot find the address of host \"no.such.host.invalid\""));
  unsetenv("SWITCHYARD_TOKEN");
  const int listener = *ListenOn("127.0.0.1", 0);
  ProcessMap first = Place(0, 2, *PortOf(listener));
  const auto taken = Rendezvous::Connect(first, 100, {});
  EXPECT_THAT(Message(taken.status()), HasSubstr("Address already in use"));
  EXPECT_THAT(Message(taken.status()), HasSubstr("choose another MASTER_PORT"));
  close(listener);
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
