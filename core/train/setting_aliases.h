// Names of training settings that people bring from the programs that they come from. models/README.md explains them
// line by line; a test holds that page and this table together.
#pragma once

#include <vector>

#include "core/settings/alias.h"

namespace switchyard {

const std::vector<Alias>& TrainAliases();

}  // namespace switchyard
