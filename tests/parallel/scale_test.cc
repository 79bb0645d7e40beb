// What many ranks cost: as many processes, eight on each simulated node, run the real protocol over the loopback
// (tools/bench/rendezvous, which measures the time of it). Here messages are counted, for times depend on the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <string>

#include "tests/parallel/run_command.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int kNode = 8;
constexpr const char* kPhases[] = {"meet", "put and get", "get one value", "10 barriers", "leave"};

// Without heartbeats, which count seconds and not ranks, where nothing else is said.
CommandResult Play(int ranks, const std::string& what, int heartbeat_ms = 60000) {
  return RunCommand(fmt::format("{}/switchyard-bench-rendezvous {} {} {} {}", ProgramFolder() + "/../bin", ranks, kNode,
                                what, heartbeat_ms),
                    60);
}

struct Messages {
  double busiest = 0, all = 0;
};

Messages Of(const std::string& output, const std::string& phase) {
  std::smatch found;
  if (!std::regex_search(output, found,
                         std::regex(phase + " +[0-9.]+ s, busiest (\\d+) messages \\d+ bytes, all (\\d+)")))
    return {};
  return {std::stod(found[1]), std::stod(found[2])};
}

TEST(Scale, MessagesGrowNoFasterThanRanksTimesTheirLogarithm) {
  constexpr int few = 16, many = 128;
  const CommandResult small = Play(few, "leave"), large = Play(many, "leave");
  ASSERT_EQ(small.code, 0) << small.output;
  ASSERT_EQ(large.code, 0) << large.output;
  const double growth = many * std::log2(many) / (few * std::log2(few));
  for (const char* phase : kPhases) {
    const Messages before = Of(small.output, phase), after = Of(large.output, phase);
    ASSERT_GT(before.all, 0) << phase << "\n" << small.output;
    EXPECT_LE(after.all, before.all * growth) << phase << "\n" << large.output;
    EXPECT_LE(after.busiest, before.busiest * growth) << phase << "\n" << large.output;
  }
  // To a barrier each node comes by one message to rank 0, and is let go by one.
  constexpr int kNodes = many / kNode;
  EXPECT_EQ(Of(large.output, "10 barriers").busiest, 10 * 2 * kNodes) << large.output;
  // Rank 0 exchanges goodbyes with who relays, tells them of the first, and hears of the first and at last of all
  // there.
  EXPECT_LE(Of(large.output, "leave").busiest, 5 * kNodes + 1) << large.output;
  // Rank 0 holds a connection a node, not one a rank.
  EXPECT_THAT(large.output, HasSubstr("descriptors of rank 0: "));
  EXPECT_LT(std::stoi(large.output.substr(large.output.find("rank 0: ") + 8)), many / 2) << large.output;
}

// Rank 0 exchanges heartbeats with one rank of each node, its own too. A busy machine sends fewer of them in a time and
// never more.
TEST(Scale, RankZeroGetsAHeartbeatOfEachNodeAndNotOfEachRank) {
  constexpr int kRanks = 64, kHeartbeatMs = 100;
  const CommandResult result = Play(kRanks, "idle", kHeartbeatMs);
  ASSERT_EQ(result.code, 0) << result.output;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(result.output, found, std::regex("idle rank 0: (\\d+) messages in ([0-9.]+) s")))
      << result.output;
  const double both_ways = 2 * kRanks / kNode, times = std::stod(found[2]) * 1000 / kHeartbeatMs;
  EXPECT_GE(std::stod(found[1]), both_ways) << result.output;
  EXPECT_LE(std::stod(found[1]), both_ways * (times + 2)) << result.output;
}

class Loss : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, Loss, testing::Values("kill", "kill_relay"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Loss, IsToldToAllByNameInTime) {
  const CommandResult result = Play(64, GetParam());
  ASSERT_EQ(result.code, 0) << result.output;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(result.output, found, std::regex("63 of 63 told its name, the last after ([0-9.]+) s")))
      << result.output;
  EXPECT_LT(std::stod(found[1]), 5) << result.output;
}

}  // namespace
}  // namespace switchyard
