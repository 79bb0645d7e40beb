#include "core/train/architecture.h"

#include <string>

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Whether each field of `one` is the other's too.
bool Covers(const Json& one, const Json& other) {
  for (const auto& [name, value] : one.items()) {
    const auto found = other.find(name);
    if (!SameValue(value, found == other.end() ? Json(0) : *found)) return false;
  }
  return true;
}

}  // namespace

bool SameArchitecture(const Json& saved, const Json& here) {
  return saved.is_object() && here.is_object() && Covers(saved, here) && Covers(here, saved);
}

}  // namespace switchyard
