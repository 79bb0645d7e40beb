// Names of weights that differ between programs by how they begin. Thread-safe: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace switchyard {

using Renaming = std::pair<std::string, std::string>;  // timm's beginning, the other program's

// `name` with the first beginning of the table that fits exchanged; the name itself where none fits.
inline std::string ExchangePrefix(const std::string& name, const std::vector<Renaming>& table, bool to_timm) {
  for (const auto& [timm, other] : table) {
    const std::string &from = to_timm ? other : timm, &to = to_timm ? timm : other;
    if (name.starts_with(from)) return to + name.substr(from.size());
  }
  return name;
}

}  // namespace switchyard
