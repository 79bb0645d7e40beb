// Where predictions are written: never over what somebody else put there.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard {

class Dataset;

// Whether predict may write `target`: InvalidArgument where it is one of the files of `inputs`, or, where the user
// named no folder for the results, where something is there already.
Status CheckTarget(const std::string& target, bool folder_given, const Dataset& inputs);

}  // namespace switchyard
