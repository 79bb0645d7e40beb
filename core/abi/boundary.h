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
#include <new>
#include <source_location>
#include <sstream>
#include <string>

#include "core/abi/plugin.h"

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

// Runs `body`; what it throws (only the standard library does) becomes a status: no exception crosses the boundary.
template <typename Body>
sy_status Guarded(sy_error* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Refuse(error, SY_OUT_OF_MEMORY, "host memory is exhausted");
  } catch (const std::exception& failure) {
    return Refuse(error, SY_INTERNAL, failure.what());
  }
}

// What the host gave to sy_plugin_query; one in each plugin.
inline const sy_host* plugin_host = nullptr;

// Value of SWITCHYARD_<name>, or NULL.
inline const char* Setting(const char* name) {
  return plugin_host != nullptr && SY_HAS(sy_host, plugin_host, setting) && plugin_host->setting != nullptr
             ? plugin_host->setting(name)
             : nullptr;
}

// A whole number of at least `least` from SWITCHYARD_<name>; `otherwise` where it is not set or is something else.
inline int64_t NumberSetting(const char* name, int64_t otherwise, int64_t least = 1) {
  const char* const text = Setting(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  return end == text || *end != '\0' || value < least ? otherwise : value;
}

// What sy_plugin_query of a plugin with these strings and this table of interfaces does.
inline sy_status AnswerQuery(const sy_host* host, sy_plugin* plugin, sy_error* error, const char* name,
                             const char* version, const void* (*interface)(const char*)) {
  if (plugin == nullptr || !SY_HAS(sy_plugin, plugin, interface)) {
    return SY_FAIL(error, SY_INVALID, "sy_plugin_query: the plugin struct is smaller than version 1's");
  }
  plugin_host = host;
  sy_plugin own{};
  own.magic = SY_PLUGIN_MAGIC;
  own.name = name;
  own.version = version;
  own.vendor = "Switchyard";
  own.interface = interface;
  const uint32_t room = plugin->header.size;
  FillStruct(plugin, own);
  plugin->header = SY_HEADER(sy_plugin);
  plugin->header.size = std::min(plugin->header.size, room);
  return SY_OK;
}

}  // namespace switchyard

#endif  // SWITCHYARD_ABI_BOUNDARY_H_
