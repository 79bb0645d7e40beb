#include "tools/conform/own_process.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace switchyard::conform {
namespace {

uint64_t Entries(const char* folder) {
  std::error_code error;
  uint64_t count = 0;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t OpenDescriptors() { return Entries("/proc/self/fd"); }
uint64_t Threads() { return Entries("/proc/self/task"); }

}  // namespace switchyard::conform
