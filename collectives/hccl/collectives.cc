// The collectives themselves: which call of HCCL each is.
#include <string.h>

#include <algorithm>
#include <map>
#include <utility>

#include "collectives/hccl/communicator.h"

namespace hccl {
namespace {

using switchyard::BytesOf;

constexpr HcclDataType kTypes[SY_DTYPE_COUNT] = {HCCL_DATA_TYPE_FP32, HCCL_DATA_TYPE_BFP16, HCCL_DATA_TYPE_FP16,
                                                 HCCL_DATA_TYPE_FP64, HCCL_DATA_TYPE_INT32, HCCL_DATA_TYPE_INT64,
                                                 HCCL_DATA_TYPE_UINT8};
constexpr HcclReduceOp kReductions[SY_REDUCTION_COUNT] = {HCCL_REDUCE_SUM, HCCL_REDUCE_MAX, HCCL_REDUCE_MIN,
                                                          HCCL_REDUCE_PROD};
constexpr int kHugeFirst = 0, kDeviceToDevice = 3;  // aclrtMemMallocPolicy, aclrtMemcpyKind

}  // namespace

sy_status HcclCommunicator::Enter(const sy_call* call, aclrtStream* stream, sy_error* error) {
  if (const sy_status usable = Usable(error); usable != SY_OK) return usable;
  if (comm_ == nullptr) return SY_FAIL(error, SY_INVALID, "a collective before poll answered SY_OK");
  if (call == nullptr || !SY_HAS(sy_call, call, native_stream) || call->native_stream == nullptr) {
    return SY_FAIL(error, SY_INVALID, "expected an aclrtStream in sy_call.native_stream, found none (call \"%s\")",
                   call != nullptr && call->tag != nullptr ? call->tag : "");
  }
  *stream = call->native_stream;
  {
    const std::lock_guard lock(streams_mutex_);
    if (std::find(streams_.begin(), streams_.end(), *stream) == streams_.end()) streams_.push_back(*stream);
    if (aborted_) return Usable(error);  // an abort before this found nothing to stop
  }
  return CheckAcl(error, TheLibrary().aclrtSetDevice(device_), "aclrtSetDevice");
}

// Device memory of at least `bytes`. A smaller one that a stream may still use is kept until the end.
sy_status HcclCommunicator::Scratch(uint64_t bytes, void** address, sy_error* error) {
  if (bytes > scratch_bytes_) {
    void* memory = nullptr;
    const int code = TheLibrary().aclrtMalloc(&memory, bytes, kHugeFirst);
    if (const sy_status status = CheckAcl(error, code, "aclrtMalloc"); status != SY_OK) return status;
    scratch_.push_back(memory);
    scratch_bytes_ = bytes;
  }
  *address = scratch_.back();
  return SY_OK;
}

HcclResult HcclCommunicator::Begin(int32_t kind, void* send, void* receive, uint64_t count, HcclDataType type,
                                   HcclReduceOp op, int32_t root, aclrtStream stream) const {
  const Library& library = TheLibrary();
  switch (kind) {
    case switchyard::kAllReduce:
      return library.HcclAllReduce(send, receive, count, type, op, comm_, stream);
    case switchyard::kReduceScatter:
      return library.HcclReduceScatter(send, receive, count, type, op, comm_, stream);
    case switchyard::kAllGather:
      return library.HcclAllGather(send, receive, count, type, comm_, stream);
    case switchyard::kBroadcast:
      return library.HcclBroadcast(receive, count, type, static_cast<uint32_t>(root), comm_, stream);
    case switchyard::kAllToAll:
      return library.HcclAlltoAll(send, count, type, receive, count, type, comm_, stream);
    case switchyard::kBarrier:
      return library.HcclBarrier(comm_, stream);
    default:
      return HCCL_E_PARA;
  }
}

sy_status HcclCommunicator::Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count,
                                   sy_dtype dtype, int32_t reduction, int32_t root, sy_request** request,
                                   sy_error* error) {
  *request = nullptr;
  if (root < 0 || root >= size_) return SY_FAIL(error, SY_INVALID, "root %d of %d ranks", root, size_);
  const std::lock_guard lock(mutex_);
  aclrtStream stream = nullptr;
  if (const sy_status entered = Enter(call, &stream, error); entered != SY_OK) return entered;
  if (count == 0 && kind != switchyard::kBarrier) return SY_OK;
  void* from = const_cast<void*>(send);
  if (kind == switchyard::kAllToAll && send == receive) {  // what is sent must outlast what arrives
    const uint64_t bytes = count * BytesOf(dtype) * static_cast<uint64_t>(size_);
    if (const sy_status made = Scratch(bytes, &from, error); made != SY_OK) return made;
    const int copied = TheLibrary().aclrtMemcpyAsync(from, bytes, send, bytes, kDeviceToDevice, stream);
    if (const sy_status status = CheckAcl(error, copied, "aclrtMemcpyAsync"); status != SY_OK) return status;
  }
  const HcclResult code = Begin(kind, from, receive, count, kTypes[dtype], kReductions[reduction], root, stream);
  const sy_status status = CheckHccl(error, code, switchyard::NameOf(static_cast<switchyard::CollectiveKind>(kind)));
  return status == SY_OK ? SY_OK : Fail(status, error);
}

// HCCL is given the batch in rounds, the n-th message of every pair and direction in the n-th, so that no round names a
// pair twice. What a rank sends to itself is copied.
sy_status HcclCommunicator::SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count,
                                           sy_request** request, sy_error* error) {
  *request = nullptr;
  std::vector<std::vector<HcclSendRecvItem>> rounds;
  std::map<std::pair<int32_t, bool>, size_t> seen;
  std::vector<const sy_transfer*> own[2];  // received, sent
  for (uint32_t i = 0; i < count; ++i) {
    const sy_transfer& t = transfers[i];
    if (t.peer < 0 || t.peer >= size_)
      return SY_FAIL(error, SY_INVALID, "message %u: peer %d of %d ranks", i, t.peer, size_);
    if (t.bytes == 0) continue;  // on both sides
    if (t.peer == rank_) {
      own[t.is_send != 0].push_back(&t);
      continue;
    }
    const size_t round = seen[{t.peer, t.is_send != 0}]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(
        {t.is_send ? HCCL_SEND : HCCL_RECV, t.address, t.bytes, HCCL_DATA_TYPE_UINT8, static_cast<uint32_t>(t.peer)});
  }
  if (own[0].size() != own[1].size()) {
    return SY_FAIL(error, SY_INVALID, "rank %d sends itself %zu messages and expects %zu", rank_, own[1].size(),
                   own[0].size());
  }
  const std::lock_guard lock(mutex_);
  aclrtStream stream = nullptr;
  if (const sy_status entered = Enter(call, &stream, error); entered != SY_OK) return entered;
  const Library& library = TheLibrary();
  for (size_t i = 0; i < own[0].size(); ++i) {
    const sy_transfer &to = *own[0][i], &from = *own[1][i];
    if (to.bytes != from.bytes) {
      return SY_FAIL(error, SY_INVALID, "rank %d sends itself %llu bytes and expects %llu", rank_,
                     static_cast<unsigned long long>(from.bytes), static_cast<unsigned long long>(to.bytes));
    }
    const int copied =
        library.aclrtMemcpyAsync(to.address, to.bytes, from.address, from.bytes, kDeviceToDevice, stream);
    if (const sy_status status = CheckAcl(error, copied, "aclrtMemcpyAsync"); status != SY_OK) return status;
  }
  for (auto& items : rounds) {
    const HcclResult code = library.HcclBatchSendRecv(items.data(), static_cast<uint32_t>(items.size()), comm_, stream);
    if (const sy_status status = CheckHccl(error, code, "HcclBatchSendRecv"); status != SY_OK)
      return Fail(status, error);
  }
  return SY_OK;
}

}  // namespace hccl
