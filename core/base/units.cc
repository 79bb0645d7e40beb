#include "core/base/units.h"

#include "absl/strings/numbers.h"
#include "core/base/text.h"

namespace switchyard {

std::optional<double> ParseQuantity(const std::string& text, std::span<const Unit> units) {
  for (const auto& [name, factor] : units) {
    double number = 0;
    const std::string ending = name;
    if (!text.ends_with(ending) || text.size() == ending.size()) continue;
    if (!absl::SimpleAtod(text.substr(0, text.size() - ending.size()), &number)) continue;
    if (number > 0 && number * factor < 1e300) return number * factor;
  }
  return std::nullopt;
}

StatusOr<double> ParseBytes(const std::string& text) {
  static constexpr Unit kUnits[] = {{"KiB", 1024.0},
                                    {"MiB", 1048576.0},
                                    {"GiB", 1073741824.0},
                                    {"TiB", 1099511627776.0},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"B", 1},
                                    {"", 1}};
  if (const auto bytes = ParseQuantity(text, kUnits)) return *bytes;
  return InvalidArgument("expected bytes such as 80GiB, 24GB or 8589934592, found \"{}\"", Printable(text));
}

}  // namespace switchyard
