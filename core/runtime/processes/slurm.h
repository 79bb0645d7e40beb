// The two compressed lists in which Slurm tells a job step where its tasks are. Pure functions.
// Formats: https://slurm.schedmd.com/srun.html (SLURM_STEP_NODELIST, SLURM_TASKS_PER_NODE) and
// https://slurm.schedmd.com/scontrol.html ("show hostnames").
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

// "gpu[004-007,9],login1" → gpu004 gpu005 gpu006 gpu007 gpu9 login1; "rack[1-2]n[0-3]" → rack1n0 … rack2n3, the last
// bracket first. At most 2^20 hosts.
StatusOr<std::vector<std::string>> ExpandSlurmHosts(const std::string& list);
// "4(x2),2" → 4 4 2: tasks of each node.
StatusOr<std::vector<int>> ExpandSlurmTasks(const std::string& list);

}  // namespace switchyard
