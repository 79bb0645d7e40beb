// Starting MPI's own collectives, in parts where they are large. A part of every block of an all_gather or all_to_all
// is described to MPI by a datatype whose extent is the whole block.
#include <algorithm>

#include "collectives/mpi/communicator.h"
#include "collectives/mpi/datatypes.h"
#include "collectives/mpi/library.h"

namespace mpi {

using namespace switchyard;

sy_status MpiCommunicator::Start(sy_request& request, sy_error* error) {
  const CallSignature& own = request.signature;
  switch (own.kind) {
    case kBarrier:
      request.parts.resize(1);
      return CheckMpi(error, MPI_Ibarrier(comm_, request.parts.data()), "MPI_Ibarrier");
    case kAllReduce:
    case kReduceScatter:
      return StartReduction(request, error);
    case kAllGather:
    case kAllToAll:
      return StartExchange(request, error);
    case kMessages:
      return StartMessages(request, error);
    default:
      break;
  }
  const uint64_t element = BytesOf(own.dtype), most = std::max<uint64_t>(1, settings_.part_bytes / element);
  for (uint64_t start = 0; start < own.count; start += most) {
    request.parts.push_back(MPI_REQUEST_NULL);
    const int code = MPI_Ibcast(request.receive + start * element, static_cast<int>(std::min(most, own.count - start)),
                                DatatypeOf(own.dtype), own.root, comm_, &request.parts.back());
    if (const sy_status started = CheckMpi(error, code, "MPI_Ibcast"); started != SY_OK) return started;
  }
  return SY_OK;
}

sy_status MpiCommunicator::StartReduction(sy_request& request, sy_error* error) {
  const CallSignature& own = request.signature;
  const uint64_t element = BytesOf(own.dtype), most = std::max<uint64_t>(1, settings_.part_bytes / element);
  const MPI_Datatype type = DatatypeOf(own.dtype);
  const MPI_Op operation = OperationOf(own.dtype, own.reduction);
  const bool scatters = own.kind == kReduceScatter;
  const char* const in_place = request.send + (scatters ? static_cast<uint64_t>(rank_) * own.count * element : 0);
  if (scatters && in_place != request.receive && own.count * static_cast<uint64_t>(size_) <= most) {
    request.parts.resize(1);
    const int code = MPI_Ireduce_scatter_block(request.send, request.receive, static_cast<int>(own.count), type,
                                               operation, comm_, request.parts.data());
    return CheckMpi(error, code, "MPI_Ireduce_scatter_block");
  }
  // A large or in-place reduce_scatter: a reduction of block r to rank r.
  for (int root = 0; root < (scatters ? size_ : 1); ++root) {
    const char* const block = request.send + (scatters ? static_cast<uint64_t>(root) * own.count * element : 0);
    for (uint64_t start = 0; start < own.count; start += most) {
      const int count = static_cast<int>(std::min(most, own.count - start));
      const bool aliased = in_place == request.receive && (!scatters || root == rank_);
      const void* const from = aliased ? MPI_IN_PLACE : block + start * element;
      char* const to = request.receive + start * element;
      request.parts.push_back(MPI_REQUEST_NULL);
      const int code = scatters ? MPI_Ireduce(from, root == rank_ ? to : nullptr, count, type, operation, root, comm_,
                                              &request.parts.back())
                                : MPI_Iallreduce(from, to, count, type, operation, comm_, &request.parts.back());
      if (const sy_status started = CheckMpi(error, code, "MPI reduction"); started != SY_OK) return started;
    }
  }
  return SY_OK;
}

sy_status MpiCommunicator::StartExchange(sy_request& request, sy_error* error) {
  const CallSignature& own = request.signature;
  const uint64_t element = BytesOf(own.dtype), block = own.count * element;
  const uint64_t most = std::max<uint64_t>(1, settings_.part_bytes / element);
  const bool gathers = own.kind == kAllGather;
  const bool in_place = request.send == request.receive + (gathers ? static_cast<uint64_t>(rank_) * block : 0);
  for (uint64_t start = 0; start < own.count; start += most) {
    const int count = static_cast<int>(std::min(most, own.count - start));
    MPI_Datatype part, spaced;
    MPI_Type_contiguous(count, DatatypeOf(own.dtype), &part);
    MPI_Type_create_resized(part, 0, static_cast<MPI_Aint>(block), &spaced);
    MPI_Type_free(&part);
    request.types.push_back(spaced);
    if (const sy_status made = CheckMpi(error, MPI_Type_commit(&request.types.back()), "MPI_Type_commit");
        made != SY_OK)
      return made;
    const void* const from = in_place ? MPI_IN_PLACE : request.send + start * element;
    char* const to = request.receive + start * element;
    request.parts.push_back(MPI_REQUEST_NULL);
    const int code = gathers ? MPI_Iallgather(from, 1, spaced, to, 1, spaced, comm_, &request.parts.back())
                             : MPI_Ialltoall(from, 1, spaced, to, 1, spaced, comm_, &request.parts.back());
    if (const sy_status started = CheckMpi(error, code, "MPI exchange"); started != SY_OK) return started;
  }
  return SY_OK;
}

sy_status MpiCommunicator::StartMessages(sy_request& request, sy_error* error) {
  const uint64_t most = settings_.part_bytes;
  for (const sy_transfer& transfer : request.transfers) {
    // An empty message is still a message.
    for (uint64_t start = 0; start == 0 || start < transfer.bytes; start += most) {
      char* const address = static_cast<char*>(transfer.address) + start;
      const int bytes = static_cast<int>(std::min(most, transfer.bytes - start));
      request.parts.push_back(MPI_REQUEST_NULL);
      request.expected.push_back(transfer.is_send ? -1 : bytes);
      const int code = transfer.is_send
                           ? MPI_Isend(address, bytes, MPI_BYTE, transfer.peer, 0, comm_, &request.parts.back())
                           : MPI_Irecv(address, bytes, MPI_BYTE, transfer.peer, 0, comm_, &request.parts.back());
      if (const sy_status started = CheckMpi(error, code, "MPI message"); started != SY_OK) return started;
    }
  }
  return SY_OK;
}

}  // namespace mpi
