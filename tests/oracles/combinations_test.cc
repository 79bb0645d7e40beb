// Which features of a training run can be combined: every two of them either train as one rank trains with the same
// optimizer and precision (as one divided model, where what its ranks compress are parts), or are refused by name at
// the start. The table of core/parallel/README.md is what comes out; with SWITCHYARD_WRITE_TABLE=1 it is written there.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <span>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/random.h"
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
  const char* family = "";  // of the model that has what it is about; "": any
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
    {"--sync_batchnorm (ResNet-18)", [](TrainConfig& c) { c.sync_batchnorm = true; }, false, 0, "resnet"},
};

class Combinations : public ::testing::Test {
 protected:
  void SetUp() override {
    reference_ = OneThreadedReference();
    ASSERT_NE(reference_, nullptr);
  }
  static TrainConfig Base(const std::string& family) {
    TrainConfig config = FamilyConfig(family);
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
  std::string Together(std::span<const Feature* const> features) {
    std::string family = "vit";
    for (const Feature* feature : features) {
      if (*feature->family != '\0') family = feature->family;
    }
    TrainConfig on = Base(family), alone = Base(family);
    for (const Feature* feature : features) {
      feature->use(on);
      if (feature->arithmetic) feature->use(alone);
      for (TrainConfig* config : {&on, &alone}) {
        if (feature->blocks > 0 && family == "vit") config->own["depth"] = feature->blocks;
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
    // Gradients before a batch norm nearly cancel: by half precision alone one rank's movements by these optimizers
    // differ from those in f32 by 0.13 to 0.34.
    const bool rounding_moves = family == "resnet" && (on.optimizer == "adamw" || on.optimizer == "lamb");
    EXPECT_LE(DistanceOfMovements(found, expected.weights, expected.start), !half ? 1e-4 : rounding_moves ? 0.2 : 3e-2);
    return "";
  }
  // Why two cannot be combined; "": they can.
  const std::string& OfTwo(const Feature& a, const Feature& b) {
    const auto [known, is_new] = why_.try_emplace({std::min(&a, &b), std::max(&a, &b)});
    if (is_new) {
      SCOPED_TRACE(fmt::format("{} and {}", a.name, b.name));
      const Feature* const both[] = {known->first.first, known->first.second};
      known->second = Together(both);
      if (!known->second.empty()) {
        EXPECT_THAT(known->second, testing::HasSubstr("use ")) << "it should say what to use instead";
      }
    }
    return known->second;
  }
  std::unique_ptr<Device> reference_;
  // What one test has found the next one knows.
  inline static std::map<std::string, Reference> references_;  // by their settings
  inline static std::map<std::pair<const Feature*, const Feature*>, std::string> why_;
};

// Values of one setting, of which a run has one; also a feature and itself.
bool AreOneSetting(const Feature& a, const Feature& b) {
  if (&a == &b) return true;
  for (const char* setting : {"--optimizer", "--amp", "--zero"}) {
    if (std::string_view(a.name).starts_with(setting) && std::string_view(b.name).starts_with(setting)) return true;
  }
  return false;
}

// Then what one rank computes depends on --tp, too.
bool CompressesParts(const Feature& a, const Feature& b) {
  TrainConfig config;
  a.use(config), b.use(config);
  return config.powersgd_compression && config.tp > 1;
}

// Where the table behind the line `heading` lies in a page: up to the next blank line.
std::pair<size_t, size_t> TableBehind(const std::string& page, const std::string& heading) {
  const size_t at = page.find(heading), begin = page.find("\n|", at) + 1, end = page.find("\n\n", begin);
  EXPECT_TRUE(at < begin && begin < end && end < page.size()) << "no table behind \"" << heading << '"';
  return {begin, end + 1 - begin};
}

TEST_F(Combinations, OfTwoFeaturesTrainAsOneRankOrAreRefusedByName) {
  if (SharedWorld().size() > 1) GTEST_SKIP() << "one process plays all ranks";
  std::string table = "| | cannot be combined with |\n|---|---|\n";
  for (const Feature& a : kFeatures) {
    std::string refused;
    bool by_parts = false;
    for (const Feature& b : kFeatures) {
      by_parts |= CompressesParts(a, b);
      if (AreOneSetting(a, b) || OfTwo(a, b).empty()) continue;
      refused += fmt::format("{}`{}`", refused.empty() ? "" : ", ", b.name);
    }
    table += fmt::format("| `{}` | {}{} |\n", a.name, refused.empty() ? "-" : refused, by_parts ? " ¹" : "");
  }
  const std::string path = SWITCHYARD_SOURCE "/core/parallel/README.md";
  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  std::string page = read.str();
  const auto [begin, size] = TableBehind(page, "## What can be combined");
  if (HasFailure()) return;
  if (EnvironmentInt("SWITCHYARD_WRITE_TABLE").value_or(0) != 0) {
    std::ofstream(path) << page.replace(begin, size, table);
    return;
  }
  EXPECT_EQ(page.substr(begin, size), table) << "to have it written: SWITCHYARD_WRITE_TABLE=1 " << ProgramFolder()
                                             << "/interpreter_test --gtest_filter='Combinations.OfTwo*'";
}

// So that a table of pairs is enough: what no two of them keep from training trains as one rank does. A few, or as many
// as SWITCHYARD_TRIPLES says, drawn from SWITCHYARD_TRIPLES_SEED; tools/soak tries them all.
TEST_F(Combinations, OfThreeFeaturesTrainWhereEachTwoDo) {
  if (SharedWorld().size() > 1) GTEST_SKIP() << "one process plays all ranks";
  std::vector<std::array<const Feature*, 3>> triples;
  for (const Feature& a : kFeatures) {
    for (const Feature& b : kFeatures) {
      for (const Feature& c : kFeatures) {
        if (&a < &b && &b < &c && !AreOneSetting(a, b) && !AreOneSetting(a, c) && !AreOneSetting(b, c))
          triples.push_back({&a, &b, &c});
      }
    }
  }
  RandomStream random(static_cast<uint64_t>(EnvironmentInt("SWITCHYARD_TRIPLES_SEED").value_or(1)));
  int wanted = EnvironmentInt("SWITCHYARD_TRIPLES").value_or(12);
  for (size_t i = triples.size(); i > 1; --i)
    std::swap(triples[i - 1], triples[random.Below(static_cast<uint32_t>(i))]);
  for (const auto& [a, b, c] : triples) {
    if (wanted == 0) break;
    if (!OfTwo(*a, *b).empty() || !OfTwo(*a, *c).empty() || !OfTwo(*b, *c).empty()) continue;
    SCOPED_TRACE(fmt::format("{}, {} and {}", a->name, b->name, c->name));
    const Feature* const all[] = {a, b, c};
    EXPECT_EQ(Together(all), "");
    --wanted;
  }
}

}  // namespace
}  // namespace switchyard
