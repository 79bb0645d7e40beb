// May code from this file or folder run inside our process? It may if nobody but root and the user could have written
// it: the owner is one of them, and neither the group nor others may write. A group that holds nobody but the user
// counts as the user. Thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"

namespace switchyard {

// OK, kNotFound, or kFailedPrecondition with the owner or mode found and the command that mends it. Follows symbolic
// links.
Status CheckTrusted(const std::string& path);

}  // namespace switchyard
