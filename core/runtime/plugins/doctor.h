// What `switchyard devices` and `switchyard doctor` print, as a table for people or as JSON for programs. Both load
// every plugin that can be loaded. Not thread-safe, as Registry.
#pragma once

#include <string>

#include "core/runtime/plugins/registry.h"

namespace switchyard {

std::string DevicesReport(Registry& registry);  // plugin, id, name, memory, capabilities; last line: what has no device
std::string DevicesJson(Registry& registry);
std::string DoctorReport(Registry& registry);  // the search path; every candidate and why it was taken or refused
std::string DoctorJson(Registry& registry);

}  // namespace switchyard
