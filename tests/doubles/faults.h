// Faults that a test asks for by an environment variable of a double, such as CUDA_DOUBLE_FAULT=alloc@3,launch@5: the
// third event of kind "alloc" in this process fails, and the fifth of kind "launch". Something that the double does not
// know ends the process: a test must not pass because its fault was misspelt. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace doubles {

[[noreturn]] inline void BadSetting(const char* variable, const std::string& value, const std::string& expected) {
  std::fprintf(stderr, "%s=%s is not understood; expected %s\n", variable, value.c_str(), expected.c_str());
  std::exit(2);
}

// A whole number from the environment, `otherwise` where the variable is not set.
inline long long NumberFrom(const char* variable, long long otherwise, long long least, long long most) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > most) {
    BadSetting(variable, text, "a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

class Faults {
 public:
  // kinds: "alloc|launch|copy"
  Faults(const char* variable, const std::string& kinds) {
    for (size_t at = 0; at <= kinds.size();) {
      const size_t bar = std::min(kinds.find('|', at), kinds.size());
      kinds_[kinds.substr(at, bar - at)];
      at = bar + 1;
    }
    const char* given = std::getenv(variable);
    std::string list = given ? given : "";
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      const std::string one = list.substr(0, comma);
      list.erase(0, comma + 1);
      const size_t mark = std::min(one.find('@'), one.size());
      const auto kind = kinds_.find(one.substr(0, mark));
      const long long n = mark < one.size() ? std::atoll(one.c_str() + mark + 1) : 0;
      if (kind == kinds_.end() || n < 1) BadSetting(variable, one, "KIND@N with KIND one of " + kinds);
      kind->second.strikes = n;
    }
  }

  // Counts one more event of this kind: is it the one that fails?
  bool Strikes(const char* kind) {
    Counter& counter = kinds_.at(kind);
    return ++counter.seen == counter.strikes;
  }

 private:
  struct Counter {
    long long strikes = 0;  // 0: never
    std::atomic<long long> seen{0};
  };
  std::map<std::string, Counter> kinds_;
};

}  // namespace doubles
