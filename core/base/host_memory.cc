#include "core/base/host_memory.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>

namespace switchyard {
namespace {

// The number behind `word` in a file of lines "word number …"; nullopt: there is none.
std::optional<uint64_t> Field(const std::string& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(word + " ")) return std::strtoull(line.c_str() + word.size(), nullptr, 10);
  }
  return std::nullopt;
}

// The number of which a file consists; nullopt: it is not there, or says "max".
std::optional<uint64_t> Number(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// What a version of control groups calls its files.
struct GroupFiles {
  const char *mounted, *controller, *limit, *used;
  std::array<const char*, 2> cached;  // lines of memory.stat
};
constexpr GroupFiles kVersion2 = {
    "/sys/fs/cgroup", "", "memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                                  "memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};

// The group of this process for a controller, "/a/b", or "" for the root's: of the line "number:controllers:/a/b".
std::string OwnGroup(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    return group == "/" || !group.starts_with('/') ? "" : group;
  }
  return "";
}

// What a group may still take, where it has a limit.
std::optional<uint64_t> LeftOf(const GroupFiles& files, const std::string& group) {
  const auto limit = Number(group + "/" + files.limit), used = Number(group + "/" + files.used);
  if (!limit || !used) return std::nullopt;
  uint64_t cached = 0;
  for (const char* line : files.cached) cached += Field(group + "/memory.stat", line).value_or(0);
  const uint64_t held = *used - std::min(*used, cached);
  return *limit - std::min(*limit, held);
}

}  // namespace

std::optional<uint64_t> AvailableHostBytes(const std::string& root) {
  std::optional<uint64_t> least;
  if (const auto available = Field(root + "/proc/meminfo", "MemAvailable:")) least = 1024 * *available;
  for (const GroupFiles& files : {kVersion2, kVersion1}) {
    const std::string mounted = root + files.mounted;
    // A group that is not to be seen from inside a container is the one that lies at the root there.
    for (std::string group = OwnGroup(root, files.controller);; group.resize(group.rfind('/'))) {
      if (const auto left = LeftOf(files, mounted + group)) least = std::min(least.value_or(*left), *left);
      if (group.empty()) break;
    }
  }
  return least;
}

}  // namespace switchyard
