#include "core/data/labelled_images.h"

#include <cstring>

namespace switchyard {

std::vector<SampleTensor> LabelledImages::tensors() const {
  const EvaluationTransform& e = transform_.options().evaluation;
  return Tensors(dtype_, e.image_size, e.image_size, e.channels);
}

std::vector<SampleTensor> LabelledImages::Tensors(DType dtype, int64_t height, int64_t width, int64_t channels) {
  return {{"images", {dtype, {height, width, channels}}}, {"labels", {DType::kI32, {}}}};
}

Status LabelledImages::Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const {
  thread_local Sample sample;
  SY_RETURN_IF_ERROR(dataset_.Read(index, &sample));
  const auto classes = static_cast<int64_t>(dataset_.class_names().size());
  if (sample.label < 0 || sample.label >= classes)
    return DataLoss("{}: label {} is outside of {} classes", Path(index), sample.label, classes);
  if (dtype_ == DType::kU8) {
    transform_.ApplyBytes(epoch, index, &sample.image, static_cast<uint8_t*>(rows[0]));
  } else {
    transform_.Apply(epoch, index, &sample.image, static_cast<float*>(rows[0]));
  }
  *static_cast<int32_t*>(rows[1]) = sample.label;
  return OkStatus();
}

void LabelledImages::FillEmpty(std::span<void* const> rows) const {
  std::memset(rows[0], 0, static_cast<size_t>(transform_.elements() * SizeOf(dtype_)));
  *static_cast<int32_t*>(rows[1]) = -1;
}

}  // namespace switchyard
