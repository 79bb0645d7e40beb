// What --offload keeps in host memory, the optimizer's state or parameters too: training ends with the bits of a device
// that holds all (oracle 4), holds exactly what was moved less there, and goes on from checkpoints of either kind. On
// `null`, whose kernels are those of the reference plugin, as the host's beside it are, and which really moves what is
// offloaded. On other devices (SWITCHYARD_TEST_DEVICE) an update on the host rounds otherwise than one on the device,
// as the sums and roots of another plugin do: there training ends within rounding of the device that holds all, as it
// does where ranks add up in another order, and files hold the same tensors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/train/plans.h"
#include "core/train/tensor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

struct Ended {
  HostTensors parameters;
  std::string folder;
  TrainableModel model;
  int64_t skipped = 0;
  std::map<std::string, double> metrics;  // of the last evaluation, and those of the averaged weights
};

// Six updates, all saved.
TrainConfig Config(const std::string& optimizer, int zero) {
  TrainConfig config = SmallConfig();
  config.optimizer = optimizer;
  config.zero = zero;
  config.momentum = 0.9f;
  config.lr = optimizer == "sgd" ? 0.05f : 1e-3f;
  config.batch_size = 2;
  config.train_size = int64_t{8} * SharedWorld().size();
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.bucket_mb = 0.02;  // several buckets
  return config;
}

// fraction: of the state; of_parameters: of those.
Ended Train(TrainConfig config, const std::string& offload, float fraction = 1, const std::string& from = "",
            float of_parameters = 1) {
  Ended ended;
  config.offload = offload;
  config.offload_optim_frac = fraction;
  config.offload_param_frac = of_parameters;
  if (!from.empty()) config.resume = from;
  auto run = MakeRun(config, SharedWorld());
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return ended;
  EXPECT_EQ(run->trainer->planned_bytes(), run->trainer->allocated_bytes());
  EXPECT_EQ(run->trainer->planned_host_bytes(), run->trainer->host_allocated_bytes());
  EXPECT_EQ(run->trainer->host_allocated_bytes() > 0, offload != "none");
  const auto result = run->trainer->Train();
  EXPECT_TRUE(result.ok()) << Message(result.status());
  if (!result.ok()) return ended;
  ended.folder = result->run_folder;
  ended.model = run->setup.model;
  ended.skipped = result->skipped_updates;
  ended.metrics = result->evaluation.metrics;
  for (const auto& [name, value] : result->evaluation.ema) ended.metrics["ema " + name] = value;
  ended.parameters = *run->trainer->Parameters();
  ExpectEqualOnAllRanks(ended.parameters);
  TakeTurns();
  return ended;
}

std::string Step(const Ended& run, int step) { return fmt::format("{}/checkpoints/step-{:08}", run.folder, step); }

bool UpdatesAlikeOnTheHost() { return SharedWorld().choice.plugin == "null"; }

// What a checkpoint holds, in f32 and otherwise.
struct Held {
  HostTensors floats;
  SavedByName others;
};
Held HeldIn(SavedByName tensors) {
  Held held;
  for (auto& [name, saved] : tensors) {
    if (saved.dtype != "F32") {
      held.others[name] = std::move(saved);
      continue;
    }
    HostTensor& tensor = held.floats[name];
    tensor.shape = saved.shape;
    tensor.values.resize(saved.bytes.size() / sizeof(float));
    std::memcpy(tensor.values.data(), saved.bytes.data(), saved.bytes.size());
  }
  return held;
}

// A key's bias adds the same to all scores of a query, which changes no softmax: its gradient is 0 but for rounding,
// and so are its moments and steps. Without it, in the engine's packed projections and in files, which have it apart.
HostTensors WithoutBiasesOfKeys(HostTensors tensors) {
  std::erase_if(tensors, [](const auto& tensor) { return tensor.first.ends_with("key.bias"); });
  for (auto& [name, tensor] : tensors) {
    const auto third = static_cast<ptrdiff_t>(tensor.values.size() / 3);
    if (name.ends_with("qkv.bias")) std::fill(tensor.values.begin() + third, tensor.values.begin() + 2 * third, 0.0f);
  }
  return tensors;
}

// Where updates differ in rounding.
void ExpectWithinRounding(const Held& found, const Held& expected, double tolerance) {
  ExpectEqualTensors(found.others, expected.others);
  ExpectClose(WithoutBiasesOfKeys(found.floats), WithoutBiasesOfKeys(expected.floats), tolerance);
}
void ExpectWithinRounding(const Ended& found, const Ended& expected, double tolerance) {
  ExpectClose(WithoutBiasesOfKeys(found.parameters), WithoutBiasesOfKeys(expected.parameters), tolerance);
  ASSERT_EQ(found.metrics.size(), expected.metrics.size());
  for (const auto& [name, value] : expected.metrics) {
    ASSERT_TRUE(found.metrics.contains(name)) << name;
    if (name.ends_with("loss")) {
      EXPECT_NEAR(found.metrics.at(name), value, tolerance * std::fabs(value)) << name;
    }
  }
  if (SharedWorld().rank() != 0) return;
  const std::string one = Step(found, 6), other = Step(expected, 6);
  ExpectWithinRounding(HeldIn(WeightsOf(one)), HeldIn(WeightsOf(other)), tolerance);
  ExpectWithinRounding(HeldIn(StateOf(one, found.model)), HeldIn(StateOf(other, expected.model)), tolerance);
}

// The parameters, what was evaluated, and all that the last checkpoint holds.
void ExpectSame(const Ended& found, const Ended& expected, double tolerance = 1e-5) {
  if (!UpdatesAlikeOnTheHost()) return ExpectWithinRounding(found, expected, tolerance);
  ExpectEqual(found.parameters, expected.parameters);
  EXPECT_EQ(found.metrics, expected.metrics);
  if (SharedWorld().rank() != 0) return;
  ExpectEqualBytes(Bytes(Step(found, 6) + "/model.safetensors"), Bytes(Step(expected, 6) + "/model.safetensors"),
                   "the model");
  ExpectEqualTensors(StateOf(Step(found, 6), found.model), StateOf(Step(expected, 6), expected.model));
}

// The optimizer and the stage of sharing.
class Offload : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
      GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
    if (std::get<1>(GetParam()) > 0 && SharedWorld().size() == 1) GTEST_SKIP() << "one rank shares with nobody";
  }
};

TEST_P(Offload, HasTheBitsOfADeviceThatHoldsAll) {
  const auto& [optimizer, zero] = GetParam();
  const TrainConfig config = Config(optimizer, zero);
  const Ended expected = Train(config, "none"), offloaded = Train(config, "optimizer");
  ExpectSame(offloaded, expected);
  ExpectSame(Train(config, "optimizer", 0.5f), expected);
  // Taken up where the state lay elsewhere, and by ranks that share in another way.
  ExpectSame(Train(config, "optimizer", 1, Step(expected, 3)), expected);
  ExpectSame(Train(config, "none", 1, Step(offloaded, 4)), expected);
  if (optimizer == "lamb" || zero > 1) return;
  TrainConfig other = config;
  other.zero = 1 - zero;
  ExpectSame(Train(other, "optimizer", 0.5f, Step(offloaded, 2)), expected);
}

TEST_P(Offload, OfParametersTooHasTheBitsOfADeviceThatHoldsAll) {
  const auto& [optimizer, zero] = GetParam();
  const TrainConfig config = Config(optimizer, zero);
  const Ended expected = Train(config, "none"), offloaded = Train(config, "all");
  ExpectSame(offloaded, expected);
  ExpectSame(Train(config, "all", 0.4f, "", 0.7f), expected);
  ExpectSame(Train(config, "all", 0.7f, Step(expected, 3), 0.4f), expected);
  ExpectSame(Train(config, "none", 1, Step(offloaded, 4)), expected);
  ExpectSame(Train(config, "optimizer", 1, Step(offloaded, 2)), expected);
  if (optimizer != "adamw") return;
  TrainConfig on_disk = config;
  on_disk.offload_dir = SharedFolder() + "/offloaded";
  std::filesystem::create_directories(*on_disk.offload_dir);
  ExpectSame(Train(on_disk, "all", 0.4f, Step(expected, 3)), expected);
  ExpectSame(Train(on_disk, "optimizer"), expected);
  EXPECT_TRUE(std::filesystem::is_empty(*on_disk.offload_dir)) << "files have no names";
}

TEST_P(Offload, LeavesOutWhatOverflowsAndClipsAveragesAndAccumulates) {
  const auto& [optimizer, zero] = GetParam();
  if (optimizer != "adamw") GTEST_SKIP() << "for one optimizer";
  TrainConfig config = Config(optimizer, zero);
  config.clip = 0.5f;
  config.ema_decay = 0.9f;
  config.layer_decay = 0.8f;
  config.accumulation = 2;
  *config.train_size *= 2;
  config.precision = "fp16";
  config.loss_scale = "dynamic";
  config.scaler_preset = "default";
  config.init_scale = 1 << 21;  // half precision does not hold the first gradients
  config.hysteresis = 1;
  for (const char* amp : {"O1", "O2"}) {
    SCOPED_TRACE(amp);
    config.amp = amp;
    const Ended expected = Train(config, "none");
    EXPECT_GE(expected.skipped, 1);
    EXPECT_LT(expected.skipped, 6);
    EXPECT_TRUE(expected.metrics.contains("ema loss"));
    for (const char* offload : {"optimizer", "all"}) {
      SCOPED_TRACE(offload);
      const Ended offloaded = Train(config, offload);
      EXPECT_EQ(offloaded.skipped, expected.skipped);
      ExpectSame(offloaded, expected, 1e-3);  // where updates round otherwise, a weight's half copy may
    }
  }
}

// Ranks that share each model, as so many stages or parts of weights, and update it on their hosts.
class OffloadOnMeshes : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (world_.device->info().address_kind == SY_ADDRESS_HOST)
      GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
    if (world_.size() % 2 != 0) GTEST_SKIP() << "one rank shares a model with nobody";
  }
  void TearDown() override { world_.mesh = {.data = world_.size()}; }
  World& world_ = SharedWorld();
};

TEST_P(OffloadOnMeshes, HasTheBitsOfADeviceThatHoldsAll) {
  const bool stages = std::string(GetParam()) == "pp", by_norm = std::string(GetParam()) == "tp_lamb";
  TrainConfig config = Config(by_norm ? "lamb" : "adamw", 0);
  (stages ? config.pp : config.tp) = 2;
  config.accumulation = stages ? 2 : 1;
  config.clip = 0.5f;
  world_.mesh = {.data = world_.size() / 2, .pipeline = config.pp, .tensor = config.tp};
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(zero);
    if (zero > world_.data_size() - 1) continue;
    config.zero = zero;
    const Ended expected = Train(config, "none"), offloaded = Train(config, "optimizer");
    ExpectSame(offloaded, expected);
    ExpectSame(Train(config, "all"), expected);
    ExpectSame(Train(config, "all", 0.4f, Step(expected, 3), 0.7f), expected);
    ExpectSame(Train(config, "none", 1, Step(offloaded, 4)), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Axes, OffloadOnMeshes, ::testing::Values("tp", "tp_lamb", "pp"),
                         [](const auto& info) { return std::string(info.param); });

TrainingPlans PlansOf(const TrainConfig& config) {
  TrainingPlans plans;
  const auto setup = SettledRun(config, SharedWorld());
  EXPECT_TRUE(setup.ok()) << Message(setup.status());
  if (!setup.ok()) return plans;
  const Status compiled =
      plans.CompileRun(setup->config, setup->model, SharedWorld().mesh, SharedWorld().rank(), 6, *SharedWorld().device,
                       SharedWorld().reference.get(), false, SharedWorld().host.get());
  EXPECT_TRUE(compiled.ok()) << Message(compiled);
  return plans;
}

uint64_t BytesOf(const TrainingPlans& plans, int arena) { return plans.layout->bytes(arena); }

TEST_P(Offload, TakesExactlyTheMomentsFromTheDevice) {
  const auto& [optimizer, zero] = GetParam();
  TrainConfig config = Config(optimizer, zero);
  const TrainingPlans without = PlansOf(config);
  config.offload = "optimizer";
  const TrainingPlans with = PlansOf(config);
  uint64_t moments = 0;
  for (const auto& [name, entry] : with.layout->entries()) {
    if (!name.starts_with("moment")) continue;
    EXPECT_EQ(entry.arena,
              zero == 0 || !entry.part || entry.part->end > entry.part->begin ? kHostStateArena : kStateArena)
        << name;
    if (entry.arena == kHostStateArena) moments += with.layout->Align(entry.bytes);
  }
  EXPECT_GT(moments, 0u);
  EXPECT_EQ(BytesOf(without, kStateArena) - BytesOf(with, kStateArena), moments);
  EXPECT_EQ(BytesOf(with, kHostStateArena), moments);
  EXPECT_EQ(BytesOf(without, kHostStateArena), 0u);
  EXPECT_EQ(BytesOf(with, kGradientsArena), BytesOf(without, kGradientsArena));
  EXPECT_GT(with.Report().host_launches, 1) << "bucket by bucket";
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Offload,
                         ::testing::Values(std::tuple("sgd", 0), std::tuple("adam", 0), std::tuple("adamw", 0),
                                           std::tuple("lamb", 0), std::tuple("sgd", 1), std::tuple("adamw", 1),
                                           std::tuple("lamb", 1), std::tuple("lars", 3), std::tuple("adamw", 2),
                                           std::tuple("adamw", 3)),
                         [](const auto& info) {
                           return fmt::format("{}_zero_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

// A run of hours is not to end at its first checkpoint: what that needs is taken before the first update.
TEST(OffloadedState, IsRefusedAtTheStartWhereItsCopyHasNoPlace) {
  if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
    GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
  const std::string folder = SharedFolder() + "/room_for_one";
  TrainConfig config = Config("adamw", 0);
  config.offload = "optimizer";
  config.offload_dir = folder;
  std::filesystem::create_directories(folder);
  TakeTurns();
  auto run = MakeRun(config, SharedWorld());
  TakeTurns();
  ASSERT_TRUE(run.ok()) << Message(run.status());
  // The state lies in a file without a name: without the folder it stays, and there is no place for more.
  if (SharedWorld().rank() == 0) std::filesystem::remove(folder);
  TakeTurns();
  bool began = false;
  const auto result = run->trainer->Train([&](const std::string&) {
    began = true;
    return OkStatus();
  });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(result.status()),
              testing::AllOf(testing::HasSubstr("--offload_dir=" + folder),
                             testing::HasSubstr("for the copy that checkpoints are written from (host state)")));
  EXPECT_FALSE(began);
  TakeTurns();
}

TEST(OffloadedState, IsCalledMemoryOnlyWhereItLiesThere) {
  if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
    GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
  TrainConfig config = Config("adamw", 0);
  config.offload = "optimizer";
  const TrainingPlans in_memory = PlansOf(config);
  config.offload_dir = SharedFolder();
  const TrainingPlans in_file = PlansOf(config);
  const uint64_t state = BytesOf(in_file, kHostStateArena);
  EXPECT_EQ(in_memory.Report().checkpoint_host_bytes - in_file.Report().checkpoint_host_bytes, state);
  const std::string of_memory = in_memory.Report().ToText(), of_file = in_file.Report().ToText();
  EXPECT_THAT(of_memory, testing::ContainsRegex("in host memory beside it [^\n]*: state"));
  EXPECT_THAT(of_memory, testing::Not(testing::HasSubstr("--offload_dir")));
  EXPECT_THAT(of_file, testing::ContainsRegex("in host memory beside it [^\n]*: step"));
  EXPECT_THAT(of_file, testing::HasSubstr("in a file of --offload_dir "));
}

// Of a run on so many ranks that divide the data, which need not be there: bytes for each parameter. stages: of a
// pipeline, with twice as many micro-batches.
struct PerParameter {
  double state = 0, host = 0, gradients = 0, activations = 0;
  double bucket = 0;
};
PerParameter PlannedFor(int ranks, int zero, const char* precision, const char* offload, int stages = 1) {
  World& world = SharedWorld();
  Settings settings(RunTable());
  const auto give = [&](const char* name, const nlohmann::json& value) {
    EXPECT_TRUE(settings.Give(name, value, Origin::kFlag, "this test").ok()) << name;
  };
  give("model", "vit_small");
  give("optimizer", "adamw");
  give("batch_size", 2);
  give("bucket_mb", 4);
  give("zero", zero);
  give("precision", precision);
  give("offload", offload);
  if (stages > 1) {
    give("pp", stages);
    give("accumulation", 2 * stages);
  }
  const auto setup = SetUpModel(settings, nullptr, ranks * stages);
  EXPECT_TRUE(setup.ok()) << Message(setup.status());
  if (!setup.ok()) return {};
  TrainingPlans plans;
  const Status compiled = plans.CompileRun(setup->config, setup->model, Mesh{.data = ranks, .pipeline = stages}, 0, 1,
                                           *world.device, world.reference.get());
  EXPECT_TRUE(compiled.ok()) << Message(compiled);
  if (!compiled.ok()) return {};
  double parameters = 0;
  for (const auto& [name, entry] : plans.layout->entries()) {
    if (entry.role == Role::kParameter) parameters += static_cast<double>(Elements(entry.whole_shape()));
  }
  const auto bytes = [&](int arena) { return static_cast<double>(plans.layout->bytes(arena)) / parameters; };
  return {bytes(kStateArena), bytes(kHostStateArena), bytes(kGradientsArena), bytes(kActivationsArena),
          1e6 * *setup->config.bucket_mb / parameters};
}

// 12 bytes of parameters and moments for each parameter, 14 with half copies, lie on the host, or this rank's share of
// what it shares; on the device none, but for the bucket that is read and one that comes.
TEST(OffloadedParameters, TakeTheMemoryOfTheFormula) {
  if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
    GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
  if (SharedWorld().size() > 1) GTEST_SKIP() << "the ranks of this world would all plan the same, as one alone does";
  for (const char* precision : {"fp32", "bf16"}) {
    const bool half = std::string(precision) != "fp32";
    for (const double ranks : {2, 4, 8}) {
      for (int zero = 0; zero < 4; ++zero) {
        SCOPED_TRACE(fmt::format("{} {} ranks, zero {}", precision, ranks, zero));
        const PerParameter none = PlannedFor(static_cast<int>(ranks), zero, precision, "none");
        const PerParameter all = PlannedFor(static_cast<int>(ranks), zero, precision, "all");
        if (::testing::Test::HasFailure()) return;
        const double shared[] = {half ? 14.0 : 12.0, half ? 2 + 12 / ranks : 4 + 8 / ranks,
                                 half ? 2 + 12 / ranks : 4 + 8 / ranks, 12 / ranks};
        EXPECT_NEAR(all.host, shared[zero], 0.05 * shared[zero]);
        EXPECT_LT(all.state, 0.01);
        EXPECT_EQ(all.gradients, none.gradients);
        EXPECT_LE(all.activations, 1.05 * (none.activations + all.bucket));
      }
    }
  }
}

// Micro-batches overlap there, and none keeps for the next one what it has fetched.
TEST(OffloadedParameters, OfAStageTakeNoMoreThanThatEither) {
  if (SharedWorld().device->info().address_kind == SY_ADDRESS_HOST)
    GTEST_SKIP() << "the device's memory is the host's: there is nothing to offload";
  if (SharedWorld().size() > 1) GTEST_SKIP() << "the ranks of this world would all plan the same, as one alone does";
  const PerParameter none = PlannedFor(1, 0, "fp32", "none", 2), all = PlannedFor(1, 0, "fp32", "all", 2);
  EXPECT_GT(none.state, 4) << "a good half of 12 bytes";
  EXPECT_LT(all.state, 0.02) << "an element of what other stages have";
  EXPECT_EQ(all.gradients, none.gradients);
  EXPECT_LE(all.activations, 1.05 * (none.activations + all.bucket));
}

}  // namespace
}  // namespace switchyard
