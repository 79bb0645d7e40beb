#include "core/runtime/processes/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace switchyard {
namespace {

constexpr rlim_t kOthers = 32, kFewestOthers = 8;  // files of data and checkpoints, devices, libraries

rlim_t OpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  return error ? 0 : static_cast<rlim_t>(std::distance(begin(open), end(open)));
}

}  // namespace

Status MakeRoomForDescriptors(int more, const std::string& what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Internal("getrlimit: {}", std::strerror(errno));
  const rlim_t used = OpenDescriptors() + static_cast<rlim_t>(more), needed = (used + kOthers) * 4 / 3 + 1;
  if (limit.rlim_cur >= needed) return OkStatus();
  const rlimit raised{std::min(needed, limit.rlim_max), limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) != 0)
    return ResourceExhausted("cannot raise the limit of open files from {} to {}: {}", limit.rlim_cur, raised.rlim_cur,
                             std::strerror(errno));
  if (raised.rlim_cur >= used + kFewestOthers) return OkStatus();
  return ResourceExhausted(
      "{} need at least {} file descriptors in this process, which may have {}; raise the hard limit of open files "
      "(`ulimit -Hn {}` as root, `nofile` in /etc/security/limits.conf, LimitNOFILE= of a service)",
      what, used + kFewestOthers, limit.rlim_max, needed);
}

}  // namespace switchyard
