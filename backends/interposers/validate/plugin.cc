// The validate interposer's one symbol. It takes no argument.
#include "backends/interposers/validate/validate.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(sy_instance* instance, const sy_plugin* inner, const char* argument, sy_plugin* outer,
                     sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    if (*argument != '\0') return SY_FAIL(error, SY_INVALID, "validate takes no argument, found \"%s\"", argument);
    return Wrapped::Wrap(std::make_unique<Validate>(*instance, *inner), *inner, outer, error);
  });
}

const sy_interpose_v2 kInterpose = {SY_HEADER(sy_interpose_v2), WrapPlugin};

const void* Interface(sy_instance*, const char* name) {
  return std::strcmp(name, "interpose/2") == 0 ? &kInterpose : nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"validate", "0.1.0", "Switchyard"}, switchyard::Interface);
}
