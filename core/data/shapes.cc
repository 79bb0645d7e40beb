#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/random.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

// Whether the point (x, y), in units of the shape's radius around its centre, lies inside shape `kind`.
bool InsideShape(int kind, float x, float y) {
  const float ax = std::abs(x), ay = std::abs(y), square = std::max(ax, ay), circle = x * x + y * y;
  switch (kind) {
    case 0:
      return circle < 1;  // disc
    case 1:
      return circle < 1 && circle > 0.4f;  // ring
    case 2:
      return square < 0.85f;  // square
    case 3:
      return square < 0.9f && square > 0.55f;  // frame
    case 4:
      return y < 0.8f && ax < 0.5f * (y + 1.1f);  // triangle, standing
    case 5:
      return y > -0.8f && ax < 0.5f * (1.1f - y);  // triangle, hanging
    case 6:
      return std::min(ax, ay) < 0.28f && square < 1;  // plus
    case 7:
      return std::abs(ax - ay) < 0.38f && square < 0.9f;  // saltire
    case 8:
      return ax < 1 && (ay < 0.25f || (ay > 0.6f && ay < 1));  // horizontal bars
    default:
      return ay < 1 && (ax < 0.25f || (ax > 0.6f && ax < 1));  // vertical bars
  }
}

class ShapesDataset : public Dataset {
 public:
  ShapesDataset(const DatasetOptions& options, Split split)
      : key_(Key(options.seed, HashName("shapes"), split == Split::kTrain ? 0 : 1)),
        side_(options.image_size.value_or(32)),
        size_(split == Split::kTrain ? options.train_size.value_or(10'000) : options.validation_size.value_or(2'000)) {}

  std::string name() const override { return "shapes"; }
  int64_t size() const override { return size_; }
  int channels() const override { return 3; }
  Augmentation augmentation() const override { return Augmentation::kCropFlip; }
  const std::vector<std::string>& class_names() const override {
    static const auto& names =
        *new std::vector<std::string>{"disc",          "ring", "square",  "frame",           "triangle_up",
                                      "triangle_down", "plus", "saltire", "horizontal_bars", "vertical_bars"};
    return names;
  }

  Status Read(int64_t index, Sample* sample) const override {
    RandomStream random(Key(key_, static_cast<uint64_t>(index)));
    const int kind = static_cast<int>(random.Below(10));
    std::array<int, 3> ink, paper;
    int contrast = 0;
    do {  // colours that differ enough to be told apart
      for (int c = 0; c < 3; ++c) ink[c] = static_cast<int>(random.Below(256));
      for (int c = 0; c < 3; ++c) paper[c] = static_cast<int>(random.Below(256));
      contrast = std::abs(ink[0] - paper[0]) + std::abs(ink[1] - paper[1]) + std::abs(ink[2] - paper[2]);
    } while (contrast < 160);
    const float radius = random.Uniform(0.25f, 0.42f), lean = random.Uniform(-0.2f, 0.2f);
    const float center_x = random.Uniform(radius, 1 - radius), center_y = random.Uniform(radius, 1 - radius);
    const float along = std::cos(lean) / radius, across = std::sin(lean) / radius;

    sample->label = kind;
    sample->image.Reshape(side_, side_, 3);
    uint8_t* pixel = sample->image.bytes.data();
    for (int row = 0; row < side_; ++row) {
      for (int column = 0; column < side_; ++column, pixel += 3) {
        int inside = 0;  // of the 2 x 2 points of the pixel
        for (int point = 0; point < 4; ++point) {
          const float x = (column + 0.25f + 0.5f * (point & 1)) / side_ - center_x;
          const float y = (row + 0.25f + 0.5f * (point >> 1)) / side_ - center_y;
          inside += InsideShape(kind, along * x + across * y, along * y - across * x);
        }
        const int noise = static_cast<int>(random.Below(33)) - 16;
        for (int c = 0; c < 3; ++c) {
          const int value = (ink[c] * inside + paper[c] * (4 - inside)) / 4 + noise;
          pixel[c] = static_cast<uint8_t>(std::clamp(value, 0, 255));
        }
      }
    }
    return OkStatus();
  }

 private:
  uint64_t key_;
  int side_;
  int64_t size_;
};

}  // namespace

std::unique_ptr<Dataset> MakeShapes(const DatasetOptions& options, Split split) {
  return std::make_unique<ShapesDataset>(options, split);
}

}  // namespace switchyard
