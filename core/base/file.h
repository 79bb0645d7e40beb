// Opening and reading files that others may have made: only regular files, never waiting for a pipe's other end, never
// more than a limit. Every error names the path and the system's text for errno. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

// "cannot write /path: No space left on device". ENOSPC and its kin are ResourceExhausted, ENOENT is NotFound, EIO
// is DataLoss, the rest FailedPrecondition.
Status FileError(const std::string& doing, const std::string& path, int error_number);

// A file descriptor that is closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// What stat(2) found, in words: "a file", "a folder", "a pipe", "a device" or "something else".
const char* FileKind(mode_t mode);

// Opens a regular file for reading. FailedPrecondition for a folder, a pipe, a device or a socket, at once.
StatusOr<Descriptor> OpenRegularFile(const std::string& path);

// Bytes of an open file.
StatusOr<size_t> FileBytes(const Descriptor& file, const std::string& path);

// The whole of a regular file of at most `limit` bytes.
StatusOr<std::string> ReadWholeFile(const std::string& path, size_t limit);
// The same, into memory that the caller uses again; after an error that holds anything.
Status ReadWholeFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes);

}  // namespace switchyard
