// What every function at the plugin boundary needs: refusing with a message, and reading and filling structs whose size
// another version of the header may have chosen. Pure functions, thread-safe.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <source_location>
#include <sstream>
#include <string>

#include "core/abi/base.h"

namespace switchyard {

// "matmul: expected 3" from any printable parts.
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
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

}  // namespace switchyard
