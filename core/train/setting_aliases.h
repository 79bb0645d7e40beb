// Names of training settings that people bring from the programs that they come from. models/README.md explains them
// line by line; a test holds that page and this table together.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "core/settings/alias.h"

namespace switchyard {

const std::vector<Alias>& TrainAliases();
// Unimplemented, naming the variable, where one of the environment switches on what other programs have and this one
// does not: a run would else train without it and never say so.
Status RefuseMissingSwitches();

}  // namespace switchyard
