#include "tools/conform/recorder.h"

#include <algorithm>
#include <cctype>

#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace switchyard::conform {
namespace {

// "op/resize" of "op/resize/linear_up/f32".
std::string GroupOf(const std::string& name) {
  const size_t first = name.find('/');
  return name.substr(0, first == std::string::npos ? first : name.find('/', first + 1));
}

constexpr Outcome kOutcomes[] = {Outcome::kPass, Outcome::kFail, Outcome::kUnsupported, Outcome::kExpectedFailure,
                                 Outcome::kUnexpectedPass};

}  // namespace

const char* OutcomeName(Outcome outcome) {
  constexpr const char* kNames[] = {"pass", "FAIL", "unsupported", "expected failure", "unexpected pass"};
  return kNames[static_cast<int>(outcome)];
}

const char* LevelName(Level level) {
  constexpr const char* kNames[] = {"none", "Loads", "Trains", "Async", "Distributed", "Fast"};
  return kNames[static_cast<int>(level)];
}

void Recorder::Add(const std::string& name, const Status& status, double milliseconds) {
  Check check{name, Outcome::kPass, Message(status), milliseconds};
  if (status.code() == absl::StatusCode::kUnimplemented) {
    check.outcome = Outcome::kUnsupported;
  } else {
    if (!status.ok()) check.outcome = Outcome::kFail;
    for (const auto& [pattern, reason] : expected_) {
      const bool glob = pattern.find('*') != std::string::npos;
      if (glob ? !NameFilter(pattern).Matches(name) : pattern != name) continue;
      check.outcome = status.ok() ? Outcome::kUnexpectedPass : Outcome::kExpectedFailure;
      check.detail = reason + (status.ok() ? "" : ": " + check.detail);
      break;
    }
  }
  checks_.push_back(std::move(check));
}

bool Recorder::Any(const std::string& prefix) const {
  return std::any_of(checks_.begin(), checks_.end(),
                     [&](const Check& check) { return check.name.rfind(prefix, 0) == 0; });
}

std::string Recorder::FirstMiss(const std::vector<std::string>& prefixes, bool strict) const {
  for (const Check& check : checks_) {
    const bool miss = check.outcome == Outcome::kFail || (strict && check.outcome == Outcome::kUnsupported);
    const bool named = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& prefix) { return check.name.rfind(prefix, 0) == 0; });
    if (miss && named) return check.name + (check.detail.empty() ? "" : " (" + check.detail + ")");
  }
  return "";
}

int Report::Count(Outcome outcome) const {
  return static_cast<int>(
      std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.outcome == outcome; }));
}

std::string Report::Text(bool verbose) const {
  std::string text = fmt::format("{} {} ({})\n", Printable(plugin), Printable(version), Printable(path, 4096));
  const auto line = [&](Outcome outcome, const std::string& name, const std::string& detail) {
    text += fmt::format("{:<16}  {}{}{}\n", OutcomeName(outcome), name, detail.empty() ? "" : ": ", detail);
  };
  // An op that is unsupported in every case is one line.
  std::map<std::string, int> all, unsupported;
  for (const Check& check : checks) {
    ++all[GroupOf(check.name)];
    if (check.outcome == Outcome::kUnsupported) ++unsupported[GroupOf(check.name)];
  }
  for (const Check& check : checks) {
    const std::string group = GroupOf(check.name);
    const int count = all[group];
    if (check.outcome == Outcome::kPass && !verbose) continue;
    if (!verbose && check.outcome == Outcome::kUnsupported && count > 1 && unsupported[group] >= count) {
      if (unsupported[group] == count) line(check.outcome, fmt::format("{}/* ({} checks)", group, count), check.detail);
      unsupported[group] = count + 1;  // printed
      continue;
    }
    line(check.outcome, check.name, check.detail);
  }
  for (const std::string& one : missed) text += fmt::format("{:<16}  {}\n", "MISSED", one);
  text += fmt::format("{} checks:", checks.size());
  for (const Outcome outcome : kOutcomes) text += fmt::format(" {} {},", Count(outcome), OutcomeName(outcome));
  text.back() = '\n';
  text += fmt::format("level {}", LevelName(level));
  if (!notes.empty()) text += fmt::format(" ({})", fmt::join(notes, "; "));
  if (!lacks.empty()) text += "; " + lacks;
  return text + "\n";
}

// The schema is in README.md: change both together, and the number with anything but an addition.
std::string Report::Json() const {
  constexpr int kSchema = 1;
  const auto key = [](Outcome outcome) {  // "expected_failure"
    std::string text = OutcomeName(outcome);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return c == ' ' ? '_' : std::tolower(c); });
    return text;
  };
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"outcome", key(check.outcome)},
                    {"detail", check.detail},
                    {"milliseconds", check.milliseconds}});
  }
  nlohmann::json counts;
  for (const Outcome outcome : kOutcomes) counts[key(outcome)] = Count(outcome);
  return nlohmann::json{{"schema", kSchema},  {"plugin", plugin}, {"kind", kind},     {"path", path},
                        {"version", version}, {"device", device}, {"seed", seed},     {"level", LevelName(level)},
                        {"lacks", lacks},     {"notes", notes},   {"graded", graded}, {"passed", passed()},
                        {"counts", counts},   {"missed", missed}, {"checks", list}}
      .dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace switchyard::conform
