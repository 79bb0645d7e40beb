#include "core/train/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace switchyard {
namespace {

std::atomic<const FileCalls*> replaced{nullptr};

const FileCalls& Calls() {
  static const FileCalls system = SystemFileCalls();
  const FileCalls* calls = replaced.load();
  return calls != nullptr ? *calls : system;
}

std::string Parent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Repeats a call that a signal interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Status WritePieces(int descriptor, const std::string& path, const std::vector<Bytes>& pieces) {
  constexpr size_t kLargestWrite = size_t{1} << 30;
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const size_t bytes = std::min(piece.size(), kLargestWrite);
      const ssize_t written = Uninterrupted([&] { return Calls().write(descriptor, piece.data(), bytes); });
      if (written < 0) return FileError("write", path, errno);
      if (written == 0) return FileError("write", path, ENOSPC);
      piece = piece.subspan(static_cast<size_t>(written));
    }
  }
  if (Uninterrupted([&] { return Calls().fsync(descriptor); }) < 0) return FileError("fsync", path, errno);
  return OkStatus();
}

}  // namespace

FileCalls SystemFileCalls() {
  FileCalls calls;
  calls.open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); };
  calls.write = ::write;
  calls.fsync = ::fsync;
  calls.close = ::close;
  calls.mkdir = ::mkdir;
  calls.rename = [](const char* from, const char* to) { return std::rename(from, to); };
  calls.symlink = ::symlink;
  calls.unlink = ::unlink;
  calls.rmdir = ::rmdir;
  return calls;
}

void ReplaceFileCalls(const FileCalls* for_tests) { replaced.store(for_tests); }

Status FileError(const std::string& doing, const std::string& path, int error_number) {
  const std::string text = std::strerror(error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted("cannot {} {}: {}; free some space or write elsewhere", doing, path, text);
    case ENOENT:
      return NotFound("cannot {} {}: {}", doing, path, text);
    case EIO:
      return DataLoss("cannot {} {}: {}", doing, path, text);
    default:
      return FailedPrecondition("cannot {} {}: {}", doing, path, text);
  }
}

Status MakeFolders(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return OkStatus();
  const std::string parent = Parent(path);
  if (parent != path) SY_RETURN_IF_ERROR(MakeFolders(parent));
  if (Calls().mkdir(path.c_str(), 0777) < 0) {
    const int error_number = errno;
    if (error_number != EEXIST || !std::filesystem::is_directory(path, ignored)) {
      return FileError("create the folder", path, error_number);
    }
  }
  return SyncFolder(parent);
}

Status WriteDurably(const std::string& path, const std::vector<Bytes>& pieces) {
  const int descriptor =
      Uninterrupted([&] { return Calls().open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor < 0) return FileError("create", path, errno);
  Status status = WritePieces(descriptor, path, pieces);
  if (Calls().close(descriptor) < 0 && status.ok()) status = FileError("close", path, errno);
  if (!status.ok()) Calls().unlink(path.c_str());
  return status;
}

Status SyncFolder(const std::string& path) {
  const int descriptor =
      Uninterrupted([&] { return Calls().open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (descriptor < 0) return FileError("open the folder", path, errno);
  Status status;
  if (Uninterrupted([&] { return Calls().fsync(descriptor); }) < 0) {
    status = FileError("fsync the folder", path, errno);
  }
  if (Calls().close(descriptor) < 0 && status.ok()) status = FileError("close the folder", path, errno);
  return status;
}

Status RenamePath(const std::string& from, const std::string& to) {
  if (Calls().rename(from.c_str(), to.c_str()) < 0) return FileError("rename " + from + " to", to, errno);
  return OkStatus();
}

Status ReplaceLink(const std::string& target, const std::string& link) {
  const std::filesystem::path path(link);
  const std::string temporary = (path.parent_path() / fmt::format(".{}.tmp", path.filename().string())).string();
  if (Calls().unlink(temporary.c_str()) < 0 && errno != ENOENT) return FileError("remove", temporary, errno);
  if (Calls().symlink(target.c_str(), temporary.c_str()) < 0) return FileError("link", temporary, errno);
  const Status status = RenamePath(temporary, link);
  if (!status.ok()) Calls().unlink(temporary.c_str());
  return status;
}

Status RemoveFolder(const std::string& path) {
  Status first;
  const auto note = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  std::error_code error;
  std::filesystem::directory_iterator entries(path, error);
  if (error) return FileError("list the folder", path, error.value());
  std::vector<std::filesystem::directory_entry> inside(entries, {});
  for (const auto& entry : inside) {
    const std::string name = entry.path().string();
    if (entry.is_directory(error) && !entry.is_symlink(error)) {
      note(RemoveFolder(name));
    } else if (Calls().unlink(name.c_str()) < 0) {
      note(FileError("remove", name, errno));
    }
  }
  if (Calls().rmdir(path.c_str()) < 0) note(FileError("remove the folder", path, errno));
  return first;
}

StatusOr<std::string> ReadWholeFile(const std::string& path, size_t limit) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileError("open", path, errno);
  std::string content;
  Status status;
  struct stat about = {};
  if (::fstat(descriptor, &about) < 0) {
    status = FileError("read", path, errno);
  } else if (!S_ISREG(about.st_mode)) {
    status = FailedPrecondition("cannot read {}: expected a regular file", path);
  } else if (static_cast<size_t>(about.st_size) > limit) {
    status = DataLoss("{} has {} bytes, expected at most {}: this is another kind of file", path, about.st_size, limit);
  } else {
    content.resize(static_cast<size_t>(about.st_size));
    size_t done = 0;
    while (status.ok() && done < content.size()) {
      const ssize_t got =
          Uninterrupted([&] { return ::read(descriptor, content.data() + done, content.size() - done); });
      if (got < 0) status = FileError("read", path, errno);
      if (got == 0) status = DataLoss("{} ends after {} bytes, expected {}", path, done, content.size());
      if (got > 0) done += static_cast<size_t>(got);
    }
  }
  ::close(descriptor);
  if (!status.ok()) return status;
  return content;
}

}  // namespace switchyard
