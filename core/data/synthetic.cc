#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/random.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

constexpr size_t kDistinctImages = 16;

// As many as ImageNet has, and with masks as many as Cityscapes has.
int64_t SizeOf(const DatasetOptions& options, Split split, bool masked) {
  return split == Split::kTrain ? options.train_size.value_or(masked ? 2'975 : 1'281'167)
                                : options.validation_size.value_or(masked ? 500 : 50'000);
}

class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const DatasetOptions& options, Split split)
      : content_(options.content == Content::kMaskedImages ? options.content : Content::kLabelledImages),
        height_(options.image_size.value_or(224)),
        width_(height_),
        size_(SizeOf(options, split, content_ == Content::kMaskedImages)) {
    const bool masked = content_ == Content::kMaskedImages;
    if (masked && options.input_shape.size() == 3) {
      height_ = static_cast<int>(options.input_shape[0]);
      width_ = static_cast<int>(options.input_shape[1]);
    }
    const int classes = options.classes.value_or(masked ? 21 : 1000);
    for (int i = 0; i < classes; ++i) class_names_.push_back(fmt::format("class{:03}", i));
    RandomStream random(Key(options.seed, HashName("synthetic")));
    pixels_.resize(kDistinctImages * ImageBytes());
    for (uint8_t& byte : pixels_) byte = static_cast<uint8_t>(random.Next32() >> 24);
  }

  std::string name() const override { return "synthetic"; }
  int64_t size() const override { return size_; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  Content content() const override { return content_; }
  Augmentation augmentation() const override { return Augmentation::kNone; }

  Status Read(int64_t index, Sample* sample) const override {
    sample->image.Reshape(height_, width_, 3);
    const size_t image = static_cast<size_t>(index) % kDistinctImages;
    std::memcpy(sample->image.bytes.data(), pixels_.data() + image * ImageBytes(), ImageBytes());
    sample->label = static_cast<int32_t>(static_cast<size_t>(index) % class_names_.size());
    if (content_ != Content::kMaskedImages) return OkStatus();
    // The green of each pixel, as a class; the last one does not count.
    sample->mask.Reshape(height_, width_, 1);
    for (size_t i = 0; i < sample->mask.bytes.size(); ++i)
      sample->mask.bytes[i] = static_cast<uint8_t>(sample->image.bytes[3 * i + 1] % class_names_.size());
    sample->mask.bytes.back() = kIgnoredClass;
    return OkStatus();
  }

 private:
  size_t ImageBytes() const { return size_t{3} * static_cast<size_t>(height_) * static_cast<size_t>(width_); }

  Content content_;
  int height_, width_;
  int64_t size_;
  std::vector<std::string> class_names_;
  std::vector<uint8_t> pixels_;
};

// Volumes of (D, H, W, 1) with masks.
class SyntheticVolumes : public Dataset {
 public:
  SyntheticVolumes(const DatasetOptions& options, Split split) : size_(SizeOf(options, split, true)) {
    if (options.input_shape.size() == 4) std::copy_n(options.input_shape.begin(), extents_.size(), extents_.begin());
    for (int i = 0; i < std::max(options.classes.value_or(2), 2); ++i)
      class_names_.push_back(fmt::format("class{:03}", i));
    RandomStream random(Key(options.seed, HashName("synthetic")));
    voxels_.resize(static_cast<size_t>(VoxelsOf(extents_)));
    for (uint8_t& voxel : voxels_) voxel = static_cast<uint8_t>(random.Next32() >> 24);
  }

  std::string name() const override { return "synthetic"; }
  int64_t size() const override { return size_; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  Content content() const override { return Content::kMaskedVolumes; }
  Augmentation augmentation() const override { return Augmentation::kNone; }

  StatusOr<Extents> ReadExtents(int64_t) const override { return extents_; }

  // The same intensities in another order for each of a few samples, and the class that an intensity says.
  Status Read(int64_t index, Sample* sample) const override {
    Volume& v = sample->volume;
    v.depth = extents_[0], v.height = extents_[1], v.width = extents_[2];
    v.voxels.assign(voxels_.begin(), voxels_.end());
    const auto shift = static_cast<size_t>(index) % std::min(kDistinctImages, v.voxels.size());
    std::rotate(v.voxels.begin(), v.voxels.begin() + static_cast<ptrdiff_t>(shift), v.voxels.end());
    sample->voxels.resize(v.voxels.size());
    for (size_t i = 0; i < v.voxels.size(); ++i)
      sample->voxels[i] = static_cast<uint8_t>(static_cast<size_t>(v.voxels[i]) % class_names_.size());
    return OkStatus();
  }

 private:
  Extents extents_ = {64, 64, 64};
  int64_t size_;
  std::vector<std::string> class_names_;
  std::vector<uint8_t> voxels_;
};

}  // namespace

std::unique_ptr<Dataset> MakeSynthetic(const DatasetOptions& options, Split split) {
  if (options.content == Content::kMaskedVolumes) return std::make_unique<SyntheticVolumes>(options, split);
  return std::make_unique<SyntheticDataset>(options, split);
}

}  // namespace switchyard
