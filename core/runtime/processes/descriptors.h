// Room for file descriptors, made before they are needed: whoever runs out of them in the middle of a meeting can only
// say that the others did not come. Thread-safe, but for two threads that raise the limit at once.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard {

// Raises this process's soft limit as far as `more` descriptors beside those that are open ask for; a quarter of the
// limit is left to strangers (strangers.h), and a few to the rest of the process. ResourceExhausted says for `what`
// ("64 ranks of one node") how many there should be, where the hard limit has no room for `more` and a few.
Status MakeRoomForDescriptors(int more, const std::string& what);

}  // namespace switchyard
