#include "tools/switchyard/command_line.h"

#include <algorithm>
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "core/base/environment.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "core/settings/listing.h"
#include "core/settings/sources.h"
#include "core/train/setting_aliases.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

std::string Text(absl::string_view view) { return std::string(view.data(), view.size()); }

// What stands behind a name on the command line of one command.
class Accepted {
 public:
  explicit Accepted(const AcceptedFlags& flags) : own_(flags.own), settings_(flags.some_settings) {
    if (!flags.settings) return;
    own_.insert(own_.end(), {"config", "show_settings"});
    for (const std::string& name : RunTable().Names()) {
      if (!Contains(own_, name)) settings_.push_back(name);
    }
  }
  const std::vector<std::string>& own() const { return own_; }
  absl::CommandLineFlag* Own(const std::string& name) const {
    return Contains(own_, name) ? absl::FindCommandLineFlag(name) : nullptr;
  }
  const Setting* Row(const std::string& name) const {
    return Contains(settings_, name) ? RunTable().Find(name) : nullptr;
  }
  // An alias of a setting that is accepted, unless a flag of ours has its name.
  const Alias* AliasFor(const std::string& name) const {
    const Alias* const alias = Contains(own_, name) || Row(name) ? nullptr : RunTable().FindAlias(name);
    if (alias == nullptr) return nullptr;
    const bool accepted = alias->setting.empty() ? Row("model") != nullptr : Row(alias->setting) != nullptr;
    return accepted ? alias : nullptr;
  }
  // The own flag that an alias stands for (launch --addr), else the name itself.
  std::string OwnNameFor(const std::string& name) const {
    const Alias* const alias = Knows(name) ? nullptr : RunTable().FindAlias(name);
    return alias != nullptr && Contains(own_, alias->setting) ? alias->setting : name;
  }
  const Shorthand* ShorthandFor(const std::string& name) const {
    const Shorthand* const shorthand = RunTable().FindShorthand(name);
    return shorthand != nullptr && Row(shorthand->parts[0].setting) != nullptr ? shorthand : nullptr;
  }
  bool Knows(const std::string& name) const {
    return Contains(own_, name) || Contains(settings_, name) || AliasFor(name) != nullptr ||
           ShorthandFor(name) != nullptr;
  }
  bool IsSwitch(const std::string& name) const {
    const Alias* const alias = AliasFor(name);
    if (alias != nullptr && alias->IsSwitch()) return true;
    const Setting* const row = Row(alias != nullptr ? alias->setting : name);
    return row != nullptr ? row->type == ValueType::kSwitch : Contains(own_, name) && Own(name)->IsOfType<bool>();
  }
  Status Unknown(const std::string& name) const {
    std::vector<std::string> spelled;
    for (const auto& names : {own_, settings_}) {
      for (const std::string& one : names) spelled.push_back("--" + one);
    }
    for (const Shorthand& shorthand : RunTable().shorthands()) {
      if (ShorthandFor(shorthand.name) != nullptr) spelled.push_back("--" + shorthand.name);
    }
    return InvalidArgument("unknown flag --{}{}; `switchyard <command> --help` lists what a command takes", name,
                           DidYouMean("--" + name, spelled));
  }

 private:
  static bool Contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  std::vector<std::string> own_, settings_;
};

Status SetOwn(absl::CommandLineFlag& flag, const std::string& value, const std::string& source) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return OkStatus();
  return InvalidArgument("{}: \"{}\" is not a value for --{} ({}); its default is \"{}\"", source, Printable(value),
                         Text(flag.Name()), Text(flag.Help()), flag.DefaultValue());
}

// One flag as it was typed: its name, and its value unless that is the next argument.
struct Typed {
  std::string name, value;
  bool has_value = false;
  bool is_switch = false;  // whose value is what it means without one
};

Typed TakeApart(const std::string& argument, const Accepted& accepted) {
  Typed typed;
  typed.name = argument.substr(argument.starts_with("--") ? 2 : 1);
  if (const size_t equals = typed.name.find('='); equals != std::string::npos) {
    typed.value = typed.name.substr(equals + 1);
    typed.name.resize(equals);
    typed.has_value = true;
  }
  std::replace(typed.name.begin(), typed.name.end(), '-', '_');
  typed.name = accepted.OwnNameFor(typed.name);
  if (typed.has_value) return typed;
  if (accepted.IsSwitch(typed.name)) {
    typed.value = "true";
    typed.has_value = typed.is_switch = true;
  } else if (!accepted.Knows(typed.name) && typed.name.starts_with("no") && accepted.IsSwitch(typed.name.substr(2))) {
    typed = {typed.name.substr(2), "false", true};
  }
  return typed;
}

bool IsYesOrNo(const std::string& word) {
  bool on = false;
  return absl::SimpleAtob(word, &on);
}

// Of a setting that may stand without a value: whether `word` behind it is one.
bool IsChoice(const Setting& row, const std::string& word) {
  const Alias* const words = RunTable().WordsFor(row.name);
  if (row.type == ValueType::kWhole || row.type == ValueType::kNumber) return ValueFromText(row, word).ok();
  return std::find(row.choices.begin(), row.choices.end(), word) != row.choices.end() ||
         (words != nullptr && Translate(*words, word).ok());
}

// Of the argument i, which is neither a flag nor the value of one.
Status NoFlag(const std::vector<std::string>& arguments, size_t i) {
  const std::string word = Printable(arguments[i]), before = i > 0 ? Printable(arguments[i - 1]) : "";
  const bool may_have_one = before.starts_with("--") && before != "--" && before.find('=') == std::string::npos;
  return InvalidArgument(
      "expected flags alone, which begin with --, found \"{}\"{}", word,
      may_have_one ? fmt::format(" behind {0}; if it is its value, type {0}={1}", before, word) : "");
}

}  // namespace

StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments, const AcceptedFlags& flags) {
  const Accepted accepted(flags);
  CommandLine line = {{}, false, Settings(RunTable())};
  std::set<std::string> own_given;
  Status stray = OkStatus();
  const auto take = [&](const Typed& typed, const std::string& source) {
    if (accepted.Row(typed.name) != nullptr)
      return line.settings.GiveText(typed.name, typed.value, Origin::kFlag, source);
    if (const Alias* const alias = accepted.AliasFor(typed.name))
      return line.settings.GiveAlias(*alias, typed.value, Origin::kFlag, "--" + typed.name + "=" + typed.value);
    if (const Shorthand* const shorthand = accepted.ShorthandFor(typed.name))
      return line.settings.GiveShorthand(*shorthand, typed.value, Origin::kFlag, "--" + typed.name + "=" + typed.value);
    own_given.insert(typed.name);
    return SetOwn(*accepted.Own(typed.name), typed.value, source);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      if (stray.ok() && i + 1 < arguments.size()) stray = NoFlag(arguments, i + 1);
      line.positional.insert(line.positional.end(), arguments.begin() + static_cast<long>(i) + 1, arguments.end());
      break;
    }
    if (argument == "-h" || argument == "--help") {
      line.help = true;
    } else if (!argument.starts_with("-") || argument == "-") {
      if (stray.ok()) stray = NoFlag(arguments, i);
      line.positional.push_back(argument);
    } else {
      Typed typed = TakeApart(argument, accepted);
      if (!accepted.Knows(typed.name)) return accepted.Unknown(typed.name);
      const Setting* const row = accepted.Row(typed.name);
      const bool follows = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      if (!typed.has_value && row != nullptr && !row->bare.empty() && !(follows && IsChoice(*row, arguments[i + 1])))
        typed = {typed.name, row->bare, true};
      if (typed.is_switch && !flags.files && follows && IsYesOrNo(arguments[i + 1])) typed.has_value = false;
      if (!typed.has_value && !follows) return InvalidArgument("--{} needs a value", typed.name);
      if (!typed.has_value) typed.value = arguments[++i];
      SY_RETURN_IF_ERROR(take(typed, argument));
    }
  }
  if (!flags.files && !line.help && !stray.ok()) return stray;
  for (const std::string& name : accepted.own()) {
    std::vector<std::string> variables = {VariableOf(name)};
    for (const Alias& alias : RunTable().aliases()) {
      if (alias.setting == name) variables.push_back(VariableOf(alias));
    }
    for (const std::string& variable : variables) {
      if (const auto value = Environment(variable); value && own_given.insert(name).second)
        SY_RETURN_IF_ERROR(SetOwn(*accepted.Own(name), *value, variable));
    }
  }
  if (!flags.settings) return line;
  SY_RETURN_IF_ERROR(TakeEnvironment(line.settings));
  if (const std::string path = absl::GetFlag(FLAGS_config); !path.empty())
    SY_RETURN_IF_ERROR(TakeConfigFile(path, line.settings));
  for (const std::string& name : accepted.own()) line.settings.Forget(name);  // a setting of other commands
  line.settings.ResolveYields();
  return line;
}

std::string FlagsHelp(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    text += HelpLine(name, Text(flag->Help()), flag->DefaultValue());
  }
  return text;
}

}  // namespace switchyard
