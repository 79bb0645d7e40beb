// The trace interposer's one symbol. Its argument is FILE, wait or wait:FILE: the file to write, and whether each
// kernel is waited for.
#include "backends/interposers/trace/trace.h"

namespace switchyard {
namespace {

sy_status WrapPlugin(sy_instance* instance, const sy_plugin* inner, const char* argument, sy_plugin* outer,
                     sy_error* error) {
  return Guarded(error, [&]() -> sy_status {
    std::string path = argument;
    const bool wait = path == "wait" || path.starts_with("wait:");
    if (wait) path.erase(0, std::strlen("wait:"));
    const char* const setting = instance->Setting("TRACE");
    const std::string file = !path.empty() ? path : setting != nullptr ? setting : "";
    if (const std::string why = file.empty() ? "" : Recorder::Refusal(file); !why.empty())
      return SY_FAIL(error, SY_INVALID, "trace: cannot write %s: %s", file.c_str(), why.c_str());
    Recorder::Get().Serve(*instance, path);
    return Wrapped::Wrap(std::make_unique<Trace>(*instance, *inner, wait), *inner, outer, error);
  });
}

const sy_interpose_v2 kInterpose = {SY_HEADER(sy_interpose_v2), WrapPlugin};

const void* Interface(sy_instance*, const char* name) {
  return std::strcmp(name, "interpose/2") == 0 ? &kInterpose : nullptr;
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"trace", "0.1.0", "Switchyard"}, switchyard::Interface);
}
