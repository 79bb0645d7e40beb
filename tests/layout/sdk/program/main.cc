// A model and a dataset of one's own, outside the tree: trained through what find_package(switchyard) gives.
#include <cstdio>

#include "core/graph/ops/layout.h"
#include "core/nn/layers.h"
#include "core/train/trainer.h"

using namespace switchyard;

struct Bars : Dataset {  // 16 x 16 grey images of a standing bar, in the left or the right half
  std::string name() const override { return "bars"; }
  int64_t size() const override { return 64; }
  int channels() const override { return 1; }
  Augmentation augmentation() const override { return Augmentation::kNone; }
  const std::vector<std::string>& class_names() const override { return classes; }
  Status Read(int64_t index, Sample* sample) const override {
    const int column = static_cast<int>(index % 16);
    sample->label = column / 8;
    sample->image.Reshape(16, 16, 1);
    for (int i = 0; i < 256; ++i) sample->image.bytes[i] = i % 16 == column ? 255 : 0;
    return OkStatus();
  }
  std::vector<std::string> classes = {"left", "right"};
};

Value Network(nn::Context& context, const Value& images) {
  const Value pixels = ops::Reshape(images, {images.dim(0), -1});
  return nn::Linear(context, "head", nn::Linear(context, "hidden", pixels, 32, {.activation = SY_ACTIVATION_GELU}), 2);
}

StatusOr<TrainingResult> Train() {
  TrainConfig config;
  config.dataset = "bars";
  config.epochs = 10;
  config.batch_size = 16;
  config.lr = 0.01f;
  config.weight_decay = config.clip = config.label_smoothing = 0;
  const TrainableModel model = {"bar_net",      {{"model", "bar_net"}}, /*image_size=*/16,
                                /*channels=*/1, /*classes=*/2,          Network};
  SY_ASSIGN_OR_RETURN(const auto world, World::Join({.device = "cpu"}));
  const Bars bars;
  SY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(config, model, bars, bars, *world));
  return trainer->Train();
}

int main() {
  const auto result = Train();
  std::puts(result.ok() ? fmt::format("top-1 {:.1f} %", 100 * result->evaluation.top1).c_str()
                        : Message(result.status()).c_str());
  return result.ok() && result->evaluation.top1 > 0.95 ? 0 : 1;
}
