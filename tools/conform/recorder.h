// Collects the checks of one run: applies the filter and the list of expected failures. In a child process it writes
// them to the result log as they come, and leaves out those that an earlier process has done. One thread.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/conform/conform.h"
#include "tools/conform/name_filter.h"
#include "tools/conform/result_log.h"

namespace switchyard::conform {

class Recorder {
 public:
  Recorder(NameFilter only, std::map<std::string, std::string> expected)
      : only_(std::move(only)), expected_(std::move(expected)) {}
  // In a child: `log` must outlive it.
  Recorder(NameFilter only, std::set<std::string> done, ResultLog& log)
      : only_(std::move(only)), done_(std::move(done)), log_(&log) {}

  bool Wants(const std::string& name) const { return only_.Matches(name) && done_.count(name) == 0; }
  // kUnimplemented counts as unsupported, every other error as a failure.
  void Add(const std::string& name, const Status& status, double milliseconds = 0);
  // Runs `check`, which returns a Status, if the filter wants it. An exception that reaches it is a failure.
  template <typename F>
  void Run(const std::string& name, F check) {
    if (Wants(name)) RunUnasked(name, check);
  }
  // Whatever the filter wants: for what says why nothing else is tried.
  template <typename F>
  void RunUnasked(const std::string& name, F check) {
    if (log_ != nullptr) log_->Begin(name);
    const auto start = std::chrono::steady_clock::now();
    const Status status = Caught(check);
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (log_ != nullptr) log_->End(name, status);
    Add(name, status, taken.count());
  }
  const std::vector<Check>& checks() const { return checks_; }
  bool Any(const std::string& prefix) const;  // is there a check whose name starts with it?
  // The first failed (or unsupported, if `strict`) check whose name starts with one of the prefixes; "" if there is
  // none.
  std::string FirstMiss(const std::vector<std::string>& prefixes, bool strict) const;

 private:
  NameFilter only_;
  std::map<std::string, std::string> expected_;
  std::set<std::string> done_;
  ResultLog* log_ = nullptr;
  std::vector<Check> checks_;
};

}  // namespace switchyard::conform
