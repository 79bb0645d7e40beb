// Where predictions are written, never over what somebody else put there; and what is said of a mask.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace switchyard {

// Whether predict may write `target`: InvalidArgument where it is one of the files of `inputs`, or, where the user
// named no folder for the results, where something is there already.
Status CheckTarget(const std::string& target, bool folder_given, std::span<const std::string> inputs);

// [{"class", "share"}] of the classes in a mask, first that of most places, at most `top`. names: by class; "class 7"
// where nobody says.
nlohmann::ordered_json SharesOf(std::span<const uint8_t> mask, const std::vector<std::string>& names, int top);

}  // namespace switchyard
