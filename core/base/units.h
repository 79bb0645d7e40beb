// Numbers with units, as people type them. Thread-safe: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/base/status.h"

namespace switchyard {

struct Unit {
  const char* name;  // what stands behind the number; "": nothing
  double factor;
};

// The number times the factor of the first unit that fits. Nothing where none does, or where that is not above 0.
std::optional<double> ParseQuantity(const std::string& text, std::span<const Unit> units);

// "80GiB", "24GB", "512MiB" or bytes; a number above 0. InvalidArgument for others.
StatusOr<double> ParseBytes(const std::string& text);

}  // namespace switchyard
