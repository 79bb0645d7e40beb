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

// Writes NAME_mask.nii.gz for NAME.nii.gz, and so on, for all volumes of NAME-idx4-ubyte.gz NAME_mask-idx4-ubyte.gz,
// and says of each volume where its mask is and which share of it each class has: [{"file", "mask", "classes":
// [{"class", "share"}]}], without a mask where the volume could not be read, first the classes of most voxels. "file"
// of volume 3 in an IDX file: NAME-idx4-ubyte.gz[3]. InvalidArgument where two masks would be one file.
StatusOr<nlohmann::ordered_json> PredictVolumes(Trainer& trainer, const std::vector<std::string>& files,
                                                const VolumeFilesOptions& options);

// Whether a file's name in a folder is that of volumes, and not of a mask that PredictVolumes wrote: .nii, .nii.gz,
// .npy, -images-idx4-ubyte, -images-idx4-ubyte.gz.
bool IsVolumeInput(const std::string& name);

}  // namespace switchyard
