#include "core/data/files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/data/tar.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOfAPath = 4096;  // bytes; a tar archive may have names of any length
constexpr int kMaxFolderDepth = 8;     // below the root of a tree; a loop of links ends here

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool LooksLikeArchive(const fs::path& path) {
  const std::string name = path.filename().string();
  return EndsWith(name, ".tar") || EndsWith(name, ".tar.gz") || EndsWith(name, ".tgz");
}

// The one archive of a folder that holds no folder, or "".
std::string OnlyArchive(const std::string& folder) {
  std::string archive;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory(error)) return "";
    if (!LooksLikeArchive(it->path())) continue;
    if (!archive.empty()) return "";
    archive = it->path().string();
  }
  return archive;
}

StatusOr<bool> IsGzip(const Descriptor& file, const std::string& path) {
  unsigned char magic[2] = {};
  const ssize_t count = pread(file.get(), magic, sizeof magic, 0);
  if (count < 0) return FileError("read", path, errno);
  return count == 2 && magic[0] == 0x1F && magic[1] == 0x8B;
}

// Half of the machine's memory: what a compressed file may become.
size_t MostInMemory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) / 2 * static_cast<size_t>(page) : size_t{4} << 30;
}

struct GzipStream {
  std::unique_ptr<gzFile_s, int (*)(gzFile)> stream{nullptr, gzclose_r};
  size_t file_bytes = 0;  // as they are stored
};

// Passes plain files through.
StatusOr<GzipStream> OpenStream(const std::string& path) {
  SY_ASSIGN_OR_RETURN(Descriptor file, OpenRegularFile(path));
  GzipStream opened;
  SY_ASSIGN_OR_RETURN(opened.file_bytes, FileBytes(file, path));
  opened.stream.reset(gzdopen(file.get(), "rb"));
  if (opened.stream == nullptr) return ResourceExhausted("{}: no memory to read it", path);
  file.release();  // the stream's now
  return opened;
}

Status DamagedGzip(const std::string& path, gzFile stream) {
  int code = Z_OK;
  const std::string text = gzerror(stream, &code);
  return DataLoss("{}: damaged gzip file: {}; fetch it again", path,
                  code == Z_BUF_ERROR ? "it ends too early" : text.c_str());
}

Status TooLarge(const std::string& path, size_t limit) {
  return ResourceExhausted("{}: holds more than {} bytes, which is the most that is read into memory here", path,
                           limit);
}

}  // namespace

Status ReadWholeFile(const std::string& path, std::vector<uint8_t>* bytes) {
  return ReadWholeFile(path, MostInMemory(), bytes);
}

Status ReadWholeFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes) {
  bytes->clear();
  SY_ASSIGN_OR_RETURN(const GzipStream file, OpenStream(path));
  if (file.file_bytes > limit) return TooLarge(path, limit);
  gzFile stream = file.stream.get();
  gzbuffer(stream, 1 << 18);
  // Memory grows with what is really there; no header is trusted for a size.
  bytes->resize(file.file_bytes + 1);
  size_t used = 0;
  int count = 0;
  for (;;) {
    if (used > limit) return TooLarge(path, limit);
    if (used == bytes->size()) bytes->resize(std::min(used * 2, limit + 1));
    const size_t room = std::min<size_t>(bytes->size() - used, 1 << 24);
    count = gzread(stream, bytes->data() + used, static_cast<unsigned>(room));
    if (count <= 0) break;
    used += static_cast<size_t>(count);
  }
  bytes->resize(used);
  int code = Z_OK;
  gzerror(stream, &code);
  return count < 0 || code != Z_OK ? DamagedGzip(path, stream) : OkStatus();
}

StatusOr<FileStart> ReadFileStart(const std::string& path, size_t count) {
  constexpr uint64_t kMostInflation = 1032;  // of deflate: 258 bytes for two bits
  SY_ASSIGN_OR_RETURN(const GzipStream file, OpenStream(path));
  FileStart start;
  start.bytes.resize(count);
  const int found = gzread(file.stream.get(), start.bytes.data(), static_cast<unsigned>(count));
  if (found < 0) return DamagedGzip(path, file.stream.get());
  start.bytes.resize(static_cast<size_t>(found));
  start.most_bytes = file.file_bytes * (gzdirect(file.stream.get()) != 0 ? 1 : kMostInflation);
  return start;
}

StatusOr<std::unique_ptr<FileTree>> FileTree::Open(const std::string& path) {
  std::error_code error;
  std::unique_ptr<FileTree> tree(new FileTree);
  tree->root_ = path;
  if (!fs::exists(path, error)) return NotFound("{}: no such file or folder", path);
  if (fs::is_directory(path, error)) {
    const std::string archive = OnlyArchive(path);
    if (archive.empty()) {
      SY_RETURN_IF_ERROR(tree->ListFolder());
      return tree;
    }
    tree->root_ = archive;
  }
  tree->archive_ = true;
  SY_RETURN_IF_ERROR(tree->ListArchive());
  return tree;
}

Status ReadFile(const std::string& path, size_t limit, std::vector<uint8_t>* bytes) {
  SY_ASSIGN_OR_RETURN(const Descriptor file, OpenRegularFile(path));
  SY_ASSIGN_OR_RETURN(const size_t file_bytes, FileBytes(file, path));
  if (file_bytes > limit) return TooLarge(path, limit);
  bytes->resize(file_bytes);
  size_t used = 0;
  while (used < bytes->size()) {
    const ssize_t got = read(file.get(), bytes->data() + used, bytes->size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path, errno);
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  bytes->resize(used);
  return OkStatus();
}

Status FileTree::ListFolder() {
  std::error_code error;
  fs::recursive_directory_iterator it(root_, fs::directory_options::follow_directory_symlink, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const bool folder = it->is_directory(ignored);
    if (folder && it.depth() >= kMaxFolderDepth) it.disable_recursion_pending();
    if (folder && faccessat(AT_FDCWD, it->path().c_str(), R_OK | X_OK, AT_EACCESS) != 0) {
      LogWarning("{}: cannot be listed: {}; left out", Printable(it->path().string(), kMostOfAPath), strerror(errno));
      it.disable_recursion_pending();
      continue;
    }
    entries_.push_back({it->path().lexically_relative(root_).generic_string(), folder, 0, 0});
  }
  if (error) return NotFound("{}: cannot list the folder: {}", root_, error.message());
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return OkStatus();
}

Status FileTree::ListArchive() {
  SY_ASSIGN_OR_RETURN(file_, OpenRegularFile(root_));
  SY_ASSIGN_OR_RETURN(const bool gzip, IsGzip(file_, root_));
  if (gzip) {
    SY_RETURN_IF_ERROR(ReadWholeFile(root_, &memory_));
    file_ = Descriptor();
    archive_size_ = static_cast<int64_t>(memory_.size());
  } else {
    SY_ASSIGN_OR_RETURN(const size_t bytes, FileBytes(file_, root_));
    archive_size_ = static_cast<int64_t>(bytes);
  }
  const auto read_at = [this](int64_t offset, int64_t count, uint8_t* target) { return ReadAt(offset, count, target); };
  std::vector<std::string> lost_links;
  const auto indexed = IndexTar(read_at, archive_size_, &entries_, &lost_links);
  if (!indexed.ok()) return Annotate(indexed, root_);
  if (!lost_links.empty()) {
    LogWarning("{}: {} links lead to folders or out of the archive and are left out, the first of them {}", root_,
               lost_links.size(), Printable(lost_links[0], kMostOfAPath));
  }
  // Where a name occurs twice, the later entry counts, as it would after unpacking.
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  const auto same = [](const Entry& a, const Entry& b) { return a.name == b.name; };
  entries_.erase(entries_.begin(), std::unique(entries_.rbegin(), entries_.rend(), same).base());
  return OkStatus();
}

Status FileTree::ReadAt(int64_t offset, int64_t count, uint8_t* target) const {
  if (offset < 0 || count < 0 || count > archive_size_ || offset > archive_size_ - count) {
    return DataLoss("{}: the archive ends too early: expected {} bytes at offset {}, it has {}", root_, count, offset,
                    archive_size_);
  }
  if (file_.get() < 0) {
    std::memcpy(target, memory_.data() + offset, static_cast<size_t>(count));
    return OkStatus();
  }
  while (count > 0) {
    const ssize_t got = pread(file_.get(), target, static_cast<size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", root_, errno);
    if (got == 0) return DataLoss("{}: the archive ends too early, at offset {}; did it change?", root_, offset);
    target += got, offset += got, count -= got;
  }
  return OkStatus();
}

Status FileTree::Read(const Entry& entry, std::vector<uint8_t>* bytes) const {
  if (!archive_) return ReadFile(root_ + "/" + entry.name, kLargestSample, bytes);
  if (static_cast<uint64_t>(entry.size) > kLargestSample) return TooLarge(Path(entry), kLargestSample);
  bytes->resize(static_cast<size_t>(entry.size));
  return ReadAt(entry.offset, entry.size, bytes->data());
}

std::string FileTree::Path(const Entry& entry) const {
  return root_ + (archive_ ? ":" : "/") + Printable(entry.name, kMostOfAPath);
}

StatusOr<std::string> OnlyRoot(const FileTree& tree, const std::set<std::string>& roots, std::string_view what) {
  if (roots.empty() || roots.contains("")) return std::string();
  if (roots.size() == 1) return *roots.begin();
  return InvalidArgument("{}: {} is in {} as well as in {}; give the folder of one of them", tree.root(), what,
                         Printable(*roots.begin()), Printable(*std::next(roots.begin())));
}

}  // namespace switchyard
