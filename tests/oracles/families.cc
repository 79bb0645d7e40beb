#include "tests/oracles/families.h"

#include <cmath>
#include <map>

#include "core/train/task.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

// Noise has the same mean everywhere; where means of whole images are normalised over a batch, rounding would be all
// that is left. end: of the sample's image.
void Darken(std::byte* end, const TensorType& image, int64_t sample) {
  for (std::byte* pixel = end - image.bytes(); pixel < end; ++pixel)
    *pixel = static_cast<std::byte>(static_cast<int64_t>(*pixel) * (1 + 5 * sample % 16) / 16);
}

}  // namespace

bool IsTriedHere(const Level& level) {
  const std::string name = level.name;
  const int ranks = SharedWorld().size();
  return ranks <= 2 || name == "fp16_O2" || (ranks == 4 && name == "bf16_O1");
}

void Use(const Level& level, TrainConfig* config) {
  config->precision = level.precision;
  config->amp = level.amp;
  config->loss_scale.reset();
  if (level.fp16()) config->loss_scale = config->model.starts_with("deeplab") ? "128" : "1024";
}

TrainConfig FamilyConfig(const std::string& family) {
  static const auto& models = *new std::map<std::string, std::tuple<std::string, int, SettingValues>>{
      {"vit",
       {"vit_micro",
        16,
        {{"patch", 4}, {"width", 32}, {"depth", 2}, {"heads", 2}, {"dropout", 0.1}, {"drop_path", 0.2}}}},
      {"swin",
       {"swin_tiny_cifar",
        16,
        {{"patch", 2}, {"width", 16}, {"depths", {"2", "2"}}, {"heads", 2}, {"window", 4}, {"drop_path", 0.2}}}},
      {"resnet", {"resnet18", 16, {{"width", 4}, {"stem", "small"}}}},
      {"deeplab", {"deeplabv3plus_resnet50", 32, {{"width", 4}, {"decoder_width", 8}, {"dropout", 0.2}}}},
      {"unet3d", {"unet3d", 8, {{"patch_size", {"8", "8", "8"}}, {"width", 4}, {"levels", 2}}}},
  };
  TrainConfig config = SmallConfig();
  SettingValues own;
  int side = 0;
  std::tie(config.model, side, own) = models.at(family);
  config.own = own;
  config.image_size = side;
  config.classes = family == "unet3d" ? 3 : 5;
  config.dataset = "synthetic";
  config.train_size = 1024;
  config.batch_size = 2;
  config.momentum = 0.9f;
  config.sync_batchnorm = true;
  return config;
}

std::vector<std::vector<std::byte>> OwnSamples(const RunSetup& setup, const Task& task, int64_t update, int rank,
                                               int world) {
  const TrainConfig& config = setup.config;
  const auto source = task.Samples(*setup.train, true);
  EXPECT_TRUE(source.ok()) << Message(source.status());
  if (!source.ok()) return {};
  const std::vector<SampleTensor> expected = (*source)->tensors();
  std::vector<std::vector<std::byte>> tensors(expected.size());
  const int64_t batch = int64_t{config.batch_size} * world;
  for (int64_t a = 0; a < config.accumulation; ++a) {
    for (int64_t i = rank; i < batch; i += world) {
      std::vector<void*> rows;
      for (size_t t = 0; t < tensors.size(); ++t) {
        const size_t before = tensors[t].size();
        tensors[t].resize(before + static_cast<size_t>(expected[t].row.bytes()));
        rows.push_back(tensors[t].data() + before);
      }
      const int64_t sample = ((update * config.accumulation + a) * batch + i) % (*source)->size();
      const Status filled = (*source)->Fill(0, sample, rows);
      EXPECT_TRUE(filled.ok()) << Message(filled);
      // Of every fourth mask only the upper half counts.
      if (expected[1].name == "masks" && sample % 4 == 0) {
        auto* const end = reinterpret_cast<int32_t*>(tensors[1].data() + tensors[1].size());
        std::fill(end - expected[1].row.elements() / 2, end, -1);
      }
      if (expected[0].row.dtype == DType::kU8) Darken(tensors[0].data() + tensors[0].size(), expected[0].row, sample);
    }
  }
  return tensors;
}

StatusOr<Trainer::StepResult> StepOn(Run& run, const std::vector<std::vector<std::byte>>& tensors) {
  return run.trainer->Step(std::vector<std::span<const std::byte>>(tensors.begin(), tensors.end()));
}

Trained TrainOn(const TrainConfig& config, World& world, int64_t updates) {
  Trained trained;
  auto run = MakeRun(config, world);
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return trained;
  trained.start = *run->trainer->Parameters();
  for (int64_t update = 0; update < updates; ++update) {
    const auto result =
        StepOn(*run, OwnSamples(run->setup, run->trainer->task(), update, world.data_rank(), world.data_size()));
    EXPECT_TRUE(result.ok()) << Message(result.status());
    if (!result.ok()) return trained;
    EXPECT_TRUE(std::isfinite(result->grad_norm)) << "update " << update << " was left out";
    trained.results.push_back(*result);
  }
  trained.parameters = *run->trainer->Parameters();
  return trained;
}

void ExpectSameTraining(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.results.size(), expected.results.size());
  for (size_t i = 0; i < expected.results.size(); ++i) {
    EXPECT_EQ(found.results[i].loss, expected.results[i].loss) << "of update " << i;
    EXPECT_EQ(found.results[i].grad_norm, expected.results[i].grad_norm) << "of update " << i;
  }
  ExpectEqual(found.parameters, expected.parameters);
}

}  // namespace switchyard
