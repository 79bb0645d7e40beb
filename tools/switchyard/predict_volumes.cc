#include "tools/switchyard/predict_volumes.h"

#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "core/data/files.h"
#include "core/data/formats.h"
#include "core/train/file_calls.h"
#include "tools/switchyard/prediction_target.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kMask[] = "_mask";

// Volumes without labels, as files hold them: one, or as many as an IDX file has.
class VolumeList : public Dataset {
 public:
  struct Item {
    size_t file;              // of those given
    const IdxArray* volumes;  // nullptr: the file is one volume
    int64_t index;            // in volumes
    bool last;                // of its file
  };
  static StatusOr<std::unique_ptr<VolumeList>> Open(const std::vector<std::string>& files) {
    auto list = std::make_unique<VolumeList>(files);
    for (size_t file = 0; file < files.size(); ++file) {
      if (!IsIdxVolumesName(files[file])) {
        list->items_.push_back({file, nullptr, 0, true});
        continue;
      }
      SY_ASSIGN_OR_RETURN(IdxArray volumes, ReadIdxVolumes(files[file]));
      const auto& kept = list->arrays_.emplace_back(std::make_unique<IdxArray>(std::move(volumes)));
      const int64_t count = kept->dims[0];
      for (int64_t i = 0; i < count; ++i) list->items_.push_back({file, kept.get(), i, i + 1 == count});
    }
    return list;
  }
  explicit VolumeList(const std::vector<std::string>& files) : files_(files) {}

  std::string name() const override { return "files"; }
  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  Content content() const override { return Content::kMaskedVolumes; }
  int channels() const override { return 1; }
  Augmentation augmentation() const override { return Augmentation::kNone; }
  const std::vector<std::string>& class_names() const override { return unknown_; }
  const Item& At(int64_t index) const { return items_[static_cast<size_t>(index)]; }
  std::string Path(int64_t index) const override {
    const Item& item = At(index);
    return item.volumes == nullptr ? files_[item.file] : fmt::format("{}[{}]", files_[item.file], item.index);
  }
  StatusOr<Extents> ReadExtents(int64_t index) const override {
    const Item& item = At(index);
    if (item.volumes == nullptr) return ReadVolumeExtents(files_[item.file]);
    return Extents{item.volumes->dims[1], item.volumes->dims[2], item.volumes->dims[3]};
  }
  Status Read(int64_t index, Sample* sample) const override {
    SY_ASSIGN_OR_RETURN(sample->volume, ReadOne(At(index)));
    sample->voxels.clear();
    return OkStatus();
  }
  StatusOr<Volume> ReadOne(const Item& item) const {
    if (item.volumes != nullptr) return IdxVolume(*item.volumes, item.index);
    return ReadVolume(files_[item.file]);
  }

 private:
  const std::vector<std::string>& files_;
  std::vector<std::unique_ptr<IdxArray>> arrays_;
  std::vector<Item> items_;
  const std::vector<std::string> unknown_ = {"unknown"};
};

// Where a name's extension begins: that of .nii.gz is all of it.
size_t EndOfStem(const std::string& name) {
  for (const char* end : {".nii.gz", ".nii", ".npy", "-idx4-ubyte.gz", "-idx4-ubyte"}) {
    if (absl::EndsWithIgnoreCase(name, end)) return name.size() - std::string(end).size();
  }
  return name.size();
}

std::string MaskName(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  return name.insert(EndOfStem(name), kMask);
}

bool IsMask(const std::string& name) { return name.substr(0, EndOfStem(name)).ends_with(kMask); }

Status WriteFile(const std::string& target, const std::vector<uint8_t>& bytes) {
  SY_ASSIGN_OR_RETURN(const PlaceInFolder place, MakePlace(target));
  return place.folder.Replace(place.name, {std::as_bytes(std::span(bytes))});
}

}  // namespace

bool IsVolumeInput(const std::string& name) {
  const bool images = IsIdxVolumesName(name) && name[0] != '.' && name.substr(0, EndOfStem(name)).ends_with("-images");
  return images || (IsVolumeName(name) && !IsMask(name));
}

StatusOr<nlohmann::ordered_json> PredictVolumes(Trainer& trainer, const std::vector<std::string>& files,
                                                const VolumeFilesOptions& options) {
  std::map<std::string, std::string> masks;  // by path, the volume
  std::vector<std::string> targets;
  for (const std::string& file : files) {
    const fs::path folder = options.folder.empty() ? fs::path(file).parent_path() : fs::path(options.folder);
    targets.push_back((folder / MaskName(file)).string());
    const auto [other, fresh] = masks.emplace(targets.back(), file);
    if (!fresh)
      return InvalidArgument("{} and {} would both have the mask {}; give them to two calls with --output of their own",
                             other->second, file, targets.back());
  }
  for (const std::string& target : targets) SY_RETURN_IF_ERROR(CheckTarget(target, !options.folder.empty(), files));
  SY_ASSIGN_OR_RETURN(const auto list, VolumeList::Open(files));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  IdxArray masks_of_file;
  SY_RETURN_IF_ERROR(trainer.Predict(*list, [&](int64_t i, const Prediction& prediction) -> Status {
    const VolumeList::Item& item = list->At(i);
    const std::string& target = targets[item.file];
    nlohmann::ordered_json& result = results.emplace_back();
    result["file"] = list->Path(i);
    result["classes"] = SharesOf(prediction.classes, options.classes, options.top);
    if (prediction.classes.empty()) return OkStatus();
    SY_RETURN_IF_ERROR(Annotate(CheckFinite(prediction), list->Path(i)));
    result["mask"] = target;
    if (item.volumes == nullptr) {
      SY_ASSIGN_OR_RETURN(const Volume volume, list->ReadOne(item));
      return WriteFile(target, EncodeVolume(MaskLike(volume, prediction.classes)));
    }
    if (item.index == 0) masks_of_file = {item.volumes->dims, {}};
    masks_of_file.bytes.insert(masks_of_file.bytes.end(), prediction.classes.begin(), prediction.classes.end());
    if (!item.last) return OkStatus();
    const std::vector<uint8_t> bytes = EncodeIdx(masks_of_file);
    return WriteFile(target, absl::EndsWithIgnoreCase(target, ".gz") ? Gzip(bytes) : bytes);
  }));
  return results;
}

}  // namespace switchyard
