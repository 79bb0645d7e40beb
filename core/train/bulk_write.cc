// WritePieces of file_calls.h: a checkpoint's bytes on their way past the page cache. A copy into the cache costs
// several times what the disk's own access to memory does, and pushes out of it the data that the run reads.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "core/train/file_calls.h"

namespace switchyard {
namespace {

// What O_DIRECT asks of the place in the file and in memory and of the number of bytes: a multiple of the disk's block,
// and so of this on any disk that is common. Where a file system asks for more, WriteAll sees its refusal.
constexpr size_t kBlock = 4096;
constexpr size_t kChunk = size_t{4} << 20;  // bytes of a write, from which on a disk is as fast as it gets
constexpr size_t kHugePage = size_t{2} << 20;
// What is read at once: it stays in the core's own cache while it is summed up and copied.
constexpr size_t kPart = size_t{256} << 10;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Chunk = std::unique_ptr<std::byte, Free>;

// Empty where there is no memory.
Chunk NewChunk() {
  Chunk chunk(static_cast<std::byte*>(std::aligned_alloc(kHugePage, kChunk)));
  if (chunk != nullptr) (void)::madvise(chunk.get(), kChunk, MADV_HUGEPAGE);  // fewer pages to hold for each write
  return chunk;
}

// Collects pieces in memory and writes it whenever it is full.
class BlockWriter {
 public:
  BlockWriter(int descriptor, const std::string& path, std::span<std::byte> memory)
      : descriptor_(descriptor), path_(path), memory_(memory) {}

  Status Write(const Pieces::Piece& piece) {
    for (size_t begin = 0; begin < piece.bytes;) {
      const std::span<std::byte> to =
          memory_.subspan(filled_, std::min({piece.bytes - begin, kPart, memory_.size() - filled_}));
      SY_RETURN_IF_ERROR(piece.read(begin, to));
      begin += to.size();
      filled_ += to.size();
      if (filled_ == memory_.size()) SY_RETURN_IF_ERROR(Flush());
    }
    return OkStatus();
  }

  // The last bytes, which fill no block, go through the page cache.
  Status Finish() {
    const size_t rest = filled_ % kBlock;
    filled_ -= rest;
    const ByteView last(memory_.data() + filled_, rest);
    SY_RETURN_IF_ERROR(Flush());
    SetDirect(descriptor_, false);
    return WriteAll(descriptor_, path_, last);
  }

 private:
  Status Flush() { return WriteAll(descriptor_, path_, memory_.first(std::exchange(filled_, 0))); }

  const int descriptor_;
  const std::string& path_;
  const std::span<std::byte> memory_;
  size_t filled_ = 0;
};

Status Zeros(size_t /*begin*/, std::span<std::byte> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  return OkStatus();
}

}  // namespace

Pieces PiecesOf(const std::vector<ByteView>& views) {
  Pieces pieces;
  for (const ByteView view : views) {
    const auto read = [view](size_t begin, std::span<std::byte> to) {
      std::copy_n(view.begin() + static_cast<ptrdiff_t>(begin), to.size(), to.begin());
      return OkStatus();
    };
    pieces.pieces.push_back({view.size(), read});
  }
  return pieces;
}

Status WritePieces(int descriptor, const std::string& path, const Pieces& pieces) {
  size_t bytes = pieces.head_bytes;
  for (const Pieces::Piece& piece : pieces.pieces) bytes += piece.bytes;
  const Chunk chunk = bytes < kChunk ? Chunk() : NewChunk();
  std::vector<std::byte> few;
  if (chunk == nullptr) few.resize(std::min(bytes, kPart));
  if (chunk != nullptr) SetDirect(descriptor, true);
  BlockWriter writer(descriptor, path, chunk == nullptr ? std::span(few) : std::span(chunk.get(), kChunk));
  SY_RETURN_IF_ERROR(writer.Write({pieces.head_bytes, Zeros}));
  for (const Pieces::Piece& piece : pieces.pieces) SY_RETURN_IF_ERROR(writer.Write(piece));
  SY_RETURN_IF_ERROR(writer.Finish());
  if (pieces.head_bytes == 0) return OkStatus();
  if (::lseek(descriptor, 0, SEEK_SET) != 0) return FileError("seek", path, errno);
  return WriteAll(descriptor, path, BytesOf(pieces.head()));
}

}  // namespace switchyard
