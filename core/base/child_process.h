// How this program starts others: what posix_spawn is told of a child's signals and process group. Not thread-safe.
#pragma once

#include <spawn.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

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

// Runs a program of the search path and returns what it wrote to its output and its errors; its exit status, 128 +
// signal where one killed it, goes to *exit_status. Unavailable where it cannot be started. largest_file: bytes of a
// file that it may write; SIGXFSZ ends it at one more.
StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments, int* exit_status,
                                 std::optional<uint64_t> largest_file = std::nullopt);

}  // namespace switchyard
