// Collectives made of point-to-point messages, for plugins that offer nothing but send_recv_batch. Reductions add in
// rank order, so that the result is the same every time and on every rank. Host memory. Uses about `count` elements of
// scratch; made for correctness, not speed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/status.h"

namespace switchyard {

uint64_t BytesOf(sy_dtype dtype);  // of one element; 0 for an unknown dtype

// accumulator[i] = accumulator[i] (reduction) values[i]; f16 and bf16 are computed in f32 and rounded to nearest even.
void Accumulate(void* accumulator, const void* values, uint64_t count, sy_dtype dtype, int reduction);

class Composition {
 public:
  using SendReceive = std::function<Status(const std::vector<sy_transfer>&)>;  // one batch, finished on return
  Composition(int rank, int size, SendReceive exchange) : rank_(rank), size_(size), exchange_(std::move(exchange)) {}

  // As the functions of the same name in core/abi/collective.h, in place or not.
  Status AllReduce(const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status ReduceScatter(const void* send, void* receive, uint64_t count, sy_dtype dtype, int reduction);
  Status AllGather(const void* send, void* receive, uint64_t count, sy_dtype dtype);
  Status Broadcast(void* address, uint64_t count, sy_dtype dtype, int root);
  Status AllToAll(const void* send, void* receive, uint64_t count, sy_dtype dtype);
  Status Barrier();

 private:
  // This rank's block of bytes [offsets[rank], offsets[rank + 1]) of everybody's `send`, reduced into `result`.
  Status ReduceBlock(const char* send, const std::vector<uint64_t>& offsets, void* result, sy_dtype dtype,
                     int reduction);
  Status Exchange(const std::function<void(int peer, std::vector<sy_transfer>&)>& with_peer);
  int rank_, size_;
  SendReceive exchange_;
};

}  // namespace switchyard
