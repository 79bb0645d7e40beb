// A log of a run that is read again, in pieces: a long one takes little memory. Errors name the path. A LogFile belongs
// to one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/train/file_calls.h"

namespace switchyard {

class LogFile {
 public:
  static StatusOr<LogFile> Open(const std::string& path);  // a regular file

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }  // when it was opened; what is written since is not read

  // The bytes from `at` on, as many as there are of `bytes`. They stand until the next call.
  StatusOr<std::string_view> Read(size_t at, size_t bytes);

 private:
  LogFile(std::string path, Descriptor file, size_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

  std::string path_;
  Descriptor file_;
  size_t bytes_, window_at_ = 0;
  std::string window_;  // what was read last
};

// Parts of a log that stay when the rest is dropped.
class KeptParts {
 public:
  void Add(size_t at, size_t bytes);  // behind the part before it
  size_t bytes() const { return bytes_; }

  // Puts a file of these parts in the place of `name`, as Folder::Replace does.
  Status Replace(const Folder& folder, const std::string& name, LogFile& log) const;

 private:
  struct Part {
    size_t at, bytes;
  };
  std::vector<Part> parts_;
  size_t bytes_ = 0;
};

}  // namespace switchyard
