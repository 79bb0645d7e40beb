#include "core/base/host_memory.h"

#include <algorithm>
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

}  // namespace

std::optional<uint64_t> AvailableHostBytes(const std::string& root) {
  const std::string group = root + "/sys/fs/cgroup/";
  std::optional<uint64_t> least;
  if (const auto available = Field(root + "/proc/meminfo", "MemAvailable:"))
    least = 1024 * (*available + Field(root + "/proc/meminfo", "SwapFree:").value_or(0));
  const auto limit = Number(group + "memory.max"), used = Number(group + "memory.current");
  if (limit && used) {
    uint64_t cached = 0;
    for (const char* list : {"inactive_file", "active_file"}) cached += Field(group + "memory.stat", list).value_or(0);
    const uint64_t held = *used - std::min(*used, cached), left = *limit - std::min(*limit, held);
    least = std::min(least.value_or(left), left);
  }
  return least;
}

}  // namespace switchyard
