// How this program starts others: what posix_spawn is told of a child's signals and process group. Not thread-safe.
#pragma once

#include <spawn.h>

namespace switchyard {

// Attributes for posix_spawn. The child starts with no signal blocked, whatever the calling thread blocks (a run blocks
// those that stop it); own_group: in a process group of its own, so that it can be ended with all that it starts.
class ChildAttributes {
 public:
  explicit ChildAttributes(bool own_group);
  ~ChildAttributes() { posix_spawnattr_destroy(&attributes_); }
  ChildAttributes(const ChildAttributes&) = delete;
  ChildAttributes& operator=(const ChildAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

}  // namespace switchyard
