// The images of a dataset with their masks, transformed together: "images" (H, W, C) and "masks" i32 (H, W), −1 where a
// pixel does not count; where there is no sample, a black image of which no pixel counts. Images travel as they are
// stored, u8, to be normalised on the device; or as normalised f32, made here. Where the device flips both, images are
// u8 and there is also "flips" u8 (), 1 where rows are to be reversed. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/mask_transforms.h"
#include "core/data/samples.h"

namespace switchyard {

class MaskedImages : public SampleSource {
 public:
  // dtype: kU8 or kF32. flips_on_device: of kU8. The dataset must outlive it.
  MaskedImages(const Dataset& dataset, const MaskTransform& transform, DType dtype, bool flips_on_device = false)
      : dataset_(dataset), transform_(transform), dtype_(dtype), flips_on_device_(flips_on_device) {}

  std::string name() const override { return dataset_.name(); }
  int64_t size() const override { return dataset_.size(); }
  std::string Path(int64_t index) const override { return dataset_.Path(index); }
  std::vector<SampleTensor> tensors() const override;
  static std::vector<SampleTensor> Tensors(DType dtype, int64_t height, int64_t width, int64_t channels,
                                           bool flips_on_device = false);
  Status Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const override;
  void FillEmpty(std::span<void* const> rows) const override;

 private:
  const Dataset& dataset_;
  const MaskTransform transform_;
  const DType dtype_;
  const bool flips_on_device_;
};

}  // namespace switchyard
