// The images of a dataset, transformed, with their labels: "images" (H, W, C) and "labels" i32 (), -1 and a black image
// where there is no sample; where images are mixed (mixing.h), also "partner_labels" i32 (), of the sample mixed in,
// and "own_share" f32 (), of the sample's own label. Images travel as they are stored, u8, to be normalised on the
// device; or as normalised f32, made here. Where the device mixes them, they are u8 and there are also "partners" i32
// (), the place of the sample that is mixed in among those of the batch, "partner_rows" i32 (H) and "partner_columns"
// u8 (W·C), its shares (WritePartnerShares). Where the device flips them, they are u8 and there is also "flips" u8 (),
// 1 where the image's rows are to be reversed, before it is mixed. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/mixing.h"
#include "core/data/samples.h"
#include "core/data/transforms.h"

namespace switchyard {

class LabelledImages : public SampleSource {
 public:
  // dtype: kU8 or kF32. mixing: of training batches. flips_on_device: of kU8, and not where the loader mixes. The
  // dataset must outlive it.
  LabelledImages(const Dataset& dataset, const Transform& transform, DType dtype, const MixingOptions& mixing = {},
                 bool flips_on_device = false)
      : dataset_(dataset), transform_(transform), dtype_(dtype), mixing_(mixing), flips_on_device_(flips_on_device) {}

  std::string name() const override { return dataset_.name(); }
  int64_t size() const override { return dataset_.size(); }
  std::string Path(int64_t index) const override { return dataset_.Path(index); }
  std::vector<SampleTensor> tensors() const override;
  static std::vector<SampleTensor> Tensors(DType dtype, int64_t height, int64_t width, int64_t channels,
                                           const MixingOptions& mixing = {}, bool flips_on_device = false);
  Status Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const override;
  void FillEmpty(std::span<void* const> rows) const override;
  void FinishBatch(int64_t epoch, int64_t batch, std::span<const int32_t> positions,
                   std::span<void* const> tensors) const override;

 private:
  // What is beside the image in the row of a sample that is not mixed.
  void FillLabels(int32_t label, bool flip, std::span<void* const> rows) const;

  const Dataset& dataset_;
  const Transform transform_;
  const DType dtype_;
  const MixingOptions mixing_;
  const bool flips_on_device_;
};

}  // namespace switchyard
