#include "tools/switchyard/prediction_target.h"

#include <filesystem>

#include "core/data/dataset.h"

namespace switchyard {

namespace fs = std::filesystem;

Status CheckTarget(const std::string& target, bool folder_given, const Dataset& inputs) {
  std::error_code none;
  if (!fs::exists(target, none)) return OkStatus();
  for (int64_t i = 0; i < inputs.size(); ++i) {
    if (fs::equivalent(target, inputs.Path(i), none))
      return InvalidArgument("{} is to be predicted and would be written over; give a folder with --output", target);
  }
  if (folder_given) return OkStatus();
  return InvalidArgument("{} is there already and would be written over; move it away, or give a folder with --output",
                         target);
}

}  // namespace switchyard
