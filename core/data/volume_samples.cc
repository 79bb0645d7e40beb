#include "core/data/volume_samples.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr size_t kKeptVolumes = 3;

void FillEmptyPatch(const Extents& patch, std::span<void* const> rows) {
  std::fill_n(static_cast<float*>(rows[0]), VoxelsOf(patch), 0.0f);
  std::fill_n(static_cast<int32_t*>(rows[1]), VoxelsOf(patch), kNoClass);
}

}  // namespace

std::vector<SampleTensor> VolumeTensors(const Extents& patch) {
  return {{"volumes", {DType::kF32, {patch[0], patch[1], patch[2], 1}}},
          {"masks", {DType::kI32, {patch[0], patch[1], patch[2]}}}};
}

Status VolumePatches::Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const {
  thread_local Sample sample;
  SY_RETURN_IF_ERROR(dataset_.Read(index, &sample));
  TrainingPatch(options_, epoch, index, &sample, static_cast<float*>(rows[0]), static_cast<int32_t*>(rows[1]));
  return OkStatus();
}

void VolumePatches::FillEmpty(std::span<void* const> rows) const { FillEmptyPatch(options_.patch, rows); }

VolumeWindows::VolumeWindows(const Dataset& dataset, const VolumeTransformOptions& options, float overlap)
    : dataset_(dataset), options_(options) {
  Sample sample;
  for (int64_t volume = 0; volume < dataset.size(); ++volume) {
    const Extents extents = dataset.Read(volume, &sample).ok() ? ExtentsOf(sample.volume) : options.patch;
    first_windows_.push_back(size());
    for (const Extents& start : WindowStarts(extents, options.patch, overlap)) windows_.push_back({volume, start});
    windows_.back().last = true;
  }
}

StatusOr<std::shared_ptr<const Sample>> VolumeWindows::Get(int64_t volume) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [index, sample] : kept_) {
    if (index == volume) return sample;
  }
  auto sample = std::make_shared<Sample>();
  SY_RETURN_IF_ERROR(dataset_.Read(volume, sample.get()));
  Normalize(options_.normalization, &sample->volume.voxels);
  if (kept_.size() == kKeptVolumes) kept_.erase(kept_.begin());
  kept_.emplace_back(volume, sample);
  return sample;
}

Status VolumeWindows::Fill(int64_t, int64_t index, std::span<void* const> rows) const {
  const Window& at = window(index);
  SY_ASSIGN_OR_RETURN(const auto sample, Get(at.volume));
  CutPatch(*sample, options_.patch, at.start, static_cast<float*>(rows[0]), static_cast<int32_t*>(rows[1]));
  return OkStatus();
}

void VolumeWindows::FillEmpty(std::span<void* const> rows) const { FillEmptyPatch(options_.patch, rows); }

}  // namespace switchyard
