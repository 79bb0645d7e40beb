// HCCL of the simulator: groups of up to 8 processes on one machine, joined by root info, whose collectives run on
// streams over a mesh of sockets. Keeps the rules of the real library: joining waits for all ranks, at most
// HCCL_CONNECT_TIMEOUT seconds (120); ranks need devices of their own; buffers are device memory of the rank; what
// waits for a peer that is gone hangs, and HcclGetCommAsyncError tells. aclrtStreamAbort ends it.
// SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT: "call@3,remote@2,hang@1,block@1,join@1": which event of its kind fails in this
// process: a collective is refused at once; finds on its stream that a peer is gone; never ends there; its call does
// not return before its stream is aborted; this rank never joins.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "collectives/hccl/hccl_api.h"
#include "tests/doubles/faults.h"
#include "tests/doubles/mesh/collectives.h"
#include "tests/doubles/npu/simulator.h"

namespace simulator {
namespace {

using doubles::Collective;
using doubles::Kind;
using doubles::Transfer;

constexpr int kMostRanks = 8;

bool Strikes(const char* kind) {
  static auto& faults = *new doubles::Faults("SWITCHYARD_NPU_SIMULATOR_HCCL_FAULT", "call|remote|hang|block|join");
  return faults.Strikes(kind);
}

HcclResult Refuse(HcclResult code, const std::string& text) {
  Fail(ACL_ERROR_RT_PARAM_INVALID, text);  // what aclGetRecentErrMsg answers
  return code;
}

struct Group {
  Group(const std::string& name, int rank, int size, int device) : device(device), mesh(name, rank, size) {}

  const int device;
  doubles::Mesh mesh;
  std::mutex running;  // one collective at a time
  std::atomic<HcclResult> async_error{HCCL_SUCCESS};
  std::set<aclrtStream> streams;  // guarded by groups_mutex
};

std::mutex groups_mutex;
std::map<HcclComm, std::shared_ptr<Group>>& Groups() {                    // guarded by groups_mutex
  static auto& groups = *new std::map<HcclComm, std::shared_ptr<Group>>;  // streams outlive static objects
  return groups;
}

std::shared_ptr<Group> Find(HcclComm comm) {
  const std::lock_guard lock(groups_mutex);
  const auto found = Groups().find(comm);
  return found == Groups().end() ? nullptr : found->second;
}

bool TypeOf(HcclDataType type, doubles::Type* result) {
  switch (type) {
    case HCCL_DATA_TYPE_INT32:
      *result = doubles::Type::kI32;
      return true;
    case HCCL_DATA_TYPE_FP16:
      *result = doubles::Type::kF16;
      return true;
    case HCCL_DATA_TYPE_FP32:
      *result = doubles::Type::kF32;
      return true;
    case HCCL_DATA_TYPE_INT64:
      *result = doubles::Type::kI64;
      return true;
    case HCCL_DATA_TYPE_UINT8:
      *result = doubles::Type::kU8;
      return true;
    case HCCL_DATA_TYPE_FP64:
      *result = doubles::Type::kF64;
      return true;
    case HCCL_DATA_TYPE_BFP16:
      *result = doubles::Type::kBF16;
      return true;
  }
  return false;
}

// Reductions take these types only, and bfloat16 is not multiplied.
bool Reducible(HcclDataType type, HcclReduceOp op) {
  if (type == HCCL_DATA_TYPE_BFP16) return op != HCCL_REDUCE_PROD;
  return type == HCCL_DATA_TYPE_FP32 || type == HCCL_DATA_TYPE_FP16 || type == HCCL_DATA_TYPE_INT32;
}

doubles::Reduction ReductionOf(HcclReduceOp op) {
  return op == HCCL_REDUCE_SUM   ? doubles::Reduction::kSum
         : op == HCCL_REDUCE_MAX ? doubles::Reduction::kMax
         : op == HCCL_REDUCE_MIN ? doubles::Reduction::kMin
                                 : doubles::Reduction::kProduct;
}

// On the stream's worker: `body` on the mesh.
Outcome RunOn(Group& group, const std::function<doubles::Outcome()>& body) {
  const std::lock_guard lock(group.running);
  const Outcome aborted{ACL_ERROR_RT_DEVICE_TASK_ABORT, "a collective was stopped"};
  if (group.mesh.aborted()) return aborted;
  if (Strikes("hang")) {
    group.mesh.WaitForAbort();
    return aborted;
  }
  const doubles::Outcome outcome = Strikes("remote") ? doubles::Outcome::kPeerGone : body();
  if (outcome == doubles::Outcome::kDone) return {};
  if (outcome == doubles::Outcome::kPeerGone) {
    group.async_error = HCCL_E_REMOTE;
    group.mesh.WaitForAbort();
  }
  return aborted;
}

// Ends what hangs; nothing touches a buffer any more when it returns.
void Stop(Group& group) {
  group.mesh.Abort();
  const std::lock_guard lock(group.running);
}

HcclResult Put(const std::shared_ptr<Group>& group, aclrtStream stream, std::function<doubles::Outcome()> body) {
  if (Strikes("call")) return Refuse(HCCL_E_INTERNAL, "a collective fails as it was told to");
  {
    const std::lock_guard lock(groups_mutex);
    group->streams.insert(stream);
  }
  if (Strikes("block")) {
    group->mesh.WaitForAbort();
    return Refuse(HCCL_E_INTERNAL, "a collective whose stream was aborted");
  }
  const aclError code = Enqueue(stream, [group, body = std::move(body)] { return RunOn(*group, body); });
  return code == ACL_SUCCESS ? HCCL_SUCCESS : HCCL_E_RUNTIME;
}

// sent and received: how many blocks of `count` elements each address holds.
HcclResult Submit(HcclComm comm, aclrtStream stream, Kind kind, const void* send, size_t sent, void* receive,
                  size_t received, uint64_t count, HcclDataType type, HcclReduceOp op = HCCL_REDUCE_SUM, int root = 0) {
  const auto group = Find(comm);
  doubles::Type element;
  if (group == nullptr || stream == nullptr) return Refuse(HCCL_E_PTR, "no such communicator, or no stream");
  if (!TypeOf(type, &element)) return Refuse(HCCL_E_NOT_SUPPORT, "data type " + std::to_string(type));
  const bool reduces = kind == Kind::kAllReduce || kind == Kind::kReduceScatter;
  if (reduces && !Reducible(type, op)) return Refuse(HCCL_E_NOT_SUPPORT, "reduction of type " + std::to_string(type));
  if (root < 0 || root >= group->mesh.size()) return Refuse(HCCL_E_PARA, "root " + std::to_string(root));
  const size_t bytes = count * doubles::BytesOf(element);
  char* const from = Translate(send, bytes * sent);
  char* const to = Translate(receive, bytes * received);
  if (from == nullptr || to == nullptr) return Refuse(HCCL_E_PARA, "a buffer is not device memory of this rank");
  return Put(group, stream, [=] {
    return doubles::RunCollective(group->mesh, {kind, from, to, count, element, ReductionOf(op), root});
  });
}

size_t RanksOf(HcclComm comm) {
  const auto group = Find(comm);
  return group == nullptr ? 0 : static_cast<size_t>(group->mesh.size());
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  static std::atomic<int> made{0};
  if (CurrentDevice() < 0) return Refuse(HCCL_E_RUNTIME, "this thread has no context: aclrtSetDevice first");
  *root = {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(root->internal, sizeof root->internal, "hccl-simulator/%d/%d/%lld", getpid(), made++,
                static_cast<long long>(now));
  return HCCL_SUCCESS;
}

NPU_EXPORT HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* comm) {
  *comm = nullptr;
  const int device = CurrentDevice();
  if (device < 0) return Refuse(HCCL_E_RUNTIME, "this thread has no context: aclrtSetDevice first");
  if (size < 1 || size > kMostRanks || rank >= size)
    return Refuse(HCCL_E_PARA, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  const auto seconds = doubles::NumberFrom("HCCL_CONNECT_TIMEOUT", 120, 1, 7200);
  const auto group = std::make_shared<Group>(root->internal, static_cast<int>(rank), static_cast<int>(size), device);
  if (Strikes("join")) {
    sleep(static_cast<unsigned>(seconds));
    return Refuse(HCCL_E_TIMEOUT, "this rank never joins, as it was told to");
  }
  if (group->mesh.Join(static_cast<int>(seconds * 1000)) != doubles::Outcome::kDone)
    return Refuse(HCCL_E_TIMEOUT, "not all ranks came within HCCL_CONNECT_TIMEOUT");
  std::vector<int> devices(size);
  if (group->mesh.AllGather(&device, sizeof device, devices.data(), 0) != doubles::Outcome::kDone)
    return Refuse(HCCL_E_REMOTE, "a rank left while joining");
  for (uint32_t other = 0; other < size; ++other) {
    if (other != rank && devices[other] == device)
      return Refuse(HCCL_E_PARA, "ranks " + std::to_string(rank) + " and " + std::to_string(other) + " share device " +
                                     std::to_string(device));
  }
  const std::lock_guard lock(groups_mutex);
  Groups()[group.get()] = group;
  *comm = group.get();
  return HCCL_SUCCESS;
}

NPU_EXPORT HcclResult HcclCommDestroy(HcclComm comm) {
  const std::shared_ptr<Group> group = Find(comm);
  if (group == nullptr) return Refuse(HCCL_E_PTR, "no such communicator");
  {
    const std::lock_guard lock(groups_mutex);
    Groups().erase(comm);
  }
  Stop(*group);
  return HCCL_SUCCESS;
}

NPU_EXPORT HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* error) {
  const auto group = Find(comm);
  if (group == nullptr) return Refuse(HCCL_E_PTR, "no such communicator");
  *error = group->async_error;
  return HCCL_SUCCESS;
}

NPU_EXPORT const char* HcclGetErrorString(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS:
      return "no error";
    case HCCL_E_PARA:
      return "parameter error";
    case HCCL_E_PTR:
      return "empty pointer";
    case HCCL_E_MEMORY:
      return "memory error";
    case HCCL_E_NOT_SUPPORT:
      return "not support feature";
    case HCCL_E_TIMEOUT:
      return "time out";
    case HCCL_E_RUNTIME:
      return "runtime error";
    case HCCL_E_REMOTE:
      return "remote error";
    default:
      return "internal error";
  }
}

NPU_EXPORT HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp op,
                                    HcclComm comm, aclrtStream stream) {
  return Submit(comm, stream, Kind::kAllReduce, send, 1, receive, 1, count, type, op);
}

NPU_EXPORT HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp op,
                                        HcclComm comm, aclrtStream stream) {
  return Submit(comm, stream, Kind::kReduceScatter, send, RanksOf(comm), receive, 1, count, type, op);
}

NPU_EXPORT HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type, HcclComm comm,
                                    aclrtStream stream) {
  return Submit(comm, stream, Kind::kAllGather, send, 1, receive, RanksOf(comm), count, type);
}

NPU_EXPORT HcclResult HcclBroadcast(void* data, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                                    aclrtStream stream) {
  return Submit(comm, stream, Kind::kBroadcast, data, 1, data, 1, count, type, HCCL_REDUCE_SUM, static_cast<int>(root));
}

NPU_EXPORT HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type, const void* receive,
                                   uint64_t receive_count, HcclDataType receive_type, HcclComm comm,
                                   aclrtStream stream) {
  if (send_count != receive_count || send_type != receive_type || send == receive)
    return Refuse(HCCL_E_PARA, "blocks that differ, or one buffer for both");
  return Submit(comm, stream, Kind::kAllToAll, send, RanksOf(comm), const_cast<void*>(receive), RanksOf(comm),
                send_count, send_type);
}

NPU_EXPORT HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  const auto group = Find(comm);
  if (group == nullptr || stream == nullptr || items == nullptr) return Refuse(HCCL_E_PTR, "an empty pointer");
  std::vector<Transfer> transfers;
  std::set<std::pair<uint32_t, HcclSendRecvType>> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const HcclSendRecvItem& item = items[i];
    doubles::Type element;
    if (item.remoteRank >= static_cast<uint32_t>(group->mesh.size()) ||
        item.remoteRank == static_cast<uint32_t>(group->mesh.rank()) || !TypeOf(item.dataType, &element) ||
        !seen.insert({item.remoteRank, item.sendRecvType}).second)
      return Refuse(HCCL_E_PARA, "item " + std::to_string(i) + ": a wrong rank or type, or a pair named twice");
    const size_t bytes = item.count * doubles::BytesOf(element);
    char* const data = Translate(item.buf, bytes);
    if (data == nullptr) return Refuse(HCCL_E_PARA, "item " + std::to_string(i) + ": not device memory of this rank");
    transfers.push_back({static_cast<int>(item.remoteRank), item.sendRecvType == HCCL_SEND, data, bytes, 1});
  }
  return Put(group, stream, [group, transfers] { return group->mesh.Exchange(transfers); });
}

NPU_EXPORT HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  const auto group = Find(comm);
  if (group == nullptr || stream == nullptr) return Refuse(HCCL_E_PTR, "no such communicator, or no stream");
  return Put(group, stream, [group] {
    const char here = 1;
    std::vector<char> all(group->mesh.size());
    return group->mesh.AllGather(&here, 1, all.data(), 7);
  });
}

// Collectives are all that can hang here, so they are what is stopped; work that waits behind them is dropped as after
// any failure.
NPU_EXPORT aclError aclrtStreamAbort(aclrtStream stream) {
  std::vector<std::shared_ptr<Group>> users;
  {
    const std::lock_guard lock(groups_mutex);
    for (const auto& [comm, group] : Groups()) {
      if (group->streams.count(stream)) users.push_back(group);
    }
  }
  for (const auto& group : users) Stop(*group);
  return ACL_SUCCESS;
}
