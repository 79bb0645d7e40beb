// Volumes with masks: folders of NIfTI and .npy files, and pairs of IDX files of four dimensions.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "absl/strings/match.h"
#include "core/base/text.h"
#include "core/data/class_map.h"
#include "core/data/files.h"
#include "core/data/formats.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kMostClasses = 255;  // 255 itself is kIgnoredClass

std::string InWords(const Volume& v) { return fmt::format("{} x {} x {}", v.depth, v.height, v.width); }

// A label that no class has, or one that is no class at all.
Status CheckLabel(const std::string& path, double label, size_t classes) {
  if (label == kIgnoredClass || (label >= 0 && label < static_cast<double>(classes) && label == std::floor(label)))
    return OkStatus();
  return DataLoss("{}: expected labels that are whole numbers below {}, or {} for what does not count, found {}", path,
                  classes, kIgnoredClass, label);
}

std::vector<std::string> Numbers(int largest) {
  std::vector<std::string> names;
  for (int label = 0; label <= largest; ++label) names.push_back(fmt::format("{}", label));
  return names;
}

class MaskedVolumes : public Dataset {
 public:
  explicit MaskedVolumes(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  Content content() const override { return Content::kMaskedVolumes; }
  int channels() const override { return 1; }
  Augmentation augmentation() const override { return Augmentation::kCropFlip; }
  const std::vector<std::string>& class_names() const override { return class_names_; }

  std::string name_;
  std::vector<std::string> class_names_;
};

class VolumeFiles : public MaskedVolumes {
 public:
  using MaskedVolumes::MaskedVolumes;
  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  std::string Path(int64_t index) const override { return pairs_[static_cast<size_t>(index)].image; }

  StatusOr<Extents> ReadExtents(int64_t index) const override {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = extents_.find(index); known != extents_.end()) return known->second;
    }
    SY_ASSIGN_OR_RETURN(const Extents extents, ReadVolumeExtents(Path(index)));
    const std::lock_guard lock(mutex_);
    extents_[index] = extents;
    return extents;
  }

  Status Read(int64_t index, Sample* sample) const override {
    const Pair& pair = pairs_[static_cast<size_t>(index)];
    SY_ASSIGN_OR_RETURN(sample->volume, ReadVolume(pair.image));
    SY_ASSIGN_OR_RETURN(const Volume labels, ReadVolume(pair.label, sample->volume.order));
    if (labels.oriented && !sample->volume.oriented && labels.order != sample->volume.order) {
      return DataLoss(
          "{}: its header says how the labels lie in the body, and that of {} says nothing of that; "
          "give both the same sform or qform",
          pair.label, pair.image);
    }
    if (InWords(labels) != InWords(sample->volume)) {
      return DataLoss("{}: expected labels for the {} voxels of {}, found {}", pair.label, InWords(sample->volume),
                      pair.image, InWords(labels));
    }
    sample->voxels.resize(labels.voxels.size());
    for (size_t i = 0; i < labels.voxels.size(); ++i) {
      SY_RETURN_IF_ERROR(CheckLabel(pair.label, labels.voxels[i], class_names_.size()));
      sample->voxels[i] = static_cast<uint8_t>(labels.voxels[i]);
    }
    return OkStatus();
  }

  std::string LeftOut() const override { return left_out_; }

  struct Pair {
    std::string image, label;
  };
  std::vector<Pair> pairs_;
  std::string left_out_;

 private:
  mutable std::mutex mutex_;
  mutable std::map<int64_t, Extents> extents_;  // of those asked for: evaluation asks each time
};

class IdxVolumes : public MaskedVolumes {
 public:
  using MaskedVolumes::MaskedVolumes;
  int64_t size() const override { return images_.dims[0]; }
  std::string Path(int64_t index) const override { return fmt::format("{}[{}]", images_path_, index); }

  StatusOr<Extents> ReadExtents(int64_t) const override {
    return Extents{images_.dims[1], images_.dims[2], images_.dims[3]};
  }

  Status Read(int64_t index, Sample* sample) const override {
    sample->volume = IdxVolume(images_, index);
    const int64_t count = VoxelsOf(ExtentsOf(sample->volume));
    sample->voxels.assign(labels_.bytes.begin() + index * count, labels_.bytes.begin() + (index + 1) * count);
    return OkStatus();
  }

  std::string images_path_;
  IdxArray images_, labels_;
};

// The volume files of a folder by name.
StatusOr<std::map<std::string, std::string>> VolumesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (IsVolumeName(name)) files[name] = at->path().string();
  }
  if (error) return NotFound("{}: cannot list the folder: {}", folder, error.message());
  if (files.empty()) return NotFound("{}: expected .nii, .nii.gz or .npy files, found none", folder);
  return files;
}

// The split's folder below `path`; "" where there is none.
std::string SplitFolderOf(const std::string& path, Split split) {
  std::vector<std::string> names = {"train"};
  if (split == Split::kValidation) names = {"val", "validation", "valid", "test"};
  if (split == Split::kTest) names = {"test", "val", "validation", "valid"};
  for (const std::string& name : names) {
    std::error_code ignored;
    if (fs::is_directory(fs::path(path) / name / "images", ignored)) return (fs::path(path) / name).string();
  }
  return "";
}

// The names in classes.txt, a name a line; none without one.
StatusOr<std::vector<std::string>> ListedClasses(const std::string& path) {
  const std::string listed = (fs::path(path) / "classes.txt").string();
  std::error_code ignored;
  if (!fs::exists(listed, ignored)) return std::vector<std::string>();
  std::vector<uint8_t> bytes;
  SY_RETURN_IF_ERROR(ReadWholeFile(listed, kLargestList, &bytes));
  SY_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseClassNames(listed, bytes));
  if (names.size() > 1) return names;
  return InvalidArgument("{}: expected the names of at least 2 classes, the background first, found {}", listed,
                         names.size());
}

// The largest label of a file, −1 where there is none but kIgnoredClass.
StatusOr<int> LargestLabel(const std::string& path) {
  SY_ASSIGN_OR_RETURN(const Volume labels, ReadVolume(path));
  int largest = -1;
  for (const float label : labels.voxels) {
    SY_RETURN_IF_ERROR(CheckLabel(path, label, kMostClasses));
    if (label != kIgnoredClass) largest = std::max(largest, static_cast<int>(label));
  }
  return largest;
}

// The same of all files. Reads until it is `enough`.
StatusOr<int> LargestLabel(const std::vector<VolumeFiles::Pair>& pairs, int enough) {
  int largest = -1;
  Status unreadable;
  size_t read = 0;
  for (const auto& pair : pairs) {
    if (largest >= enough) break;
    const StatusOr<int> of_file = LargestLabel(pair.label);
    if (!of_file.ok()) {  // a bad sample, when its turn comes
      if (unreadable.ok()) unreadable = of_file.status();
      continue;
    }
    ++read;
    largest = std::max(largest, *of_file);
  }
  if (read == 0) SY_RETURN_IF_ERROR(unreadable);
  return largest;
}

// The same of labels in memory.
int LargestLabel(const IdxArray& labels) {
  int largest = -1;
  for (const uint8_t label : labels.bytes) {
    if (label != kIgnoredClass) largest = std::max<int>(largest, label);
  }
  return largest;
}

// classes.txt; without one, the numbers up to the largest label of the files. to_train: from these labels something is
// to be learned.
StatusOr<std::vector<std::string>> ClassesOf(const std::string& path, const std::vector<VolumeFiles::Pair>& pairs,
                                             bool to_train) {
  SY_ASSIGN_OR_RETURN(std::vector<std::string> listed, ListedClasses(path));
  if (listed.empty()) {
    SY_ASSIGN_OR_RETURN(const int largest, LargestLabel(pairs, kMostClasses));
    if (to_train && largest < 1) return TooFewClasses(path, largest);
    return Numbers(std::max(1, largest));
  }
  const auto largest = to_train ? LargestLabel(pairs, 1) : StatusOr<int>(1);
  if (largest.ok() && *largest < 1) return TooFewClasses(path, *largest);
  return listed;
}

// What an `images` folder holds beside volumes, in a sentence; "": nothing.
std::string VolumesLeftOut(const std::string& folder) {
  int64_t count = 0;
  std::string first;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (name[0] == '.' || IsVolumeName(name) || at->is_directory(ignored)) continue;
    ++count;
    if (first.empty() || at->path().string() < first) first = at->path().string();
  }
  return LeftOutText(count, first, ".nii, .nii.gz nor .npy");
}

StatusOr<std::vector<VolumeFiles::Pair>> PairsIn(const std::string& folder) {
  SY_ASSIGN_OR_RETURN(const auto images, VolumesIn((fs::path(folder) / "images").string()));
  SY_ASSIGN_OR_RETURN(const auto labels, VolumesIn((fs::path(folder) / "labels").string()));
  std::vector<VolumeFiles::Pair> pairs;
  for (const auto& [name, image] : images) {
    const auto label = labels.find(name);
    if (label == labels.end())
      return NotFound("{}: expected its labels in {}, found none", image,
                      (fs::path(folder) / "labels" / name).string());
    pairs.push_back({image, label->second});
  }
  return pairs;
}

StatusOr<std::unique_ptr<Dataset>> OpenVolumeFiles(const std::string& name, const std::string& path, Split split) {
  const std::string folder = SplitFolderOf(path, split);
  if (folder.empty()) {
    return NotFound(
        "{}: expected {}/images and {}/labels with volumes of the same names (.nii, .nii.gz or .npy), or "
        "{}-images-idx4-ubyte[.gz] and {}-labels-idx4-ubyte[.gz], found neither",
        path, SplitName(split), SplitName(split), SplitName(split), SplitName(split));
  }
  auto dataset = std::make_unique<VolumeFiles>(name);
  SY_ASSIGN_OR_RETURN(dataset->pairs_, PairsIn(folder));
  const std::string train = SplitFolderOf(path, Split::kTrain);
  std::vector<VolumeFiles::Pair> telling = dataset->pairs_;
  if (!train.empty()) {
    SY_ASSIGN_OR_RETURN(telling, PairsIn(train));
  }
  SY_ASSIGN_OR_RETURN(dataset->class_names_, ClassesOf(path, telling, split == Split::kTrain));
  dataset->left_out_ = VolumesLeftOut((fs::path(folder) / "images").string());
  return dataset;
}

StatusOr<std::unique_ptr<Dataset>> OpenIdxVolumes(const std::string& name, const std::string& path, Split split,
                                                  std::vector<std::string> class_names) {
  auto dataset = std::make_unique<IdxVolumes>(name);
  SY_ASSIGN_OR_RETURN(dataset->images_path_, FindIdx(path, split, "images"));
  SY_ASSIGN_OR_RETURN(const std::string labels_path, FindIdx(path, split, "labels"));
  SY_ASSIGN_OR_RETURN(dataset->images_, ReadIdxVolumes(dataset->images_path_));
  SY_ASSIGN_OR_RETURN(dataset->labels_, ReadIdxVolumes(labels_path));
  if (dataset->labels_.dims != dataset->images_.dims) {
    return DataLoss("{}: expected labels ({}), as the volumes of {}, found ({})", labels_path,
                    fmt::join(dataset->images_.dims, ", "), dataset->images_path_,
                    fmt::join(dataset->labels_.dims, ", "));
  }
  if (class_names.empty()) {
    SY_ASSIGN_OR_RETURN(class_names, ListedClasses(path));
  }
  if (class_names.empty()) {
    const auto train_path = FindIdx(path, Split::kTrain, "labels");
    SY_ASSIGN_OR_RETURN(const IdxArray telling, ReadIdx(train_path.ok() ? *train_path : labels_path));
    class_names = Numbers(std::max(1, LargestLabel(telling)));
  }
  if (const int largest = LargestLabel(dataset->labels_); split == Split::kTrain && largest < 1)
    return TooFewClasses(labels_path, largest);
  dataset->class_names_ = std::move(class_names);
  for (const uint8_t label : dataset->labels_.bytes)
    SY_RETURN_IF_ERROR(CheckLabel(labels_path, label, dataset->class_names_.size()));
  return dataset;
}

}  // namespace

bool IsVolumeName(const std::string& name) {
  const std::string file = fs::path(name).filename().string();
  const auto ends = [&](const char* end) { return absl::EndsWithIgnoreCase(file, end); };
  return !file.empty() && file[0] != '.' && (ends(".nii") || ends(".nii.gz") || ends(".npy"));
}

bool IsIdxVolumesName(const std::string& path) {
  return absl::EndsWithIgnoreCase(path, "-idx4-ubyte") || absl::EndsWithIgnoreCase(path, "-idx4-ubyte.gz");
}

StatusOr<IdxArray> ReadIdxVolumes(const std::string& path) {
  SY_ASSIGN_OR_RETURN(IdxArray array, ReadIdx(path));
  if (array.dims.size() == 4) return array;
  return InvalidArgument("{}: expected volumes (N, D, H, W), found ({})", path, fmt::join(array.dims, ", "));
}

Volume IdxVolume(const IdxArray& volumes, int64_t index) {
  Volume v;
  v.depth = volumes.dims[1], v.height = volumes.dims[2], v.width = volumes.dims[3];
  v.stored = VoxelType::kU8;
  v.nifti = false;
  const auto first = volumes.bytes.begin() + index * VoxelsOf(ExtentsOf(v));
  v.voxels.assign(first, first + VoxelsOf(ExtentsOf(v)));
  return v;
}

StatusOr<std::unique_ptr<Dataset>> OpenVolumes(const std::string& name, const std::string& path, Split split,
                                               std::vector<std::string> class_names) {
  if (FindIdx(path, split, "images").ok()) return OpenIdxVolumes(name, path, split, std::move(class_names));
  return OpenVolumeFiles(name, path, split);
}

}  // namespace switchyard
