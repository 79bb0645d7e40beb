// Many tensors in one launch: tensors that lie in the same buffers (as a plan's arenas make them) are cut into chunks,
// one for each work-group, which finds its offsets in a table on the device. Belongs to one call of bind.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "backends/opencl/kernel.h"

namespace switchyard {

// What the chunks of one launch have in common.
struct ChunkGroup {
  std::vector<cl_mem> buffers;
  sy_dtype dtype;
  auto operator<=>(const ChunkGroup&) const = default;
};

template <typename Chunk>
class ChunkTable {
 public:
  void Add(const ChunkGroup& group, const Chunk& chunk) { chunks_[group].push_back(chunk); }

  // Puts the table on the device, in `memory`, then calls launch(group, index of its first chunk, how many) for each.
  template <typename Launch>
  sy_status Launches(const sy_device& device, MemoryHandle* memory, sy_error* error, Launch launch) const {
    std::vector<Chunk> all;
    for (const auto& [group, chunks] : chunks_) all.insert(all.end(), chunks.begin(), chunks.end());
    cl_int code;
    *memory = MemoryHandle(clCreateBuffer(device.context.get(), CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                          all.size() * sizeof(Chunk), all.data(), &code));
    if (code != CL_SUCCESS) return Failed(error, code, "clCreateBuffer");
    int64_t first = 0;
    for (const auto& [group, chunks] : chunks_) {
      launch(group, first, static_cast<int64_t>(chunks.size()));
      first += static_cast<int64_t>(chunks.size());
    }
    return SY_OK;
  }

 private:
  std::map<ChunkGroup, std::vector<Chunk>> chunks_;
};

}  // namespace switchyard
