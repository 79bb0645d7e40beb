// One process plays the 64 ranks of whole models' programs, on the reference plugin: they compute what one rank
// computes of the whole batch, an update that begins from the state of another equals going straight on, recomputation
// and a static scale change no bit, and an overflow on one rank leaves the update out on all.
#include <cmath>
#include <map>

#include "core/parallel/mesh_interpreter.h"
#include "core/runtime/plugins/registry.h"
#include "core/train/plans.h"
#include "gtest/gtest.h"
#include "tests/oracles/families.h"

namespace switchyard {
namespace {

constexpr int kRanks = 64;

// The ranks of a mesh with one model's program, and what they start from.
class Played {
 public:
  Played(const TrainConfig& config, int ranks, Device& reference)
      : ranks_(ranks), mesh_(Mesh{.data = ranks}, reference) {
    Begin(config);
  }

  // Micro-steps of `update`. spoilt: a rank whose floats are multiplied by 10^6, which is beyond fp16.
  void Update(int64_t update, int spoilt = -1) {
    const std::vector<SampleTensor> inputs = run_.trainer->task().tensors();
    for (const Action& action : programs_[0].schedule) {
      for (int rank = 0; rank < ranks_; ++rank) {
        auto tensors = OwnSamples(run_, update, rank, ranks_);
        for (size_t t = 0; t < tensors.size(); ++t) {
          if (rank == spoilt && inputs[t].row.dtype == DType::kF32) {
            auto* const values = reinterpret_cast<float*>(tensors[t].data());
            for (size_t i = 0; i < tensors[t].size() / sizeof(float); ++i) values[i] *= 1e6f;
          }
          const size_t bytes = tensors[t].size() / programs_[0].schedule.size();
          mesh_.Set(rank, inputs[t].name, tensors[t].data() + static_cast<size_t>(action.micro_batch) * bytes, bytes);
        }
        const int batch = run_.setup.config.batch_size;
        std::vector<int32_t> ids;
        for (int i = 0; i < batch; ++i) ids.push_back((action.micro_batch * batch + i) * ranks_ + rank);
        Set(rank, "sample_ids", ids);
        Set(rank, "step", std::vector<int32_t>{static_cast<int32_t>(update), 0});
      }
      RunPlan(action.plan);
    }
  }

  // What a checkpoint holds is that of `other`; half copies follow from it.
  void TakeUp(const Played& other) {
    for (int rank = 0; rank < ranks_; ++rank) {
      for (const auto& [name, input] : States()) {
        const auto bytes = other.mesh_.Get(rank, name);
        if (bytes.ok() && !name.starts_with("half/")) mesh_.Set(rank, name, bytes->data(), bytes->size());
      }
    }
    RefreshHalves();
  }
  HostTensors Weights(int rank) const {
    HostTensors found;
    for (const auto& [name, node] : States()) {
      if (node->input->role != Role::kParameter && !node->input->of_model) continue;
      HostTensor& tensor = found[name];
      tensor.shape = node->outputs[0].shape;
      tensor.values = Floats(rank, name);
    }
    return found;
  }
  HostTensors Start() const { return *run_.trainer->Parameters(); }
  std::vector<float> Floats(int rank, const std::string& name) const {
    const auto bytes = mesh_.Get(rank, name);
    EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
    if (!bytes.ok()) return {};
    std::vector<float> values(bytes->size() / sizeof(float));
    std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
    return values;
  }
  float Scalar(int rank, const std::string& name) const { return Floats(rank, name).at(0); }

 private:
  std::map<std::string, const Node*> States() const {
    std::map<std::string, const Node*> states;
    for (const Node& node : programs_[0].Find("update")->graph.nodes()) {
      if (node.input && (node.input->role == Role::kParameter || node.input->role == Role::kState))
        states[node.name] = &node;
    }
    return states;
  }
  template <typename T>
  void Set(int rank, const std::string& name, const std::vector<T>& values) {
    mesh_.Set(rank, name, values.data(), values.size() * sizeof(T));
  }
  void Begin(const TrainConfig& config) {
    auto run = MakeRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    run_ = std::move(*run);
    for (int rank = 0; rank < ranks_; ++rank) {
      auto program = ProgramOf(run_.setup.config, run_.trainer->task(), Mesh{.data = ranks_}, rank, 2, 0);
      ASSERT_TRUE(program.ok()) << Message(program.status());
      programs_.push_back(std::move(*program));
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      for (const auto& [name, tensor] : Start()) Set(rank, name, tensor.values);
      Set(rank, "lr_table", std::vector<float>(2, run_.setup.config.lr));
      if (run_.setup.config.loss_scale == "dynamic")
        Set(rank, "loss_scale", std::vector{*run_.setup.config.init_scale});
    }
    RefreshHalves();
  }
  void RefreshHalves() {
    for (size_t i = 0; i < programs_[0].plans.size(); ++i) {
      if (programs_[0].plans[i].name == "halves") RunPlan(static_cast<int>(i));
    }
  }
  void RunPlan(int plan) {
    std::vector<const Graph*> graphs;
    for (const Program& program : programs_) graphs.push_back(&program.plans[static_cast<size_t>(plan)].graph);
    const Status ran = mesh_.Run(graphs);
    ASSERT_TRUE(ran.ok()) << Message(ran);
  }

  int ranks_;
  Run run_;
  std::vector<Program> programs_;
  MeshInterpreter mesh_;
};

class PlayedFamily : public ::testing::TestWithParam<std::tuple<const char*, Level>> {
 protected:
  void SetUp() override {
    OpenOptions options;
    options.threads = 1;
    const auto plugin = Registry::Get().Find(PluginKind::kBackend, "reference");
    ASSERT_TRUE(plugin.ok()) << Message(plugin.status());
    auto device = Device::Open(**plugin, 0, options);
    ASSERT_TRUE(device.ok()) << Message(device.status());
    reference_ = std::move(*device);
  }
  static TrainConfig Config() {
    TrainConfig config = FamilyConfig(std::get<0>(GetParam()));
    Use(std::get<1>(GetParam()), &config);
    config.batch_size = 1;
    return config;
  }
  std::unique_ptr<Device> reference_;
};

TEST_P(PlayedFamily, SixtyFourRanksEqualOneAndThemselves) {
  const auto& [family, level] = GetParam();
  const TrainConfig config = Config();
  Played plain(config, kRanks, *reference_), resumed(config, kRanks, *reference_);
  plain.Update(0);
  const HostTensors first = plain.Weights(0);
  for (const int rank : {31, 63}) ExpectEqual(plain.Weights(rank), first);

  TrainConfig again = config;
  again.recompute = "blocks";
  if (!level.fp16()) again.loss_scale = "4096";
  Played other(again, kRanks, *reference_);
  other.Update(0);
  ExpectEqual(other.Weights(0), first);

  TrainConfig whole = config;
  whole.batch_size = kRanks;
  Played one(whole, 1, *reference_);
  one.Update(0);
  const HostTensors start = plain.Start(), expected = one.Weights(0);
  double allowed = 2 * std::pow(2.0, -level.bits);
  if (!level.half()) allowed = 1e-5;
  if (level.half() && std::string(family) != "vit") {  // batch norms: as families_test says
    Use(kLevels[0], &whole);
    Played exact(whole, 1, *reference_);
    exact.Update(0);
    allowed = std::sqrt(2.0) * DistanceOfMovements(expected, exact.Weights(0), start);
  }
  EXPECT_LE(DistanceOfMovements(first, expected, start), allowed);

  resumed.TakeUp(plain);
  plain.Update(1);
  resumed.Update(1);
  const HostTensors second = plain.Weights(63);
  ExpectEqual(resumed.Weights(63), second);
  EXPECT_GT(DistanceOfMovements(second, start, first), 0.1) << "the second update moved nothing";
}

INSTANTIATE_TEST_SUITE_P(Families, PlayedFamily,
                         testing::Combine(testing::Values("vit", "unet3d"),
                                          testing::Values(kLevels[0], kLevels[2], kLevels[3])),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
                         });

// Played ranks add in the same order whether they reduce a bucket or their part of it.
TEST_P(PlayedFamily, SixtyFourRanksThatShareTheUpdateEqualThoseThatDoNot) {
  TrainConfig config = Config();
  config.clip = 0;
  config.bucket_mb = 0.02;
  Played whole(config, kRanks, *reference_);
  whole.Update(0);
  whole.Update(1);
  const HostTensors expected = whole.Weights(0);
  for (const int zero : {1, 2}) {
    SCOPED_TRACE(zero);
    config.zero = zero;
    Played shared(config, kRanks, *reference_);
    shared.Update(0);
    shared.Update(1);
    for (const int rank : {0, 31, 63}) ExpectEqual(shared.Weights(rank), expected);
  }
}

class PlayedOverflow : public PlayedFamily {};

TEST_P(PlayedOverflow, OnOneOfSixtyFourRanksLeavesTheUpdateOutOnAll) {
  TrainConfig config = Config();
  config.loss_scale = "dynamic";
  config.scaler_preset = "default";
  config.init_scale = 1024;
  config.hysteresis = 1;
  Played ranks(config, kRanks, *reference_);
  ranks.Update(0, 63);
  const HostTensors start = ranks.Start();
  for (const int rank : {0, 31, 63}) {
    EXPECT_FALSE(std::isfinite(ranks.Scalar(rank, "grad_norm")));
    EXPECT_EQ(ranks.Scalar(rank, "loss_scale"), 512);
    for (const auto& [name, tensor] : ranks.Weights(rank)) EXPECT_EQ(tensor.values, start.at(name).values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlayedOverflow,
                         testing::Combine(testing::Values("unet3d"), testing::Values(kLevels[1], kLevels[2])),
                         [](const auto& info) { return std::string(std::get<1>(info.param).name); });

}  // namespace
}  // namespace switchyard
