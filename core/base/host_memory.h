// How much memory of the host is left. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace switchyard {

// Bytes that this process can still fill, by the kernel's own estimate: of the machine (MemAvailable of /proc/meminfo;
// not swap, which pinned memory cannot lie in and what a step reads had better not) and of the limits of its control
// group and of those above (/proc/self/cgroup; version 2: memory.max, less memory.current but for the files that it
// caches; version 1: memory.limit_in_bytes and memory.usage_in_bytes), whichever is least. What other processes take at
// the same time is not known. nullopt: nobody says. root: of the file system, for tests.
std::optional<uint64_t> AvailableHostBytes(const std::string& root = "");

}  // namespace switchyard
