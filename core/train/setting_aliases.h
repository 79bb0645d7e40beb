// Other ways to give training settings: names that people bring from the programs that they come from, which
// models/README.md explains line by line (a test holds that page and this table together), and shorthands.
#pragma once

#include <vector>

#include "core/settings/alias.h"
#include "core/settings/shorthand.h"

namespace switchyard {

const std::vector<Alias>& TrainAliases();
const std::vector<Shorthand>& TrainShorthands();

}  // namespace switchyard
