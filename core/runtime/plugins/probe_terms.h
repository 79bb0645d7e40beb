// What the two sides of a probe agree on: the program (probe.cc) and switchyard-probe (probe_process.cc).
#pragma once

#include <chrono>
#include <cstddef>

#include "core/base/environment.h"

namespace switchyard {

inline constexpr int kReportDescriptor = 3;
inline constexpr int kReportLost = 99;  // exit status of a probe that could not write its report
inline constexpr int kExited = 98;  // of one that accepted the library, and that nothing kept from exiting as it wanted
inline constexpr auto kProbeGrace = std::chrono::milliseconds(200);  // for what has ended, and is still seen
inline constexpr size_t kLongestReason = 4096;                       // bytes
inline constexpr char kAccepted[] = "accepted";

// How long one stage of a probe may take.
inline std::chrono::seconds ProbeTimeLimit(const std::string& stage) {
  constexpr int kHardwareFactor = 4;  // count and query may start a driver
  const auto seconds = EnvironmentInt("SWITCHYARD_PROBE_TIMEOUT");
  const int limit = seconds && *seconds > 0 ? static_cast<int>(*seconds) : 5;
  const bool hardware = stage == "count" || stage == "query";
  return std::chrono::seconds(hardware ? kHardwareFactor * limit : limit);
}

}  // namespace switchyard
