// Whole files in memory, gzip undone on the way, and a read-only tree of files that is a folder or a tar archive.
// An archive is never unpacked: a plain tar is read in place by offset, a compressed one is held in memory.
// Only regular files are read, and no pipe is waited for.
// Thread-safe: reading from an open FileTree is, from any number of threads. Every error names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"

namespace switchyard {

// The file's bytes; where it is gzip, the bytes inside, checked against gzip's own checksum. ResourceExhausted above
// `limit` bytes, which is half of the machine's memory where none is given.
Status ReadWholeFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes);
Status ReadWholeFile(const std::string& path, std::vector<uint8_t>* bytes);

// The first bytes of a file, at most `count`, gzip undone; the whole has at most `most_bytes`. The end of gzip is not
// checked.
struct FileStart {
  std::vector<uint8_t> bytes;
  uint64_t most_bytes = 0;
};
StatusOr<FileStart> ReadFileStart(const std::string& path, size_t count);

// The file's bytes as they are.
Status ReadFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes);
inline constexpr size_t kLargestSample = size_t{1} << 28;  // bytes of one encoded image, or of one file in a tree

class FileTree {
 public:
  struct Entry {
    std::string name;  // relative, components joined by '/', no leading "./"
    bool folder = false;
    int64_t offset = 0, size = 0;  // bytes; inside the archive
  };

  // `path` is a folder, a .tar or a .tar.gz (told by content). A folder that holds one archive and no folder stands for
  // that archive.
  static StatusOr<std::unique_ptr<FileTree>> Open(const std::string& path);
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;

  const std::string& root() const { return root_; }
  const std::vector<Entry>& entries() const { return entries_; }  // ascending by name
  Status Read(const Entry& entry, std::vector<uint8_t>* bytes) const;
  std::string Path(const Entry& entry) const;  // "folder/name" or "archive.tar:name", for messages

 private:
  FileTree() = default;
  Status ListFolder();
  Status ListArchive();
  Status ReadAt(int64_t offset, int64_t count, uint8_t* target) const;

  std::string root_;
  bool archive_ = false;
  Descriptor file_;              // of a plain tar
  std::vector<uint8_t> memory_;  // a compressed tar's content
  int64_t archive_size_ = 0;
  std::vector<Entry> entries_;
};

// Of the folders in which a data set was found ("" or "name/"): "", which is the tree itself, else the only one.
// InvalidArgument where there are several; `what` says what is in them, as "train/CLASS".
StatusOr<std::string> OnlyRoot(const FileTree& tree, const std::set<std::string>& roots, std::string_view what);

}  // namespace switchyard
