#include "backends/interposers/fault/grammar.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>
#include <vector>

namespace switchyard {
namespace {

constexpr uint64_t kDefaultDelay = 100, kLongestDelay = 3'600'000;  // ms

struct SiteName {
  const char* name;
  Site site;
  std::vector<std::string> effects;  // the first is what happens where none is named
};
const std::vector<SiteName>& Sites() {
  static const auto* const sites =
      new std::vector<SiteName>{{"alloc", Site::kAlloc, {"fail", "delay"}},
                                {"copy", Site::kCopy, {"delay", "fail", "lost"}},
                                {"launch", Site::kLaunch, {"lost", "wrong", "fail", "delay"}},
                                {"prepare", Site::kPrepare, {"fail", "delay"}},
                                {"bind", Site::kBind, {"fail", "delay"}},
                                {"synchronize", Site::kSynchronize, {"fail", "delay"}},
                                {"collective", Site::kCollective, {"fail", "lost", "delay"}},
                                {"device_lost", Site::kDeviceLost, {"fail"}}};
  return *sites;
}

// Edit distance: https://en.wikipedia.org/wiki/Levenshtein_distance
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// "expected alloc, copy or launch, found \"aloc\" (did you mean alloc?)"
std::string Unknown(const std::string& found, const std::vector<std::string>& known) {
  std::string text = "expected ";
  for (size_t i = 0; i < known.size(); ++i) text += (i == 0 ? "" : i + 1 == known.size() ? " or " : ", ") + known[i];
  text += ", found \"" + found + "\"";
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return Distance(found, a) < Distance(found, b);
  });
  if (Distance(found, *nearest) <= 2 && Distance(found, *nearest) < found.size())
    text += " (did you mean " + *nearest + "?)";
  return text;
}

bool ParseNumber(const std::string& text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string ParseFault(const std::string& text, FaultPlan* plan) {
  const std::string whole = "fault:" + text + ": ";
  const std::string grammar =
      "; a fault is CALL@N[+][:EFFECT], for example alloc@17, copy@3:delay=50 or launch@2+:wrong";
  *plan = {};
  plan->text = text;
  const size_t at = text.find('@');
  const std::string call = text.substr(0, at);
  std::vector<std::string> calls;
  const SiteName* site = nullptr;
  for (const SiteName& known : Sites()) {
    calls.push_back(known.name);
    if (known.name == call) site = &known;
  }
  if (site == nullptr) return whole + Unknown(call, calls) + grammar;
  plan->site = site->site;

  if (at == std::string::npos) return whole + "which " + call + "? expected @N" + grammar;
  const size_t colon = std::min(text.find(':', at), text.size());
  std::string number = text.substr(at + 1, colon - at - 1);
  plan->onwards = number.ends_with('+') || plan->site == Site::kDeviceLost;  // what is lost stays lost
  if (number.ends_with('+')) number.pop_back();
  if (!ParseNumber(number, &plan->first) || plan->first == 0) {
    return whole + "expected a number from 1 after @, found \"" + number + "\"" + grammar;
  }

  std::string effect = colon < text.size() ? text.substr(colon + 1) : site->effects.front();
  const size_t equals = effect.find('=');
  const std::string value = equals == std::string::npos ? "" : effect.substr(equals + 1);
  const bool has_value = equals != std::string::npos;
  effect.resize(std::min(equals, effect.size()));
  if (std::find(site->effects.begin(), site->effects.end(), effect) == site->effects.end()) {
    return whole + "after " + call + ": " + Unknown(effect, site->effects) + grammar;
  }
  if (has_value && effect != "delay") return whole + effect + " takes no value" + grammar;
  if (effect == "delay") {
    plan->effect = Effect::kDelay;
    plan->delay_ms = kDefaultDelay;
    if (has_value && (!ParseNumber(value, &plan->delay_ms) || plan->delay_ms > kLongestDelay)) {
      return whole + "expected milliseconds after delay=, at most an hour, found \"" + value + "\"" + grammar;
    }
  } else {
    plan->effect = effect == "fail" ? Effect::kFail : effect == "lost" ? Effect::kLost : Effect::kWrong;
  }
  return "";
}

}  // namespace switchyard
