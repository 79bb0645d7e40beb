// Which features of a training run can be combined: every two of them either train as one rank trains with the same
// optimizer and precision (as one divided model, where what its ranks compress are parts), or are refused by name at
// the start. The table of core/parallel/README.md is what comes out.
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/base/environment.h"
#include "gmock/gmock.h"
#include "tests/oracles/played.h"

namespace switchyard {
namespace {

constexpr int kDataRanks = 4, kSamples = 16;  // of an update

struct Feature {
  const char* name;  // as users know it
  void (*use)(TrainConfig&);
  bool arithmetic = false;  // what one rank does differently with it, too
  int blocks = 0;           // that the model needs for it, on one rank too
};

const Feature kFeatures[] = {
    {"--tp", [](TrainConfig& c) { c.tp = 2; }},
    {"--tp --sp",
     [](TrainConfig& c) {
       c.tp = 2;
       c.sp = true;
     }},
    {"--pp",
     [](TrainConfig& c) {
       c.pp = 2;
       c.accumulation = 2;
     }},
    {"--pp --pp_interleave",
     [](TrainConfig& c) {
       c.pp = c.pp_interleave = 2;
       c.accumulation = 2;
     },
     false, 4},
    {"--zero=1", [](TrainConfig& c) { c.zero = 1; }},
    {"--zero=2", [](TrainConfig& c) { c.zero = 2; }},
    {"--zero=3", [](TrainConfig& c) { c.zero = 3; }},
    {"--hierarchical_allreduce",
     [](TrainConfig& c) {
       c.hierarchical_allreduce = true;
       c.ranks_per_node = 3;  // nodes of unequal size
     }},
    {"--allreduce_dtype=bf16", [](TrainConfig& c) { c.allreduce_dtype = "bf16"; }},
    {"--powersgd_compression",
     [](TrainConfig& c) {
       c.powersgd_compression = true;
       c.start_compress_iter = 2;
     },
     true},
    {"--delay_allreduce", [](TrainConfig& c) { c.delay_allreduce = true; }},
    {"--grad_predivide", [](TrainConfig& c) { c.grad_predivide = 2; }},
    {"--clip", [](TrainConfig& c) { c.clip = 1; }, true},
    {"--accumulation", [](TrainConfig& c) { c.accumulation = 2; }},
    {"--recompute", [](TrainConfig& c) { c.recompute = "blocks"; }},
    {"--amp=O1 (bf16)", [](TrainConfig& c) { Use(kLevels[3], &c); }, true},
    {"--amp=O2 (fp16)", [](TrainConfig& c) { Use(kLevels[2], &c); }, true},
    {"--residual_precision=half (bf16)",
     [](TrainConfig& c) {
       Use(kLevels[3], &c);
       c.residual_precision = "half";
     },
     true},
    {"--optimizer=adamw",
     [](TrainConfig& c) {
       c.optimizer = "adamw";
       c.eps = 1e-2f;  // else gradients near zero decide
     },
     true},
    {"--optimizer=lamb",
     [](TrainConfig& c) {
       c.optimizer = "lamb";
       c.eps = 1e-2f;
     },
     true},
    {"--optimizer=lars", [](TrainConfig& c) { c.optimizer = "lars"; }, true},
    {"--offload=optimizer", [](TrainConfig& c) { c.offload = "optimizer"; }},
    {"--offload=all", [](TrainConfig& c) { c.offload = "all"; }},
    {"--ema_decay", [](TrainConfig& c) { c.ema_decay = 0.5f; }, true},
};

class Combinations : public ::testing::Test {
 protected:
  void SetUp() override {
    reference_ = OneThreadedReference();
    ASSERT_NE(reference_, nullptr);
  }
  static TrainConfig Base() {
    TrainConfig config = FamilyConfig("vit");
    config.sync_batchnorm = false;
    config.bucket_mb = 0.02;  // several
    config.clip = 0;          // it would hide gradients of another size
    return config;
  }
  // Two updates of as many samples on any number of ranks.
  HostTensors Trained(TrainConfig config, int data_ranks, Status* status, HostTensors* start = nullptr) {
    config.batch_size = kSamples / data_ranks / config.accumulation;
    Played played(config, data_ranks * config.tp * config.pp, *reference_);
    *status = played.status();
    if (!status->ok()) return {};
    const int64_t first = config.powersgd_compression ? config.start_compress_iter : 0;
    played.Update(first);
    played.Update(first + 1);
    if (start != nullptr) *start = played.Start();
    const HostTensors weights = played.Weights(0);
    ExpectEqual(played.Weights(data_ranks * config.tp * config.pp - 1), weights);
    return weights;
  }
  struct Reference {
    HostTensors start, weights;
  };
  // What one rank trains with these settings, which many pairs have in common: it is trained once for all of them.
  const Reference& Alone(const TrainConfig& config) {
    const std::string settings =
        ToJson(config, {SettingKind::kProperty, SettingKind::kPlace, SettingKind::kAct}).dump();
    const auto [known, is_new] = references_.try_emplace(settings);
    if (is_new) {
      Status status;
      known->second.weights = Trained(config, 1, &status, &known->second.start);
      EXPECT_TRUE(status.ok()) << Message(status);
    }
    return known->second;
  }
  // "": they train together. Else why they are refused.
  std::string Together(const Feature& a, const Feature& b) {
    TrainConfig on = Base(), alone = Base();
    for (const Feature* feature : {&a, &b}) {
      feature->use(on);
      if (feature->arithmetic) feature->use(alone);
      for (TrainConfig* config : {&on, &alone}) {
        if (feature->blocks > 0) config->own["depth"] = feature->blocks;
      }
    }
    if (on.powersgd_compression) alone.tp = on.tp;  // ranks compress their parts of divided weights by themselves
    if (on.ranks_per_node) *on.ranks_per_node *= on.tp * on.pp;  // whole models on each node
    Status status;
    const HostTensors found = Trained(on, kDataRanks, &status);
    if (!status.ok()) return Message(status);
    alone.accumulation = on.accumulation;
    const Reference& expected = Alone(alone);
    const bool half = alone.precision != "fp32" || on.allreduce_dtype != "fp32";
    EXPECT_LE(DistanceOfMovements(found, expected.weights, expected.start), half ? 3e-2 : 1e-4);
    return "";
  }
  std::unique_ptr<Device> reference_;
  std::map<std::string, Reference> references_;  // by their settings
  std::map<std::pair<std::string, std::string>, std::string> why_;
};

// The part of a page behind the line `heading`, up to the next blank line.
std::string TableBehind(const std::string& page, const std::string& heading) {
  const size_t at = page.find(heading);
  if (at == std::string::npos) return "";
  const size_t begin = page.find("\n|", at) + 1;
  return page.substr(begin, page.find("\n\n", begin) + 1 - begin);
}

TEST_F(Combinations, OfTwoFeaturesTrainAsOneRankOrAreRefusedByName) {
  if (SharedWorld().size() > 1) GTEST_SKIP() << "one process plays all ranks";
  std::string table = "| | cannot be combined with |\n|---|---|\n";
  for (const Feature& a : kFeatures) {
    std::string refused;
    for (const Feature& b : kFeatures) {
      if (&a == &b) continue;
      if (std::string(a.name).starts_with("--optimizer") && std::string(b.name).starts_with("--optimizer")) continue;
      if (std::string(a.name).starts_with("--amp") && std::string(b.name).starts_with("--amp")) continue;
      if (std::string(a.name).starts_with("--zero") && std::string(b.name).starts_with("--zero")) continue;
      SCOPED_TRACE(fmt::format("{} and {}", a.name, b.name));
      std::string& why = why_[std::minmax(std::string(a.name), std::string(b.name))];
      if (&a < &b) {
        why = Together(a, b);
        if (!why.empty()) {
          EXPECT_THAT(why, testing::HasSubstr("use ")) << "it should say what to use instead";
        }
      }
      if (!why.empty()) refused += fmt::format("{}`{}`", refused.empty() ? "" : ", ", b.name);
    }
    table += fmt::format("| `{}` | {} |\n", a.name, refused.empty() ? "-" : refused);
  }
  std::ifstream file(SWITCHYARD_SOURCE "/core/parallel/README.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(TableBehind(page.str(), "## What can be combined"), table);
}

}  // namespace
}  // namespace switchyard
