#include "core/data/renamed_classes.h"

#include <algorithm>
#include <map>

#include "core/base/names.h"
#include "core/base/text.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr size_t kShown = 10;  // names in a message

class RenamedClasses : public Dataset {
 public:
  RenamedClasses(std::unique_ptr<Dataset> data, std::vector<std::string> classes, std::vector<int32_t> labels)
      : data_(std::move(data)), classes_(std::move(classes)), labels_(std::move(labels)) {}
  std::string name() const override { return data_->name(); }
  int64_t size() const override { return data_->size(); }
  Content content() const override { return data_->content(); }
  int channels() const override { return data_->channels(); }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string Path(int64_t index) const override { return data_->Path(index); }
  StatusOr<Extents> ReadExtents(int64_t index) const override { return data_->ReadExtents(index); }
  Augmentation augmentation() const override { return data_->augmentation(); }
  float crop_ratio() const override { return data_->crop_ratio(); }
  std::string LeftOut() const override { return data_->LeftOut(); }
  Status Read(int64_t index, Sample* sample) const override {
    SY_RETURN_IF_ERROR(data_->Read(index, sample));
    if (content() == Content::kMaskedImages) return Rename(index, sample->mask.bytes);
    if (content() == Content::kMaskedVolumes) return Rename(index, sample->voxels);
    if (sample->label < 0 || sample->label >= static_cast<int64_t>(labels_.size()))
      return DataLoss("{}: label {} is outside of {} classes", Path(index), sample->label, labels_.size());
    sample->label = labels_[static_cast<size_t>(sample->label)];
    return OkStatus();
  }

 private:
  Status Rename(int64_t index, std::vector<uint8_t>& mask) const {
    for (uint8_t& label : mask) {
      if (label == kIgnoredClass) continue;
      if (label >= labels_.size())
        return DataLoss("{}: class {} in its mask is outside of {} classes", Path(index), label, labels_.size());
      label = static_cast<uint8_t>(labels_[label]);
    }
    return OkStatus();
  }

  const std::unique_ptr<Dataset> data_;
  const std::vector<std::string> classes_;
  const std::vector<int32_t> labels_;  // by the data's own label
};

// The first ones as a message may show them.
std::vector<std::string> FirstOf(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) shown.push_back(Printable(names[i]));
  return shown;
}

StatusOr<std::map<std::string, int32_t>> LabelsByName(const std::vector<std::string>& names, const std::string& whose) {
  std::map<std::string, int32_t> labels;
  for (const std::string& name : names) {
    if (!labels.emplace(name, static_cast<int32_t>(labels.size())).second)
      return InvalidArgument("{} has two classes of the name {}, which cannot be told apart by name", whose,
                             Printable(name));
  }
  return labels;
}

}  // namespace

StatusOr<std::unique_ptr<Dataset>> WithClasses(std::unique_ptr<Dataset> data, const std::vector<std::string>& classes) {
  if (data->class_names() == classes) return data;
  SY_ASSIGN_OR_RETURN(const auto known, LabelsByName(classes, "the model"));
  SY_RETURN_IF_ERROR(LabelsByName(data->class_names(), data->name()).status());
  std::vector<int32_t> labels;
  std::vector<std::string> unknown;
  for (const std::string& name : data->class_names()) {
    const auto found = known.find(name);
    if (found == known.end()) unknown.push_back(name);
    labels.push_back(found == known.end() ? -1 : found->second);
  }
  if (!unknown.empty()) {
    const std::string hint = DidYouMean(unknown[0], classes);
    return InvalidArgument(
        "the model does not know {} of the dataset's {} classes: {}{}{}; it knows {}{}. Where both number the same "
        "classes alike under other names, --match_classes=position compares numbers",
        unknown.size(), data->class_names().size(), fmt::join(FirstOf(unknown), ", "),
        unknown.size() > kShown ? ", …" : "", hint, fmt::join(FirstOf(classes), ", "),
        classes.size() > kShown ? fmt::format(", … ({} classes)", classes.size()) : "");
  }
  return std::make_unique<RenamedClasses>(std::move(data), classes, std::move(labels));
}

}  // namespace switchyard
