// predict for a model of volumes: the class of each voxel, as a file in the format of the volume and with its
// orientation.
#pragma once

#include <string>
#include <vector>

#include "core/train/trainer.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct VolumeFilesOptions {
  std::string folder;                // where masks go; empty: each beside its volume
  std::vector<std::string> classes;  // names by class; empty where nobody says
  int top = 3;                       // classes to tell of
};

// Writes NAME_mask.nii.gz for NAME.nii.gz, and so on, and says of each file where its mask is and which share of it
// each class has: [{"file", "mask", "classes": [{"class", "share"}]}], without a mask where the volume could not be
// read, first the classes of most voxels. InvalidArgument where two masks would be one file.
StatusOr<nlohmann::ordered_json> PredictVolumes(Trainer& trainer, const std::vector<std::string>& files,
                                                const VolumeFilesOptions& options);

// Whether a file's name is that of a mask that PredictVolumes wrote.
bool IsVolumeMaskName(const std::string& name);

}  // namespace switchyard
