// The calls that move data, and groups of them.
#include "tests/doubles/mesh/reduce.h"
#include "tests/doubles/nccl/communicator.h"

namespace nccl_double {
namespace {

struct Grouped {
  std::shared_ptr<ncclComm> comm;
  std::vector<Operation> operations;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> group;

size_t BytesOf(ncclDataType_t type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? kBytes[type] : 0;
}

// Every byte in memory of the communicator's device?
bool OnItsDevice(const ncclComm& comm, const void* address, size_t bytes) {
  for (const size_t at : {size_t{0}, bytes - 1}) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, static_cast<const char*>(address) + at) != cudaSuccess ||
        attributes.type != cudaMemoryTypeDevice || attributes.device != comm.device)
      return false;
  }
  return true;
}

// Collectives one by one; neighbouring messages of one stream together.
ncclResult_t Begin(ncclComm& comm, const std::vector<Operation>& operations) {
  std::vector<Bundle> bundles;
  for (const Operation& o : operations) {
    const bool joins = !bundles.empty() && o.is_message && bundles.back().front().is_message &&
                       bundles.back().front().stream == o.stream;
    if (joins) {
      bundles.back().push_back(o);
    } else {
      bundles.push_back({o});
    }
  }
  return comm.Start(std::move(bundles));
}

ncclResult_t Submit(ncclComm_t handle, Operation o, size_t send_count, size_t receive_count) {
  const std::shared_ptr<ncclComm> comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  const size_t element = BytesOf(o.type);
  if (element == 0 || o.peer < 0 || o.peer >= comm->size || o.reduction < 0 || o.reduction > ncclMin)
    return comm->Fail(ncclInvalidArgument, "invalid data type, reduction, root or peer");
  if (send_count > 0 && !OnItsDevice(*comm, o.send, send_count * element))
    return comm->Fail(ncclInvalidArgument, "sendbuff is not a valid pointer");
  if (receive_count > 0 && !OnItsDevice(*comm, o.receive, receive_count * element))
    return comm->Fail(ncclInvalidArgument, "recvbuff is not a valid pointer");
  if (depth == 0) return Begin(*comm, {o});
  for (Grouped& one : group) {
    if (one.comm != comm) continue;
    one.operations.push_back(o);
    return ncclSuccess;
  }
  group.push_back({comm, {o}});
  return ncclSuccess;
}

}  // namespace

bool InGroup() { return depth > 0; }
}  // namespace nccl_double

using namespace nccl_double;
using doubles::Kind;

extern "C" {

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return Submit(comm, {false, Kind::kAllReduce, send, receive, count, type, op, 0, stream}, count, count);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  int size = 0;
  if (const ncclResult_t known = ncclCommCount(comm, &size); known != ncclSuccess) return known;
  return Submit(comm, {false, Kind::kReduceScatter, send, receive, count, type, op, 0, stream}, count * size, count);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  int size = 0;
  if (const ncclResult_t known = ncclCommCount(comm, &size); known != ncclSuccess) return known;
  return Submit(comm, {false, Kind::kAllGather, send, receive, count, type, ncclSum, 0, stream}, count, count * size);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  int rank = 0;
  if (const ncclResult_t known = ncclCommUserRank(comm, &rank); known != ncclSuccess) return known;
  return Submit(comm, {false, Kind::kBroadcast, send, receive, count, type, ncclSum, root, stream},
                rank == root ? count : 0, count);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Submit(comm, {true, Kind::kBroadcast, send, nullptr, count, type, ncclSum, peer, stream}, count, 0);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Submit(comm, {true, Kind::kBroadcast, nullptr, receive, count, type, ncclSum, peer, stream}, 0, count);
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return FailWithout(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--depth > 0) return ncclSuccess;
  std::vector<Grouped> calls;
  calls.swap(group);
  ncclResult_t result = ncclSuccess;
  for (const Grouped& one : calls) {
    if (Find(one.comm.get()) == nullptr)  // the library would touch what was freed
      Die("ncclGroupEnd: a communicator of this group was aborted inside it");
    const ncclResult_t code = Begin(*one.comm, one.operations);
    if (result == ncclSuccess || (result == ncclInProgress && code != ncclSuccess)) result = code;
  }
  return result;
}

}  // extern "C"
