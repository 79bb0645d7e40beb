#include "core/data/files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/host_memory.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/data/tar.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOfAPath = 4096;  // bytes; a tar archive may have names of any length
constexpr size_t kPieceBytes = size_t{16} << 20;
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

Status TooLarge(const std::string& path, uint64_t limit) {
  return ResourceExhausted("{}: holds more than {} bytes, which is the most that is read into memory here", path,
                           limit);
}

}  // namespace

std::vector<uint8_t> Gzip(const std::vector<uint8_t>& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  std::vector<uint8_t> packed;
  std::array<uint8_t, 1 << 16> piece;
  size_t taken = 0;
  for (int code = Z_OK; code != Z_STREAM_END;) {
    if (stream.avail_in == 0) {
      const size_t next = std::min<size_t>(bytes.size() - taken, 1 << 30);
      stream.next_in = const_cast<uint8_t*>(bytes.data()) + taken;
      stream.avail_in = static_cast<unsigned>(next);
      taken += next;
    }
    stream.next_out = piece.data();
    stream.avail_out = static_cast<unsigned>(piece.size());
    code = deflate(&stream, taken == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    packed.insert(packed.end(), piece.data(), stream.next_out);
  }
  deflateEnd(&stream);
  return packed;
}

uint64_t MostInMemory(const std::string& root) {
  return AvailableHostBytes(root).value_or(uint64_t{8} << 30) / 2;  // where nobody says, as little as machines have
}

Status CheckFitsInMemory(const std::string& path, uint64_t bytes) {
  const uint64_t most = MostInMemory();
  if (bytes <= most) return OkStatus();
  return ResourceExhausted(
      "{}: takes {} bytes of memory by what its header says, and at most {} are taken here: half of "
      "what is left",
      path, bytes, most);
}

StatusOr<FileStream> FileStream::Open(const std::string& path) {
  constexpr uint64_t kMostInflation = 1032;  // of deflate: 258 bytes for two bits
  SY_ASSIGN_OR_RETURN(Descriptor file, OpenRegularFile(path));
  FileStream opened(path);
  SY_ASSIGN_OR_RETURN(opened.most_bytes_, FileBytes(file, path));
  SY_ASSIGN_OR_RETURN(opened.gzip_, IsGzip(file, path));
  if (opened.gzip_ && __builtin_mul_overflow(opened.most_bytes_, kMostInflation, &opened.most_bytes_))
    return DataLoss("{}: no file has so many bytes", path);
  opened.stream_ = {gzdopen(file.get(), "rb"), gzclose_r};  // passes plain files through
  if (opened.stream_ == nullptr) return ResourceExhausted("{}: no memory to read it", path);
  file.release();  // the stream's now
  gzbuffer(opened.stream_.get(), 1 << 18);
  return opened;
}

Status FileStream::Append(uint64_t count, std::vector<uint8_t>* bytes) {
  constexpr uint64_t kAtOnce = 1 << 20;
  while (count > 0) {
    const size_t used = bytes->size(), room = std::min(count, kAtOnce);
    bytes->resize(used + room);
    const int got = gzread(stream_.get(), bytes->data() + used, static_cast<unsigned>(room));
    bytes->resize(used + static_cast<size_t>(std::max(got, 0)));
    int code = Z_OK;
    std::string text = gzerror(stream_.get(), &code);
    if (const size_t name = text.find(">: "); name != std::string::npos) text.erase(0, name + 3);  // "<fd:4>: "
    if (got < 0 || code != Z_OK) {
      return DataLoss("{}: damaged gzip file: {}; fetch it again", path_,
                      code == Z_BUF_ERROR ? "it ends too early" : text);
    }
    if (got == 0) break;
    done_ += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
  return OkStatus();
}

Status FileStream::Finish(uint64_t count, const std::string& of_what, std::vector<uint8_t>* bytes) {
  const auto other = [&](const std::string& found) {
    return DataLoss("{}: expected {} bytes {}, found {}; fetch it again", path_, count, of_what, found);
  };
  const uint64_t begin = done_ - bytes->size(), most = most_bytes_ - std::min(begin, most_bytes_);
  if (gzip_ ? count > most : count != most) return other(fmt::format("{}{}", gzip_ ? "at most " : "", most));
  bytes->reserve(count);
  if (bytes->size() < count) SY_RETURN_IF_ERROR(Append(count - bytes->size(), bytes));
  if (bytes->size() < count) return other(fmt::format("{}", bytes->size()));
  std::vector<uint8_t> more;
  if (bytes->size() == count) SY_RETURN_IF_ERROR(Append(1, &more));
  return bytes->size() > count || !more.empty() ? other("more than that") : OkStatus();
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
    file_ = Descriptor();
    SY_RETURN_IF_ERROR(Inflate());
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

Status FileTree::Inflate() {
  const uint64_t limit = MostInMemory();
  SY_ASSIGN_OR_RETURN(FileStream stream, FileStream::Open(root_));
  archive_size_ = 0;
  do {
    std::vector<uint8_t>& piece = memory_.emplace_back();
    piece.reserve(kPieceBytes);
    SY_RETURN_IF_ERROR(stream.Append(kPieceBytes, &piece));
    archive_size_ += static_cast<int64_t>(piece.size());
    // Others may take of the same memory meanwhile, above all the other ranks of a run.
    if (static_cast<uint64_t>(archive_size_) > limit || MostInMemory() < limit / 2) return TooLarge(root_, limit);
  } while (memory_.back().size() == kPieceBytes);
  return OkStatus();
}

Status FileTree::ReadAt(int64_t offset, int64_t count, uint8_t* target) const {
  if (offset < 0 || count < 0 || count > archive_size_ || offset > archive_size_ - count) {
    return DataLoss("{}: the archive ends too early: expected {} bytes at offset {}, it has {}", root_, count, offset,
                    archive_size_);
  }
  if (file_.get() < 0) {
    for (size_t at = static_cast<size_t>(offset), left = static_cast<size_t>(count); left > 0;) {
      const size_t within = at % kPieceBytes, bytes = std::min(left, kPieceBytes - within);
      std::memcpy(target, memory_[at / kPieceBytes].data() + within, bytes);
      target += bytes, at += bytes, left -= bytes;
    }
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
  if (!archive_) return ReadWholeFile(root_ + "/" + entry.name, kLargestSample, bytes);
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
