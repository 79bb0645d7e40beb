// Processes that the kit starts: ranks of a collective, and the checks of a backend, which may crash. The kit starts
// itself with `--child FILE`, where FILE says what to do; each child leaves its results in the folder that FILE names.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/conform/result_log.h"

namespace switchyard::conform {

struct ChildOptions {
  std::vector<std::string> self;  // Options::self
  bool mpirun = false;            // start the ranks by mpirun
  int silence_s = 60;             // children that begin and end no check for so long are killed
};

// Starts `size` children with `task`, and "rank", "size" and "folder" added to it, and waits for them. What each found.
StatusOr<std::vector<ChildResults>> RunChildren(nlohmann::json task, int size, const ChildOptions& options);

// In the child: runs the task of the file, writes its results. The exit status.
int ChildMain(const std::string& file);

}  // namespace switchyard::conform
