#include "core/data/labelled_images.h"

#include <cstring>

namespace switchyard {

std::vector<SampleTensor> LabelledImages::tensors() const {
  const EvaluationTransform& e = transform_.options().evaluation;
  return Tensors(dtype_, e.image_size, e.image_size, e.channels, mixing_, flips_on_device_);
}

std::vector<SampleTensor> LabelledImages::Tensors(DType dtype, int64_t height, int64_t width, int64_t channels,
                                                  const MixingOptions& mixing, bool flips_on_device) {
  std::vector<SampleTensor> tensors = {{"images", {dtype, {height, width, channels}}}, {"labels", {DType::kI32, {}}}};
  if (mixing.enabled())
    tensors.insert(tensors.end(), {{"partner_labels", {DType::kI32, {}}}, {"own_share", {DType::kF32, {}}}});
  if (mixing.enabled() && mixing.on_device)
    tensors.insert(tensors.end(), {{"partners", {DType::kI32, {}}},
                                   {"partner_rows", {DType::kI32, {height}}},
                                   {"partner_columns", {DType::kU8, {width * channels}}}});
  if (flips_on_device) tensors.push_back({"flips", {DType::kU8, {}}, /*optional=*/true});
  return tensors;
}

void LabelledImages::FillLabels(int32_t label, bool flip, std::span<void* const> rows) const {
  *static_cast<int32_t*>(rows[1]) = label;
  if (flips_on_device_) *static_cast<uint8_t*>(rows.back()) = flip;
  if (!mixing_.enabled()) return;
  *static_cast<int32_t*>(rows[2]) = label;
  *static_cast<float*>(rows[3]) = 1;
  if (!mixing_.on_device) return;
  const EvaluationTransform& e = transform_.options().evaluation;
  *static_cast<int32_t*>(rows[4]) = 0;
  WritePartnerShares(Mix(), e.image_size, e.image_size, e.channels, static_cast<int32_t*>(rows[5]),
                     static_cast<uint8_t*>(rows[6]));
}

Status LabelledImages::Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const {
  thread_local Sample sample;
  SY_RETURN_IF_ERROR(dataset_.Read(index, &sample));
  const auto classes = static_cast<int64_t>(dataset_.class_names().size());
  if (sample.label < 0 || sample.label >= classes)
    return DataLoss("{}: label {} is outside of {} classes", Path(index), sample.label, classes);
  SY_RETURN_IF_ERROR(Annotate(transform_.CheckExtents(sample.image), Path(index)));
  bool flip = false;
  if (dtype_ == DType::kU8) {
    transform_.ApplyBytes(epoch, index, &sample.image, static_cast<uint8_t*>(rows[0]),
                          flips_on_device_ ? &flip : nullptr);
  } else {
    transform_.Apply(epoch, index, &sample.image, static_cast<float*>(rows[0]));
  }
  FillLabels(sample.label, flip, rows);
  return OkStatus();
}

void LabelledImages::FillEmpty(std::span<void* const> rows) const {
  std::memset(rows[0], 0, static_cast<size_t>(transform_.elements() * SizeOf(dtype_)));
  FillLabels(-1, /*flip=*/false, rows);
}

void LabelledImages::FinishBatch(int64_t epoch, int64_t batch, std::span<const int32_t> positions,
                                 std::span<void* const> tensors) const {
  if (!mixing_.enabled()) return;
  const EvaluationTransform& e = transform_.options().evaluation;
  const int side = e.image_size;
  const std::vector<Mix> mixes = DrawMixes(mixing_, epoch, batch, positions, side, side);
  if (mixing_.on_device) {
    for (size_t i = 0; i < mixes.size(); ++i) {
      static_cast<int32_t*>(tensors[4])[i] = static_cast<int32_t>(mixes.size() - 1 - i);
      WritePartnerShares(mixes[i], side, side, e.channels, static_cast<int32_t*>(tensors[5]) + i * side,
                         static_cast<uint8_t*>(tensors[6]) + i * side * e.channels);
    }
  } else if (dtype_ == DType::kU8) {
    MixImages(mixes, side, side, e.channels, static_cast<uint8_t*>(tensors[0]));
  } else {
    MixImages(mixes, side, side, e.channels, static_cast<float*>(tensors[0]));
  }
  const auto* const labels = static_cast<const int32_t*>(tensors[1]);
  for (size_t i = 0; i < mixes.size(); ++i) {
    static_cast<int32_t*>(tensors[2])[i] = labels[mixes.size() - 1 - i];
    static_cast<float*>(tensors[3])[i] = mixes[i].share;
  }
}

}  // namespace switchyard
