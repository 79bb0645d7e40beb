// Structs as another version of the headers would hand them over: shorter or longer than these headers know, or with a
// chain of extensions behind the header. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "tools/conform/values.h"

namespace switchyard::conform {

constexpr uint8_t kUntouched = 0xCD;
constexpr uint32_t kLongerBy = 64;  // bytes of a struct of a later version, behind those that are known

// A struct of the interface as a version would hand it over in which it has `size` bytes. Fields that these headers do
// not know are zero, and whoever knows them may fill them; what lies behind `size` is nobody's.
template <typename S>
class Sized {
 public:
  explicit Sized(uint32_t size, const S& content = {})
      : bytes_(std::max<size_t>(sizeof(S), size) + kLongerBy, kUntouched), size_(size) {
    std::fill_n(bytes_.begin(), size, uint8_t{0});
    std::memcpy(bytes_.data(), &content, std::min<size_t>(size, sizeof(S)));
    get()->header = {size, SY_ABI_MAJOR, 3, nullptr};
  }
  S* get() { return reinterpret_cast<S*>(bytes_.data()); }
  // Nothing behind it was written.
  Status Untouched(const char* what) const {
    for (size_t i = size_; i < bytes_.size(); ++i) {
      if (bytes_[i] != kUntouched) {
        return Internal("{}: byte {} was written; the header says {} bytes", what, i, size_);
      }
    }
    return OkStatus();
  }

 private:
  std::vector<uint8_t> bytes_;
  uint32_t size_;
};

// A chain of one extension that nobody knows, behind another that nobody has to know.
class UnknownExtension {
 public:
  explicit UnknownExtension(bool required) {
    link_ = {SY_HEADER(sy_extension), "conform.nothing/1", required};
    first_ = {SY_HEADER(sy_extension), "conform.optional/1", 0};
    first_.header.next = &link_;
  }
  UnknownExtension(const UnknownExtension&) = delete;
  UnknownExtension& operator=(const UnknownExtension&) = delete;
  const sy_extension* chain() const { return &first_; }

 private:
  sy_extension first_, link_;
};

inline Status ExpectStatus(sy_status found, std::initializer_list<sy_status> wanted, const std::string& what) {
  if (std::find(wanted.begin(), wanted.end(), found) != wanted.end()) return OkStatus();
  return Internal("{}: expected status {}, found {}", what, *wanted.begin(), found);
}

// What a plugin says of the libraries under it, if it says something.
inline Status ExpectLibraries(const char* text) {
  if (text == nullptr) return OkStatus();
  const std::string_view said(text);
  if (said.empty()) return Internal("libraries is empty; expected NULL where there is nothing to say");
  if (Printable(said, 4 * said.size()) != said)
    return Internal("libraries is no line of printable UTF-8: \"{}\"", Printable(said));
  return OkStatus();
}

// An error struct that tells whether it was written.
class WatchedError {
 public:
  WatchedError() : error_(sizeof(sy_error)) { Reset(); }
  sy_error* get() { return error_.get(); }
  void Reset() {
    std::memset(reinterpret_cast<char*>(get()) + sizeof(sy_header), kUntouched, sizeof(sy_error) - sizeof(sy_header));
  }
  // What every function owes: no word on success, and some words otherwise.
  Status Judge(sy_status status, const std::string& what) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(get());
    const bool written = std::any_of(bytes + sizeof(sy_header), bytes + sizeof(sy_error),
                                     [](uint8_t byte) { return byte != kUntouched; });
    if (status == SY_OK || status == SY_IN_PROGRESS) {
      return written ? Internal("{}: the error was written, though the status is {}", what, status) : OkStatus();
    }
    const size_t length = strnlen(get()->message, sizeof get()->message);
    if (!written || length == 0) return Internal("{}: status {} came without a message", what, status);
    if (length == sizeof get()->message) return Internal("{}: an error message is not terminated", what);
    Reset();
    return OkStatus();
  }

 private:
  Sized<sy_error> error_;
};

}  // namespace switchyard::conform
