#include "core/data/volume_samples.h"

#include <algorithm>

#include "fmt/ranges.h"

namespace switchyard {
namespace {

// Volumes that windows are cut from at once, and what more of them may take: those of few windows are read far ahead of
// what is put together.
constexpr size_t kFewestKept = 3;
constexpr int64_t kMostKeptVoxels = int64_t{1} << 26;  // 5 bytes each

void FillEmptyPatch(const Extents& patch, std::span<void* const> rows) {
  std::fill_n(static_cast<float*>(rows[0]), VoxelsOf(patch), 0.0f);
  std::fill_n(static_cast<int32_t*>(rows[1]), VoxelsOf(patch), kNoClass);
}

Status CheckLabels(const Dataset& dataset, int64_t index, const Sample& sample) {
  const auto voxels = static_cast<size_t>(VoxelsOf(ExtentsOf(sample.volume)));
  if (!sample.voxels.empty() && sample.voxels.size() != voxels)
    return DataLoss("{}: {} voxels, but {} labels", dataset.Path(index), voxels, sample.voxels.size());
  const size_t known = dataset.class_names().size();
  const auto strange = std::find_if(sample.voxels.begin(), sample.voxels.end(),
                                    [&](uint8_t label) { return label >= known && label != kIgnoredClass; });
  if (strange == sample.voxels.end()) return OkStatus();
  return DataLoss("{}: class {} among its labels is outside of {} classes", dataset.Path(index), *strange, known);
}

}  // namespace

std::vector<SampleTensor> VolumeTensors(const Extents& patch) {
  return {{"volumes", {DType::kF32, {patch[0], patch[1], patch[2], 1}}},
          {"masks", {DType::kI32, {patch[0], patch[1], patch[2]}}}};
}

Status VolumePatches::Fill(int64_t epoch, int64_t index, std::span<void* const> rows) const {
  thread_local Sample sample;
  SY_RETURN_IF_ERROR(dataset_.Read(index, &sample));
  SY_RETURN_IF_ERROR(CheckLabels(dataset_, index, sample));
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
      MakeRoom(volume);
      kept = kept_.emplace_back(volume, std::make_shared<Kept>()).second;
    }
  }
  std::call_once(kept->once, [&] { kept->sample = Read(volume); });
  return kept->sample;
}

void VolumeWindows::MakeRoom(int64_t volume) const {
  const auto voxels = [this](int64_t of) { return VoxelsOf(extents_[static_cast<size_t>(of)]); };
  int64_t total = voxels(volume);
  for (const auto& entry : kept_) total += voxels(entry.first);
  while (kept_.size() >= kFewestKept && total > kMostKeptVoxels) {
    total -= voxels(kept_.front().first);
    kept_.erase(kept_.begin());
  }
}

StatusOr<std::shared_ptr<const Sample>> VolumeWindows::Read(int64_t volume) const {
  auto sample = std::make_shared<Sample>();
  SY_RETURN_IF_ERROR(dataset_.Read(volume, sample.get()));
  SY_RETURN_IF_ERROR(CheckLabels(dataset_, volume, *sample));
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
