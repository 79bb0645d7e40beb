// What a child process of the kit leaves behind: one line of JSON when a check begins and one when it has ended,
// written at once, so that a process which crashes, exits or hangs still tells in which check. The plugin under test
// runs in the same process: what else is found in the file, or missing from it, is a failure of the check that was
// under way. One writer; read after the process has ended.
#pragma once

#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard::conform {

struct ChildResult {
  std::string name;  // "": of the process itself, before its first check
  Status status;
  double milliseconds = 0;
  bool lost = false;  // the process ended in this check, or before it could report
};
using ChildResults = std::vector<ChildResult>;

class ResultLog {
 public:
  explicit ResultLog(const std::string& path) : file_(path) {}
  void Begin(const std::string& name);
  void End(const std::string& name, const Status& status);

  // The last line of a process: it came to its end, or could not even begin for the reason that `status` gives.
  void Close(const Status& status = OkStatus()) { End("", status); }

  // `fate` says how the process ended ("was killed by signal 11 (Segmentation fault)"); a check that began and did not
  // end gets it as kUnavailable, and so does a process without a last line, as a result without a name.
  static ChildResults Read(const std::string& path, const std::string& fate);

 private:
  std::ofstream file_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// What `check` finds; an exception that a plugin threw across its interface is a failure that says so.
Status Caught(const std::function<Status()>& check);

}  // namespace switchyard::conform
