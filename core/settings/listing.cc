#include "core/settings/listing.h"

#include "core/base/text.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr size_t kLongestText = 4096;

std::string WithUnit(const std::string& value, const Setting& row) {
  return value.empty() || row.unit.empty() ? value : value + " " + row.unit;
}

// What stands in brackets at the end of a help line.
std::string StandardText(const Setting& row) {
  if (row.by != Origin::kDefault) return fmt::format("the {}'s", OriginName(row.by));
  return WithUnit(ValueText(row.standard), row);
}

std::string HelpText(const Setting& row) {
  std::string text = row.help;
  if (!row.choices.empty()) text += fmt::format("{}{}", text.empty() ? "" : ": ", fmt::join(row.choices, ", "));
  if (!row.word.empty()) text += fmt::format("; or {}", row.word);
  // Beside a default the unit stands there.
  const bool shown = row.by == Origin::kDefault && !row.standard.is_null();
  if (!shown && !row.unit.empty() && text.find(row.unit) == std::string::npos) text += ", " + row.unit;
  return text;
}

template <typename LineOf>
std::string Grouped(const SettingTable& table, const LineOf& line_of) {
  std::string text, group;
  for (const Setting& row : table.rows()) {
    if (row.group != group || text.empty()) text += fmt::format("\n{}\n", group = row.group);
    text += line_of(row);
  }
  return text;
}

}  // namespace

std::string HelpLine(const std::string& name, const std::string& help, const std::string& standard) {
  return fmt::format("  --{:<23} {}{}\n", name, help, standard.empty() ? "" : " [" + standard + "]");
}

std::string SettingsHelp(const SettingTable& table) {
  return Grouped(table, [&](const Setting& row) {
    std::string lines;  // a shorthand stands before the first of its settings
    for (const Shorthand& shorthand : table.shorthands()) {
      if (shorthand.parts[0].setting == row.name) lines = HelpLine(shorthand.name, shorthand.help, "");
    }
    return lines + HelpLine(row.name, HelpText(row), StandardText(row));
  });
}

std::string SettingsListing(const Settings& settings) {
  const std::map<std::string, std::string> aliases = settings.Translated();
  std::string listing = Grouped(settings.table(), [&](const Setting& row) {
    const bool there = settings.Has(row.name);
    const std::string value = WithUnit(ValueText(there ? settings.Value(row.name) : row.standard), row);
    const std::string& source = settings.SourceOf(row.name);
    const Origin origin = there ? settings.OriginOf(row.name) : Origin::kDefault;
    std::string from = OriginName(origin);
    // A flag as it was typed says no more than the value, unless it had another name.
    const auto translated = aliases.find(row.name);
    if (translated != aliases.end()) {
      from += ": " + translated->second;
    } else if (there && !source.empty() && !(origin == Origin::kFlag && source.starts_with("-"))) {
      from += ": " + source;
    }
    return fmt::format("  {:<24} {:<26} {}\n", row.name, value.empty() ? "-" : Printable(value, kLongestText),
                       value.empty() ? "not given" : Printable(from, kLongestText));
  });
  if (!settings.AlwaysSo().empty()) listing += "\nNames of other programs\n";
  for (const auto& [said, what] : settings.AlwaysSo())
    listing += fmt::format("  {} is always so: {}\n", Printable(said, kLongestText), what);
  return listing;
}

}  // namespace switchyard
