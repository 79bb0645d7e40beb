// Interposers: plugins around a plugin, which check, record or break what passes between the engine and it
// (core/abi/interpose.h).
// --interpose=validate,trace,fault:alloc@17 names them, the outermost first, each with its argument after the first
// colon. The engine uses the result as it uses any plugin; nothing else knows of them. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugins/plugin.h"

namespace switchyard {

// `plugin` inside the named interposers; itself where there are none. The same plugin and names give the same result
// again. An unknown name or a wrong argument is an error that says what was expected.
StatusOr<std::shared_ptr<Plugin>> Interpose(std::shared_ptr<Plugin> plugin,
                                            const std::vector<std::string>& interposers);

// What SWITCHYARD_INTERPOSE names, for programs without the flag.
std::vector<std::string> InterposersFromEnvironment();

}  // namespace switchyard
