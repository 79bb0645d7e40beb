// What programs with a main of their own train here: a bar in a picture, on its left or its right half.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "core/graph/ops/layout.h"
#include "core/nn/layers.h"
#include "core/train/trainer.h"

namespace switchyard {

// Counts how often it is read, by which one sees that the training has begun.
struct Bars : Dataset {
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
    ++reads;
    return OkStatus();
  }
  std::vector<std::string> classes = {"left", "right"};
  mutable std::atomic<int> reads{0};
};

inline Value BarNetwork(nn::Context& context, const Value& images) {
  return nn::Linear(context, "head", ops::Reshape(images, {images.dim(0), -1}), 2);
}

inline TrainableModel BarsModel() {
  return {.name = "bar_net",
          .architecture = {{"model", "bar_net"}},
          .image_size = 16,
          .channels = 1,
          .classes = 2,
          .build = BarNetwork};
}

inline TrainConfig BarsConfig() {
  TrainConfig config;
  config.dataset = "bars";
  config.eval_every = 0;
  config.batch_size = 16;
  config.lr = 0.01f;
  config.weight_decay = config.clip = config.label_smoothing = 0;
  return config;
}

}  // namespace switchyard
