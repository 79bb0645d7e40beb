// How a rank tells the launcher that started it why it is about to leave: which rank has failed, and the error that it
// would print; that it meets the others; and which run it has begun. All ranks of a node write to one pipe, which
// SWITCHYARD_LAUNCH_REPORT names; so the launcher can name the culprit and not merely the survivor that ended first,
// and say once what several ranks have to say. Thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

// Of a rank: once a process; nothing where no launcher of ours listens.
void TellLauncher(const std::string& failure);

// Of a rank that is about to leave: the launcher prints the error that ends it. False where none of ours started this
// very process, or the text is too long for it: then nobody else prints it.
bool LeaveErrorToLauncher(const std::string& error);

// Of a rank that was started again: the run folder that an earlier start began.
inline constexpr char kRestartedRun[] = "SWITCHYARD_RESTARTED_RUN";

// The exit status of a rank that would end like this again, whoever starts it: what was asked for is refused, or the
// run has come to numbers that are not finite. A launcher does not start its ranks again.
inline constexpr int kEndsForGood = 2;
int ExitStatusOf(const Status& status);  // that, or 1; 0 where it is OK

// Of a rank that waits from here on for the others of its run, so that a launcher that has seen one of them leave ends
// the run; and once they have all come.
void TellLauncherOfMeeting(int rank);
void TellLauncherAllMet();

// Of rank 0, whose run has its folder from here on: a launcher that starts the ranks again names it to them.
void TellLauncherOfRun(const std::string& run_folder);
// "": this is the first start.
std::string RestartedRun();

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
  int reader() const { return ends_[0]; }          // when it can be read, Read; -1 once all writers are gone
  void Read();                                     // what was written; the calls below do too
  std::string Variable() const;                    // SWITCHYARD_LAUNCH_REPORT=…
  const std::string& run() const { return run_; }  // that was read; "": no rank has begun one
  bool someone_waits() const { return !waiting_.empty() && !all_met_; }  // for the other ranks of the run
  bool Waits(int rank) const { return waiting_.contains(rank); }
  // Which failure process `pid` has told of; "" where that is nothing.
  std::string Of(pid_t pid);
  std::string ErrorOf(pid_t pid);                       // the error with which it ends; "" where it has left none
  bool has_errors() const { return !errors_.empty(); }  // that were read and not taken
  // The errors that were left since the last call, each text once, behind the ranks that left it: "rank 2: …", "ranks 0
  // and 3: …", or nobody where all of `ranks` (by pid) did. What was taken before, and what `culprit` says, is left
  // out.
  std::vector<std::string> TakeErrors(const std::map<pid_t, int>& ranks, const std::string& culprit);

 private:
  int ends_[2] = {-1, -1};
  std::string unread_;
  std::map<pid_t, std::string> told_, left_;  // failures; errors
  std::vector<std::pair<pid_t, std::string>> errors_;
  std::set<std::string> taken_;
  std::set<int> waiting_;  // ranks
  bool all_met_ = false;
  std::string run_;
};

}  // namespace switchyard
