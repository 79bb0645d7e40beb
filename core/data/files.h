// A file as a stream, gzip undone on the way, and a read-only tree of files that is a folder or a tar archive.
// An archive is never unpacked: a plain tar is read in place by offset, a compressed one is held in memory.
// Only regular files are read, and no pipe is waited for.
// Thread-safe: reading from an open FileTree is, from any number of threads. Every error names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/file.h"

struct gzFile_s;  // of zlib

namespace switchyard {

// How many bytes of files are read into memory: half of what AvailableHostBytes(root) says is left.
uint64_t MostInMemory(const std::string& root = "");
// ResourceExhausted where what a file says it holds takes more than that.
Status CheckFitsInMemory(const std::string& path, uint64_t bytes);

// A file's bytes in their order; where it is gzip, the bytes inside. For formats whose header says how much follows: no
// more is inflated than is asked for, and memory grows with what is really there.
class FileStream {
 public:
  static StatusOr<FileStream> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Of the whole: exact unless it is gzip, of which this is the most that it can become.
  uint64_t most_bytes() const { return most_bytes_; }

  // Appends the next `count` bytes, or as many as there are. What comes at once into what the caller has reserved is
  // not copied again.
  Status Append(uint64_t count, std::vector<uint8_t>* bytes);
  // Appends what is missing of `count` bytes, of which `bytes` has those that were read last, and expects the end
  // behind them, of gzip with its checksum. Else DataLoss: "expected 2048 bytes <of_what>, found …".
  Status Finish(uint64_t count, const std::string& of_what, std::vector<uint8_t>* bytes);

 private:
  explicit FileStream(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> stream_{nullptr, nullptr};
  uint64_t most_bytes_ = 0, done_ = 0;
  bool gzip_ = false;
};

std::vector<uint8_t> Gzip(const std::vector<uint8_t>& bytes);

inline constexpr size_t kLargestList = size_t{1} << 26;    // bytes of a text that lists files or classes
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
  Status Inflate();
  Status ReadAt(int64_t offset, int64_t count, uint8_t* target) const;

  std::string root_;
  bool archive_ = false;
  Descriptor file_;              // of a plain tar
  std::vector<std::vector<uint8_t>> memory_;  // a compressed tar's content, in pieces of kPieceBytes
  int64_t archive_size_ = 0;
  std::vector<Entry> entries_;
};

// Of the folders in which a data set was found ("" or "name/"): "", which is the tree itself, else the only one.
// InvalidArgument where there are several; `what` says what is in them, as "train/CLASS".
StatusOr<std::string> OnlyRoot(const FileTree& tree, const std::set<std::string>& roots, std::string_view what);

}  // namespace switchyard
