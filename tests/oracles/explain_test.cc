// `explain` tells the truth: for random settings its bytes and FLOPs, made without data and memory, are those of the
// Trainer that runs them.
#include <ctime>

#include "core/base/random.h"
#include "core/train/plans.h"
#include "core/train/timetable.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

constexpr int kSamples = 200;

TrainConfig RandomConfig(RandomStream& random) {
  const auto one_of = [&](auto... choices) {
    const std::common_type_t<decltype(choices)...> all[] = {choices...};
    return all[random.Below(sizeof...(choices))];
  };
  TrainConfig c = SmallConfig();
  if (random.Below(4) == 0) {
    c.model = "mlp";
    c.own = {{"width", one_of(8, 24)}};
  } else {
    c.own = {{"width", one_of(16, 32)}, {"depth", one_of(1, 2)}, {"heads", one_of(1, 2)}};
    if (random.Below(2) == 0) c.own["dropout"] = 0.1;
    if (random.Below(3) == 0) c.own["drop_path"] = 0.2;
  }
  c.batch_size = one_of(1, 2, 3, 4);
  c.accumulation = one_of(1, 2, 3, 4);
  if (random.Below(2) == 0) {
    c.steps = one_of(1, 2, 7);
  } else {
    c.steps.reset();
    c.epochs = one_of(1, 3, 200);
  }
  c.optimizer = one_of("sgd", "adam", "adamw", "lamb", "lars");
  c.momentum = one_of(0.0f, 0.9f);
  c.nesterov = (c.optimizer == "sgd" || c.optimizer == "lars") && c.momentum > 0 && random.Below(2) == 0;
  c.clip = one_of(0.0f, 1.0f);
  c.ema_decay = one_of(0.0f, 0.0f, 0.99f);
  c.layer_decay = one_of(1.0f, 1.0f, 0.7f);
  c.fused_optimizer = random.Below(4) != 0;
  c.label_smoothing = one_of(0.0f, 0.1f);
  c.precision = one_of("fp32", "bf16", "fp16");
  if (c.precision != "fp32") c.amp = one_of("O1", "O2", "O3");
  c.bucket_mb = one_of(0.001, 0.01, 25.0);
  c.compile = random.Below(4) != 0;
  c.recompute = one_of("none", "blocks", "every:2");
  return c;
}

TEST(Explain, EqualsTheTrainerInEveryByteAndFlop) {
  World& world = SharedWorld();
  RandomStream random(Key(HashName("explain"), 0));
  for (int i = 0; i < kSamples; ++i) {
    const TrainConfig config = RandomConfig(random);
    SCOPED_TRACE(ToJson(config, {SettingKind::kProperty}).dump());
    const auto run = MakeRun(config, world);
    ASSERT_TRUE(run.ok()) << Message(run.status());
    TrainingPlans explained;
    const auto timetable = Timetable::Of(run->setup.config, run->setup.train->size(), world.size());
    ASSERT_TRUE(timetable.ok()) << Message(timetable.status());
    const Status compiled = explained.CompileRun(run->setup.config, run->setup.model, world.mesh, timetable->updates,
                                                 *world.device, world.reference.get());
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    const PlanReport told = explained.Report(), &runs = run->trainer->report();
    ASSERT_EQ(explained.PlannedBytes(), run->trainer->allocated_bytes());
    ASSERT_EQ(told.flops, runs.flops);
    ASSERT_EQ(told.bytes, runs.bytes);
    ASSERT_EQ(told.launches, runs.launches);
    ASSERT_EQ(told.copies, runs.copies);
    ASSERT_EQ(told.collectives, runs.collectives);
    ASSERT_EQ(told.wire_bytes, runs.wire_bytes);
    ASSERT_EQ(told.ToText().substr(0, told.ToText().find("memory by class")),
              runs.ToText().substr(0, runs.ToText().find("memory by class")));
  }
}

double FlopsOf(const Plan& plan, const std::function<bool(const std::string& family)>& counts) {
  double flops = 0;
  for (const Step& step : plan.schedule().steps) {
    if (counts(FamilyOf(plan.graph().node(step.node).op))) flops += step.cost.flops;
  }
  return flops;
}

// Forward, the gradients of what goes into each layer, and those of its weights. But nobody asks for the gradient of
// the images, so that the first product has two of the three; and attention's backward pass computes the scores again,
// half of its forward pass, rather than keep them. What a step does once for each parameter is little at this batch.
TEST(Explain, FlopsOfTrainingAreThreeTimesThoseOfAForwardPass) {
  World& world = SharedWorld();
  for (const char* model : {"vit_micro", "vit_tiny", "vit_base", "swin_tiny", "resnet18", "resnet50", "unet3d",
                            "deeplabv3plus_resnet50", "mlp"}) {
    SCOPED_TRACE(model);
    Settings settings(RunTable());
    ASSERT_TRUE(settings.Give("model", model, Origin::kFlag, "this test").ok());
    ASSERT_TRUE(settings.Give("batch_size", 256, Origin::kFlag, "this test").ok());
    const auto setup = SetUpModel(settings, nullptr, world.size());
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    const auto compile = [&](TrainingPlans& plans, bool evaluation_only) {
      return plans.CompileRun(setup->config, setup->model, Mesh{.data = world.size()}, 1, *world.device,
                              world.reference.get(), evaluation_only);
    };
    TrainingPlans training, evaluation;
    ASSERT_TRUE(compile(training, false).ok());
    ASSERT_TRUE(compile(evaluation, true).ok());
    double first_product = 0;
    for (const Step& step : evaluation.Main().schedule().steps) {
      const std::string family = FamilyOf(evaluation.Main().graph().node(step.node).op);
      if (first_product == 0 && (family == "matmul" || family == "convolution")) first_product = step.cost.flops;
    }
    const double scores =
        FlopsOf(evaluation.Main(), [](const std::string& family) { return family == "attention"; }) / 2;
    const double forward = FlopsOf(evaluation.Main(), [](const std::string&) { return true; });
    EXPECT_NEAR((training.Report().flops + first_product - scores) / forward, 3, 0.03);
  }
}

// Nothing in planning may grow faster than the graph: for runs of many ranks `explain` is asked again and again.
TEST(Explain, PlansAHundredLayersForSixtyFourRanksInThreeSecondsOfOneCore) {
#ifndef NDEBUG
  GTEST_SKIP() << "the limit is that of an optimised build";
#endif
  World& world = SharedWorld();
  Settings settings(RunTable());
  ASSERT_TRUE(settings.Give("model", "vit_base", Origin::kFlag, "this test").ok());
  ASSERT_TRUE(settings.Give("depth", 100, Origin::kFlag, "this test").ok());
  ASSERT_TRUE(settings.Give("batch_size", 8, Origin::kFlag, "this test").ok());
  const auto setup = SetUpModel(settings, nullptr, 64);
  ASSERT_TRUE(setup.ok()) << Message(setup.status());
  const std::clock_t start = std::clock();
  TrainingPlans plans;
  const Status compiled =
      plans.CompileRun(setup->config, setup->model, Mesh{.data = 64}, 1, *world.device, world.reference.get());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(compiled.ok()) << Message(compiled);
  EXPECT_LE(seconds, 3.0);
  if (world.rank() == 0) fmt::print("planned in {:.2f} s of processor time\n", seconds);
}

}  // namespace
}  // namespace switchyard
