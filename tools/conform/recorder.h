// Collects the checks of one run: applies the filter and the list of expected failures. One thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/conform/conform.h"

namespace switchyard::conform {

class Recorder {
 public:
  Recorder(std::string filter, std::map<std::string, std::string> expected)
      : filter_(std::move(filter)), expected_(std::move(expected)) {}

  bool Wants(const std::string& name) const { return filter_.empty() || name.find(filter_) != std::string::npos; }
  // kUnimplemented counts as unsupported, every other error as a failure.
  void Add(const std::string& name, const Status& status);
  // Runs `check`, which returns a Status, if the filter wants it.
  template <typename F>
  void Run(const std::string& name, F check) {
    if (Wants(name)) Add(name, check());
  }
  const std::vector<Check>& checks() const { return checks_; }
  bool Any(const std::string& prefix) const;  // is there a check whose name starts with it?
  // The first failed (or unsupported, if `strict`) check whose name starts with one of the prefixes; "" if there is
  // none.
  std::string FirstMiss(const std::vector<std::string>& prefixes, bool strict) const;

 private:
  std::string filter_;
  std::map<std::string, std::string> expected_;
  std::vector<Check> checks_;
};

}  // namespace switchyard::conform
