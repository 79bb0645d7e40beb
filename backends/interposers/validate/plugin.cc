// The validate interposer's one symbol. It takes no argument.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(const sy_plugin* inner, const char* argument, sy_plugin* outer, sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (*argument != '\0') return SY_FAIL(error, SY_INVALID, "validate takes no argument, found \"%s\"", argument);
    return Wrap(*inner, std::make_unique<Validate>(*inner), outer, error);
  });
}

const sy_interpose_v1 kInterpose = {SY_HEADER(sy_interpose_v1), WrapPlugin};

const void* Interface(const char* name) { return std::strcmp(name, "interpose/1") == 0 ? &kInterpose : nullptr; }

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::Introduce(host, plugin, "validate", switchyard::Interface, error);
}
