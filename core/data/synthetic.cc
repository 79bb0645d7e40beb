#include <cstring>

#include "core/base/random.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

constexpr size_t kDistinctImages = 16;

class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const DatasetOptions& options, Split split)
      : side_(options.image_size > 0 ? options.image_size : 224),
        size_(split == Split::kTrain ? (options.train_size > 0 ? options.train_size : 1'281'167)
                                     : (options.validation_size > 0 ? options.validation_size : 50'000)) {
    const int classes = options.classes > 0 ? options.classes : 1000;
    for (int i = 0; i < classes; ++i) class_names_.push_back(fmt::format("class{:03}", i));
    RandomStream random(Key(options.seed, HashName("synthetic")));
    pixels_.resize(kDistinctImages * ImageBytes());
    for (uint8_t& byte : pixels_) byte = static_cast<uint8_t>(random.Next32() >> 24);
  }

  std::string name() const override { return "synthetic"; }
  int64_t size() const override { return size_; }
  int channels() const override { return 3; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  Augmentation augmentation() const override { return Augmentation::kNone; }

  Status Read(int64_t index, Sample* sample) const override {
    sample->image.Reshape(side_, side_, 3);
    const size_t image = static_cast<size_t>(index) % kDistinctImages;
    std::memcpy(sample->image.bytes.data(), pixels_.data() + image * ImageBytes(), ImageBytes());
    sample->label = static_cast<int32_t>(static_cast<size_t>(index) % class_names_.size());
    return OkStatus();
  }

 private:
  size_t ImageBytes() const { return size_t{3} * static_cast<size_t>(side_) * static_cast<size_t>(side_); }

  int side_;
  int64_t size_;
  std::vector<std::string> class_names_;
  std::vector<uint8_t> pixels_;
};

}  // namespace

std::unique_ptr<Dataset> MakeSynthetic(const DatasetOptions& options, Split split) {
  return std::make_unique<SyntheticDataset>(options, split);
}

}  // namespace switchyard
