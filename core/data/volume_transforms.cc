#include "core/data/volume_transforms.h"

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr double kGaussianDeviation = 0.125;  // of the patch's extent
constexpr float kLeastWeight = 1e-3f;

Status CheckFinite(const Volume& v) {
  const auto bad = std::find_if(v.voxels.begin(), v.voxels.end(), [](float voxel) { return !std::isfinite(voxel); });
  if (bad == v.voxels.end()) return OkStatus();
  const int64_t place = bad - v.voxels.begin(), row = place / std::max<int64_t>(v.width, 1);
  return DataLoss(
      "expected finite intensities, found {} at depth {}, height {}, width {}, counted from 0 (of a NIfTI "
      "file after it was turned to RAS+); replace it in the file, or leave such volumes out with --max_bad_samples",
      *bad, row / std::max<int64_t>(v.height, 1), row % std::max<int64_t>(v.height, 1),
      place % std::max<int64_t>(v.width, 1));
}

// Mirrors a patch along one axis.
template <typename T>
void Mirror(const Extents& e, int axis, T* voxels) {
  const Extents stride = {e[1] * e[2], e[2], 1};
  for (int64_t d = 0; d < e[0]; ++d) {
    for (int64_t h = 0; h < e[1]; ++h) {
      for (int64_t w = 0; w < e[2]; ++w) {
        const std::array<int64_t, 3> at = {d, h, w};
        const auto a = static_cast<size_t>(axis);
        const int64_t other = e[a] - 1 - at[a];
        if (at[a] >= other) continue;
        const int64_t place = d * stride[0] + h * stride[1] + w;
        std::swap(voxels[place], voxels[place + (other - at[a]) * stride[a]]);
      }
    }
  }
}

}  // namespace

StatusOr<Normalization> ParseNormalization(const std::string& name) {
  if (name == "zscore") return Normalization::kZscore;
  if (name == "unit") return Normalization::kUnit;
  if (name == "none") return Normalization::kNone;
  return InvalidArgument("--normalization: expected zscore, unit or none, found {}", name);
}

Status Normalize(Normalization normalization, Volume* volume) {
  SY_RETURN_IF_ERROR(CheckFinite(*volume));
  std::vector<float>* const voxels = &volume->voxels;
  if (normalization == Normalization::kNone || voxels->empty()) return OkStatus();
  double centre = 0, unit = 0;
  if (normalization == Normalization::kUnit) {
    const auto [least, greatest] = std::minmax_element(voxels->begin(), voxels->end());
    centre = *least, unit = double{*greatest} - *least;
  } else {
    const auto count = static_cast<double>(voxels->size());
    for (const float v : *voxels) centre += v;
    centre /= count;
    for (const float v : *voxels) unit += (v - centre) * (v - centre);
    unit = std::sqrt(unit / count);
  }
  const double factor = unit > 0 ? 1 / unit : 0;
  for (float& v : *voxels) v = static_cast<float>((v - centre) * factor);
  return OkStatus();
}

Status Check(const VolumeTransformOptions& o) {
  if (*std::min_element(o.patch.begin(), o.patch.end()) < 1)
    return InvalidArgument("expected a patch of at least 1 voxel along each axis, found {}", fmt::join(o.patch, " x "));
  if (o.augmentation != Augmentation::kNone && o.augmentation != Augmentation::kCrop &&
      o.augmentation != Augmentation::kCropFlip) {
    return InvalidArgument("--augmentation: expected none, crop or crop_flip for volumes, found {}",
                           AugmentationName(o.augmentation));
  }
  if (!(o.intensity_scale >= 0 && o.intensity_shift >= 0)) {
    return InvalidArgument("expected an intensity scale and shift of at least 0, found {} and {}", o.intensity_scale,
                           o.intensity_shift);
  }
  return OkStatus();
}

void CutPatch(const Sample& sample, const Extents& patch, const Extents& start, float* volume, int32_t* labels) {
  const Extents extents = ExtentsOf(sample.volume);
  const int64_t first = std::max<int64_t>(0, -start[2]), last = std::min(patch[2], extents[2] - start[2]);
  for (int64_t d = 0; d < patch[0]; ++d) {
    for (int64_t h = 0; h < patch[1]; ++h) {
      float* const row = volume + (d * patch[1] + h) * patch[2];
      int32_t* const label_row = labels + (d * patch[1] + h) * patch[2];
      std::fill_n(row, patch[2], 0.0f);
      std::fill_n(label_row, patch[2], kNoClass);
      const int64_t z = start[0] + d, y = start[1] + h;
      if (z < 0 || z >= extents[0] || y < 0 || y >= extents[1]) continue;
      const int64_t place = (z * extents[1] + y) * extents[2] + start[2];
      for (int64_t w = first; w < last; ++w) {
        const auto from = static_cast<size_t>(place + w);
        row[w] = sample.volume.voxels[from];
        if (!sample.voxels.empty() && sample.voxels[from] != kIgnoredClass) label_row[w] = sample.voxels[from];
      }
    }
  }
}

Status TrainingPatch(const VolumeTransformOptions& o, int64_t epoch, int64_t index, Sample* sample, float* volume,
                     int32_t* labels) {
  SY_RETURN_IF_ERROR(Normalize(o.normalization, &sample->volume));
  RandomStream random(Key(o.seed, HashName("volume"), static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)));
  Extents start = ExtentsOf(sample->volume);
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t spare = start[axis] - o.patch[axis];
    start[axis] = spare <= 0                              ? -(-spare / 2)
                  : o.augmentation == Augmentation::kNone ? spare / 2
                                                          : random.Below(static_cast<uint32_t>(spare + 1));
  }
  CutPatch(*sample, o.patch, start, volume, labels);
  if (o.augmentation != Augmentation::kCropFlip) return OkStatus();
  for (int axis = 0; axis < 3; ++axis) {
    if (random.Uniform() < 0.5f) continue;
    Mirror(o.patch, axis, volume);
    Mirror(o.patch, axis, labels);
  }
  const float scale = 1 + random.Uniform(-1, 1) * o.intensity_scale, shift = random.Uniform(-1, 1) * o.intensity_shift;
  for (int64_t i = 0; i < VoxelsOf(o.patch); ++i) volume[i] = volume[i] * scale + shift;
  return OkStatus();
}

std::vector<Extents> WindowStarts(const Extents& volume, const Extents& patch, float overlap) {
  std::array<std::vector<int64_t>, 3> along;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t spare = volume[axis] - patch[axis];
    const auto share = static_cast<double>(patch[axis]) * (1 - double{overlap});
    const auto step = std::max<int64_t>(1, static_cast<int64_t>(share + 1e-4));  // 1e-4: 0.9f·10 is 9
    int64_t start = spare <= 0 ? -(-spare / 2) : 0;
    along[axis].push_back(start);
    while (start < spare) along[axis].push_back(start = std::min(start + step, spare));
  }
  std::vector<Extents> starts;
  for (const int64_t d : along[0]) {
    for (const int64_t h : along[1]) {
      for (const int64_t w : along[2]) starts.push_back({d, h, w});
    }
  }
  return starts;
}

std::vector<float> WindowWeights(const Extents& patch, bool gaussian) {
  std::vector<float> weights(static_cast<size_t>(VoxelsOf(patch)), 1);
  if (!gaussian) return weights;
  const auto exponent = [&](size_t axis, int64_t at) {
    const auto extent = static_cast<double>(patch[axis]);
    const double from_middle = static_cast<double>(at) - (extent - 1) / 2, deviation = kGaussianDeviation * extent;
    return -from_middle * from_middle / (2 * deviation * deviation);
  };
  size_t i = 0;
  for (int64_t d = 0; d < patch[0]; ++d) {
    for (int64_t h = 0; h < patch[1]; ++h) {
      for (int64_t w = 0; w < patch[2]; ++w) {
        const double weight = std::exp(exponent(0, d) + exponent(1, h) + exponent(2, w));
        weights[i++] = std::max(kLeastWeight, static_cast<float>(weight));
      }
    }
  }
  return weights;
}

}  // namespace switchyard
