// Whole trainers against each other: buckets, accumulation, the number of ranks, the broadcast of parameters,
// evaluation.
#include <chrono>
#include <cmath>
#include <thread>

#include "core/base/environment.h"
#include "core/nn/context.h"
#include "core/train/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// This rank's batch of update `update`: of A·B·W samples, micro-step by micro-step, rank r takes r, r + W, …
HostBatch OwnBatch(const RunSetup& setup, int64_t update, int rank, int world) {
  HostBatch batch;
  const int64_t global = int64_t{setup.config.batch_size} * world;
  for (int64_t a = 0; a < setup.config.accumulation; ++a) {
    for (int64_t i = rank; i < global; i += world)
      batch.Append(setup, "batch", (update * setup.config.accumulation + a) * global + i);
  }
  return batch;
}

// The parameters after `updates` updates in a trainer of this configuration; `results`: of each, as this rank sees it.
HostTensors Trained(const TrainConfig& config, World& world, int64_t updates = 3,
                    std::vector<Trainer::StepResult>* results = nullptr) {
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  for (int64_t update = 0; update < updates; ++update) {
    const HostBatch batch = OwnBatch(run->setup, update, world.rank(), world.size());
    const auto result = run->trainer->Step(batch.tensors());
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return {};
    if (results != nullptr) results->push_back(*result);
  }
  return *run->trainer->Parameters();
}

// shm adds in the order of the ranks, and two numbers have one order; MPI's order depends on the size of a message.
bool AddsInAFixedOrder() { return SharedWorld().collective == "shm" || SharedWorld().size() <= 2; }

TEST(DataParallelTraining, BucketsOfAnySizeGiveTheSameParameters) {
  TrainConfig config = SmallConfig();
  config.bucket_mb = 25;
  const HostTensors expected = Trained(config, SharedWorld());
  ExpectEqualOnAllRanks(expected);
  for (const double bucket_mb : {0.001, 0.03}) {
    config.bucket_mb = bucket_mb;
    const HostTensors found = Trained(config, SharedWorld());
    if (AddsInAFixedOrder()) {
      ExpectEqual(found, expected);
    } else {
      ExpectClose(found, expected, 1e-6);
    }
    ExpectEqualOnAllRanks(found);
  }
}

TEST(DataParallelTraining, OneReductionAtTheEndGivesTheSameParameters) {
  TrainConfig config = SmallConfig();
  config.bucket_mb = 0.01;
  const HostTensors expected = Trained(config, SharedWorld());
  config.delay_allreduce = true;
  const HostTensors found = Trained(config, SharedWorld());
  ExpectEqualOnAllRanks(found);
  if (AddsInAFixedOrder()) {
    ExpectEqual(found, expected);
  } else {
    ExpectClose(found, expected, 1e-6);
  }
}

// Powers of two scale without rounding, whatever the gradients are.
TEST(DataParallelTraining, DividingBeforeAndBehindTheReductionGivesTheSameParameters) {
  TrainConfig config = SmallConfig();
  config.accumulation = 2;
  config.clip = 0.5f;
  config.train_size = 96;
  const HostTensors expected = Trained(config, SharedWorld());
  const bool power_of_two = SharedWorld().size() != 3;
  for (const double predivide : {1.0, 4.0, 3.0}) {
    SCOPED_TRACE(predivide);
    config.grad_predivide = predivide;
    const HostTensors found = Trained(config, SharedWorld());
    ExpectEqualOnAllRanks(found);
    if (power_of_two && predivide != 3 && AddsInAFixedOrder()) {
      ExpectEqual(found, expected);
    } else {
      ExpectClose(found, expected, 1e-6);
    }
  }
}

// At several levels of mixed precision, with static and dynamic loss scales, accumulation, clipping and synchronised
// batch norms. In the first update both have the same gradients; each rank's is rounded once and each of W − 1 sums, to
// 11 or 8 bits.
TEST(DataParallelTraining, GradientsSentInAHalfTypeDifferByTheirRounding) {
  for (const bool norms : {false, true}) {
    TrainConfig config = SmallConfig();
    config.accumulation = 2;
    config.clip = 0.5f;
    config.train_size = 96;
    if (norms) {
      config.model = "resnet18";
      config.own = {{"width", 4}, {"stem", "small"}};
      config.image_size = 16;
      config.batch_size = 2;
      config.sync_batchnorm = true;
    }
    for (const auto& [precision, amp] : {std::pair("fp32", ""), {"fp16", "O1"}, {"fp16", "O2"}, {"bf16", "O1"}}) {
      config.precision = precision;
      config.amp = *amp == '\0' ? std::nullopt : std::optional<std::string>(amp);
      config.init_scale.reset();
      config.loss_scale.reset();
      if (std::string(amp) == "O2") config.loss_scale = "1024";
      if (std::string(precision) == "fp16" && !config.loss_scale) config.init_scale = 1024.0f;
      config.allreduce_dtype = "fp32";
      const HostTensors start = Trained(config, SharedWorld(), 0), expected = Trained(config, SharedWorld(), 1);
      for (const auto& [wire, bits] : {std::pair("fp16", 11), {"bf16", 8}}) {
        SCOPED_TRACE(fmt::format("{} in {} {}, {} between ranks", config.model, precision, amp, wire));
        config.allreduce_dtype = wire;
        ExpectEqualOnAllRanks(Trained(config, SharedWorld(), 3));
        const HostTensors found = Trained(config, SharedWorld(), 1);
        if (SharedWorld().size() == 1) {
          ExpectEqual(found, expected);
        } else {
          const double distance = DistanceOfMovements(found, expected, start);
          EXPECT_LE(distance, 2 * SharedWorld().size() * std::pow(2.0, -bits));
          EXPECT_GT(distance, 0) << "nothing was rounded";
        }
      }
    }
  }
}

// A model with a weight that its loss does not use is refused by name; with --find_unused_parameters the rest trains as
// without that weight, which only decays, on all ranks.
TEST(DataParallelTraining, AnUnusedParameterIsNamedOrCountsAsZero) {
  TrainConfig config = SmallConfig();
  config.momentum = 0;
  config.clip = 0.5f;
  config.accumulation = 2;
  config.train_size = 96;
  const HostTensors expected = Trained(config, SharedWorld());
  auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  TrainableModel model = run->setup.model;
  model.build = [build = model.build](nn::Context& context, const Value& images) {
    nn::Parameter(context, "spare.weight", {5, 3}, {Initializer::kConstant, 1}, true);
    return build(context, images);
  };
  const auto create = [&] {
    return Trainer::Create(config, model, *run->setup.train, *run->setup.validation, SharedWorld());
  };
  EXPECT_THAT(Message(create().status()), AllOf(HasSubstr("spare.weight"), HasSubstr("--find_unused_parameters")));
  config.find_unused_parameters = true;
  auto trainer = create();
  ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
  for (int64_t update = 0; update < 3; ++update) {
    const HostBatch batch = OwnBatch(run->setup, update, SharedWorld().rank(), SharedWorld().size());
    ASSERT_TRUE((*trainer)->Step(batch.tensors()).ok());
  }
  HostTensors found = *(*trainer)->Parameters();
  ExpectEqualOnAllRanks(found);
  const HostTensors spare = {*found.find("spare.weight")};
  found.erase("spare.weight");
  if (AddsInAFixedOrder()) {
    ExpectEqual(found, expected);
  } else {
    ExpectClose(found, expected, 1e-6);
  }
  for (const float value : spare.at("spare.weight").values)
    EXPECT_NEAR(value, std::pow(1 - config.lr * config.weight_decay, 3), 1e-6);
}

TEST(DataParallelTraining, RepeatsBitForBit) {
  TrainConfig config = SmallConfig();
  config.own["dropout"] = 0.2;
  config.optimizer = "adamw";
  config.clip = 0.5f;
  ExpectEqual(Trained(config, SharedWorld()), Trained(config, SharedWorld()));
}

// The oracle of the fused update is the loop over tensors.
TEST(DataParallelTraining, OneUpdateForEachTensorGivesTheSameParameters) {
  TrainConfig config = SmallConfig();
  config.clip = 0.5f;
  config.momentum = 0.9f;
  config.ema_decay = 0.9f;
  config.use_nvlamb = true;
  for (const auto& [precision, amp] : {std::pair("fp32", "O0"), {"fp16", "O2"}, {"bf16", "O2"}}) {
    config.precision = precision;
    config.amp = amp;
    if (std::string(precision) == "fp16") config.loss_scale = "1024";
    for (const char* optimizer : {"sgd", "adam", "adamw", "lamb", "lars"}) {
      SCOPED_TRACE(fmt::format("{} in {} {}", optimizer, precision, amp));
      config.optimizer = optimizer;
      config.fused_optimizer = true;
      const HostTensors fused = Trained(config, SharedWorld());
      config.fused_optimizer = false;
      ExpectEqual(Trained(config, SharedWorld()), fused);
      ExpectEqualOnAllRanks(fused);
    }
    config.loss_scale.reset();
  }
}

TEST(DataParallelTraining, AccumulationSendsOneRoundAndEqualsOneLargeBatch) {
  TrainConfig config = SmallConfig();
  config.batch_size = 2;
  config.accumulation = 3;
  config.train_size = 96;
  auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  const HostBatch batch = OwnBatch(run->setup, 0, SharedWorld().rank(), SharedWorld().size());
  Communicator* communicator = SharedWorld().communicator.get();
  for (int update = 0; update < 2; ++update) {
    const uint64_t before = communicator == nullptr ? 0 : communicator->bytes_sent();
    const auto result = run->trainer->Step(batch.tensors());
    ASSERT_TRUE(result.ok()) << Message(result.status());
    if (communicator != nullptr) {
      EXPECT_EQ(communicator->bytes_sent() - before, run->trainer->report().collective_bytes) << "of update " << update;
    }
  }

  // The same samples as one micro-step: rank r's i-th sample of micro-step a is its (a·B + i)-th of the large batch.
  TrainConfig large = config;
  large.batch_size = config.batch_size * config.accumulation;
  large.accumulation = 1;
  auto other = MakeRun(large, SharedWorld());
  ASSERT_TRUE(other.ok()) << Message(other.status());
  for (int update = 0; update < 2; ++update) {
    const auto result = other->trainer->Step(batch.tensors());
    ASSERT_TRUE(result.ok()) << Message(result.status());
  }
  ExpectClose(*run->trainer->Parameters(), *other->trainer->Parameters(), 1e-5);
}

// Images that the device may flip are not flipped for who brings no flips.
TEST(DataParallelTraining, WhatIsLeftOutOfAStepIsZero) {
  TrainConfig config = SmallConfig();
  config.augmentation = "crop_flip";
  config.accumulation = 2;
  config.train_size = 16 * SharedWorld().size();
  const auto loss = [&](std::optional<uint8_t> flips) {
    auto run = MakeRun(config, SharedWorld());
    EXPECT_TRUE(run.ok()) << Message(run.status());
    if (!run.ok()) return 0.0;
    EXPECT_EQ(run->trainer->task().tensors().size(), 3u);
    const HostBatch batch = OwnBatch(run->setup, 0, SharedWorld().rank(), SharedWorld().size());
    const std::vector<uint8_t> all(batch.labels.size(), flips.value_or(0));
    std::vector<std::span<const std::byte>> tensors = {batch.tensors()[0], batch.tensors()[1]};
    if (flips) tensors.push_back(std::as_bytes(std::span(all)));
    const auto result = run->trainer->Step(tensors);
    EXPECT_TRUE(result.ok()) << Message(result.status());
    return result.ok() ? result->loss : 0;
  };
  EXPECT_EQ(loss(std::nullopt), loss(0));
  EXPECT_NE(loss(std::nullopt), loss(1));
}

TEST(DataParallelTraining, UpdatesBegunAheadGiveTheBitsOfSteps) {
  for (const int accumulation : {1, 2, 3}) {
    TrainConfig config = SmallConfig();
    config.batch_size = 2;
    config.accumulation = accumulation;
    config.train_size = 96;
    config.momentum = 0.9f;
    const HostTensors expected = Trained(config, SharedWorld(), 5);
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    HostBatch batch;  // each in the memory of the one before
    for (int64_t update = 0; update < 5; ++update) {
      const HostBatch next = OwnBatch(run->setup, update, SharedWorld().rank(), SharedWorld().size());
      batch.images.assign(next.images.begin(), next.images.end());
      batch.labels.assign(next.labels.begin(), next.labels.end());
      const Status begun =
          update == 3 ? run->trainer->Step(batch.tensors()).status() : run->trainer->Begin(batch.tensors());
      ASSERT_TRUE(begun.ok()) << Message(begun);
    }
    const Status ended = run->trainer->Wait();
    ASSERT_TRUE(ended.ok()) << Message(ended);
    ExpectEqual(*run->trainer->Parameters(), expected);
    EXPECT_THAT(Message(run->trainer->Begin({})), HasSubstr("a step takes 2 tensors, found 0"));
  }
}

TEST(DataParallelTraining, ManyRanksEqualOneRankWithTheWholeBatch) {
  TrainConfig config = SmallConfig();
  config.own["dropout"] = 0.2;
  config.own["drop_path"] = 0.2;
  config.momentum = 0.9f;
  config.clip = 0.3f;
  std::vector<Trainer::StepResult> results, whole_results;
  const HostTensors found = Trained(config, SharedWorld(), 3, &results);
  TrainConfig whole = config;
  whole.batch_size = config.batch_size * SharedWorld().size();
  const auto lone = LoneWorld();
  const HostTensors expected = Trained(whole, *lone, 3, &whole_results);
  ExpectClose(found, expected, 1e-4);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_NEAR(results[i].grad_norm, whole_results[i].grad_norm, 1e-4 * whole_results[i].grad_norm);
    double mean = results[i].loss;
    if (SharedWorld().size() > 1) {
      ASSERT_TRUE(SharedWorld().communicator->AllReduce("mean", &mean, &mean, 1, SY_F64, SY_SUM).ok());
    }
    EXPECT_NEAR(mean / SharedWorld().size(), whole_results[i].loss, 1e-5);
  }
}

// The same through the loader: sampler, augmentation, dropout and drop_path, epochs and all.
// An update has not waited longer for other ranks than it took.
void ExpectWaitsWithinUpdates(const TrainingResult& result, int images) {
  const auto log = ReadMetrics(result.run_folder + "/0/log/metrics.jsonl");
  ASSERT_TRUE(log.ok()) << Message(log.status());
  int updates = 0;
  for (const MetricsRecord& record : *log) {
    if (!record.contains("comm_wait_ms")) continue;
    EXPECT_LE(record.at("comm_wait_ms"), 1e3 * images / record.at("images_per_s").get<double>()) << record.dump();
    ++updates;
  }
  EXPECT_GT(updates, 0);
}

TEST(DataParallelTraining, ManyRanksTrainOnTheSameDataAsOneRank) {
  TrainConfig config = SmallConfig();
  config.train_size = 12 * SharedWorld().size();
  config.steps = 5;  // of three in an epoch
  config.own["dropout"] = 0.1;
  config.own["drop_path"] = 0.1;
  config.augmentation = "crop_flip";
  config.suffix = "many_ranks";
  auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  if (SharedWorld().size() > 1) {  // what rank 0 waits for here is no update's
    if (SharedWorld().rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ASSERT_TRUE(SharedWorld().communicator->Barrier("before the first update").ok());
  }
  const auto result = run->trainer->Train();
  ASSERT_TRUE(result.ok()) << Message(result.status());
  if (SharedWorld().rank() == 0) ExpectWaitsWithinUpdates(*result, config.batch_size * SharedWorld().size());

  TrainConfig whole = config;
  whole.batch_size = config.batch_size * SharedWorld().size();
  whole.suffix = fmt::format("one_rank_{}", SharedWorld().rank());
  const auto lone = LoneWorld();
  auto other = MakeRun(whole, *lone);
  ASSERT_TRUE(other.ok()) << Message(other.status());
  const auto expected = other->trainer->Train();
  ASSERT_TRUE(expected.ok()) << Message(expected.status());
  ExpectClose(*run->trainer->Parameters(), *other->trainer->Parameters(), 1e-4);
  EXPECT_NEAR(result->train_loss, expected->train_loss, 1e-4);
}

TEST(DataParallelTraining, AllRanksStartFromTheParametersOfOne) {
  TrainConfig config = SmallConfig();
  const auto lone = LoneWorld();
  const auto of_one = MakeRun(config, *lone);
  ASSERT_TRUE(of_one.ok()) << Message(of_one.status());
  const auto run = MakeRun(config, SharedWorld());
  ASSERT_TRUE(run.ok()) << Message(run.status());
  ExpectEqual(*run->trainer->Parameters(), *of_one->trainer->Parameters());
}

TEST(DataParallelTraining, OtherParametersOnOneRankAreRefusedByName) {
  const int world = SharedWorld().size();
  if (world == 1) GTEST_SKIP() << "needs two ranks";
  const auto lone = LoneWorld();
  TrainConfig wide = SmallConfig();
  wide.own["width"] = 64;
  const auto run = MakeRun(SmallConfig(), *lone), other = MakeRun(wide, *lone);
  ASSERT_TRUE(run.ok() && other.ok());
  const RunSetup& setup = run->setup;
  const TrainableModel& model = SharedWorld().rank() == world - 1 ? other->setup.model : setup.model;
  const auto trainer = Trainer::Create(setup.config, model, *setup.train, *setup.validation, SharedWorld());
  ASSERT_FALSE(trainer.ok());
  EXPECT_THAT(Message(trainer.status()),
              AllOf(HasSubstr("the parameters are not the same on all ranks"),
                    HasSubstr(fmt::format("rank {} has \"blocks.0.attn.proj.bias f32(64)\"", world - 1)),
                    HasSubstr("rank 0 has \"blocks.0.attn.proj.bias f32(32)\"")));
  EXPECT_TRUE(MakeRun(SmallConfig(), SharedWorld()).ok()) << "the world is still whole";
}

TEST(DataParallelTraining, OtherSettingsOnOneRankAreRefusedByName) {
  const int world = SharedWorld().size();
  if (world == 1) GTEST_SKIP() << "needs two ranks";
  const auto refusal = [&](const std::function<void(TrainConfig&)>& change) {
    TrainConfig config = SmallConfig();
    if (SharedWorld().rank() == world - 1) change(config);
    const auto run = MakeRun(config, SharedWorld());
    return run.ok() ? std::string("all of them train") : Message(run.status());
  };
  EXPECT_THAT(
      refusal([](TrainConfig& c) { c.lr = 0.5f; }),
      AllOf(HasSubstr(fmt::format("rank {} has \"--lr=0.5\"", world - 1)), HasSubstr("rank 0 has \"--lr=0.05\"")));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.seed = 7; }), HasSubstr("\"--seed=7\""));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.ranks_per_node = 2; }),
              AllOf(HasSubstr("\"--ranks_per_node=2\""), HasSubstr("rank 0 has \"--ranks_per_node=\"")));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.pp_interleave = 2; }),
              AllOf(HasSubstr("\"--pp_interleave=2\""), HasSubstr("rank 0 has \"--pp_interleave=1\"")));
  EXPECT_THAT(refusal([](TrainConfig& c) { c.own["width"] = 64; }), HasSubstr("\"--width=64\""));
  EXPECT_TRUE(MakeRun(SmallConfig(), SharedWorld()).ok()) << "the world is still whole";
}

TEST(Evaluation, CountsEverySampleOnceInAnyWorld) {
  const auto lone = LoneWorld();
  for (const int64_t size : {1, 3, 37, 64}) {
    TrainConfig config = SmallConfig();
    config.validation_size = size;
    const auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const auto found = run->trainer->Evaluate(*run->setup.validation);
    ASSERT_TRUE(found.ok()) << Message(found.status());
    const auto alone = MakeRun(config, *lone);
    ASSERT_TRUE(alone.ok()) << Message(alone.status());
    const auto expected = alone->trainer->Evaluate(*alone->setup.validation);
    ASSERT_TRUE(expected.ok()) << Message(expected.status());
    EXPECT_EQ(found->count, size);
    EXPECT_EQ(expected->count, size);
    EXPECT_EQ(std::lround(found->metrics.at("top1") * static_cast<double>(size)),
              std::lround(expected->metrics.at("top1") * static_cast<double>(size)));
    EXPECT_EQ(std::lround(found->metrics.at("top5") * static_cast<double>(size)),
              std::lround(expected->metrics.at("top5") * static_cast<double>(size)));
    EXPECT_NEAR(found->metrics.at("loss"), expected->metrics.at("loss"), 1e-6 * expected->metrics.at("loss"));
  }
}

}  // namespace
}  // namespace switchyard
