// How a rank tells the launcher that started it why it is about to leave: which rank has failed. All ranks of a node
// write to one pipe, which SWITCHYARD_LAUNCH_REPORT names; so the launcher can name the culprit and not merely the
// survivor that ended first. Thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "core/base/status.h"

namespace switchyard {

// Of a rank: once a process; nothing where no launcher of ours listens.
void TellLauncher(const std::string& failure);

// Of the launcher.
class LaunchReports {
 public:
  LaunchReports() = default;
  ~LaunchReports();
  LaunchReports(const LaunchReports&) = delete;
  LaunchReports& operator=(const LaunchReports&) = delete;

  Status Open();
  void StopWriting();  // after the last rank was started
  int writer() const { return ends_[1]; }
  std::string Variable() const;  // SWITCHYARD_LAUNCH_REPORT=…
  // What process `pid` has said; "" where that is nothing.
  std::string Of(pid_t pid);

 private:
  int ends_[2] = {-1, -1};
  std::string unread_;
  std::map<pid_t, std::string> told_;
};

}  // namespace switchyard
