// How much memory of the host is left. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace switchyard {

// Bytes that this process can still fill, by the kernel's own estimate: of the machine (MemAvailable and free swap of
// /proc/meminfo) and of the control group's limit (cgroup v2: memory.max, less memory.current but for the files that it
// caches), whichever is less. What other processes take at the same time is not known. nullopt: nobody says. root: of
// the file system, for tests.
std::optional<uint64_t> AvailableHostBytes(const std::string& root = "");

}  // namespace switchyard
