// One rank of a collective check: joins the others through a folder, calls every function of collective/1 with numbers
// whose results are exact in any order, and compares. Runs in a process of its own.
#pragma once

#include "core/runtime/plugin.h"
#include "nlohmann/json.hpp"
#include "tools/conform/child.h"

namespace switchyard::conform {

// task: "mode" ("data", "mismatch" or "death"), "rank", "size", "folder".
ChildResults RunRank(const Plugin& plugin, const nlohmann::json& task);

}  // namespace switchyard::conform
