// Writing that survives a crash and follows no link: the handful of system calls that a run's files are made of, behind
// one replaceable table, and an open folder with the durable steps built from them. A test replaces the table to make
// the n-th call fail or to record what a disk was told; nothing else does.
//
// A path that the user gives may lead through links. From there on everything is named relative to an open folder and a
// link is never followed: whoever can put a link into a run folder cannot make the run write or remove what it points
// to. Every error names the path, the call and the system's text for errno (core/base/file.h).
//
// Thread-safe, except ReplaceFileCalls, which must not run while files are being written.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/file.h"

namespace switchyard {

// Each entry behaves as the POSIX call of its name: −1 and errno on failure.
struct FileCalls {
  std::function<int(int folder, const char* name, int flags, mode_t mode)> openat;
  std::function<ssize_t(int descriptor, const void* data, size_t bytes)> write;
  std::function<int(int descriptor)> fsync;
  std::function<int(int descriptor)> close;
  std::function<int(int folder, const char* name, mode_t mode)> mkdirat;
  std::function<int(int from_folder, const char* from, int to_folder, const char* to)> renameat;
  std::function<int(const char* target, int folder, const char* link)> symlinkat;
  std::function<int(int folder, const char* name, int flags)> unlinkat;
};

FileCalls SystemFileCalls();                        // the real ones
void ReplaceFileCalls(const FileCalls* for_tests);  // nullptr restores the real ones
const FileCalls& CurrentFileCalls();                // those in use

using ByteView = std::span<const std::byte>;
inline ByteView BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

// Calls of the table, repeated where a signal interrupted them. `path` is for the error.
int OpenAt(int folder, const std::string& name, int flags, mode_t mode = 0);  // −1 and errno on failure
// Where O_DIRECT is on and does not allow a write, that one and all that follow go through the page cache.
Status WriteAll(int descriptor, const std::string& path, ByteView piece);
// What a file is to hold: pieces, one behind another, which are made as they are written. `read` is called in their
// order and in that of their bytes, for each byte once: it puts those from `begin` on into `to`.
struct Pieces {
  struct Piece {
    size_t bytes = 0;
    std::function<Status(size_t begin, std::span<std::byte> to)> read;
  };
  std::vector<Piece> pieces;
  // What stands before them and may depend on them, such as their checksums: asked for when they are written.
  size_t head_bytes = 0;
  std::function<std::string()> head = nullptr;
};
Pieces PiecesOf(const std::vector<ByteView>& views);  // which must outlive them

// Writes them to a file that was just created; many bytes go past the page cache where the file system lets them.
// Durable, either way, after SyncFile.
Status WritePieces(int descriptor, const std::string& path, const Pieces& pieces);
// Turns O_DIRECT on or off; false where it was so, or the file system has no such thing.
bool SetDirect(int descriptor, bool direct);
Status SyncFile(int descriptor, const std::string& path, const char* what = "fsync");

// A folder that is held open. `name` is always one component: what lies directly in it.
class Folder {
 public:
  // The user's path, links followed. Make creates what is missing of it; once it returns, a crash keeps the folder.
  static StatusOr<Folder> Open(const std::string& path);
  static StatusOr<Folder> Make(const std::string& path);

  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;
  ~Folder();

  const std::string& path() const { return path_; }  // as it was opened, for messages
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  int descriptor() const { return descriptor_; }

  StatusOr<Folder> OpenInside(const std::string& name) const;
  StatusOr<Folder> MakeInside(const std::string& name) const;    // opens or creates it; a crash keeps it
  StatusOr<Folder> CreateInside(const std::string& name) const;  // must not exist; durable after the next Sync()

  StatusOr<std::vector<std::string>> Names() const;  // in no order
  bool Has(const std::string& name) const;           // whatever it is, also a link to nowhere

  // Creates a file that must not exist, writes the pieces one after another and fsyncs it; its name is durable after
  // the next Sync(). On an error the file is removed.
  Status Write(const std::string& name, const Pieces& pieces) const;
  Status Write(const std::string& name, const std::vector<ByteView>& pieces) const {
    return Write(name, PiecesOf(pieces));
  }
  // Puts a whole file in the place of what has that name: a reader, and a crash, see the old one or the new one, and
  // once it returns the new one.
  Status Replace(const std::string& name, const Pieces& pieces) const;
  Status Replace(const std::string& name, const std::vector<ByteView>& pieces) const {
    return Replace(name, PiecesOf(pieces));
  }
  // Puts a symbolic link to `target` there in one step; durable after the next Sync().
  Status ReplaceLink(const std::string& target, const std::string& name) const;
  Status Rename(const std::string& from, const std::string& to) const;
  Status MoveInto(const std::string& from, const Folder& other, const std::string& to) const;
  // Removes a file, a link (not what it points to) or a folder with all that is in it, going on after an error and
  // returning the first. What is not there is no error.
  Status Remove(const std::string& name) const;
  Status Sync() const;

 private:
  Folder(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

// Splits a path of the user's into the folder, created where it is missing, and the name in it.
struct PlaceInFolder {
  Folder folder;
  std::string name;
};
StatusOr<PlaceInFolder> MakePlace(const std::string& path);

// A log: a file that only grows. Each record is one write(2), so that a killed run leaves at most the last one torn.
class GrowingFile {
 public:
  // Opens or creates a regular file; `flags` may add O_EXCL.
  static StatusOr<GrowingFile> Open(const Folder& folder, const std::string& name, int flags = 0);

  const std::string& path() const { return path_; }
  int descriptor() const { return file_.get(); }

  // Also an error where the file no longer lies at its path: its folder was removed or moved, and nobody would find
  // what is written.
  Status Append(const std::string& record);
  Status Sync() const;  // a disk may only now say that it is full; may be called beside Append, in another thread

 private:
  GrowingFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  Descriptor file_;
};

}  // namespace switchyard
