// The open folder of file_calls.h.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/train/file_calls.h"

namespace switchyard {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

// Whoever made the folder may have been killed before the fsync. What lies above the user's own folders need not let
// itself be opened, or be on a file system that can do it.
Status SyncNameOf(const Folder& folder) {
  const std::string path = folder.path() + "/..";
  const Descriptor above(OpenAt(folder.descriptor(), "..", kOpenFolder));
  const Status status =
      above.get() < 0 ? FileError("open the folder", path, errno) : SyncFile(above.get(), path, "fsync the folder");
  return status.code() == absl::StatusCode::kFailedPrecondition ? OkStatus() : status;
}

}  // namespace

Folder::Folder(Folder&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Folder::~Folder() {
  if (descriptor_ >= 0) ::close(descriptor_);  // only read from: nothing that could be lost, or fail
}

StatusOr<Folder> Folder::Open(const std::string& path) {
  const int descriptor = OpenAt(AT_FDCWD, path, kOpenFolder);
  if (descriptor < 0) return FileError("open the folder", path, errno);
  return Folder(path, descriptor);
}

StatusOr<Folder> Folder::Make(const std::string& path) {
  auto folder = Open(path);
  if (folder.ok()) SY_RETURN_IF_ERROR(SyncNameOf(*folder));
  if (folder.ok() || folder.status().code() != absl::StatusCode::kNotFound) return folder;
  const std::filesystem::path whole(path);
  const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
  if (parent == path) return folder;
  SY_ASSIGN_OR_RETURN(Folder above, Make(parent));
  if (!whole.has_filename()) return above;  // "run/" is "run"
  SY_ASSIGN_OR_RETURN(Folder made, above.MakeInside(whole.filename().string()));
  made.path_ = path;
  return made;
}

StatusOr<Folder> Folder::OpenInside(const std::string& name) const {
  const int descriptor = OpenAt(descriptor_, name, kOpenFolder | O_NOFOLLOW);
  if (descriptor >= 0) return Folder(PathOf(name), descriptor);
  if (errno == ENOTDIR) {
    return FailedPrecondition("cannot use {}: expected a folder, found a file or a symbolic link", PathOf(name));
  }
  return FileError("open the folder", PathOf(name), errno);
}

StatusOr<Folder> Folder::MakeInside(const std::string& name) const {
  if (CurrentFileCalls().mkdirat(descriptor_, name.c_str(), 0777) < 0 && errno != EEXIST)
    return FileError("create the folder", PathOf(name), errno);
  SY_RETURN_IF_ERROR(Sync());  // also of one that was there: who made it may have been killed before this
  return OpenInside(name);
}

StatusOr<Folder> Folder::CreateInside(const std::string& name) const {
  if (CurrentFileCalls().mkdirat(descriptor_, name.c_str(), 0777) < 0) {
    return FileError("create the folder", PathOf(name), errno);
  }
  return OpenInside(name);
}

StatusOr<std::vector<std::string>> Folder::Names() const {
  const int descriptor = OpenAt(descriptor_, ".", kOpenFolder);
  DIR* const listing = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (listing == nullptr) {
    const int error_number = errno;
    if (descriptor >= 0) ::close(descriptor);
    return FileError("list the folder", path_, error_number);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listing)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int error_number = errno;
  ::closedir(listing);
  if (error_number != 0) return FileError("list the folder", path_, error_number);
  return names;
}

bool Folder::Has(const std::string& name) const {
  struct stat about = {};
  return ::fstatat(descriptor_, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0;
}

Status Folder::Write(const std::string& name, const Pieces& pieces) const {
  const std::string path = PathOf(name);
  const int file = OpenAt(descriptor_, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) return FileError("create", path, errno);
  Status status = WritePieces(file, path, pieces);
  if (status.ok()) status = SyncFile(file, path);
  if (CurrentFileCalls().close(file) < 0 && status.ok()) status = FileError("close", path, errno);
  if (!status.ok()) CurrentFileCalls().unlinkat(descriptor_, name.c_str(), 0);
  return status;
}

Status Folder::Replace(const std::string& name, const Pieces& pieces) const {
  const std::string draft = fmt::format(".{}.tmp", name);
  SY_RETURN_IF_ERROR(Remove(draft));
  SY_RETURN_IF_ERROR(Write(draft, pieces));
  const Status status = Rename(draft, name);
  if (!status.ok()) {
    CurrentFileCalls().unlinkat(descriptor_, draft.c_str(), 0);
    return status;
  }
  return Sync();
}

Status Folder::ReplaceLink(const std::string& target, const std::string& name) const {
  const std::string draft = fmt::format(".{}.tmp", name);
  SY_RETURN_IF_ERROR(Remove(draft));
  if (CurrentFileCalls().symlinkat(target.c_str(), descriptor_, draft.c_str()) < 0)
    return FileError("link", PathOf(draft), errno);
  const Status status = Rename(draft, name);
  if (!status.ok()) CurrentFileCalls().unlinkat(descriptor_, draft.c_str(), 0);
  return status;
}

Status Folder::Rename(const std::string& from, const std::string& to) const { return MoveInto(from, *this, to); }

Status Folder::MoveInto(const std::string& from, const Folder& other, const std::string& to) const {
  if (CurrentFileCalls().renameat(descriptor_, from.c_str(), other.descriptor_, to.c_str()) < 0) {
    return FileError("rename " + PathOf(from) + " to", other.PathOf(to), errno);
  }
  return OkStatus();
}

Status Folder::Remove(const std::string& name) const {
  if (CurrentFileCalls().unlinkat(descriptor_, name.c_str(), 0) == 0 || errno == ENOENT) return OkStatus();
  if (errno != EISDIR) return FileError("remove", PathOf(name), errno);
  SY_ASSIGN_OR_RETURN(const Folder inside, OpenInside(name));
  SY_ASSIGN_OR_RETURN(const std::vector<std::string> names, inside.Names());
  Status first;
  const auto note = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  for (const std::string& inner : names) note(inside.Remove(inner));
  if (CurrentFileCalls().unlinkat(descriptor_, name.c_str(), AT_REMOVEDIR) < 0) {
    note(FileError("remove the folder", PathOf(name), errno));
  }
  return first;
}

Status Folder::Sync() const { return SyncFile(descriptor_, path_, "fsync the folder"); }

StatusOr<PlaceInFolder> MakePlace(const std::string& path) {
  const std::filesystem::path whole(path);
  if (!whole.has_filename()) return InvalidArgument("{}: expected the name of a file, found a folder's", path);
  SY_ASSIGN_OR_RETURN(Folder folder, Folder::Make(whole.has_parent_path() ? whole.parent_path().string() : "."));
  return PlaceInFolder{std::move(folder), whole.filename().string()};
}

}  // namespace switchyard
