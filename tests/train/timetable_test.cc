// Length and learning rates of a run that goes on with another global batch or with other data.
#include "core/train/timetable.h"

#include "gtest/gtest.h"

namespace switchyard {
namespace {

constexpr int64_t kSamples = 1280;  // 20 updates an epoch at batch 64

TrainConfig Config(const std::string& schedule, const std::string& warmup, int batch = 64) {
  TrainConfig config;
  config.batch_size = batch;
  config.epochs = 40;
  config.schedule = schedule;
  config.milestones = {"5000"};
  config.warmup = warmup;
  config.warmup_lr = 0;
  config.lr = 1;
  config.scale_lr = "none";
  return config;
}

// A run from one batch to the next, as its checkpoints tell of it.
class RunThatChanges {
 public:
  explicit RunThatChanges(const TrainConfig& config) { TakeUp(config); }

  // Goes on with that from where it stands.
  const Timetable& TakeUp(const TrainConfig& config, int64_t of_data = kSamples) {
    const int64_t samples = at_.batch * config_.batch_size;
    config_ = config;
    at_.batch = samples / config.batch_size;
    EXPECT_EQ(at_.batch * config.batch_size, samples);
    const auto table = Timetable::Of(config, of_data, 1, at_);
    EXPECT_TRUE(table.ok()) << Message(table.status());
    table_ = *table;
    at_.course = table_.course;
    return table_;
  }
  void Train(int64_t updates) {
    for (; updates > 0; --updates) {
      ++at_.data_step;
      if (++at_.batch == table_.updates_per_epoch) at_.batch = 0, ++at_.epoch;
    }
  }
  const Timetable& table() const { return table_; }

 private:
  TrainConfig config_;
  RunPosition at_;
  Timetable table_;
};

TEST(TimetableTest, FallsToldInEpochsAreAtTheirUpdates) {
  const auto rates = [](const std::string& schedule, std::vector<std::string> milestones, const std::string& step) {
    TrainConfig config = Config(schedule, "0");
    config.milestones = std::move(milestones);
    config.step_size = step;
    return Timetable::Of(config, kSamples, 1, {})->rates;
  };
  const std::vector<float> steps = rates("step", {}, "10e"),
                           milestones = rates("multistep", {"10e", "20e", "30e"}, "1");
  EXPECT_EQ(steps, rates("step", {}, "200"));
  EXPECT_EQ(milestones, rates("multistep", {"200", "400", "600"}, "1"));
  EXPECT_EQ(steps, milestones);
  EXPECT_EQ(steps[199], 1);
  EXPECT_FLOAT_EQ(steps[200], 0.1f);
  const std::vector<float> never = rates("step", {}, "900000000000000e");  // more updates than can be counted
  EXPECT_EQ(never.back(), 1);
}

TEST(TimetableTest, AWarmUpThatIsOverStaysOver) {
  for (const char* schedule : {"multistep", "cosine"}) {
    RunThatChanges run(Config(schedule, "20e", 128));
    run.Train(300);
    const Timetable& table = run.TakeUp(Config(schedule, "20e"));
    EXPECT_EQ(table.updates, 300 + 200);
    EXPECT_LT(table.rates[299], 1.0001);
    for (size_t i = 300; i < 500; ++i) ASSERT_LE(table.rates[i], table.rates[i - 1]) << i;
  }
  RunThatChanges run(Config("multistep", "20e", 128));
  run.Train(300);
  for (int64_t i = 300; i < run.TakeUp(Config("multistep", "20e")).updates; ++i)
    ASSERT_EQ(run.table().rates[static_cast<size_t>(i)], 1) << i;
}

TEST(TimetableTest, AWarmUpThatIsNotOverEndsAfterItsEpochs) {
  for (const char* schedule : {"multistep", "cosine"}) {
    RunThatChanges run(Config(schedule, "20e", 128));
    run.Train(100);
    const std::vector<float> rates = run.TakeUp(Config(schedule, "20e")).rates;
    EXPECT_NEAR(rates[100], 0.5, 1e-6);
    EXPECT_LT(rates[298], 1);
    EXPECT_EQ(rates[300], 1);
  }
  // The same with the batch doubled: half of the epochs' warm-up lies behind, not all of it.
  RunThatChanges run(Config("cosine", "20e"));
  run.Train(200);
  EXPECT_NEAR(run.TakeUp(Config("cosine", "20e", 128)).rates[200], 0.5, 1e-6);
}

TEST(TimetableTest, AWarmUpToldInUpdatesDoesNotMove) {
  for (const char* schedule : {"multistep", "cosine"}) {
    for (const int batch : {32, 128}) {
      RunThatChanges run(Config(schedule, "100"));
      run.Train(50);
      const std::vector<float> before = run.table().rates, rates = run.TakeUp(Config(schedule, "100", batch)).rates;
      for (size_t i = 40; i < 100; ++i) ASSERT_EQ(rates[i], before[i]) << schedule << " " << batch << " " << i;
      EXPECT_GT(rates[100], 0.99);  // cosine has begun to follow the epochs
    }
  }
}

// An epoch is one of the data that are there: of more of them it has more updates, and the run as many epochs as
// before.
TEST(TimetableTest, EpochsThatAreLeftAreOfTheDataAtHand) {
  for (const int64_t data : {kSamples / 2, kSamples, 2 * kSamples}) {
    RunThatChanges run(Config("multistep", "0"));
    run.Train(10 * 20);
    TrainConfig config = Config("multistep", "0");
    config.milestones = {"20e"};
    const Timetable table = run.TakeUp(config, data);
    EXPECT_EQ(table.updates, 200 + 30 * data / 64) << data;
    const auto fall = static_cast<size_t>(200 + 10 * data / 64);
    EXPECT_EQ(table.rates[fall - 1], 1) << data;
    EXPECT_FLOAT_EQ(table.rates[fall], 0.1f) << data;
    run.Train(7 * data / 64);
    EXPECT_EQ(run.TakeUp(config, data).rates, table.rates) << data;
  }
  RunPosition within{.data_step = 15, .batch = 15, .course = {.samples_per_update = 64, .samples = kSamples}};
  EXPECT_TRUE(Timetable::Of(Config("cosine", "0"), kSamples - 64, 1, within).ok());
  EXPECT_EQ(Message(Timetable::Of(Config("cosine", "0"), kSamples / 2, 1, within).status()),
            "no update of 64 images is left in epoch 1: the run stands 960 images into it, and the training data are "
            "640; go on from a checkpoint at the end of an epoch, or give the 1280 images that it was trained on with "
            "--data");
  // With another batch the rest of an epoch may be less than an update: the epoch is over, then.
  within.batch = 2;  // of 480
  const auto other = Timetable::Of(Config("cosine", "0", 480), kSamples, 1, within);
  ASSERT_TRUE(other.ok()) << Message(other.status());
  EXPECT_EQ(other->updates, 15 + 39 * 2);
}

// Whoever is taken up twice has the rates of whoever is taken up once, wherever that was.
TEST(TimetableTest, TakenUpAgainIsGoingStraightOn) {
  for (const std::string schedule : {"constant", "multistep", "multistep of shares", "multistep of epochs", "step",
                                     "step of epochs", "linear", "cosine", "cosine_annealing"}) {
    for (const char* warmup : {"0", "90", "7e", "0.2"}) {
      for (const int batch : {16, 32, 128, 320}) {
        for (const bool per_epoch : {false, true}) {
          for (const bool steps : {false, true}) {
            for (const int64_t first : {10, 20, 70, 140, 200}) {  // within an epoch and between two
              const std::string kind = schedule.substr(0, schedule.find(' '));
              TrainConfig before = Config(kind, warmup), after = Config(kind, warmup, batch);
              for (TrainConfig* config : {&before, &after}) {
                config->milestones = {"30", "100", "150"};
                if (schedule.ends_with("shares")) config->milestones = {"0.04", "0.125", "0.5"};
                if (schedule.ends_with("epochs")) config->milestones = {"1e", "2.5e", "4e"};
                config->step_size = schedule.ends_with("epochs") ? "2e" : "60";
                config->per_epoch = per_epoch;
                if (steps) config->steps = 900;
              }
              RunThatChanges run(before);
              run.Train(first);
              const std::vector<float> straight = run.TakeUp(after).rates;
              for (const int64_t further : {1, 3, 30, 60}) {
                run.Train(further);
                ASSERT_EQ(run.TakeUp(after).rates, straight)
                    << schedule << " " << warmup << " " << batch << " " << per_epoch << " " << first << " " << further;
              }
              RunThatChanges lone(before);
              const std::vector<float> alone = lone.table().rates;
              lone.Train(first);
              ASSERT_EQ(lone.TakeUp(before).rates, alone);
            }
          }
        }
      }
    }
  }
}

TEST(TimetableTest, MilestonesToldAsSharesFollowTheEpochs) {
  TrainConfig before = Config("multistep", "0"), after = Config("multistep", "0", 128);  // 20 and 10 updates an epoch
  for (TrainConfig* config : {&before, &after}) config->milestones = {"0.25", "0.75"};   // epochs 10 and 30 of 40
  RunThatChanges run(before);
  run.Train(15 * 20);
  const std::vector<float> rates = run.TakeUp(after).rates;
  ASSERT_EQ(rates.size(), 300u + 25 * 10);
  EXPECT_FLOAT_EQ(rates[300], 0.1f) << "the first milestone is behind";
  EXPECT_FLOAT_EQ(rates[300 + 15 * 10 - 1], 0.1f) << "the end of epoch 29";
  EXPECT_FLOAT_EQ(rates[300 + 15 * 10], 0.01f);
}

// With --per_epoch, rates change where epochs begin, of which the first new one may be one of two sizes.
TEST(TimetableTest, EpochsOfAChangedBatchBeginWhereTheyBegin) {
  TrainConfig before = Config("multistep", "0"), after = Config("multistep", "0", 128);
  for (TrainConfig* config : {&before, &after}) {
    config->per_epoch = true;
    config->milestones = {"55", "85"};
    config->gamma = 0.5f;
  }
  RunThatChanges run(before);
  run.Train(50);  // epochs begin after 0, 20, 40 updates, and after 50: 5 of its 10 new updates are left
  const std::vector<float> rates = run.TakeUp(after).rates;
  for (size_t i = 0; i < 110; ++i) {
    const size_t epoch = i < 40 ? i / 20 * 20 : i < 55 ? 40 : 55 + (i - 55) / 10 * 10;
    EXPECT_EQ(rates[i], epoch >= 85 ? 0.25f : epoch >= 55 ? 0.5f : 1.0f) << i;
  }
}

TEST(TimetableTest, MoreUpdatesThanTheDeviceCountsAreRefused) {
  TrainConfig config = Config("cosine", "0");
  config.steps = (int64_t{1} << 24) + 1;
  EXPECT_EQ(Message(Timetable::Of(config, kSamples, 1, {}).status()),
            "a run makes at most 16777216 updates, and this one would make 16777217; set fewer --epochs or --steps, or "
            "a larger batch");
}

}  // namespace
}  // namespace switchyard
