#include "core/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/text.h"

namespace switchyard {

Status FileError(const std::string& doing, const std::string& path, int error_number) {
  const std::string text = std::strerror(error_number), shown = Printable(path, 4096);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted("cannot {} {}: {}; free some space or write elsewhere", doing, shown, text);
    case ENOENT:
      return NotFound("cannot {} {}: {}", doing, shown, text);
    case EIO:
      return DataLoss("cannot {} {}: {}", doing, shown, text);
    case ELOOP:
      return FailedPrecondition("cannot {} {}: a symbolic link lies there, which is not followed", doing, shown);
    default:
      return FailedPrecondition("cannot {} {}: {}", doing, shown, text);
  }
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

const char* FileKind(mode_t mode) {
  return S_ISREG(mode)                    ? "a file"
         : S_ISDIR(mode)                  ? "a folder"
         : S_ISFIFO(mode)                 ? "a pipe"
         : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                                          : "something else";
}

StatusOr<Descriptor> OpenRegularFile(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return FileError("read", path, errno);
  struct stat about = {};
  if (::fstat(file.get(), &about) < 0) return FileError("read", path, errno);
  if (!S_ISREG(about.st_mode)) {
    return FailedPrecondition("cannot read {}: expected a regular file, found {}", Printable(path, 4096),
                              FileKind(about.st_mode));
  }
  return file;
}

StatusOr<size_t> FileBytes(const Descriptor& file, const std::string& path) {
  struct stat about = {};
  if (::fstat(file.get(), &about) < 0) return FileError("read", path, errno);
  return static_cast<size_t>(about.st_size);
}

namespace {

template <typename Bytes>
Status ReadInto(const std::string& path, size_t limit, Bytes* content) {
  SY_ASSIGN_OR_RETURN(const Descriptor file, OpenRegularFile(path));
  SY_ASSIGN_OR_RETURN(const size_t bytes, FileBytes(file, path));
  if (bytes > limit) {
    return DataLoss("{} has {} bytes, expected at most {} of such a file", Printable(path, 4096), bytes, limit);
  }
  // One byte more than expected shows the end; what the system makes up when asked, as in /proc, says that it has none.
  content->resize(bytes + 1);
  size_t done = 0;
  for (;;) {
    if (done == content->size()) content->resize(std::min(2 * done, limit) + 1);
    const ssize_t got = ::read(file.get(), content->data() + done, content->size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
    if (done > limit)
      return DataLoss("{} has more than {} bytes, the most expected of such a file", Printable(path, 4096), limit);
  }
  if (done < bytes) return DataLoss("{} ends after {} bytes, expected {}", Printable(path, 4096), done, bytes);
  content->resize(done);
  return OkStatus();
}

}  // namespace

StatusOr<std::string> ReadWholeFile(const std::string& path, size_t limit) {
  std::string content;
  SY_RETURN_IF_ERROR(ReadInto(path, limit, &content));
  return content;
}

Status ReadWholeFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes) {
  return ReadInto(path, limit, bytes);
}

}  // namespace switchyard
