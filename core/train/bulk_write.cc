// WritePieces of file_calls.h: a checkpoint's bytes on their way past the page cache. A copy into the cache costs
// several times what the disk's own access to memory does, and pushes out of it the data that the run reads.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
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

// Whole blocks past the page cache, by way of a chunk: tensors do not lie in memory as blocks do in the file.
class DirectWriter {
 public:
  DirectWriter(int descriptor, const std::string& path, Chunk chunk)
      : descriptor_(descriptor), path_(path), chunk_(std::move(chunk)) {}

  Status Write(ByteView piece) {
    while (!piece.empty()) {
      const size_t bytes = std::min(piece.size(), kChunk - filled_);
      std::memcpy(chunk_.get() + filled_, piece.data(), bytes);
      filled_ += bytes;
      piece = piece.subspan(bytes);
      if (filled_ == kChunk) SY_RETURN_IF_ERROR(Flush());
    }
    return OkStatus();
  }

  Status Finish() {
    const size_t rest = filled_ % kBlock;  // which fills no block
    filled_ -= rest;
    const ByteView last(chunk_.get() + filled_, rest);
    SY_RETURN_IF_ERROR(Flush());
    SetDirect(descriptor_, false);
    return WriteAll(descriptor_, path_, last);
  }

 private:
  Status Flush() { return WriteAll(descriptor_, path_, {chunk_.get(), std::exchange(filled_, 0)}); }

  const int descriptor_;
  const std::string& path_;
  const Chunk chunk_;
  size_t filled_ = 0;
};

}  // namespace

Pieces PiecesOf(const std::vector<ByteView>& views) {
  Pieces pieces{.count = views.size(), .piece = [&views](size_t i) -> StatusOr<ByteView> { return views[i]; }};
  for (const ByteView view : views) pieces.bytes += view.size();
  return pieces;
}

Status WritePieces(int descriptor, const std::string& path, const Pieces& pieces) {
  Chunk chunk = pieces.bytes < kChunk ? Chunk() : NewChunk();
  const bool direct = chunk != nullptr && SetDirect(descriptor, true);
  DirectWriter writer(descriptor, path, std::move(chunk));
  for (size_t i = 0; i < pieces.count; ++i) {
    SY_ASSIGN_OR_RETURN(const ByteView piece, pieces.piece(i));
    SY_RETURN_IF_ERROR(direct ? writer.Write(piece) : WriteAll(descriptor, path, piece));
  }
  return direct ? writer.Finish() : OkStatus();
}

}  // namespace switchyard
