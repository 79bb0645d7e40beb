// From volumes of any extents to the patches that a model takes: intensities normalised by the whole volume's own
// statistics, then in training a random patch, mirrored and with other intensities at random, a pure function of (seed,
// epoch, index); and the windows in which evaluation goes over a volume. Extents and places are (depth, height, width)
// in voxels. Where a volume is smaller than the patch it lies in its middle; what is around it has intensity 0 and
// kNoClass. Thread-safe: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/data/augmentation.h"
#include "core/data/dataset.h"

namespace switchyard {

// The label that neither a loss nor a metric counts, as it travels.
inline constexpr int32_t kNoClass = -1;

enum class Normalization {
  kZscore,  // zscore: mean 0 and standard deviation 1 over the volume
  kUnit,    // unit: the least intensity becomes 0, the greatest 1
  kNone,    // none: intensities as they are stored
};
StatusOr<Normalization> ParseNormalization(const std::string& name);
// A volume of one intensity becomes 0 everywhere, but with kNone. DataLoss names the first voxel that is inf or nan:
// it would make all others so.
Status Normalize(Normalization normalization, Volume* volume);

struct VolumeTransformOptions {
  Extents patch = {};
  Normalization normalization = Normalization::kZscore;
  // kNone: the middle patch; kCrop: a random one; kCropFlip: also mirrored along each axis with probability 0.5, times
  // 1 + u·intensity_scale and plus v·intensity_shift with u and v in [−1, 1).
  Augmentation augmentation = Augmentation::kCropFlip;
  float intensity_scale = 0.1f, intensity_shift = 0.1f;
  uint64_t seed = 42;
};
// InvalidArgument for a patch without voxels, negative intensities and other augmentations.
Status Check(const VolumeTransformOptions& options);

// The part of a sample that begins at `start`, which may lie outside: volume (patch) and labels (patch). A sample
// without labels has kNoClass everywhere.
void CutPatch(const Sample& sample, const Extents& patch, const Extents& start, float* volume, int32_t* labels);

// A training patch of a sample, whose intensities it normalises in place. Errors are those of Normalize.
Status TrainingPatch(const VolumeTransformOptions& options, int64_t epoch, int64_t index, Sample* sample, float* volume,
                     int32_t* labels);

// Where windows of the size of the patch begin, so that they cover a volume and neighbours share at least the given
// part of their extent, in [0, 1): MONAI's sliding_window_inference. Row-major.
std::vector<Extents> WindowStarts(const Extents& volume, const Extents& patch, float overlap);

// What a voxel of a window weighs in the mean over windows: 1, or a Gaussian around the middle with a deviation of 1/8
// of the patch, at least 0.001, as MONAI's.
std::vector<float> WindowWeights(const Extents& patch, bool gaussian);

}  // namespace switchyard
