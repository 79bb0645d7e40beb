// Writing that survives a crash: the handful of system calls that checkpoints are made of, behind one replaceable
// table, and the durable steps built from them. A test replaces the table to make the n-th call fail or to stop the
// "machine" there; nothing else does. Every error names the path, the call and the system's text for errno.
//
// Thread-safe, except ReplaceFileCalls, which must not run while files are being written.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

// Each entry behaves as the POSIX call of its name: −1 and errno on failure.
struct FileCalls {
  std::function<int(const char* path, int flags, mode_t mode)> open;
  std::function<ssize_t(int descriptor, const void* data, size_t bytes)> write;
  std::function<int(int descriptor)> fsync;
  std::function<int(int descriptor)> close;
  std::function<int(const char* path, mode_t mode)> mkdir;
  std::function<int(const char* from, const char* to)> rename;
  std::function<int(const char* target, const char* link)> symlink;
  std::function<int(const char* path)> unlink;
  std::function<int(const char* path)> rmdir;
};

FileCalls SystemFileCalls();                        // the real ones
void ReplaceFileCalls(const FileCalls* for_tests);  // nullptr restores the real ones

using Bytes = std::span<const std::byte>;
inline Bytes BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

// "cannot write /path: No space left on device". ENOSPC and its kin are ResourceExhausted, ENOENT is NotFound, EIO
// is DataLoss, the rest FailedPrecondition.
Status FileError(const std::string& doing, const std::string& path, int error_number);

// Creates the folder and its missing parents.
Status MakeFolders(const std::string& path);
// Creates `path` (which must not exist), writes the pieces one after another, fsyncs. On an error the file is removed.
Status WriteDurably(const std::string& path, const std::vector<Bytes>& pieces);
Status SyncFolder(const std::string& path);
Status RenamePath(const std::string& from, const std::string& to);
// Makes `link` a symbolic link to `target`, whether or not it exists; whoever opens it sees the old or the new target.
Status ReplaceLink(const std::string& target, const std::string& link);
// Removes a folder with all that is in it; goes on after an error and returns the first.
Status RemoveFolder(const std::string& path);

// The whole of a regular file of at most `limit` bytes.
StatusOr<std::string> ReadWholeFile(const std::string& path, size_t limit);

}  // namespace switchyard
