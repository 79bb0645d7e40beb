#include "core/data/volume_samples.h"

#include <algorithm>

#include "fmt/ranges.h"

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
  return Annotate(
      TrainingPatch(options_, epoch, index, &sample, static_cast<float*>(rows[0]), static_cast<int32_t*>(rows[1])),
      Path(index));
}

void VolumePatches::FillEmpty(std::span<void* const> rows) const { FillEmptyPatch(options_.patch, rows); }

VolumeWindows::VolumeWindows(const Dataset& dataset, const VolumeTransformOptions& options, float overlap)
    : dataset_(dataset), options_(options) {
  for (int64_t volume = 0; volume < dataset.size(); ++volume) {
    extents_.push_back(dataset.ReadExtents(volume).value_or(options.patch));
    first_windows_.push_back(size());
    for (const Extents& start : WindowStarts(extents_.back(), options.patch, overlap))
      windows_.push_back({volume, start});
    windows_.back().last = true;
  }
}

StatusOr<std::shared_ptr<const Sample>> VolumeWindows::Get(int64_t volume) const {
  std::shared_ptr<Kept> kept;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == volume; });
    if (found != kept_.end()) {
      kept = found->second;
    } else {
      if (kept_.size() == kKeptVolumes) kept_.erase(kept_.begin());
      kept = kept_.emplace_back(volume, std::make_shared<Kept>()).second;
    }
  }
  std::call_once(kept->once, [&] { kept->sample = Read(volume); });
  return kept->sample;
}

StatusOr<std::shared_ptr<const Sample>> VolumeWindows::Read(int64_t volume) const {
  auto sample = std::make_shared<Sample>();
  SY_RETURN_IF_ERROR(dataset_.Read(volume, sample.get()));
  const Extents found = ExtentsOf(sample->volume), expected = extents_[static_cast<size_t>(volume)];
  if (found != expected) {
    return DataLoss(
        "{}: expected ({}) voxels, as when its extents were read, found ({}); leave the file alone while "
        "it is evaluated",
        dataset_.Path(volume), fmt::join(expected, ", "), fmt::join(found, ", "));
  }
  SY_RETURN_IF_ERROR(Annotate(Normalize(options_.normalization, &sample->volume), dataset_.Path(volume)));
  return std::shared_ptr<const Sample>(std::move(sample));
}

Status VolumeWindows::Fill(int64_t, int64_t index, std::span<void* const> rows) const {
  const Window& at = window(index);
  SY_ASSIGN_OR_RETURN(const auto sample, Get(at.volume));
  CutPatch(*sample, options_.patch, at.start, static_cast<float*>(rows[0]), static_cast<int32_t*>(rows[1]));
  return OkStatus();
}

void VolumeWindows::FillEmpty(std::span<void* const> rows) const { FillEmptyPatch(options_.patch, rows); }

}  // namespace switchyard
