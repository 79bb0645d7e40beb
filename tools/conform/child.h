// Processes that the kit starts: ranks of a collective, and checks that may crash. The kit starts itself with `--child
// FILE`, where FILE says what to do; each child leaves its results in the folder that FILE names.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace switchyard::conform {

// What one child found: name → OK or why not. kUnavailable under "" if it died or ran out of time before it could say.
using ChildResults = std::vector<std::pair<std::string, Status>>;

struct ChildOptions {
  std::vector<std::string> self;  // Options::self
  bool mpirun = false;            // start the ranks by mpirun
  int timeout_s = 120;
  int dies = -1;  // this rank is expected to be killed; its death is announced to the others under the key "dead"
};

// Starts `size` children with `task`, and "rank", "size" and "folder" added to it.
StatusOr<std::vector<ChildResults>> RunChildren(nlohmann::json task, int size, const ChildOptions& options);

// In the child: runs the task of the file, writes its results. The exit status.
int ChildMain(const std::string& file);

}  // namespace switchyard::conform
