#include "core/data/masked_images.h"

#include <algorithm>
#include <cstring>

namespace switchyard {

std::vector<SampleTensor> MaskedImages::tensors() const {
  const MaskTransformOptions& o = transform_.options();
  return Tensors(dtype_, o.height, o.width, o.channels, flips_on_device_);
}

std::vector<SampleTensor> MaskedImages::Tensors(DType dtype, int64_t height, int64_t width, int64_t channels,
                                                bool flips_on_device) {
  std::vector<SampleTensor> tensors = {{"images", {dtype, {height, width, channels}}},
                                       {"masks", {DType::kI32, {height, width}}}};
  if (flips_on_device) tensors.push_back({"flips", {DType::kU8, {}}, /*optional=*/true});
  return tensors;
}

Status MaskedImages::Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const {
  thread_local Sample sample;
  SY_RETURN_IF_ERROR(dataset_.Read(index, &sample));
  if (sample.image.height != sample.mask.height || sample.image.width != sample.mask.width)
    return DataLoss("{}: {} x {} pixels, but {} x {} in its mask", Path(index), sample.image.width, sample.image.height,
                    sample.mask.width, sample.mask.height);
  const size_t known = dataset_.class_names().size();
  const auto strange = std::find_if(sample.mask.bytes.begin(), sample.mask.bytes.end(),
                                    [&](uint8_t id) { return id >= known && id != kIgnoredClass; });
  if (strange != sample.mask.bytes.end())
    return DataLoss("{}: class {} in its mask is outside of {} classes", Path(index), *strange, known);
  auto* const classes = static_cast<int32_t*>(rows[1]);
  if (dtype_ == DType::kU8) {
    bool flip = false;
    transform_.ApplyBytes(epoch, index, &sample.image, &sample.mask, static_cast<uint8_t*>(rows[0]), classes,
                          flips_on_device_ ? &flip : nullptr);
    if (flips_on_device_) *static_cast<uint8_t*>(rows[2]) = flip;
  } else {
    transform_.Apply(epoch, index, &sample.image, &sample.mask, static_cast<float*>(rows[0]), classes);
  }
  return OkStatus();
}

void MaskedImages::FillEmpty(std::span<void* const> rows) const {
  const std::vector<SampleTensor> of = tensors();
  std::memset(rows[0], 0, static_cast<size_t>(of[0].row.bytes()));
  std::fill_n(static_cast<int32_t*>(rows[1]), of[1].row.elements(), -1);
  if (flips_on_device_) *static_cast<uint8_t*>(rows[2]) = 0;
}

}  // namespace switchyard
