// For plugins written in C++: what every function at the boundary needs. Refusing with a message, reading and filling
// structs whose size another version of the headers may have chosen, and keeping exceptions inside. The ABI itself is C
// and does not need this header. Pure functions, thread-safe.
#ifndef SWITCHYARD_ABI_BOUNDARY_H_
#define SWITCHYARD_ABI_BOUNDARY_H_

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <source_location>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/abi/plugin.h"

// What one sy_plugin_create of a C++ plugin made: the host that it serves. Plugins that keep more derive from it.
struct sy_instance {
  virtual ~sy_instance() = default;
  // Value of SWITCHYARD_<name>, or NULL.
  const char* Setting(const char* name) const {
    return host != nullptr && SY_HAS(sy_host, host, setting) && host->setting != nullptr
               ? host->setting(host->context, name)
               : nullptr;
  }
  // A whole number of at least `least` from SWITCHYARD_<name>; `otherwise` where it is not set or is something else.
  int64_t NumberSetting(const char* name, int64_t otherwise, int64_t least = 1) const {
    const char* const text = Setting(name);
    if (text == nullptr) return otherwise;
    char* end = nullptr;
    const long long value = std::strtoll(text, &end, 10);
    return end == text || *end != '\0' || value < least ? otherwise : value;
  }
  // level: as in sy_host.
  void Log(int32_t level, const std::string& text) const {
    if (host != nullptr && SY_HAS(sy_host, host, log) && host->log != nullptr)
      host->log(host->context, level, text.c_str());
  }

  const sy_host* host = nullptr;
};

namespace switchyard {

// "matmul: expected 3" from any printable parts.
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// printf into a string.
__attribute__((format(printf, 1, 2))) inline std::string Format(const char* format, ...) {
  char text[sizeof(sy_error::message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

// Fills `error`, which may be NULL, and returns `status`.
inline sy_status Refuse(sy_error* error, sy_status status, const std::string& message,
                        std::source_location where = std::source_location::current()) {
  if (error == nullptr || !SY_HAS(sy_error, error, message)) return status;
  error->native_code = 0;
  std::snprintf(error->message, sizeof error->message, "%s", message.c_str());
  if (SY_HAS(sy_error, error, location)) {
    const char* slash = std::strrchr(where.file_name(), '/');
    std::snprintf(error->location, sizeof error->location, "%s:%u", slash ? slash + 1 : where.file_name(),
                  static_cast<unsigned>(where.line()));
  }
  return status;
}

// return SY_FAIL(error, SY_INVALID, "expected %d, found %d", 1, 2);
#define SY_FAIL(error, status, ...) ::switchyard::Refuse(error, status, ::switchyard::Format(__VA_ARGS__))

// A copy of the caller's struct: fields that its size does not cover are zero.
template <typename T>
T ReadStruct(const T* given) {
  T copy{};
  std::memcpy(&copy, given, std::min<size_t>(given->header.size, sizeof(T)));
  return copy;
}

// Fills as much of the caller's struct as its size covers; its header stays.
template <typename T>
void FillStruct(T* given, const T& value) {
  const size_t bytes = std::min<size_t>(given->header.size, sizeof(T)), header = sizeof(sy_header);
  if (bytes <= header) return;
  std::memcpy(reinterpret_cast<char*>(given) + header, reinterpret_cast<const char*>(&value) + header, bytes - header);
}

// Runs `body`; whatever it throws becomes a status: no exception crosses the boundary.
template <typename Body>
sy_status Guarded(sy_error* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  } catch (const std::exception& failure) {
    return Refuse(error, SY_INTERNAL, failure.what());
  } catch (...) {
    return Refuse(error, SY_INTERNAL, "it threw an exception that is no std::exception");
  }
}

// False, with the error filled, if the chain behind a header (which may be NULL) holds a link that must be understood:
// no plugin of ours knows any.
inline bool KnowsExtensions(const sy_header* header, sy_error* error,
                            std::source_location where = std::source_location::current()) {
  const sy_extension* const unknown = sy_required_extension(header);
  if (unknown == nullptr) return true;
  Refuse(error, SY_UNSUPPORTED, std::string("the extension ") + (unknown->name ? unknown->name : "?") + " is unknown",
         where);
  return false;
}
// The same for a struct, which may be NULL.
template <typename T>
bool KnowsExtensions(const T* given, sy_error* error, std::source_location where = std::source_location::current()) {
  return KnowsExtensions(given == nullptr ? nullptr : &given->header, error, where);
}

// Who answers sy_plugin_create.
struct PluginStrings {
  const char *name, *version, *vendor;
};

// What sy_plugin_create does: a new Instance, made from `arguments`, serves `host`, which it knows once it is made, and
// is kept until the process ends.
template <typename Instance = sy_instance, typename... Arguments>
sy_status AnswerCreate(const sy_host* host, sy_plugin* plugin, sy_error* error, const PluginStrings& who,
                       const void* (*get_interface)(sy_instance*, const char*), Arguments&&... arguments) {
  return Guarded(error, [&]() -> sy_status {
    if (plugin == nullptr || !SY_HAS(sy_plugin, plugin, get_interface))
      return SY_FAIL(error, SY_INVALID, "sy_plugin_create: the plugin struct is smaller than that of edition 2");
    if (!KnowsExtensions(host, error) || !KnowsExtensions(plugin, error)) return SY_UNSUPPORTED;
    static auto& mutex = *new std::mutex;
    static auto& instances = *new std::vector<std::unique_ptr<sy_instance>>;
    auto instance = std::make_unique<Instance>(std::forward<Arguments>(arguments)...);
    instance->host = host;
    sy_plugin own{};
    own.magic = SY_PLUGIN_MAGIC;
    own.name = who.name;
    own.version = who.version;
    own.vendor = who.vendor;
    own.instance = instance.get();
    own.get_interface = get_interface;
    const std::lock_guard lock(mutex);
    instances.push_back(std::move(instance));
    FillStruct(plugin, own);
    return SY_OK;
  });
}

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_BOUNDARY_H_
