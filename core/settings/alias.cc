#include "core/settings/alias.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/base/text.h"
#include "core/settings/sources.h"
#include "fmt/ranges.h"

namespace switchyard {

std::string AliasKey(const std::string& name) {
  std::string key = name;
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::tolower(c)); });
  return key;
}

std::string VariableOf(const Alias& alias) {
  const bool capitals =
      std::any_of(alias.name.begin(), alias.name.end(), [](unsigned char c) { return std::isupper(c); });
  return capitals ? alias.name : VariableOf(AliasKey(alias.name));
}

StatusOr<std::string> Translate(const Alias& alias, const std::string& text) {
  if (text.empty() || text == kPythonsNone) return std::string();  // takes back, as for any setting
  auto found = alias.values.find(text);
  // A yes or no is said as to switches of ours: 1, True.
  if (bool on = false; found == alias.values.end() && absl::SimpleAtob(text, &on))
    found = alias.values.find(on ? "true" : "false");
  if (found != alias.values.end()) return found->second;
  if (alias.setting.empty()) return InvalidArgument("cannot be chosen here, where {}; {}", alias.always, alias.instead);
  if (!alias.values.empty() && !alias.others) {
    std::vector<std::string> words;
    for (const auto& [theirs, ours] : alias.values) words.push_back(theirs);
    return InvalidArgument("expected {}, which {} calls {}, found \"{}\"{}{}", fmt::join(words, " or "), alias.of,
                           alias.name, Printable(text), alias.instead.empty() ? "" : "; ", alias.instead);
  }
  if (alias.factor == 1 && !alias.share) return text + alias.suffix;
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || (alias.share && !(number >= 0 && number <= 1))) {
    return InvalidArgument("expected a number{}, which {} calls {}, found \"{}\"", alias.share ? " from 0 to 1" : "",
                           alias.of, alias.name, Printable(text));
  }
  if (alias.share) {
    std::string decimals = fmt::format("{:.9f}", number);  // an exponent would be read as epochs
    decimals.erase(decimals.find_last_not_of('0') + 1);
    return decimals.back() == '.' ? decimals + "0" : decimals;
  }
  return fmt::format("{:.15g}", number * alias.factor);
}

}  // namespace switchyard
