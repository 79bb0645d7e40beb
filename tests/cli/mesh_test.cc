// What the commands say of runs whose ranks share models: who is who, what an update counts, what goes over which link.
#include "nlohmann/json.hpp"
#include "tests/cli/program.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

class MeshCommands : public ProgramTest {};

// Samples, and with them the rate, follow the ranks that divide the data alone: 2 of 8.
TEST_F(MeshCommands, TheBannerTellsWhereEachRankStandsAndRatesFollowTheDataRanks) {
  const CommandResult run =
      Run("launch --nproc_per_node=8 " + Program() +
          " train --model=vit_micro --dataset=shapes --width=16 --heads=2 --depth=2 --train_size=16 "
          "--validation_size=4 --batch_size=2 --steps=1 --tp=2 --pp=2 --accumulation=2 --lr=0.5 --scale_lr=linear "
          "--base_batch_size=16 --threads=1 --device=cpu --output=run --suffix=a");
  ExpectSuccess(run, {"8 images per update: 2 per rank, 8 ranks, 4 of which share each model",
                      "lr 0.25 (0.5 scaled by --scale_lr=linear from batch 16 to 8)"});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(run.output, testing::ContainsRegex(fmt::format(
                                "rank {} \\(data {}, stage {}, tensor {}\\) on [^\n]*: cpu device {} [^\n]*, 1 thread, "
                                "collective shm",
                                rank, rank / 4, rank / 2 % 2, rank % 2, rank)));
  }
  ExpectSuccess(
      Run("train --dataset=shapes --device=cpu --output=run --model=resnet18 --width=4 --image_size=32 --train_size=16 "
          "--validation_size=4 "
          "--batch_size=8 --steps=1 --pp=2 --suffix=b",
          Start::kLaunch),
      {"--pp=2 divides a batch into 8 micro-batches, and batch norms normalise each of them, of 1, by itself"});
  const CommandResult apart = Run(SmallTraining("--scale_lr=linear"), Start::kLaunch);
  ExpectSuccess(apart, {"from batch 128 to 8)"});
  EXPECT_THAT(apart.output, Not(HasSubstr("(data 0"))) << "each has a model of its own";
}

TEST_F(MeshCommands, ExplainPlansForTheRanksThatTheAxesTakeUnlessAWorldIsStated) {
  ExpectSuccess(Run("explain --model=mlp --device=cpu --dp=2 --tp=2"), {", 4 ranks, "});
  ExpectRefused(Run("explain --model=mlp --device=cpu --dp=2 --world=1"), {"--dp=2: expected 2 ranks, found 1"});
}

// The ABI allows one prepare at a time on a device, and `validate` says where there are more; ranks are planned beside
// each other.
TEST_F(MeshCommands, ExplainAsksADeviceForOneKernelAtATime) {
  ExpectSuccess(Run("explain --model=vit_micro --heads=6 --width=96 --pp=2 --tp=2 --world=4 --accumulation=4 "
                    "--device=cpu --threads=4 --interpose=validate"),
                {"4 ranks, "});
}

TEST_F(MeshCommands, ExplainTellsOfEachStageAndEachAxis) {
  const auto plan = nlohmann::json::parse(Run("explain --json --model=vit_micro --heads=6 --width=96 --device=cpu "
                                              "--world=8 --pp=2 --tp=2 --batch_size=4 --accumulation=4 2> /dev/null")
                                              .output,
                                          nullptr, false);
  double sent = 0;
  for (const char* axis : {"data", "pipeline", "tensor"}) {
    EXPECT_GT(plan["wire_bytes_by_axis"][axis].get<double>(), 0) << axis;
    sent += plan["wire_bytes_by_axis"][axis].get<double>();
  }
  for (const auto& [axis, bytes] : plan["wire_bytes_by_axis"].items()) {
    if (axis == "world") sent += bytes.get<double>();
  }
  EXPECT_DOUBLE_EQ(sent, plan["wire_bytes"].get<double>());
  ASSERT_EQ(plan["pipeline"]["stages"].size(), 2u);
  for (const auto& stage : plan["pipeline"]["stages"]) {
    uint64_t bytes = 0;
    for (const auto& [name, held] : stage["memory_by_class"].items()) bytes += held.get<uint64_t>();
    EXPECT_EQ(bytes, stage["memory_bytes"].get<uint64_t>());
    EXPECT_GT(stage["memory_by_class"]["state"].get<uint64_t>(), 0u);
  }
}

// Of the rank that takes the most, with as many threads as a rank of the run has: so a run within just that much memory
// trains, and within a byte less does not.
TEST_F(MeshCommands, ExplainTellsOfTheRankThatTakesTheMostMemory) {
  const std::string run =
      "--dataset=shapes --train_size=512 --validation_size=64 --steps=1 --augmentation=none --bucket_mb=50 "
      "--device=cpu --memory_limit=";
  struct Case {
    std::string flags;
    int ranks;
    bool is_first;
  };
  const std::vector<Case> cases = {{"--model=mlp --global_batch_size=12 --zero=3 --threads=1 ", 3, false},
                                   {"--model=mlp --global_batch_size=12 --zero=1 --threads=1 ", 3, false},
                                   {"--model=vit_micro --global_batch_size=30 --tp=3 --threads=1 ", 3, false},
                                   {"--model=resnet18 --width=8 --global_batch_size=8 --zero=0 ", 2, true}};
  std::vector<int64_t> most;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.flags);
    const std::string explain = fmt::format("explain --world={} {}{}", one.ranks, one.flags, run);
    const auto told = nlohmann::json::parse(Run(explain + "1GB --json").output, nullptr, false);
    ASSERT_TRUE(told.is_object());
    const int64_t bytes = told["memory_bytes"];
    EXPECT_EQ(told["device_bytes"], bytes);
    most.push_back(bytes);
    EXPECT_EQ(told["rank"] == 0, one.is_first);
    const auto start = [&](int64_t limit) {
      std::filesystem::remove_all(In("run"));
      return Run(fmt::format("launch --nproc_per_node={} {} train --output=run --suffix=a {}{}{}", one.ranks, Program(),
                             one.flags, run, limit));
    };
    ExpectSuccess(Run(explain + std::to_string(bytes)),
                  {fmt::format("of rank {}, which takes", told["rank"].get<int>()),
                   fmt::format("{:.1f} MB, fits", 1e-6 * static_cast<double>(bytes))});
    ExpectSuccess(start(bytes));
    ExpectSuccess(Run(explain + std::to_string(bytes - 1)), {"too large"});
    ExpectRefused(start(bytes - 1), {fmt::format("--memory_limit={}: a training", bytes - 1)});
  }
  const std::string search = "explain --search --tp=1 --pp=1 --world=3 " + cases[0].flags + run;
  ExpectRefused(Run(search + std::to_string(most[0] - 1)), {"none of", "fits into"});
}

TEST_F(MeshCommands, SearchTriesEveryDivisorOfTheRanks) {
  const CommandResult result =
      Run("explain --search --json --world=6 --model=vit_micro --depth=6 --heads=6 --width=96 --global_batch_size=24 "
          "--dataset=shapes --train_size=512 --device=cpu --threads=1 --zero=0 --sp=0 --recompute=none");
  const auto ways = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(ways.is_object()) << result.output;
  for (const auto& [tp, pp] : {std::pair{3, 2}, {2, 3}, {6, 1}, {1, 6}}) {
    EXPECT_TRUE(std::any_of(ways["fitting"].begin(), ways["fitting"].end(),
                            [&](const auto& way) { return way["tp"] == tp && way["pp"] == pp; }))
        << tp << " x " << pp;
  }
}

// As in Gemini, a share above 0 asks for what it is a share of.
TEST_F(MeshCommands, AShareOfWhatIsOffloadedTurnsThatOn) {
  const auto offload = [&](const std::string& shares) {
    const CommandResult result =
        Run("train --show_settings --model=mlp --dataset=shapes --device=null --zero=3 --batch_size=4 " + shares);
    const size_t at = result.output.find("\noffload ");
    return at == std::string::npos ? result.output
                                   : result.output.substr(at + 1, result.output.find('\n', at + 1) - at);
  };
  EXPECT_THAT(offload(""), testing::HasSubstr("none"));
  EXPECT_THAT(offload("--offload_optim_frac=0 --offload_param_frac=0"), testing::HasSubstr("none"));
  EXPECT_THAT(offload("--offload_optim_frac=0.5"), testing::HasSubstr("optimizer"));
  EXPECT_THAT(offload("--offload_optim_frac=1 --offload_param_frac=0.5"), testing::HasSubstr("all"));
  EXPECT_THAT(offload("--offload=none --offload_param_frac=0.5"), testing::HasSubstr("none"));
}

TEST_F(MeshCommands, ExplainPlansWithTheThreadsOfARank) {
  const auto told = [&](const std::string& more) {
    return nlohmann::json::parse(
        Run("explain --json --model=resnet18 --width=8 --batch_size=8 --device=cpu " + more).output, nullptr, false);
  };
  const int alone = told("")["threads"];
  EXPECT_EQ(told("--world=2")["threads"], std::max(1, (alone + 1) / 2));
  EXPECT_EQ(told("--world=64")["threads"], std::max(1, (alone + 63) / 64)) << "as if all were here";
  EXPECT_EQ(told("--world=64 --ranks_per_node=1")["threads"], alone);
  EXPECT_EQ(told("--world=64 --threads=3")["threads"], 3);
  EXPECT_EQ(told("--world=4 --zero=3 --ranks_per_node=2")["memory_bytes"],
            told(fmt::format("--world=4 --zero=3 --threads={}", std::max(1, (alone + 1) / 2)))["memory_bytes"]);
  ExpectSuccess(Run("explain --model=mlp --device=cpu --world=64 --threads=1"), {"1 thread a rank"});
}

// Heads are not cut: ranks beyond their number gain nothing by them.
TEST_F(MeshCommands, MoreRanksThanHeadsAreWarnedOf) {
  const std::string model = "--model=vit_micro --heads=1 --dataset=shapes --tp=2 --device=cpu --threads=1 ";
  const std::vector<std::string> words = {"--tp=2: whole on every rank of a model: ", " in 1 part (heads, or units)"};
  ExpectSuccess(Run("explain --world=2 " + model), words);
  ExpectSuccess(
      Run("train --train_size=8 --validation_size=4 --batch_size=4 --steps=1 --output=run " + model, Start::kLaunch),
      words);
  EXPECT_THAT(Run("explain --world=2 --heads=2 --model=vit_micro --tp=2 --device=cpu").output,
              testing::Not(HasSubstr("heads, or units")));
}

TEST_F(MeshCommands, ExplainSaysHowToPlanForADeviceThatIsNotHere) {
  ExpectRefused(Run("explain --model=mlp --device=npu --world=8"),
                {"without --device it plans with those of this host"});
}

// n bytes of gradients among 4 ranks on two nodes. At once a ring sends 2·3/4·n, as slow as what lies between nodes.
// Node by node a rank sends n/2 of a reduce_scatter and n/2 of an all_gather within its node, and between them half of
// n summed by two: 2·1/2·n/2.
TEST_F(MeshCommands, ExplainTellsWhatGoesBetweenNodes) {
  const auto told = [&](const std::string& more) {
    return nlohmann::json::parse(
        Run("explain --json --model=mlp --width=64 --batch_size=2 --device=cpu --world=4 " + more + " 2> /dev/null")
            .output,
        nullptr, false);
  };
  const auto sent = [&](const std::string& more) {
    const nlohmann::json plan = told(more);
    return std::pair(plan["wire_bytes"].get<double>(), plan["wire_bytes_between_nodes"].get<double>());
  };
  // Beside the buckets nothing is sent; what pads them is less than a hundredth.
  const double gradients = 4.0 * ((28 * 28 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 10);
  const auto [unknown, nowhere] = sent("");
  EXPECT_NEAR(unknown, 1.5 * gradients, 0.01 * gradients);
  EXPECT_EQ(nowhere, 0) << "nobody knows the nodes";
  EXPECT_EQ(sent("--ranks_per_node=4"), std::pair(unknown, 0.0));
  EXPECT_EQ(sent("--ranks_per_node=2"), std::pair(unknown, unknown));
  const auto [all, between] = sent("--ranks_per_node=2 --hierarchical_allreduce");
  EXPECT_DOUBLE_EQ(all, unknown);
  EXPECT_DOUBLE_EQ(between, unknown / 3);
  // Of two models that each lie on a node, what divided layers sum stays there: gradients alone go between.
  const auto [divided, of_halves] = sent("--ranks_per_node=2 --tp=2");
  EXPECT_LT(of_halves, divided);
  EXPECT_NEAR(of_halves, 1.0 * (gradients / 2), 0.02 * gradients) << "2·1/2 of the half that a rank has";
}

}  // namespace
}  // namespace switchyard
