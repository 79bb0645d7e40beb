// One text for several settings that belong together: --parallel=dp2,tp2,zero1 is --dp=2 --tp=2 --zero=1. A shorthand
// works as a flag, an environment variable (SWITCHYARD_<NAME>) and in a config file, there also as an object, which may
// hold any settings, by our names or other programs': {"tp": 2, "num_microbatches": 4}. As an alias it is another way
// to give settings, never a setting of its own. Plain data; thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/settings/alias.h"

namespace switchyard {

struct Shorthand {
  std::string name, help;
  std::vector<Alias> parts;  // each of the shorthand's name, for one setting
};
// Of the settings of those names.
Shorthand ShorthandOf(const std::string& name, const std::string& help, const std::vector<std::string>& settings);

// The parts that a text gives, with their values: "tp2,sp" is 2 for tp and true for sp. InvalidArgument for what is no
// part.
StatusOr<std::vector<std::pair<const Alias*, std::string>>> PartsOf(const Shorthand& shorthand,
                                                                    const std::string& text);

}  // namespace switchyard
