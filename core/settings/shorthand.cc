#include "core/settings/shorthand.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "core/base/text.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

Status NoPart(const Shorthand& shorthand, const std::string& found) {
  std::vector<std::string> names;
  for (const Alias& part : shorthand.parts) names.push_back(part.setting);
  return InvalidArgument("--{}: expected numbers behind {}, separated by commas, as in {}2,{}2; found \"{}\"",
                         shorthand.name, fmt::join(names, ", "), names[0], names[1], Printable(found));
}

}  // namespace

Shorthand ShorthandOf(const std::string& name, const std::string& help, const std::vector<std::string>& settings) {
  Shorthand made{name, help, {}};
  for (const std::string& setting : settings)
    made.parts.push_back({.name = name, .of = "several at once", .setting = setting});
  return made;
}

StatusOr<std::vector<std::pair<const Alias*, std::string>>> PartsOf(const Shorthand& shorthand,
                                                                    const std::string& text) {
  std::vector<std::pair<const Alias*, std::string>> parts;
  if (text.empty()) {  // takes all of them back
    for (const Alias& part : shorthand.parts) parts.emplace_back(&part, "");
    return parts;
  }
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    const std::string word(piece.data(), piece.size());
    const size_t letters = std::min(word.find_first_of("0123456789"), word.size());
    const auto part = std::find_if(shorthand.parts.begin(), shorthand.parts.end(),
                                   [&](const Alias& one) { return one.setting == word.substr(0, letters); });
    if (part == shorthand.parts.end()) return NoPart(shorthand, word);
    parts.emplace_back(&*part, letters < word.size() ? word.substr(letters) : "true");
  }
  return parts;
}

}  // namespace switchyard
