// What many ranks take of a machine: memory that they share, and descriptors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <vector>

#include "core/runtime/collectives/communicator.h"
#include "core/runtime/plugins/registry.h"
#include "tests/cli/program.h"
#include "tests/parallel/thread_ranks.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

// Bytes of the anonymous shared memory that this process has open, each piece once.
uint64_t SharedBytes() {
  std::set<ino_t> seen;
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    struct stat info {};
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find("memfd:") == std::string::npos || stat(entry.path().c_str(), &info) != 0) continue;
    if (seen.insert(info.st_ino).second) bytes += static_cast<uint64_t>(info.st_size);
  }
  return bytes;
}

// Messages are longer than a ring, to a neighbour and to the rank that is farthest.
TEST(SharedMemory, OfManyRanksGrowsWithTheirNumberAndCarriesMessagesOfAnyLength) {
  constexpr uint64_t kBytesOfARank = 5 << 20;
  for (const int world : {16, 64}) {
    const auto plugin = Registry::Get().Find(PluginKind::kCollective, "shm");
    ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
    std::vector<uint64_t> shared(static_cast<size_t>(world));
    OnRanks(world, [&](int rank, Rendezvous& rendezvous, const ProcessMap& map) {
      auto joined = Communicator::Join(*plugin, map, rendezvous, nullptr, "many", 20000);
      ASSERT_TRUE(joined.ok()) << Message(joined.status());
      shared[static_cast<size_t>(rank)] = SharedBytes();
      constexpr size_t kCount = 100001;
      for (const int distance : {1, world / 2}) {
        std::vector<int> sent(kCount), received(kCount);
        std::iota(sent.begin(), sent.end(), rank * 7);
        const int to = (rank + distance) % world, from = (rank + world - distance) % world;
        const Status moved =
            (*joined)->SendReceive("round", {{to, 1, sent.data(), 4 * kCount}, {from, 0, received.data(), 4 * kCount}});
        ASSERT_TRUE(moved.ok()) << Message(moved);
        std::iota(sent.begin(), sent.end(), from * 7);
        EXPECT_EQ(received == sent, true) << "rank " << rank << " heard something else from rank " << from;
      }
      EXPECT_TRUE((*joined)->Barrier("done").ok());
    });
    EXPECT_LE(*std::max_element(shared.begin(), shared.end()), kBytesOfARank * static_cast<uint64_t>(world));
    EXPECT_GT(shared[0], 0u);
  }
}

class Descriptors : public ProgramTest {
 protected:
  // Ranks, of which the one called `rank` (or each: "*") may have so many descriptors: `limit` as of ulimit.
  CommandResult Reduce(int ranks, const std::string& limit, const std::string& rank) const {
    return RunCommand(fmt::format("{} launch --nproc_per_node={} sh -c 'case $RANK in {}) ulimit {};; esac; exec "
                                  "{}/rank_program reduce tcp'",
                                  Program(), ranks, rank, limit, ProgramFolder()),
                      60);
  }
};

TEST_F(Descriptors, AreRaisedAsFarAsRanksNeedThem) {
  ExpectSuccess(Reduce(12, "-Sn 14", "*"), {"rank 0 finished"});
  ExpectSuccess(RunCommand(fmt::format("bash -c 'ulimit -Sn 40; {} launch --nproc_per_node=40 true'", Program()), 60));
}

TEST_F(Descriptors, ThatCannotBeHadAreNamedAtTheStart) {
  const char* const how = "raise the hard limit of open files (`ulimit -Hn ";
  const CommandResult launcher =
      RunCommand(fmt::format("bash -c 'ulimit -n 40; {} launch --nproc_per_node=40 true'", Program()), 60);
  ExpectRefused(launcher, {"launch: 40 ranks of this node need ", "which may have 40; ", how});
  ExpectRefused(Reduce(12, "-n 20", "0"), {"the connections of rank 0 to 12 ranks need ", "may have 20; ", how});
  ExpectRefused(Reduce(12, "-n 20", "1"), {"tcp between 12 ranks need ", "may have 20; ", how});
}

}  // namespace
}  // namespace switchyard
