// predict, of a model that says a class for every pixel: a mask for each image.
#pragma once

#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/train/trainer.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct MaskFilesOptions {
  std::string folder;  // for what is written; empty: beside each image
  bool overlay = false;
  int top = 3;                       // classes to tell of
  std::vector<std::string> classes;  // by id; "class 7" where nobody says
  std::vector<uint8_t> ids;          // numbers of the classes in files (DatasetInfo::mask_ids); empty: as they are
  Shape input;                       // of the model: (H, W, C)
};

// What predict writes for an image: <name>_mask.png and <name>_overlay.png; such files are no images to predict on.
bool IsMaskFile(const std::string& path);

// Writes for each image of `list` a PNG of its size whose numbers are the classes' ids, with a colour for each, and
// where it is asked for a picture of both; a few at a time. Gives {"file", "mask", "overlay", "classes": [{"class",
// "share"}]} for each, first the classes of most pixels; without classes where the file could not be read.
StatusOr<nlohmann::ordered_json> PredictMasks(Trainer& trainer, const Dataset& list, const MaskFilesOptions& options);

}  // namespace switchyard
