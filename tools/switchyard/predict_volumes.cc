#include "tools/switchyard/predict_volumes.h"

#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "core/data/formats.h"
#include "core/train/file_calls.h"
#include "tools/switchyard/prediction_target.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kMask[] = "_mask";

// Volumes without labels.
class VolumeList : public Dataset {
 public:
  explicit VolumeList(const std::vector<std::string>& paths) : paths_(paths) {}
  std::string name() const override { return "files"; }
  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  Content content() const override { return Content::kMaskedVolumes; }
  int channels() const override { return 1; }
  Augmentation augmentation() const override { return Augmentation::kNone; }
  const std::vector<std::string>& class_names() const override { return unknown_; }
  std::string Path(int64_t index) const override { return paths_[static_cast<size_t>(index)]; }
  StatusOr<Extents> ReadExtents(int64_t index) const override { return ReadVolumeExtents(Path(index)); }
  Status Read(int64_t index, Sample* sample) const override {
    SY_ASSIGN_OR_RETURN(sample->volume, ReadVolume(Path(index)));
    sample->voxels.clear();
    return OkStatus();
  }

 private:
  const std::vector<std::string>& paths_;
  const std::vector<std::string> unknown_ = {"unknown"};
};

// Where a name's extension begins: that of .nii.gz is all of it.
size_t EndOfStem(const std::string& name) {
  for (const char* end : {".nii.gz", ".nii", ".npy"}) {
    if (absl::EndsWithIgnoreCase(name, end)) return name.size() - std::string(end).size();
  }
  return name.size();
}

std::string MaskName(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  return name.insert(EndOfStem(name), kMask);
}

}  // namespace

bool IsVolumeMaskName(const std::string& name) {
  return IsVolumeName(name) && name.substr(0, EndOfStem(name)).ends_with(kMask);
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
  const VolumeList list(files);
  for (const std::string& target : targets) SY_RETURN_IF_ERROR(CheckTarget(target, !options.folder.empty(), list));
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  SY_RETURN_IF_ERROR(trainer.Predict(list, [&](int64_t i, const Prediction& prediction) -> Status {
    const std::string &file = files[static_cast<size_t>(i)], &target = targets[static_cast<size_t>(i)];
    nlohmann::ordered_json& result = results.emplace_back();
    result["file"] = file;
    result["classes"] = SharesOf(prediction.classes, options.classes, options.top);
    if (prediction.classes.empty()) return OkStatus();
    SY_RETURN_IF_ERROR(Annotate(CheckFinite(prediction), file));
    SY_ASSIGN_OR_RETURN(const Volume volume, ReadVolume(file));
    const std::vector<uint8_t> bytes = EncodeVolume(MaskLike(volume, prediction.classes));
    SY_ASSIGN_OR_RETURN(const PlaceInFolder place, MakePlace(target));
    SY_RETURN_IF_ERROR(place.folder.Replace(place.name, {std::as_bytes(std::span(bytes))}));
    result["mask"] = target;
    return OkStatus();
  }));
  return results;
}

}  // namespace switchyard
