#include "core/runtime/collectives/peer_memory.h"

#include <algorithm>

#include "core/abi/ops.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/collectives/composition.h"

namespace switchyard {
namespace {

uint64_t UnitOf(uint64_t alignment) { return std::max<uint64_t>(alignment, 64); }
// Bytes of a block where a window holds one for each rank.
uint64_t BlockOf(uint64_t window_bytes, int ranks, uint64_t alignment) {
  const uint64_t unit = UnitOf(alignment);
  return window_bytes / static_cast<uint64_t>(ranks) / unit * unit;
}

sy_place Behind(sy_place place, uint64_t bytes) {
  place.offset += bytes;
  return place;
}

bool IsSum(const Collective& what) {
  return what.kind == Collective::kAllReduce || what.kind == Collective::kReduceScatter;
}

}  // namespace

uint64_t PeerMemory::Align(uint64_t bytes) const {
  const uint64_t unit = UnitOf(request_.device->info().alignment);
  return (bytes + unit - 1) / unit * unit;
}

uint64_t PeerMemory::MostOfBlock() const {
  return BlockOf(kWindowBytes, request_.size, request_.device->info().alignment);
}

uint64_t PeerMemory::BytesFor(int ranks, uint64_t alignment) {
  if (ranks < 2 || ranks > kMostRanks) return 0;
  return kWindowBytes + BlockOf(kWindowBytes, ranks, alignment) * (1 + static_cast<uint64_t>(ranks));
}

bool PeerMemory::Takes(const Collective& what) const {
  if (what.kind == Collective::kSend || what.kind == Collective::kReceive) return false;
  if (!IsSum(what)) return true;
  return what.reduction == SY_SUM && what.dtype >= 0 && what.dtype < 32 && (sums_of_ >> what.dtype & 1) != 0;
}

// The parts of `total` bytes: body(where a part begins, its bytes).
template <typename Body>
static Status ForParts(uint64_t total, uint64_t most, Body body) {
  for (uint64_t at = 0; at < total; at += most) SY_RETURN_IF_ERROR(body(at, std::min(most, total - at)));
  return OkStatus();
}

// How many elements this rank adds up, in each part of a call.
std::vector<uint64_t> PeerMemory::SumsOf(const Collective& what) const {
  const uint64_t bytes = what.count * BytesOf(what.dtype), size = static_cast<uint64_t>(request_.size);
  std::vector<uint64_t> counts;
  const bool whole = what.kind == Collective::kAllReduce;
  ForParts(bytes, MostOfBlock() * (whole ? size : 1), [&](uint64_t, uint64_t part) {
    const uint64_t slice = whole ? Align((part + size - 1) / size) : part;
    const uint64_t begin = whole ? std::min(part, slice * static_cast<uint64_t>(request_.rank)) : 0;
    counts.push_back(std::min(slice, part - begin) / BytesOf(what.dtype));
    return OkStatus();
  }).IgnoreError();
  return counts;
}

StatusOr<bool> PeerMemory::Prepare(const Collective& what, const std::string& tag) {
  if (!IsSum(what)) return true;
  const int time = ++prepared_[tag];
  return Agree(fmt::format("sums of {}, time {}", tag, time), MakeSums(what));
}

Status PeerMemory::MakeSums(const Collective& what) {
  for (const uint64_t count : SumsOf(what)) {
    if (count == 0 || sums_.contains({what.dtype, count})) continue;
    SY_ASSIGN_OR_RETURN(Sum sum, MakeSum(what.dtype, count));
    sums_.emplace(std::pair(what.dtype, count), std::move(sum));
  }
  return OkStatus();
}

// ((slot 0 + slot 1) + slot 2) + … into what lies behind the blocks of the own window.
StatusOr<PeerMemory::Sum> PeerMemory::MakeSum(int32_t dtype, uint64_t count) {
  const auto size = static_cast<uint32_t>(request_.size);
  sy_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = 1;
  tensor.dims[0] = static_cast<int64_t>(count);
  tensor.strides[0] = 1;
  const std::vector<sy_tensor> inputs(size, tensor);
  sy_pointwise_attributes attributes{};
  attributes.instruction_count = size - 1;
  attributes.output_count = 1;
  attributes.outputs[0] = static_cast<int32_t>(2 * size - 2);
  for (uint32_t i = 0; i + 1 < size; ++i) {
    const auto before = static_cast<int32_t>(i == 0 ? 0 : size + i - 1);
    attributes.instructions[i] = {SY_PW_ADD, before, static_cast<int32_t>(i + 1), 0, 0};
  }
  sy_prepare_request request{};
  request.op = "pointwise";
  request.op_version = 1;
  request.attributes = &attributes;
  request.attributes_size = sizeof attributes;
  request.input_count = size;
  request.output_count = 1;
  request.inputs = inputs.data();
  request.outputs = &tensor;
  request.determinism = SY_DETERMINISM_RUN;
  request.tuning = SY_TUNING_HEURISTIC;
  Sum sum;
  SY_ASSIGN_OR_RETURN(sum.kernel, request_.device->Prepare(request));
  const Kernel::Info& info = sum.kernel.info();
  if (info.workspace_bytes + info.persistent_bytes + info.constant_bytes > 0)
    return Unimplemented("a sum of {} ranks needs memory of its own", size);
  std::vector<sy_place> slots;
  for (uint32_t rank = 0; rank < size; ++rank) slots.push_back(slots_.at(MostOfBlock() * rank));
  const sy_place result = window(request_.rank).at(kWindowBytes);
  sy_binding binding{};
  binding.header = SY_HEADER(sy_binding);
  binding.inputs = slots.data();
  binding.outputs = &result;
  SY_ASSIGN_OR_RETURN(sum.bound, request_.device->Bind(sum.kernel, binding));
  return sum;
}

Status PeerMemory::Copy(const Stream& stream, sy_place to, sy_place from, uint64_t bytes) const {
  return bytes == 0 ? OkStatus() : request_.device->Copy(stream, to, from, bytes);
}

Status PeerMemory::Run(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier) {
  const Status status = RunParts(what, send, receive, stream, barrier);
  // Whoever frees the windows after a failure finds no work on them.
  if (!status.ok()) request_.device->Synchronize(stream).IgnoreError();
  return status;
}

Status PeerMemory::RunParts(const Collective& what, sy_place send, sy_place receive, const Stream& stream,
                            Barrier barrier) {
  switch (what.kind) {
    case Collective::kAllReduce:
      return AllReduce(what, send, receive, stream, barrier);
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return Spread(what, send, receive, stream, barrier);
    default:
      return Gather(what, send, receive, stream, barrier);
  }
}

// The bytes [at, at + …) of every window, `count` elements, into the sum.
Status PeerMemory::AddUp(const Collective& what, uint64_t at, uint64_t count, const Stream& stream) {
  if (count == 0) return OkStatus();
  for (int rank = 0; rank < request_.size; ++rank) {
    SY_RETURN_IF_ERROR(Copy(stream, slots_.at(MostOfBlock() * static_cast<uint64_t>(rank)), window(rank).at(at),
                            count * BytesOf(what.dtype)));
  }
  sy_error error = EmptyError();
  const sy_status status = sums_.at({what.dtype, count}).bound.Launch(stream.handle(), &error);
  return status == SY_OK ? OkStatus() : FromAbi(status, error, "a sum of peers");
}

Status PeerMemory::AllReduce(const Collective& what, sy_place send, sy_place receive, const Stream& stream,
                             Barrier barrier) {
  const auto size = static_cast<uint64_t>(request_.size), own = static_cast<uint64_t>(request_.rank);
  return ForParts(what.count * BytesOf(what.dtype), MostOfBlock() * size, [&](uint64_t at, uint64_t part) -> Status {
    const uint64_t slice = Align((part + size - 1) / size);
    const auto begin = [&](uint64_t rank) { return std::min(part, slice * rank); };
    const auto bytes = [&](uint64_t rank) { return std::min(slice, part - begin(rank)); };
    SY_RETURN_IF_ERROR(Copy(stream, window(request_.rank).at(0), Behind(send, at), part));
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    SY_RETURN_IF_ERROR(barrier());
    SY_RETURN_IF_ERROR(AddUp(what, begin(own), bytes(own) / BytesOf(what.dtype), stream));
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    SY_RETURN_IF_ERROR(barrier());
    for (uint64_t rank = 0; rank < size; ++rank) {
      SY_RETURN_IF_ERROR(Copy(stream, Behind(receive, at + begin(rank)),
                              window(static_cast<int>(rank)).at(kWindowBytes), bytes(rank)));
    }
    // Nobody writes a sum again before the next barrier, which this rank reaches behind these copies.
    return request_.device->Synchronize(stream);
  });
}

// reduce_scatter and all_to_all: a block of each window is this rank's.
Status PeerMemory::Spread(const Collective& what, sy_place send, sy_place receive, const Stream& stream,
                          Barrier barrier) {
  const auto size = static_cast<uint64_t>(request_.size), own = static_cast<uint64_t>(request_.rank);
  const uint64_t block = what.count * BytesOf(what.dtype), room = MostOfBlock();
  return ForParts(block, room, [&](uint64_t at, uint64_t part) -> Status {
    for (uint64_t rank = 0; rank < size; ++rank) {
      SY_RETURN_IF_ERROR(Copy(stream, window(request_.rank).at(room * rank), Behind(send, block * rank + at), part));
    }
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    SY_RETURN_IF_ERROR(barrier());
    if (IsSum(what)) {
      SY_RETURN_IF_ERROR(AddUp(what, room * own, part / BytesOf(what.dtype), stream));
      SY_RETURN_IF_ERROR(Copy(stream, Behind(receive, at), window(request_.rank).at(kWindowBytes), part));
    }
    for (uint64_t rank = 0; rank < size && !IsSum(what); ++rank) {
      SY_RETURN_IF_ERROR(
          Copy(stream, Behind(receive, block * rank + at), window(static_cast<int>(rank)).at(room * own), part));
    }
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    return barrier();
  });
}

// all_gather and broadcast: all of a window is everybody's.
Status PeerMemory::Gather(const Collective& what, sy_place send, sy_place receive, const Stream& stream,
                          Barrier barrier) {
  const bool one = what.kind == Collective::kBroadcast;
  const uint64_t block = what.count * BytesOf(what.dtype);
  return ForParts(block, kWindowBytes, [&](uint64_t at, uint64_t part) -> Status {
    if (!one || what.peer == request_.rank)
      SY_RETURN_IF_ERROR(Copy(stream, window(request_.rank).at(0), Behind(send, at), part));
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    SY_RETURN_IF_ERROR(barrier());
    for (int rank = 0; rank < request_.size; ++rank) {
      const uint64_t to = one ? at : block * static_cast<uint64_t>(rank) + at;
      if (one ? rank == what.peer && rank != request_.rank : true)
        SY_RETURN_IF_ERROR(Copy(stream, Behind(receive, to), window(rank).at(0), part));
    }
    SY_RETURN_IF_ERROR(request_.device->Synchronize(stream));
    return barrier();
  });
}

}  // namespace switchyard
