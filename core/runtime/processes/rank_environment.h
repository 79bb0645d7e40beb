// What a launch is asked for, and what its processes find in their environment. Private to the launcher.
#pragma once

#include <string>
#include <vector>

#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/launcher.h"
#include "core/runtime/processes/node_meeting.h"

namespace switchyard {

// InvalidArgument where they contradict each other, or start nothing.
Status CheckOptions(const LaunchOptions& options);

// NAME=value: this process's own without what another launcher says of places, and with this one's. `socket`: of the
// meeting, where this process holds it, else -1.
std::vector<std::string> EnvironmentOf(const LaunchOptions& options, const NodePlace& place, int local_rank, int socket,
                                       const LaunchReports& reports, const std::string& restarted_run);

// As execve takes them, which ends with a null; they point into `strings`.
std::vector<char*> Pointers(const std::vector<std::string>& strings);

}  // namespace switchyard
