#include "core/base/child_process.h"

#include <signal.h>

namespace switchyard {

ChildAttributes::ChildAttributes(bool own_group) {
  posix_spawnattr_init(&attributes_);
  posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | (own_group ? POSIX_SPAWN_SETPGROUP : 0));
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes_, &none);
  posix_spawnattr_setpgroup(&attributes_, 0);
}

}  // namespace switchyard
