#include "core/train/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

namespace switchyard {
namespace {

std::atomic<const FileCalls*> replaced{nullptr};

// Repeats a call that a signal interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

FileCalls SystemFileCalls() {
  FileCalls calls;
  calls.openat = [](int folder, const char* name, int flags, mode_t mode) {
    return ::openat(folder, name, flags, mode);
  };
  calls.write = ::write;
  calls.fsync = ::fsync;
  calls.close = ::close;
  calls.mkdirat = ::mkdirat;
  calls.renameat = ::renameat;
  calls.symlinkat = ::symlinkat;
  calls.unlinkat = ::unlinkat;
  return calls;
}

void ReplaceFileCalls(const FileCalls* for_tests) { replaced.store(for_tests); }

const FileCalls& CurrentFileCalls() {
  static const FileCalls system = SystemFileCalls();
  const FileCalls* calls = replaced.load();
  return calls != nullptr ? *calls : system;
}

int OpenAt(int folder, const std::string& name, int flags, mode_t mode) {
  return Uninterrupted([&] { return CurrentFileCalls().openat(folder, name.c_str(), flags, mode); });
}

Status WriteAll(int descriptor, const std::string& path, ByteView piece) {
  constexpr size_t kLargestWrite = size_t{1} << 30;
  while (!piece.empty()) {
    const size_t bytes = std::min(piece.size(), kLargestWrite);
    const ssize_t written = Uninterrupted([&] { return CurrentFileCalls().write(descriptor, piece.data(), bytes); });
    // Not aligned as this disk wants it, or memory that no disk reaches: the cache takes both.
    if (written < 0 && (errno == EINVAL || errno == EFAULT) && SetDirect(descriptor, false)) continue;
    if (written < 0) return FileError("write", path, errno);
    if (written == 0) return FileError("write", path, ENOSPC);
    piece = piece.subspan(static_cast<size_t>(written));
  }
  return OkStatus();
}

bool SetDirect(int descriptor, bool direct) {
  const int flags = ::fcntl(descriptor, F_GETFL), other = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  return flags >= 0 && other != flags && ::fcntl(descriptor, F_SETFL, other) == 0;
}

Status SyncFile(int descriptor, const std::string& path, const char* what) {
  if (Uninterrupted([&] { return CurrentFileCalls().fsync(descriptor); }) < 0) return FileError(what, path, errno);
  return OkStatus();
}

StatusOr<GrowingFile> GrowingFile::Open(const Folder& folder, const std::string& name, int flags) {
  const std::string path = folder.PathOf(name);
  // Not waiting, where it is a pipe without a reader.
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Descriptor file(OpenAt(folder.descriptor(), name, kFlags | flags, 0666));
  if (file.get() < 0) return FileError("open", path, errno);
  struct stat about = {};
  if (::fstat(file.get(), &about) < 0) return FileError("open", path, errno);
  if (!S_ISREG(about.st_mode)) return FailedPrecondition("cannot write {}: expected a regular file", path);
  return GrowingFile(path, std::move(file));
}

Status GrowingFile::Append(const std::string& record) {
  struct stat written = {}, named = {};
  const bool there = ::fstat(file_.get(), &written) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                     written.st_dev == named.st_dev && written.st_ino == named.st_ino;
  if (!there) {
    return NotFound(
        "cannot write {}: it was removed or moved while the run wrote to it; put its folder back, or "
        "resume in another",
        path_);
  }
  return WriteAll(file_.get(), path_, BytesOf(record));
}

Status GrowingFile::Sync() const { return SyncFile(file_.get(), path_); }

}  // namespace switchyard
