// Other ways to give training settings: names that people bring from the programs that they come from, which
// models/README.md explains line by line (a test holds that page and this table together), and shorthands.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "core/settings/alias.h"
#include "core/settings/shorthand.h"

namespace switchyard {

const std::vector<Alias>& TrainAliases();
const std::vector<Shorthand>& TrainShorthands();
// Unimplemented, naming the variable, where one of the environment switches on what other programs have and this one
// does not: a run would else train without it and never say so.
Status RefuseMissingSwitches();

}  // namespace switchyard
