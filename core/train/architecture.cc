#include "core/train/architecture.h"

#include <algorithm>
#include <set>

#include "core/base/text.h"
#include "fmt/format.h"

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

// As it is typed: resnet50, 0.1, 24,32.
std::string Typed(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& one : value) text += (text.empty() ? "" : ",") + Typed(one);
  return text;
}

}  // namespace

bool SameArchitecture(const Json& saved, const Json& here) {
  return saved.is_object() && here.is_object() && Covers(saved, here) && Covers(here, saved);
}

std::string ArchitectureDifferences(const Json& saved, const Json& here, const std::vector<std::string>& passed_over) {
  std::set<std::string> names;
  for (const Json* one : {&saved, &here}) {
    for (const auto& field : one->items()) names.insert(field.key());
  }
  std::string text;
  for (const std::string& name : names) {
    if (std::find(passed_over.begin(), passed_over.end(), name) != passed_over.end()) continue;
    const Json before = saved.value(name, Json(0)), now = here.value(name, Json(0));
    if (SameValue(before, now)) continue;
    text += fmt::format("{}--{}={} where the run has {}", text.empty() ? "" : ", ", name, Printable(Typed(now)),
                        Printable(Typed(before)));
  }
  return text;
}

}  // namespace switchyard
