// Labelled images, or images and volumes with masks, by index, and the list of datasets that the program knows. A
// dataset of your own derives from Dataset; one that everybody should have gets a row in dataset.cc. Thread-safe: a
// Dataset is immutable after it was opened; any number of threads may read at once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/data/augmentation.h"
#include "core/data/image.h"
#include "core/data/volume.h"
#include "core/graph/types.h"

namespace switchyard {

// What the samples of a dataset are, and so which models can learn from it.
enum class Content {
  kLabelledImages,  // images of one class each: classification
  kMaskedImages,    // images, and the class of each pixel: segmentation
  kMaskedVolumes,   // volumes, and the class of each voxel: segmentation in three dimensions
};
std::string ContentName(Content content);  // "labelled images", "images with masks", "volumes with masks"

// The class of pixels and voxels that neither the loss nor a metric counts.
inline constexpr uint8_t kIgnoredClass = 255;

// What a dataset's content() asks for is filled, the rest is left alone. Sizes may differ between samples.
struct Sample {
  Image image;                  // of channels() channels; of both kinds of images
  int32_t label = 0;            // labelled images: in [0, class_names().size())
  Image mask;                   // images with masks: (H, W, 1) as the image, each a class or kIgnoredClass
  Volume volume;                // volumes with masks
  std::vector<uint8_t> voxels;  // volumes with masks: (D, H, W) as the volume, each a class or kIgnoredClass
};

// What up to 64 evenly spaced samples, or 8 volumes, show of a dataset.
struct DatasetSurvey {
  uint32_t checksum = 0;     // CRC-32 of the size, the class names and those samples, decoded
  int64_t read = 0;          // of them, without those that cannot be read
  bool whole = false;        // all samples were read
  std::vector<bool> occurs;  // of masks: by class, whether a pixel or voxel has it; else empty
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string name() const = 0;
  virtual int64_t size() const = 0;
  virtual Content content() const { return Content::kLabelledImages; }
  virtual int channels() const = 0;                                 // 1 or 3; of volumes 1
  virtual const std::vector<std::string>& class_names() const = 0;  // by label; equal for every split
  // Fills *sample, whose memory is reused. Requires 0 <= index < size(). Errors name the file.
  virtual Status Read(int64_t index, Sample* sample) const = 0;
  // Volumes with masks: the extents of a sample, without the rest of it where the data allows that.
  virtual StatusOr<Extents> ReadExtents(int64_t index) const;
  // Where the sample lives: a path, or "file[record]".
  virtual std::string Path(int64_t index) const;
  // What suits this data in training, unless the user chooses.
  virtual Augmentation augmentation() const { return Augmentation::kResizedCrop; }
  // What suits it in evaluation, unless the user chooses: the share of the shorter side that a centred crop keeps. The
  // edges of photographs (0.875 is the ImageNet habit) tell less than their centre.
  virtual float crop_ratio() const { return augmentation() == Augmentation::kResizedCrop ? 0.875f : 1; }

  // A sentence about files that lie among its samples and are not read, "" where there are none.
  virtual std::string LeftOut() const { return ""; }

  StatusOr<Sample> Get(int64_t index) const;
  // Read once; later calls know it.
  const DatasetSurvey& Survey() const;
  // A cheap fingerprint, the same for a folder and for a tar of it.
  uint32_t Checksum() const { return Survey().checksum; }

 private:
  DatasetSurvey Look() const;
  mutable std::once_flag surveyed_;
  mutable DatasetSurvey survey_;
};

// Of a survey of the training samples: a sentence that names the classes of masks that none of them has, where all
// samples were read, or where half of the classes or more are not in those that were; else "".
std::string ClassesThatNeverOccur(const DatasetSurvey& survey, const Dataset& train);

enum class Split { kTrain, kValidation, kTest };
std::string SplitName(Split split);

struct DatasetOptions {
  std::string name;                 // as listed by KnownDatasets()
  std::optional<std::string> data;  // folder or archive; else searched for, see location.h
  bool download = true;             // may fetch what is not there
  uint64_t seed = 42;               // shapes
  std::optional<int> image_size;    // pixels; shapes (else 32) and synthetic (else 224)
  std::optional<int> classes;       // synthetic; else 1000, of masks 21, of voxels 2
  // synthetic makes what a model learns from: samples of this kind, of masks (H, W, 3) in size.
  Content content = Content::kLabelledImages;
  Shape input_shape;
  // Samples of shapes (else 10,000 and 2,000) and synthetic (else 1,281,167 and 50,000, with masks 2,975 and 500).
  std::optional<int64_t> train_size, validation_size;
};

// NotFound, with "did you mean", for an unknown name; NotFound, with where to put what, for missing data; DataLoss for
// damaged files. Where a dataset has no separate test (validation) split, kTest (kValidation) means the other one.
StatusOr<std::unique_ptr<Dataset>> OpenDataset(const DatasetOptions& options, Split split);

// The path that OpenDataset would read, downloaded first if need be; "" for datasets without files.
StatusOr<std::string> LocateDataset(const DatasetOptions& options);

struct DatasetInfo {
  std::string name, help;
  Content content = Content::kLabelledImages;
  std::vector<uint8_t> mask_ids;  // of its classes in files of masks; empty: their numbers
};
std::vector<DatasetInfo> KnownDatasets();

}  // namespace switchyard
