#include "tools/switchyard/predict_masks.h"

#include <filesystem>
#include <map>

#include "core/base/text.h"
#include "core/data/mask_picture.h"
#include "core/train/file_calls.h"
#include "core/train/picture.h"
#include "tools/switchyard/prediction_target.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr char kMaskEnd[] = "_mask.png", kOverlayEnd[] = "_overlay.png";

// Where the files of one image go.
struct MaskPlace {
  std::string folder, stem;
};

// Every image has files of its own: two of the same name in one folder, and what would write over other files, are
// refused before anything is written.
StatusOr<std::vector<MaskPlace>> PlacesFor(const Dataset& list, const std::string& folder, bool overlay) {
  std::vector<MaskPlace> places;
  std::map<std::string, std::string> taken;  // by file, the image
  std::vector<std::string> images;
  for (int64_t i = 0; i < list.size(); ++i) images.push_back(list.Path(i));
  for (int64_t i = 0; i < list.size(); ++i) {
    const fs::path image = list.Path(i);
    const std::string beside = image.has_parent_path() ? image.parent_path().string() : ".";
    places.push_back({folder.empty() ? beside : folder, image.stem().string()});
    const auto [other, is_new] = taken.emplace(places.back().folder + "/" + places.back().stem, list.Path(i));
    if (!is_new)
      return InvalidArgument(
          "the masks of {} and {} would both be {}{}; predict on them one after the other, with "
          "another --output each",
          Printable(other->second), Printable(list.Path(i)), Printable(other->first), kMaskEnd);
    SY_RETURN_IF_ERROR(CheckTarget(other->first + kMaskEnd, !folder.empty(), images));
    if (overlay) SY_RETURN_IF_ERROR(CheckTarget(other->first + kOverlayEnd, !folder.empty(), images));
  }
  return places;
}

// With the numbers that classes have in files. One that has none there, of a model with more classes than its data,
// counts nowhere.
Image InFile(Image mask, const std::vector<uint8_t>& ids) {
  if (ids.empty()) return mask;
  for (uint8_t& number : mask.bytes) number = number < ids.size() ? ids[number] : kIgnoredClass;
  return mask;
}

Status WriteMaskFile(const MaskPlace& place, const std::string& end, const std::string& png) {
  SY_ASSIGN_OR_RETURN(const Folder folder, Folder::Open(place.folder));
  return folder.Replace(place.stem + end, {BytesOf(png)});
}

}  // namespace

bool IsMaskFile(const std::string& path) { return path.ends_with(kMaskEnd) || path.ends_with(kOverlayEnd); }

StatusOr<nlohmann::ordered_json> PredictMasks(Trainer& trainer, const Dataset& list, const MaskFilesOptions& options) {
  SY_ASSIGN_OR_RETURN(const std::vector<MaskPlace> places, PlacesFor(list, options.folder, options.overlay));
  if (!options.folder.empty()) SY_RETURN_IF_ERROR(Folder::Make(options.folder).status());
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Sample sample;
  SY_RETURN_IF_ERROR(trainer.Predict(list, [&](int64_t i, const Prediction& prediction) -> Status {
    nlohmann::ordered_json& result = results.emplace_back(nlohmann::ordered_json{{"file", list.Path(i)}});
    if (prediction.scores.empty()) return OkStatus();
    SY_RETURN_IF_ERROR(Annotate(CheckFinite(prediction), list.Path(i)));
    SY_RETURN_IF_ERROR(list.Read(i, &sample));
    const MaskPlace& place = places[static_cast<size_t>(i)];
    const Image mask = MaskOfScores(prediction.scores, static_cast<int>(options.input[0]),
                                    static_cast<int>(options.input[1]), sample.image.height, sample.image.width);
    const Image in_file = InFile(mask, options.ids);
    SY_ASSIGN_OR_RETURN(const std::string png, EncodeMask(in_file));
    SY_RETURN_IF_ERROR(WriteMaskFile(place, kMaskEnd, png));
    result["mask"] = place.folder + "/" + place.stem + kMaskEnd;
    if (options.overlay) {
      const Image overlay = Overlay(sample.image, in_file);  // the colours of the file
      SY_ASSIGN_OR_RETURN(const std::string picture, EncodePng(Raster{overlay.width, overlay.height, overlay.bytes}));
      SY_RETURN_IF_ERROR(WriteMaskFile(place, kOverlayEnd, picture));
      result["overlay"] = place.folder + "/" + place.stem + kOverlayEnd;
    }
    result["classes"] = SharesOf(mask.bytes, options.classes, options.top);
    return OkStatus();
  }));
  return results;
}

}  // namespace switchyard
