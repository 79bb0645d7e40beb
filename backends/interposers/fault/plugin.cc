// The fault interposer's one symbol.
#include "backends/interposers/fault/fault.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(sy_instance* instance, const sy_plugin* inner, const char* argument, sy_plugin* outer,
                     sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    FaultPlan plan;
    const std::string problem = ParseFault(argument, &plan);
    if (!problem.empty()) return Refuse(error, SY_INVALID, problem);
    return Wrapped::Wrap(std::make_unique<Fault>(*instance, *inner, std::move(plan)), *inner, outer, error);
  });
}

const sy_interpose_v2 kInterpose = {SY_HEADER(sy_interpose_v2), WrapPlugin};

const void* Interface(sy_instance*, const char* name) {
  return std::strcmp(name, "interpose/2") == 0 ? &kInterpose : nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"fault", "0.1.0", "Switchyard"}, switchyard::Interface);
}
