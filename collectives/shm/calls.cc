// What each collective does between its barriers. Two ways: direct, where all data that others must reach lies in owned
// segments, is one step over the peers' memory; staged goes piece by piece through the slots of the control segment. A
// slot is used every second turn: whoever writes it again has passed a barrier at which all others had finished reading
// it.
#include <string.h>

#include <algorithm>

#include "collectives/shm/communicator.h"

namespace shm {
namespace {

constexpr uint64_t kEarlyBytes = 16384;  // up to here data travels with the header: one barrier less
constexpr int kFewRanks = 3;             // up to here a staged all_reduce adds everything on every rank

struct Range {
  uint64_t begin, length;
};

// Part `index` of `parts` of [0, count), in whole cache lines so that no two ranks write the same one.
Range Share(uint64_t count, int index, int parts, size_t element) {
  const uint64_t line = std::max<uint64_t>(1, 64 / element);
  const uint64_t share = ((count + parts - 1) / parts + line - 1) / line * line;
  const uint64_t begin = std::min(count, share * index);
  return {begin, std::min(count, begin + share) - begin};
}

bool ByBlocks(int32_t kind) { return kind == kReduceScatter || kind == kAllToAll; }

// Bytes of one block that fit one slot: the whole of it, or a part for each rank.
uint64_t PieceBytes(int32_t kind, int size) { return ByBlocks(kind) ? kSlotBytes / size / 64 * 64 : kSlotBytes; }

Range Piece(const CallHeader& header, int size, uint64_t piece) {
  const uint64_t bytes = header.count * BytesOf(header.dtype), room = PieceBytes(header.kind, size);
  return {piece * room, std::min(room, bytes - std::min(bytes, piece * room))};
}

uint64_t Pieces(const CallHeader& header, int size) {
  const uint64_t bytes = header.count * BytesOf(header.dtype), room = PieceBytes(header.kind, size);
  return (bytes + room - 1) / room;
}

}  // namespace

bool ShmCommunicator::Locate(const void* address, uint64_t bytes, int32_t* segment, uint64_t* offset) const {
  const auto* const start = static_cast<const char*>(address);
  for (size_t number = 0; number < owned_.size(); ++number) {
    if (owned_[number] == nullptr) continue;
    const char* const part = owned_[number]->memory.base() + owned_[number]->stride * rank_;
    if (start < part || start + bytes > part + owned_[number]->bytes) continue;
    *segment = static_cast<int32_t>(number);
    *offset = static_cast<uint64_t>(start - part);
    return true;
  }
  *segment = -1;
  return false;
}

char* ShmCommunicator::PeerSend(int rank) const {
  const CallHeader& call = header(rank, call_);
  const OwnedSegment& segment = *owned_[call.send_segment];
  return segment.memory.base() + segment.stride * rank + call.send_offset;
}

char* ShmCommunicator::PeerReceive(int rank) const {
  const CallHeader& call = header(rank, call_);
  const OwnedSegment& segment = *owned_[call.receive_segment];
  return segment.memory.base() + segment.stride * rank + call.receive_offset;
}

char* ShmCommunicator::slot(int rank, uint64_t turn) const {
  return control_.base() + layout_.slots + (2 * static_cast<size_t>(rank) + (turn & 1)) * kSlotBytes;
}

// What this rank contributes to the choice between direct and staged; before the header is published.
void ShmCommunicator::Plan(sy_request& request) {
  CallHeader& own = request.header;
  const uint64_t block = own.count * BytesOf(own.dtype), all = block * size_;
  const bool sends = own.kind != kBroadcast || rank_ == own.root;
  const bool send_owned =
      Locate(request.send, ByBlocks(own.kind) ? all : block, &own.send_segment, &own.send_offset) || !sends;
  const bool receive_owned = Locate(request.receive, block, &own.receive_segment, &own.receive_offset);
  switch (own.kind) {
    case kAllReduce:
      own.direct = send_owned && receive_owned;
      break;
    case kAllToAll:
      own.direct = send_owned && (request.send + all <= request.receive || request.receive + all <= request.send);
      break;
    default:
      own.direct = send_owned;
      break;
  }
  request.early = all <= kEarlyBytes && own.count > 0;
  request.barriers = 1;
}

void ShmCommunicator::Work(sy_request& request) {
  CallHeader& own = request.header;
  if (own.kind >= kMessages || own.kind == kBarrier || own.count == 0) return;
  const uint64_t pieces = Pieces(own, size_);
  if (request.step == 0 && request.early) {
    request.turn = turn_;
    turn_ += 1;
    return CopyIn(request, 0);
  }
  if (request.step == 1 && !request.early) {
    request.direct = true;
    for (int rank = 0; rank < size_; ++rank) request.direct = request.direct && header(rank, call_).direct != 0;
    request.two_phase = own.kind == kAllReduce && size_ > kFewRanks;
    request.barriers = request.direct ? 2 : static_cast<uint32_t>(1 + (request.two_phase ? 2 * pieces : pieces));
    request.turn = turn_;
    if (!request.direct) turn_ += pieces;
  }
  if (request.direct) {
    if (request.step == 1) WorkDirect(request);
    return;
  }
  if (request.step == 0) return;
  if (request.early) return CopyOut(request, 0);
  const uint64_t phases = request.two_phase ? 2 : 1, piece = (request.step - 1) / phases;
  if ((request.step - 1) % phases == 1) return ReduceOwnShare(request, piece);
  if (piece > 0) CopyOut(request, piece - 1);
  if (piece < pieces) CopyIn(request, piece);
}

void ShmCommunicator::WorkDirect(sy_request& request) {
  const CallHeader& own = request.header;
  const size_t element = BytesOf(own.dtype);
  const uint64_t block = own.count * element;
  switch (own.kind) {
    case kAllReduce: {
      const Range share = Share(own.count, rank_, size_, element);
      for (int rank = 0; rank < size_; ++rank) {
        sources_[rank] = PeerSend(rank) + share.begin * element;
        destinations_[rank] = PeerReceive(rank) + share.begin * element;
      }
      request.reduce(destinations_.data(), size_, sources_.data(), size_, share.length);
      break;
    }
    case kReduceScatter:
      for (int rank = 0; rank < size_; ++rank) sources_[rank] = PeerSend(rank) + rank_ * block;
      destinations_[0] = request.receive;
      request.reduce(destinations_.data(), 1, sources_.data(), size_, own.count);
      break;
    case kAllGather:
      for (int rank = 0; rank < size_; ++rank) {
        if (request.receive + rank * block != PeerSend(rank))
          memcpy(request.receive + rank * block, PeerSend(rank), block);
      }
      break;
    case kAllToAll:
      for (int rank = 0; rank < size_; ++rank)
        memcpy(request.receive + rank * block, PeerSend(rank) + rank_ * block, block);
      break;
    case kBroadcast:
      if (rank_ != own.root) memcpy(request.receive, PeerSend(own.root), block);
      break;
    default:
      break;
  }
}

void ShmCommunicator::CopyIn(sy_request& request, uint64_t piece) {
  const CallHeader& own = request.header;
  const Range range = Piece(own, size_, piece);
  char* const to = slot(rank_, request.turn + piece);
  if (!ByBlocks(own.kind)) {
    if (own.kind != kBroadcast || rank_ == own.root) memcpy(to, request.send + range.begin, range.length);
    return;
  }
  const uint64_t block = own.count * BytesOf(own.dtype), room = PieceBytes(own.kind, size_);
  for (int rank = 0; rank < size_; ++rank)
    memcpy(to + rank * room, request.send + rank * block + range.begin, range.length);
}

void ShmCommunicator::CopyOut(sy_request& request, uint64_t piece) {
  const CallHeader& own = request.header;
  const size_t element = BytesOf(own.dtype);
  const Range range = Piece(own, size_, piece);
  const uint64_t turn = request.turn + piece, block = own.count * element, room = PieceBytes(own.kind, size_);
  switch (own.kind) {
    case kAllReduce:
      if (request.two_phase) {
        for (int rank = 0; rank < size_; ++rank) {
          const Range share = Share(range.length / element, rank, size_, element);
          memcpy(request.receive + range.begin + share.begin * element, slot(rank, turn) + share.begin * element,
                 share.length * element);
        }
        break;
      }
      [[fallthrough]];
    case kReduceScatter:
      for (int rank = 0; rank < size_; ++rank)
        sources_[rank] = slot(rank, turn) + (own.kind == kReduceScatter ? rank_ * room : 0);
      destinations_[0] = request.receive + range.begin;
      request.reduce(destinations_.data(), 1, sources_.data(), size_, range.length / element);
      break;
    case kAllGather:
      for (int rank = 0; rank < size_; ++rank)
        memcpy(request.receive + rank * block + range.begin, slot(rank, turn), range.length);
      break;
    case kAllToAll:
      for (int rank = 0; rank < size_; ++rank)
        memcpy(request.receive + rank * block + range.begin, slot(rank, turn) + rank_ * room, range.length);
      break;
    case kBroadcast:
      if (rank_ != own.root) memcpy(request.receive + range.begin, slot(own.root, turn), range.length);
      break;
    default:
      break;
  }
}

// The sum of this rank's share of a piece, into its own slot, where the others fetch it.
void ShmCommunicator::ReduceOwnShare(sy_request& request, uint64_t piece) {
  const CallHeader& own = request.header;
  const size_t element = BytesOf(own.dtype);
  const Range share = Share(Piece(own, size_, piece).length / element, rank_, size_, element);
  for (int rank = 0; rank < size_; ++rank) sources_[rank] = slot(rank, request.turn + piece) + share.begin * element;
  destinations_[0] = slot(rank_, request.turn + piece) + share.begin * element;
  request.reduce(destinations_.data(), 1, sources_.data(), size_, share.length);
}

}  // namespace shm
