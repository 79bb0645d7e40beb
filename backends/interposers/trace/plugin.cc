// The trace interposer's one symbol. Its argument is the file to write.
#include "backends/interposers/trace/trace.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(const sy_plugin* inner, const char* argument, sy_plugin* outer, sy_error* error) {
  return Guarded(error, [&] {
    Recorder::Get().set_path(argument);
    return Wrap(*inner, std::make_unique<Trace>(*inner), outer, error);
  });
}

const sy_interpose_v1 kInterpose = {SY_HEADER(sy_interpose_v1), WrapPlugin};

const void* Interface(const char* name) { return std::strcmp(name, "interpose/1") == 0 ? &kInterpose : nullptr; }

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::Introduce(host, plugin, "trace", switchyard::Interface, error);
}
