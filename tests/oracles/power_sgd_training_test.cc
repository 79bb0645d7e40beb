// Ranks that send gradients of low rank: before that starts they train as those that send all, behind it several as one
// does; a run that is taken up goes on with what each rank has left over; they learn.
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/environment.h"
#include "core/train/checkpoint.h"
#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

std::string LowRankStep(const std::string& folder, int step) {
  return fmt::format("{}/checkpoints/step-{:08}", folder, step);
}

// Six updates, of which the last four compress.
TrainConfig LowRankConfig(const std::string& suffix) {
  TrainConfig config = SmallConfig();
  config.momentum = 0.9f;
  config.lr = 0.05f;
  config.batch_size = 12 / SharedWorld().size();
  config.train_size = 48;
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.bucket_mb = 0.02;
  config.powersgd_compression = true;
  config.start_compress_iter = 2;
  config.matrix_approximation_rank = 2;
  config.suffix = "power_sgd_" + suffix;
  return config;
}

struct LowRankRun {
  std::string folder;
  HostTensors parameters;
};
LowRankRun TrainLowRank(const TrainConfig& config, World& world) {
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  const auto result = run->trainer->Train();
  EXPECT_TRUE(result.ok()) << Message(result.status());
  if (!result.ok()) return {};
  return {result->run_folder, *run->trainer->Parameters()};
}

TEST(PowerSgdTraining, IsPlainTrainingBeforeItStarts) {
  TrainConfig config = LowRankConfig("starts");
  const LowRankRun compressed = TrainLowRank(config, SharedWorld());
  ExpectEqualOnAllRanks(compressed.parameters);
  config.powersgd_compression = false;
  config.suffix = "power_sgd_plain";
  const LowRankRun plain = TrainLowRank(config, SharedWorld());
  TakeTurns();
  if (SharedWorld().rank() != 0) return;
  for (const int step : {1, 2}) {
    ExpectEqualBytes(Bytes(LowRankStep(compressed.folder, step) + "/model.safetensors"),
                     Bytes(LowRankStep(plain.folder, step) + "/model.safetensors"), fmt::format("step {}", step));
  }
  EXPECT_FALSE(Bytes(LowRankStep(compressed.folder, 3) + "/model.safetensors") ==
               Bytes(LowRankStep(plain.folder, 3) + "/model.safetensors"));
}

// Also where a checkpoint of several ranks is taken up by one: it has the mean of what they have left over.
TEST(PowerSgdTraining, OnSeveralRanksIsThatOnOne) {
  TrainConfig config = LowRankConfig("ranks");
  const LowRankRun several = TrainLowRank(config, SharedWorld());
  TakeTurns();
  if (SharedWorld().rank() == 0) {
    const auto lone = LoneWorld();
    TrainConfig one = config;
    one.batch_size = config.batch_size * SharedWorld().size();
    one.suffix = "power_sgd_one";
    ExpectClose(TrainLowRank(one, *lone).parameters, several.parameters, 1e-4);
    one.suffix = config.suffix;
    one.resume = LowRankStep(several.folder, 4);
    ExpectClose(TrainLowRank(one, *lone).parameters, several.parameters, 1e-4);
  }
  TakeTurns();
}

class PowerSgdResume : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(PowerSgdResume, AnywhereEqualsTheUninterruptedRun) {
  const auto& [accumulation, precision] = GetParam();
  TrainConfig config = LowRankConfig(fmt::format("resume_{}_{}", accumulation, precision));
  config.batch_size = 2;
  config.accumulation = accumulation;
  SaveEveryUpdate(&config);
  config.precision = precision;
  if (config.precision == "fp16") {
    config.amp = "O2";
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
    config.init_scale = 1024;
  }
  ExpectToGoOnAnywhere(config);
  if (SharedWorld().rank() != 0) return;
  const auto checkpoint = LoadCheckpoint(
      fmt::format("{}/vit_micro/shapes/{}/run/checkpoints/step-00000006", config.output, *config.suffix));
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  const std::string name = "blocks.0.mlp.fc1.weight";
  const TensorFile::Entry* const errors = checkpoint->state.Find("each_rank/power_sgd_error/" + name);
  const TensorFile::Entry* const factor = checkpoint->state.Find("power_sgd_factor/" + name);
  ASSERT_NE(errors, nullptr);
  ASSERT_NE(factor, nullptr);
  EXPECT_EQ(factor->shape[0], 2);
  EXPECT_EQ(errors->shape[0], SharedWorld().size());
  const auto row = static_cast<size_t>(errors->shape[1] * errors->shape[2]);
  std::vector<float> values(row * static_cast<size_t>(SharedWorld().size()));
  ASSERT_TRUE(checkpoint->state.Read(*errors, values.data()).ok());
  std::set<std::vector<float>> own;
  for (int rank = 0; rank < SharedWorld().size(); ++rank)
    own.emplace(values.begin() + static_cast<ptrdiff_t>(row) * rank,
                values.begin() + static_cast<ptrdiff_t>(row) * (rank + 1));
  EXPECT_EQ(own.size(), static_cast<size_t>(SharedWorld().size())) << "each rank has its own";
  EXPECT_FALSE(own.contains(std::vector<float>(row, 0)));
}

INSTANTIATE_TEST_SUITE_P(Runs, PowerSgdResume,
                         ::testing::Values(std::tuple(1, "fp32"), std::tuple(2, "fp32"), std::tuple(1, "fp16")),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

// Also on meshes, where ranks hold parts of what the checkpoint has whole; and on from there on another mesh.
TEST(PowerSgdTraining, OfStagesAndDividedModelsGoesOnAnywhere) {
  World& world = SharedWorld();
  if (world.size() % 2 != 0) GTEST_SKIP() << "of an even number of ranks";
  const Mesh apart{.data = world.size()};
  for (const Mesh& mesh :
       {Mesh{.data = world.size() / 2, .pipeline = 2}, Mesh{.data = world.size() / 2, .tensor = 2}}) {
    SCOPED_TRACE(fmt::format("{} stages, {} tensor ranks", mesh.pipeline, mesh.tensor));
    TrainConfig config = LowRankConfig(fmt::format("mesh_{}", mesh.tensor));
    config.batch_size = 2;
    config.accumulation = 2;
    SaveEveryUpdate(&config);
    config.pp = mesh.pipeline;
    config.tp = mesh.tensor;
    world.mesh = mesh;
    ExpectToGoOnAnywhere(config);
    TakeTurns();
    world.mesh = apart;
    config.pp = config.tp = 1;
    config.batch_size = 1;
    config.resume = LowRankStep(fmt::format("{}/vit_micro/shapes/{}/run", config.output, *config.suffix), 4);
    ExpectEqualOnAllRanks(TrainLowRank(config, world).parameters);
    TakeTurns();
  }
}

// Of what a file of tensors holds of `name`, the first byte becomes another one. Does it hold something?
bool Damage(const std::string& path, const std::string& name) {
  const auto file = TensorFile::Open(path);
  EXPECT_TRUE(file.ok()) << Message(file.status());
  const TensorFile::Entry* const entry = file.ok() ? file->Find(name) : nullptr;
  if (entry == nullptr) return false;
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  bytes.read(reinterpret_cast<char*>(&header), sizeof header);
  const auto at = static_cast<std::streamoff>(sizeof header + header) + entry->offset;
  bytes.seekg(at);
  const int found = bytes.get();
  bytes.seekp(at);
  bytes.put(static_cast<char>(found ^ 1));
  return true;
}

// The same in a checkpoint, of what each rank wrote of it.
void DamageOfEachRank(const std::string& checkpoint, const std::string& name) {
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const std::string file = entry.path().filename();
    if (file.starts_with("state") && file.ends_with(".safetensors")) damaged += Damage(entry.path(), name);
  }
  EXPECT_EQ(damaged, SharedWorld().size());
}

// A run that has no use for what ranks left over does not read it: there it may be damaged. It says once what is lost.
TEST(PowerSgdTraining, ErrorsAreReadOnlyWhereTheyGoOn) {
  TrainConfig config = LowRankConfig("unread");
  const LowRankRun with = TrainLowRank(config, SharedWorld());
  TakeTurns();
  config.resume = LowRankStep(with.folder, 5);
  if (SharedWorld().rank() == 0) DamageOfEachRank(*config.resume, "each_rank/power_sgd_error/blocks.0.mlp.fc1.weight");
  TakeTurns();
  const auto damaged = MakeRun(config, SharedWorld());
  EXPECT_THAT(Message(damaged.status()), testing::HasSubstr("each_rank/power_sgd_error/blocks.0.mlp.fc1.weight"));
  TakeTurns();
  config.powersgd_compression = false;
  testing::internal::CaptureStderr();
  const auto without = MakeRun(config, SharedWorld());
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(without.ok()) << Message(without.status());
  const std::string warning = "what --powersgd_compression left out of gradients that this run sends whole is lost";
  const size_t first = said.find(warning);
  EXPECT_EQ(first != std::string::npos, SharedWorld().rank() == 0) << said;
  if (first != std::string::npos) {
    EXPECT_EQ(said.find(warning, first + 1), std::string::npos) << said;
  }
  TakeTurns();
}

// What ranks bring together for a checkpoint is told as what it is in the file; nothing where each writes its own.
TEST(PowerSgdTraining, ExplainTellsOfWhatACheckpointGathers) {
  TrainConfig config = LowRankConfig("gathers");
  config.sharded_checkpoints = false;
  World& world = SharedWorld();
  const auto setup = SettledRun(config, world);
  ASSERT_TRUE(setup.ok()) << Message(setup.status());
  TrainingPlans plans;
  const Status compiled =
      plans.CompileRun(setup->config, setup->model, world.mesh, 0, 6, *world.device, world.reference.get());
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  const LowRankRun run = TrainLowRank(config, world);
  TakeTurns();
  const auto checkpoint = LoadCheckpoint(LowRankStep(run.folder, 6));
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  uint64_t gathered = 0;
  for (const TensorFile::Entry& entry : checkpoint->state.entries()) {
    if (entry.name.starts_with("each_rank/")) gathered += static_cast<uint64_t>(entry.bytes);
  }
  EXPECT_GT(gathered, 0u);
  EXPECT_EQ(plans.Report().checkpoint_host_bytes, plans.layout->bytes(kStateArena) + gathered);
  config.sharded_checkpoints = true;
  const auto sharded = SettledRun(config, world);
  ASSERT_TRUE(sharded.ok()) << Message(sharded.status());
  TrainingPlans of_shards;
  const Status compiled_too =
      of_shards.CompileRun(sharded->config, sharded->model, world.mesh, 0, 6, *world.device, world.reference.get());
  ASSERT_TRUE(compiled_too.ok()) << Message(compiled_too);
  EXPECT_EQ(of_shards.Report().checkpoint_host_bytes, plans.layout->bytes(kStateArena));
  TakeTurns();
}

// A run goes on without it, with it where it was not, and with another rank.
TEST(PowerSgdTraining, BeginsAndEndsWhereARunIsTakenUp) {
  TrainConfig config = LowRankConfig("changes");
  const LowRankRun with = TrainLowRank(config, SharedWorld());
  TakeTurns();
  TrainConfig on = config;
  on.resume = LowRankStep(with.folder, 4);
  on.matrix_approximation_rank = 1;
  ExpectEqualOnAllRanks(TrainLowRank(on, SharedWorld()).parameters);
  TakeTurns();
  on.powersgd_compression = false;
  on.resume = LowRankStep(with.folder, 3);
  ExpectEqualOnAllRanks(TrainLowRank(on, SharedWorld()).parameters);
  TakeTurns();
  on.powersgd_compression = true;
  on.resume = LowRankStep(with.folder, 5);
  ExpectEqualOnAllRanks(TrainLowRank(on, SharedWorld()).parameters);
}

TEST(PowerSgdTraining, LearnsFashionMnistAsPlainTrainingDoes) {
  if (!Environment("SWITCHYARD_DATA")) GTEST_SKIP() << "SWITCHYARD_DATA is not set";
  if (SharedWorld().size() != 2 || Environment("SWITCHYARD_COLLECTIVE") != "shm")
    GTEST_SKIP() << "of two ranks, whatever the collective";
  if (SharedWorld().device->info().plugin != "cpu") GTEST_SKIP() << "on the cpu plugin";
  std::map<bool, double> losses;
  for (const bool compresses : {false, true}) {
    TrainConfig config = FashionMnistConfig();
    config.batch_size = 32;
    config.steps = 240;
    config.powersgd_compression = compresses;
    config.start_compress_iter = 20;
    config.matrix_approximation_rank = 4;
    config.suffix = fmt::format("power_sgd_learns_{}", compresses);
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const auto result = run->trainer->Train();
    ASSERT_TRUE(result.ok()) << Message(result.status());
    losses[compresses] = result->evaluation.metrics.at("loss");
    ExpectEqualOnAllRanks(*run->trainer->Parameters());
  }
  if (SharedWorld().rank() == 0) fmt::print("loss {:.4f} compressed, {:.4f} plain\n", losses[true], losses[false]);
  EXPECT_LT(losses[true], 1.1) << "of 2.3 at the start";
  EXPECT_LT(losses[true], losses[false] + 0.1);
}

}  // namespace
}  // namespace switchyard
