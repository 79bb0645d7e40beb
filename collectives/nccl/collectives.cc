// The collectives themselves: which call of NCCL each is.
#include <string.h>

#include <utility>

#include "collectives/nccl/communicator.h"

namespace nccl {
namespace {

using switchyard::BytesOf;

constexpr ncclDataType_t kTypes[SY_DTYPE_COUNT] = {ncclFloat32, ncclBfloat16, ncclFloat16, ncclFloat64,
                                                   ncclInt32,   ncclInt64,    ncclUint8};
constexpr ncclRedOp_t kReductions[SY_REDUCTION_COUNT] = {ncclSum, ncclMax, ncclMin, ncclProd};

// Opens a group, runs `body`, closes it, also after a failure inside. The first error counts.
template <typename Body>
ncclResult_t Grouped(Body body) {
  const Library& library = TheLibrary();
  if (const ncclResult_t opened = library.ncclGroupStart(); opened != ncclSuccess) return opened;
  const ncclResult_t inside = body(library);
  const ncclResult_t closed = library.ncclGroupEnd();
  return inside != ncclSuccess && inside != ncclInProgress ? inside : closed;
}

}  // namespace

sy_status NcclCommunicator::TargetOf(const sy_call* call, Target* target, sy_error* error) {
  if (call == nullptr || !SY_HAS(sy_call, call, native_stream) || call->native_stream == nullptr) {
    return SY_FAIL(error, SY_INVALID, "expected a CUDA stream in sy_call.native_stream, found none (call \"%s\")",
                   call != nullptr && call->tag != nullptr ? call->tag : "");
  }
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(device_), "cudaSetDevice"); set != SY_OK) return set;
  target->stream = static_cast<cudaStream_t>(call->native_stream);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  const cudaError_t asked = library.cudaStreamIsCapturing(target->stream, &capturing);
  target->captured = capturing != cudaStreamCaptureStatusNone;
  if (target->captured) was_captured_ = true;
  return CheckCuda(error, asked, "cudaStreamIsCapturing");
}

ncclResult_t NcclCommunicator::AllToAll(const char* send, char* receive, uint64_t block, cudaStream_t stream) const {
  return Grouped([&](const Library& library) {
    ncclResult_t code = ncclSuccess;
    for (int peer = 0; peer < size_ && code == ncclSuccess; ++peer) {
      code = library.ncclSend(send + peer * block, block, ncclUint8, peer, comm_, stream);
      if (code == ncclSuccess) code = library.ncclRecv(receive + peer * block, block, ncclUint8, peer, comm_, stream);
    }
    return code;
  });
}

sy_status NcclCommunicator::AllocateScratch(uint64_t bytes, void** address, sy_error* error) {
  const sy_status status = CheckCuda(error, TheLibrary().cudaMalloc(address, bytes), "cudaMalloc");
  if (status == SY_OK) scratch_.push_back(*address);
  return status;
}

// Device memory of at least `bytes`, apart from what else the open group uses, for the target's stream, which waits for
// the uses before. A call that is captured has memory of its own until the end: its graph is replayed at any time, and
// no capture holds a wait for what lies outside of it.
sy_status NcclCommunicator::Scratch(uint64_t bytes, const Target& target, void** address, sy_error* error) {
  constexpr uint64_t kAlignment = 256;
  if (target.captured) return AllocateScratch(bytes, address, error);
  const uint64_t start = in_group_ ? scratch_taken_ : 0;
  bytes = start + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > scratch_bytes_) {
    if (const sy_status made = AllocateScratch(bytes, &shared_scratch_, error); made != SY_OK) return made;
    scratch_bytes_ = bytes;
  }
  *address = static_cast<char*>(shared_scratch_) + start;
  scratch_taken_ = bytes;
  scratch_users_.push_back(target.stream);
  for (const auto& [stream, used] : scratch_used_) {
    const cudaError_t waits = TheLibrary().cudaStreamWaitEvent(target.stream, used, 0);
    if (const sy_status status = CheckCuda(error, waits, "cudaStreamWaitEvent"); status != SY_OK) return status;
  }
  return SY_OK;
}

// Once NCCL has taken up the calls that use it.
sy_status NcclCommunicator::MarkScratchUsed(sy_error* error) {
  if (scratch_users_.empty()) return SY_OK;
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(device_), "cudaSetDevice"); set != SY_OK) return set;
  for (const cudaStream_t stream : std::exchange(scratch_users_, {})) {
    cudaEvent_t& used = scratch_used_[stream];
    if (used == nullptr) {
      const cudaError_t made = library.cudaEventCreateWithFlags(&used, cudaEventDisableTiming);
      if (const sy_status status = CheckCuda(error, made, "cudaEventCreateWithFlags"); status != SY_OK) return status;
    }
    const cudaError_t recorded = library.cudaEventRecord(used, stream);
    if (const sy_status status = CheckCuda(error, recorded, "cudaEventRecord"); status != SY_OK) return status;
  }
  return SY_OK;
}

sy_status NcclCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                   sy_dtype dtype, int32_t reduction, int32_t root, sy_request** request,
                                   sy_error* error) {
  *request = nullptr;
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  Target target;
  if (const sy_status found = TargetOf(call, &target, error); found != SY_OK) return found;
  const cudaStream_t stream = target.stream;
  if (count == 0 && kind != switchyard::kBarrier) return SY_OK;
  const Library& library = TheLibrary();
  const ncclDataType_t type = kTypes[dtype];
  const ncclRedOp_t op = kReductions[reduction];
  const uint64_t block = count * BytesOf(dtype);
  void* copy = nullptr;  // of what all_to_all sends, where it receives into the same memory
  if (kind == switchyard::kAllToAll && send == receive) {
    if (const sy_status made = Scratch(block * size_, target, &copy, error); made != SY_OK) return made;
    const cudaError_t copied = library.cudaMemcpyAsync(copy, send, block * size_, cudaMemcpyDeviceToDevice, stream);
    if (const sy_status status = CheckCuda(error, copied, "cudaMemcpyAsync"); status != SY_OK) return status;
    send = copy;
  }
  const auto start = [&](ncclComm_t comm) -> ncclResult_t {
    switch (kind) {
      case switchyard::kAllReduce:
        return library.ncclAllReduce(send, receive, count, type, op, comm, stream);
      case switchyard::kReduceScatter:
        return library.ncclReduceScatter(send, receive, count, type, op, comm, stream);
      case switchyard::kAllGather:
        return library.ncclAllGather(send, receive, count, type, comm, stream);
      case switchyard::kBroadcast:
        return library.ncclBroadcast(receive, receive, count, type, root, comm, stream);
      case switchyard::kAllToAll:
        return AllToAll(static_cast<const char*>(send), static_cast<char*>(receive), block, stream);
      case switchyard::kBarrier:  // nobody's sum is complete before the last has come
        return library.ncclAllReduce(token_, token_, 1, ncclInt32, ncclMax, comm, stream);
      default:
        return ncclInvalidArgument;
    }
  };
  const sy_status status = Enqueue(switchyard::NameOf(static_cast<switchyard::CollectiveKind>(kind)), start, error);
  return status == SY_OK && !in_group_ ? MarkScratchUsed(error) : status;
}

sy_status NcclCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                           sy_request** request, sy_error* error) {
  *request = nullptr;
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].peer < 0 || transfers[i].peer >= size_)
      return SY_FAIL(error, SY_INVALID, "message %u: peer %d of %d ranks", i, transfers[i].peer, size_);
  }
  Target target;
  if (const sy_status found = TargetOf(call, &target, error); found != SY_OK) return found;
  const auto start = [&](ncclComm_t comm) {
    return Grouped([&](const Library& library) {
      ncclResult_t code = ncclSuccess;
      for (uint32_t i = 0; i < count && code == ncclSuccess; ++i) {
        const sy_transfer& t = transfers[i];
        if (t.bytes == 0) continue;  // on both sides
        code = t.is_send ? library.ncclSend(t.address, t.bytes, ncclUint8, t.peer, comm, target.stream)
                         : library.ncclRecv(t.address, t.bytes, ncclUint8, t.peer, comm, target.stream);
      }
      return code;
    });
  };
  return Enqueue(switchyard::NameOf(switchyard::kMessages), start, error);
}

}  // namespace nccl
