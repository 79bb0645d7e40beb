// Volumes with masks as samples of a model that takes patches: "volumes" f32 (D, H, W, 1), normalised, and "masks" i32
// (D, H, W), a class or kNoClass. VolumePatches: of training, one random patch of each volume in each epoch.
// VolumeWindows: of evaluation, every window of every volume. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/data/samples.h"
#include "core/data/volume_transforms.h"

namespace switchyard {

std::vector<SampleTensor> VolumeTensors(const Extents& patch);

class VolumePatches : public SampleSource {
 public:
  // The dataset must outlive it.
  VolumePatches(const Dataset& dataset, const VolumeTransformOptions& options) : dataset_(dataset), options_(options) {}
  std::string name() const override { return dataset_.name(); }
  int64_t size() const override { return dataset_.size(); }
  std::string Path(int64_t index) const override { return dataset_.Path(index); }
  std::vector<SampleTensor> tensors() const override { return VolumeTensors(options_.patch); }
  Status Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const override;
  void FillEmpty(std::span<void* const> rows) const override;

 private:
  const Dataset& dataset_;
  const VolumeTransformOptions options_;
};

class VolumeWindows : public SampleSource {
 public:
  // Asks for every volume's extents. One that has none that can be read has one window, whose Fill says why.
  VolumeWindows(const Dataset& dataset, const VolumeTransformOptions& options, float overlap);

  std::string name() const override { return dataset_.name(); }
  int64_t size() const override { return static_cast<int64_t>(windows_.size()); }
  std::string Path(int64_t index) const override { return dataset_.Path(window(index).volume); }
  std::vector<SampleTensor> tensors() const override { return VolumeTensors(options_.patch); }
  std::vector<int64_t> wholes() const override { return first_windows_; }
  Status Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const override;
  void FillEmpty(std::span<void* const> rows) const override;

  struct Window {
    int64_t volume = 0;
    Extents start = {};
    bool last = false;  // of its volume
  };
  const Window& window(int64_t index) const { return windows_[static_cast<size_t>(index)]; }
  const Extents& patch() const { return options_.patch; }
  // A volume, normalised, with its labels. The last ones are kept, as its windows follow each other; threads read
  // different ones at once. DataLoss where its extents are not those of before.
  StatusOr<std::shared_ptr<const Sample>> Get(int64_t volume) const;

 private:
  const Dataset& dataset_;
  const VolumeTransformOptions options_;
  std::vector<Window> windows_;
  std::vector<int64_t> first_windows_;  // by volume
  struct Kept {
    std::once_flag once;
    StatusOr<std::shared_ptr<const Sample>> sample;
  };
  StatusOr<std::shared_ptr<const Sample>> Read(int64_t volume) const;
  void MakeRoom(int64_t volume) const;  // with mutex_ held

  std::vector<Extents> extents_;                                         // by volume
  mutable std::mutex mutex_;                                             // of the list, not of its entries
  mutable std::vector<std::pair<int64_t, std::shared_ptr<Kept>>> kept_;  // oldest first
};

}  // namespace switchyard
