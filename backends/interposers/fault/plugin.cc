// The fault interposer's one symbol.
#include "backends/interposers/fault/fault.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(const sy_plugin* inner, const char* argument, sy_plugin* outer, sy_error* error) {
  return Guarded(error, [&] {
    FaultPlan plan;
    const std::string problem = ParseFault(argument, &plan);
    if (!problem.empty()) return Refuse(error, SY_INVALID, problem);
    return Wrap(*inner, std::make_unique<Fault>(*inner, std::move(plan)), outer, error);
  });
}

const sy_interpose_v1 kInterpose = {SY_HEADER(sy_interpose_v1), WrapPlugin};

const void* Interface(const char* name) { return std::strcmp(name, "interpose/1") == 0 ? &kInterpose : nullptr; }

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::Introduce(host, plugin, "fault", switchyard::Interface, error);
}
