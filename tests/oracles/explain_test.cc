// `explain` tells the truth: for random settings its bytes and FLOPs, made without data and memory, are those of the
// Trainer that runs them, and the bytes of its collectives are those that the communicators are given.
#include <ctime>

#include "core/base/random.h"
#include "core/graph/ops/collective.h"
#include "core/train/fitting.h"
#include "core/train/plans.h"
#include "core/train/timetable.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/families.h"

namespace switchyard {
namespace {

constexpr char kPlannedAlone[] = "the ranks of this world would all plan the same, as one alone does";

int Samples(const World& world) { return world.size() > 1 ? 200 : 100; }  // one rank has less to draw

template <typename... T>
auto OneOf(RandomStream& random, T... choices) {
  const std::common_type_t<T...> all[] = {choices...};
  return all[random.Below(sizeof...(choices))];
}

// A model of any family; mostly those that are planned in no time, and whose sizes are drawn too.
TrainConfig RandomModel(RandomStream& random) {
  const uint32_t kind = random.Below(24);
  if (kind < std::size(kFamilies)) return FamilyConfig(kFamilies[kind]);
  TrainConfig c = SmallConfig();
  if (kind < std::size(kFamilies) + 4) {
    c.model = "mlp";
    c.own = {{"width", OneOf(random, 8, 24)}};
    return c;
  }
  c.own = {{"width", OneOf(random, 16, 32)}, {"depth", OneOf(random, 1, 2)}, {"heads", OneOf(random, 1, 2)}};
  if (random.Below(2) == 0) c.own["dropout"] = 0.1;
  if (random.Below(3) == 0) c.own["drop_path"] = 0.2;
  return c;
}

// How `ranks` ranks share the work: what is drawn may not be possible together.
void DrawParallelism(RandomStream& random, int ranks, TrainConfig* c) {
  if (ranks % 2 == 0 && random.Below(3) == 0) {
    c->tp = ranks % 4 == 0 ? OneOf(random, 2, 2, 4) : 2;
    c->sp = random.Below(2) == 0;
  }
  c->zero = OneOf(random, 0, 0, 1, 2, 3);
  c->offload = OneOf(random, "none", "none", "optimizer", "all");
  c->offload_optim_frac = OneOf(random, 1.0f, 1.0f, 0.5f);
  c->offload_param_frac = OneOf(random, 1.0f, 1.0f, 0.5f);
  c->shard_param_frac = OneOf(random, 1.0f, 1.0f, 0.5f);
  c->hierarchical_allreduce = random.Below(4) == 0;
  const int models_per_node = OneOf(random, 1, 2, 3);
  if (c->hierarchical_allreduce) c->ranks_per_node = models_per_node * c->tp;
  c->allreduce_dtype = OneOf(random, "fp32", "fp32", "bf16");
  c->grad_predivide = OneOf(random, 1.0f, 1.0f, 2.0f);
  c->delay_allreduce = random.Below(4) == 0;
  c->sync_batchnorm = random.Below(2) == 0;
  c->broadcast_buffers = random.Below(4) != 0;
  c->powersgd_compression = random.Below(5) == 0;
  c->start_compress_iter = 2;
  c->matrix_approximation_rank = OneOf(random, 1, 2);
  if (ranks % 2 != 0 || random.Below(5) != 0) return;
  c->pp = 2;  // with what pipelines can be combined with, for little would be left of a free draw
  c->accumulation = OneOf(random, 2, 3, 4);
  if (c->own.contains("depth") && random.Below(3) == 0) {
    c->pp_interleave = 2;
    c->own["depth"] = 4;
    c->accumulation = OneOf(random, 2, 4);
  }
  if (ranks % (c->tp * c->pp) != 0) c->tp = 1, c->sp = false;
  if (c->hierarchical_allreduce) c->ranks_per_node = models_per_node * c->tp * c->pp;
  c->sync_batchnorm = false;
  c->zero = OneOf(random, 0, 1);
}

TrainConfig RandomConfig(RandomStream& random, int ranks) {
  TrainConfig c = RandomModel(random);
  c.train_size = 1024;  // of the largest update several
  c.batch_size = OneOf(random, 1, 2, 3, 4);
  c.accumulation = OneOf(random, 1, 2, 3, 4);
  if (random.Below(2) == 0) {
    c.steps = OneOf(random, 1, 2, 7);
  } else {
    c.steps.reset();
    c.epochs = OneOf(random, 1, 3, 200);
  }
  c.optimizer = OneOf(random, "sgd", "adam", "adamw", "lamb", "lars");
  c.momentum = OneOf(random, 0.0f, 0.9f);
  c.nesterov = (c.optimizer == "sgd" || c.optimizer == "lars") && c.momentum > 0 && random.Below(2) == 0;
  c.clip = OneOf(random, 0.0f, 1.0f);
  c.ema_decay = OneOf(random, 0.0f, 0.0f, 0.99f);
  c.layer_decay = OneOf(random, 1.0f, 1.0f, 0.7f);
  c.fused_optimizer = random.Below(4) != 0;
  c.label_smoothing = OneOf(random, 0.0f, 0.1f);
  c.precision = OneOf(random, "fp32", "bf16", "fp16");
  if (c.precision != "fp32") c.amp = OneOf(random, "O1", "O2", "O3");
  if (c.amp == "O1" && random.Below(2) == 0) c.residual_precision = OneOf(random, "f32", "half");
  c.bucket_mb = OneOf(random, 0.001, 0.01, 25.0);
  c.compile = random.Below(4) != 0;
  c.recompute = OneOf(random, "none", "blocks", "every:2");
  DrawParallelism(random, ranks, &c);
  return c;
}

// What this rank gives to the communicator of each group in the plan's collectives, by the bytes that `explain` counts
// of them: of what is gathered its own piece, of a message what is sent.
std::vector<uint64_t> GivenBytes(const TrainingPlans& plans, int rank, int64_t update) {
  const std::vector<Group>& groups = plans.program.groups;
  std::vector<uint64_t> given(groups.size());
  for (const Action& action : plans.program.schedule) {
    if (!action.RunsIn(update)) continue;
    const Plan& plan = *plans.plans[static_cast<size_t>(action.plan)];
    double told = 0;
    for (const Step& step : plan.schedule().steps) {
      if (step.kind != Step::kCollective) continue;
      const Node& node = plan.graph().node(step.node);
      const auto& attributes = node.attributes.as<sy_collective_attributes>();
      const auto group = static_cast<size_t>(attributes.group);
      const auto bytes = static_cast<uint64_t>(step.cost.bytes);
      told += step.cost.bytes;
      switch (*ExchangeOf(node)) {
        case Exchange::kAllReduce:
        case Exchange::kReduceScatter:
        case Exchange::kAllToAll:
        case Exchange::kSend:
          given[group] += bytes;
          break;
        case Exchange::kAllGather:
          given[group] += bytes / groups[group].ranks.size();
          break;
        case Exchange::kBroadcast:
          given[group] += groups[group].ranks.at(static_cast<size_t>(attributes.root)) == rank ? bytes : 0;
          break;
        case Exchange::kReceive:
          break;
      }
    }
    EXPECT_EQ(told, static_cast<double>(plan.report().collective_bytes));
  }
  return given;
}

// The communicators of the groups of which each has one, where `first` of those that the world split off came before.
std::vector<Communicator*> CommunicatorsBehind(size_t first, const std::vector<Group>& groups, const World& world) {
  std::vector<Communicator*> communicators;
  for (const Group& group : groups) {
    const auto ranks = static_cast<int>(group.ranks.size());
    communicators.push_back(ranks == 1              ? nullptr
                            : ranks == world.size() ? world.communicator.get()
                                                    : world.groups.at(first++).get());
  }
  return communicators;
}

struct OnMesh {  // a mesh of the world for a while
  OnMesh(World& world, Mesh mesh) : world(world), before(std::exchange(world.mesh, mesh)) {}
  ~OnMesh() { world.mesh = before; }
  World& world;
  Mesh before;
};

// That many first updates. first_group: of the communicators of this run, among those that the world split off.
void ExpectToSendWhatIsExplained(Run& run, const TrainingPlans& explained, size_t first_group, int64_t updates) {
  const World& world = SharedWorld();
  const auto communicators = CommunicatorsBehind(first_group, explained.program.groups, world);
  for (int64_t update = 0; update < updates; ++update) {
    const std::vector<uint64_t> given = GivenBytes(explained, world.rank(), update);
    std::map<Communicator*, uint64_t> expected;  // several groups may have one
    for (size_t group = 0; group < given.size(); ++group) expected[communicators[group]] += given[group];
    for (auto& [communicator, bytes] : expected) {
      if (communicator != nullptr) bytes += communicator->bytes_sent();
    }
    const auto result =
        StepOn(run, OwnSamples(run.setup, run.trainer->task(), update, world.data_rank(), world.data_size()));
    ASSERT_TRUE(result.ok()) << Message(result.status());
    for (const auto& [communicator, bytes] : expected) {
      ASSERT_EQ(communicator == nullptr ? 0 : communicator->bytes_sent(), bytes) << "after update " << update;
    }
  }
}

// What cannot be trained is refused in the same words by both, and another is drawn in its place.
TEST(Explain, EqualsTheTrainerInEveryByteAndFlop) {
  World& world = SharedWorld();
  RandomStream random(Key(HashName("explain"), 0));
  std::map<std::string, int> trained;  // how often each came up
  for (int equal = 0, refused = 0; equal < Samples(world);) {
    const TrainConfig config = RandomConfig(random, world.size());
    SCOPED_TRACE(ToJson(config, {SettingKind::kProperty, SettingKind::kPlace}).dump());
    const OnMesh mesh(world,
                      {.data = world.size() / (config.tp * config.pp), .pipeline = config.pp, .tensor = config.tp});
    const auto setup = SettledRun(config, world);
    if (!setup.ok()) {  // by what both begin with
      ASSERT_THAT(Message(setup.status()), testing::HasSubstr("--pp=2 with"));
      ASSERT_LT(++refused, Samples(world));
      continue;
    }
    TrainingPlans explained;
    const auto timetable = Timetable::Of(setup->config, setup->train->size(), world.data_size());
    ASSERT_TRUE(timetable.ok()) << Message(timetable.status());
    const Status compiled = explained.CompileRun(setup->config, setup->model, world.mesh, world.rank(),
                                                 timetable->updates, *world.device, world.reference.get());
    const size_t groups_before = world.groups.size();
    auto run = MakeRun(config, world);
    if (!compiled.ok()) {
      ASSERT_EQ(Message(run.status()), Message(compiled));
      ASSERT_LT(++refused, Samples(world));
      continue;
    }
    ASSERT_TRUE(run.ok()) << Message(run.status());
    ++equal;
    ++trained[config.model], ++trained[fmt::format("zero {}", config.zero)], ++trained[config.precision];
    trained["tp"] += config.tp > 1, trained["sp"] += config.sp, trained["pp"] += config.pp > 1;
    trained["interleaved"] += config.pp_interleave > 1;
    trained["statistics of each rank"] += !config.broadcast_buffers;
    trained["residual type"] += config.residual_precision.has_value();
    trained["pp and tp"] += config.pp > 1 && config.tp > 1;
    trained["pp in halves"] += config.pp > 1 && config.precision != "fp32";
    trained["hierarchical"] += config.hierarchical_allreduce && *config.ranks_per_node > config.tp * config.pp &&
                               *config.ranks_per_node < world.size();
    const bool compresses = config.powersgd_compression && timetable->updates > config.start_compress_iter;
    trained["compressed"] += compresses;
    const PlanReport told = explained.Report(), &runs = run->trainer->report();
    ASSERT_EQ(explained.PlannedBytes(), run->trainer->allocated_bytes());
    ASSERT_EQ(explained.PlannedHostBytes(), run->trainer->host_allocated_bytes());
    ASSERT_EQ(told.host_launches, runs.host_launches);
    ASSERT_EQ(told.store_bytes, runs.store_bytes);
    ASSERT_EQ(told.fetch_bytes, runs.fetch_bytes);
    trained["offload"] += explained.PlannedHostBytes() > 0;
    ASSERT_EQ(told.flops, runs.flops);
    ASSERT_EQ(told.bytes, runs.bytes);
    ASSERT_EQ(told.launches, runs.launches);
    ASSERT_EQ(told.copies, runs.copies);
    ASSERT_EQ(told.collectives, runs.collectives);
    ASSERT_EQ(told.wire_bytes, runs.wire_bytes);
    ASSERT_EQ(told.ToText().substr(0, told.ToText().find("memory by class")),
              runs.ToText().substr(0, runs.ToText().find("memory by class")));
    ExpectToSendWhatIsExplained(*run, explained, groups_before,
                                compresses ? config.start_compress_iter + 1 : int64_t{1});
    ASSERT_FALSE(HasFailure());
  }
  std::vector<std::string> kinds = {"vit_micro",
                                    "mlp",
                                    "swin_tiny_cifar",
                                    "resnet18",
                                    "deeplabv3plus_resnet50",
                                    "unet3d",
                                    "fp32",
                                    "fp16",
                                    "bf16",
                                    "zero 0",
                                    "zero 1",
                                    "zero 2",
                                    "zero 3",
                                    "compressed",
                                    "residual type",
                                    "statistics of each rank"};
  if (world.size() % 2 == 0) kinds.insert(kinds.end(), {"tp", "sp", "pp", "pp in halves", "interleaved"});
  if (world.size() % 4 == 0) kinds.insert(kinds.end(), {"pp and tp", "hierarchical"});
  if (world.device->info().address_kind != SY_ADDRESS_HOST) kinds.push_back("offload");
  for (const std::string& kind : kinds) EXPECT_GE(trained[kind], 1) << kind << " never came up";
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
  if (world.size() > 1) GTEST_SKIP() << kPlannedAlone;
  for (const char* model : {"vit_micro", "vit_tiny", "vit_base", "swin_tiny", "resnet18", "resnet50", "unet3d",
                            "deeplabv3plus_resnet50", "mlp"}) {
    SCOPED_TRACE(model);
    Settings settings(RunTable());
    ASSERT_TRUE(settings.Give("model", model, Origin::kFlag, "this test").ok());
    ASSERT_TRUE(settings.Give("batch_size", 256, Origin::kFlag, "this test").ok());
    const auto setup = SetUpModel(settings, nullptr, world.size());
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    const auto compile = [&](TrainingPlans& plans, bool evaluation_only) {
      return plans.CompileRun(setup->config, setup->model, Mesh{.data = world.size()}, 0, 1, *world.device,
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

// P and Q of what is compressed, and the rest as it is.
TEST(Explain, TellsWhatIsSentOfGradientsOfLowRank) {
  World& world = SharedWorld();
  if (world.size() > 1) GTEST_SKIP() << kPlannedAlone;
  constexpr int kRanks = 8;
  Settings settings(RunTable());
  ASSERT_TRUE(settings.Give("model", "vit_small", Origin::kFlag, "this test").ok());
  ASSERT_TRUE(settings.Give("batch_size", 2, Origin::kFlag, "this test").ok());
  auto setup = SetUpModel(settings, nullptr, kRanks);
  ASSERT_TRUE(setup.ok()) << Message(setup.status());
  const auto planned = [&](int64_t updates) {
    TrainingPlans plans;
    const Status compiled = plans.CompileRun(setup->config, setup->model, Mesh{.data = kRanks}, 0, updates,
                                             *world.device, world.reference.get());
    EXPECT_TRUE(compiled.ok()) << Message(compiled);
    return plans;
  };
  const double plain = planned(5000).Report().wire_bytes;
  setup->config.powersgd_compression = true;
  for (const int rank : {1, 4}) {
    setup->config.matrix_approximation_rank = rank;
    const TrainingPlans plans = planned(5000);
    double sent = 0, all = 0;
    for (const auto& [name, entry] : plans.layout->entries()) {
      if (entry.role != Role::kParameter) continue;
      const auto elements = static_cast<double>(entry.type.elements()), n = static_cast<double>(entry.type.shape[0]);
      all += elements;
      sent += (n + elements / n) * rank * 2 < elements ? (n + elements / n) * rank : elements;
    }
    EXPECT_DOUBLE_EQ(plans.Report().wire_bytes, 2.0 * (kRanks - 1) / kRanks * 4 * sent);
    EXPECT_NEAR(plain, 2.0 * (kRanks - 1) / kRanks * 4 * all, 0.001 * plain) << "and zeros between tensors";
    EXPECT_LT(plans.Report().wire_bytes, plain / (rank == 1 ? 60 : 20));
    EXPECT_EQ(planned(1000).Report().wire_bytes, plain) << "1000 updates end before --start_compress_iter";
  }
}

// What ranks gather of new parameters is there for two buckets at a time, and their own for three; none has a copy of
// all of its share, wherever the bucket's end lies. What fits, the rank that takes most says.
TEST(Explain, RanksThatShareTheUpdateTakeAlikeAndLittleForIt) {
  World& world = SharedWorld();
  if (world.size() > 1) GTEST_SKIP() << kPlannedAlone;
  constexpr int kRanks = 4;
  constexpr double kBucket = 4e6;
  Settings settings(RunTable());
  for (const auto& [name, value] :
       std::map<std::string, nlohmann::json>{{"model", "vit_small"}, {"batch_size", 1}, {"image_size", 32}})
    ASSERT_TRUE(settings.Give(name, value, Origin::kFlag, "this test").ok());
  auto setup = SetUpModel(settings, nullptr, kRanks);
  ASSERT_TRUE(setup.ok()) << Message(setup.status());
  setup->config.bucket_mb = kBucket / 1e6;
  const Mesh mesh{.data = kRanks};
  const auto planned = [&](int rank) {
    TrainingPlans plans;
    const Status compiled =
        plans.CompileRun(setup->config, setup->model, mesh, rank, 1, *world.device, world.reference.get());
    EXPECT_TRUE(compiled.ok()) << Message(compiled);
    return static_cast<double>(plans.PlannedBytes());
  };
  const double whole = planned(0);
  double parameters = 0;
  TrainingPlans plans;
  ASSERT_TRUE(plans.CompileRun(setup->config, setup->model, mesh, 0, 1, *world.device, world.reference.get()).ok());
  for (const auto& [name, entry] : plans.layout->entries())
    parameters += entry.role == Role::kParameter ? static_cast<double>(entry.bytes) : 0;
  for (const int zero : {1, 2}) {
    SCOPED_TRACE(zero);
    setup->config.zero = zero;
    const double saved = (zero == 1 ? 2 : 3) * parameters * (kRanks - 1) / kRanks;  // moments, and gradients
    std::vector<double> taken;
    for (int rank = 0; rank < kRanks; ++rank) taken.push_back(planned(rank));
    const auto [least, most] = std::minmax_element(taken.begin(), taken.end());
    EXPECT_LT(*most - *least, 0.002 * *most) << testing::PrintToString(taken);
    EXPECT_LT(*most, whole - saved + 2 * kBucket + 3 * kBucket / kRanks + 0.02 * whole);
    const auto decides = [&](double available, int replicas) {
      const auto found =
          TrainingPlans::DecidingReplica(setup->config, setup->model, mesh, 1, world, available, replicas);
      EXPECT_TRUE(found.ok()) << Message(found.status());
      return found.ok() ? static_cast<double>(found->replica[0]->PlannedBytes()) : 0;
    };
    EXPECT_EQ(decides(2 * *most, kRanks), *most);
    EXPECT_EQ(decides(*most, 2), *most);
    EXPECT_EQ(decides(2 * *most, 2), taken[0]) << "where padding decides nothing, one is enough";
  }
}

TEST(Explain, TellsNumbersOfBytesApart) {
  EXPECT_EQ(MegabytesOf(4.9e6, 5.1e6), std::pair(std::string("4.9"), std::string("5.1")));
  EXPECT_EQ(MegabytesOf(4944891, 4944893), std::pair(std::string("4.944891"), std::string("4.944893")));
  EXPECT_EQ(MegabytesOf(5e6, 5e6), std::pair(std::string("5.0"), std::string("5.0")));
}

// Nothing in planning may grow faster than the graph: for runs of many ranks `explain` is asked again and again.
TEST(Explain, PlansAHundredLayersForSixtyFourRanksInThreeSecondsOfOneCore) {
#ifndef NDEBUG
  GTEST_SKIP() << "the limit is that of an optimised build";
#endif
  World& world = SharedWorld();
  if (world.size() > 1) GTEST_SKIP() << kPlannedAlone;
  const struct {
    Mesh mesh;
    int accumulation;
  } runs[] = {{{.data = 64}, 1},
              {{.data = 8, .tensor = 8}, 1},
              {{.data = 8, .pipeline = 8}, 64},
              {{.pipeline = 8, .tensor = 8}, 8}};
  for (const auto& [mesh, accumulation] : runs) {
    Settings settings(RunTable());
    const auto give = [&](const char* name, const nlohmann::json& value) {
      ASSERT_TRUE(settings.Give(name, value, Origin::kFlag, "this test").ok());
    };
    give("model", "vit_base");
    give("depth", 100);
    give("batch_size", 8);
    give("tp", mesh.tensor);
    give("pp", mesh.pipeline);
    give("accumulation", accumulation);
    const auto setup = SetUpModel(settings, nullptr, 64);
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    const std::clock_t start = std::clock();
    TrainingPlans plans;
    const Status compiled =
        plans.CompileRun(setup->config, setup->model, mesh, 0, 1, *world.device, world.reference.get());
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_TRUE(compiled.ok()) << Message(compiled);
    EXPECT_LE(seconds, 3.0);
    fmt::print("--tp={} --pp={} --accumulation={}: planned in {:.2f} s of processor time\n", mesh.tensor, mesh.pipeline,
               accumulation, seconds);
  }
}

// What stands for a rank in the plans of a replica has its sizes, whether a stage is divided evenly or not.
TEST(Explain, TellsOfARankBetweenOthersWhatItsOwnPlanTakes) {
  World& world = SharedWorld();
  if (world.size() > 1) GTEST_SKIP() << kPlannedAlone;
  const Mesh mesh = {.pipeline = 2, .tensor = 4};
  for (const int heads : {8, 6}) {  // six over four ranks: two, two, one, one
    Settings settings(RunTable());
    const auto give = [&](const char* name, const nlohmann::json& value) {
      ASSERT_TRUE(settings.Give(name, value, Origin::kFlag, "this test").ok());
    };
    give("model", "vit_micro");
    give("heads", heads);
    give("width", 96);
    give("tp", mesh.tensor);
    give("pp", mesh.pipeline);
    give("accumulation", 4);
    const auto setup = SetUpModel(settings, nullptr, mesh.size());
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    const auto replica = TrainingPlans::OfReplica(setup->config, setup->model, mesh, 0, 1, world);
    ASSERT_TRUE(replica.ok()) << Message(replica.status());
    EXPECT_EQ((*replica)[1] == (*replica)[0], heads == 8) << "planned once where all are alike";
    for (int rank = 0; rank < mesh.size(); ++rank) {
      TrainingPlans own;
      const Status compiled =
          own.CompileRun(setup->config, setup->model, mesh, rank, 1, *world.device, world.reference.get());
      ASSERT_TRUE(compiled.ok()) << Message(compiled);
      const TrainingPlans& told = *(*replica)[static_cast<size_t>(rank)];
      EXPECT_EQ(told.PlannedBytes(), own.PlannedBytes()) << heads << " heads, rank " << rank;
      EXPECT_EQ(told.UpdateFlops(), own.UpdateFlops());
      EXPECT_EQ(told.Report().wire_bytes, own.Report().wire_bytes);
      EXPECT_EQ(told.Report().launches, own.Report().launches);
    }
  }
}

}  // namespace
}  // namespace switchyard
