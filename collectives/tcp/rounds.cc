// Which messages each round of a call moves, and what is added up between two rounds.
//
// Small calls: all blocks go to all ranks in log8(n) rounds (Bruck and others, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997, with seven ports), and every rank adds them up by itself.
// Large ones go directly from rank to rank, each rank adding up its share of an all_reduce: two rounds, and 2 N (n - 1)
// / n bytes of N that each rank sends, the least there is. Where several ranks share a node, that is more than has to
// leave the node: there an all_reduce is a chain in rank order, through which pieces flow, so that each rank adds its
// own to the sum of those before it, as one rank that adds all in order would; sums flow back the same way. An
// all_gather is then a ring in which blocks go round. Half types, whose sums are rounded once, travel up the chain as
// f32, but for the numbers of rank 0. A large broadcast is a chain from the root, wherever ranks are.
#include <algorithm>
#include <cstring>
#include <map>

#include "collectives/reduction/reduce.h"
#include "collectives/tcp/communicator.h"

namespace tcp {

using switchyard::BytesOf;

namespace {

constexpr uint64_t kSmallBytes = 128 << 10;  // of all blocks of a call together
constexpr uint64_t kSmallestPiece = 16 << 10, kLargestPiece = 256 << 10;
constexpr uint64_t kPorts = 8;          // a round of a small call multiplies by this what a rank holds
constexpr uint64_t kPiecesPerRank = 8;  // so many, that a chain is full for most of the time

// How a buffer is cut for a chain of `size` ranks.
struct Pieces {
  Pieces(const CallSignature& call, int size) : all(call.count) {
    const uint64_t element = BytesOf(call.dtype);
    each = std::clamp(all * element / (kPiecesPerRank * static_cast<uint64_t>(size)), kSmallestPiece, kLargestPiece) /
           64 * 64 / element;
    count = static_cast<int64_t>((all + each - 1) / each);
  }
  bool Has(int64_t piece) const { return piece >= 0 && piece < count; }
  uint64_t First(int64_t piece) const { return static_cast<uint64_t>(piece) * each; }
  uint64_t Elements(int64_t piece) const { return std::min(each, all - First(piece)); }

  uint64_t all, each = 0;  // elements
  int64_t count = 0;
};

}  // namespace

// Of an all_reduce of N bytes a node that holds k of n ranks sends k · 2 N (n - k) / n directly; by the chain N for
// each of its ranks whose neighbour lies on another node. How many times as much the busiest one sends directly.
double TcpCommunicator::SavingOfNeighbours() const {
  std::map<int32_t, int> ranks, borders;
  for (size_t rank = 0; rank < hosts_.size(); ++rank) {
    ++ranks[hosts_[rank]];
    if (rank + 1 == hosts_.size() || hosts_[rank] == hosts_[rank + 1]) continue;
    ++borders[hosts_[rank]];
    ++borders[hosts_[rank + 1]];
  }
  double directly = 0, by_chain = 1;
  for (const auto& [host, count] : ranks) {
    directly = std::max(directly, 2.0 * count * (size_ - count) / size_);
    by_chain = std::max<double>(by_chain, borders[host]);
  }
  return directly / by_chain;
}

bool TcpCommunicator::ByNeighbours(const CallSignature& call) const {
  if (!choices_.chain.empty()) return choices_.chain == "1";
  const bool is_wide = call.kind == switchyard::kAllReduce && switchyard::FindWideForm(call.dtype) != nullptr;
  return saving_ >= (is_wide ? 4 : 2);  // sums of halves take twice the bytes on their way up
}

void TcpCommunicator::Send(sy_request& request, int peer, const void* from, uint64_t bytes) {
  request.messages.push_back({{peer, 1, const_cast<void*>(from), bytes}});
}

void TcpCommunicator::Receive(sy_request& request, int peer, void* to, uint64_t bytes) {
  request.messages.push_back({{peer, 0, to, bytes}});
}

// In a first round: a signature where there is nothing else to say.
void TcpCommunicator::MeetNeighbours(sy_request& request) {
  const int before = (rank_ + size_ - 1) % size_, behind = (rank_ + 1) % size_;
  for (const int peer : {before, behind}) {
    for (const int32_t is_send : {1, 0}) {
      const bool is_there =
          std::any_of(request.messages.begin(), request.messages.end(), [&](const sy_request::Message& message) {
            return message.transfer.peer == peer && message.transfer.is_send == is_send;
          });
      if (!is_there && peer != rank_) request.messages.push_back({{peer, is_send, nullptr, 0}});
    }
  }
}

bool TcpCommunicator::IsSmall(const CallSignature& call) const {
  return size_ == 1 || call.count * BytesOf(call.dtype) * static_cast<uint64_t>(size_) <= kSmallBytes;
}

bool TcpCommunicator::BeginRound(sy_request& request) {
  const CallSignature& call = request.signature;
  if (call.kind == switchyard::kMessages) return request.round == 0;  // they are given
  request.messages.clear();
  bool goes_on = false;
  switch (call.kind) {
    case switchyard::kAllReduce:
      goes_on = IsSmall(call)        ? GatherRound(request)
                : ByNeighbours(call) ? ChainReduceRound(request)
                                     : DirectReduceRound(request);
      break;
    case switchyard::kAllGather:
      goes_on = IsSmall(call)        ? GatherRound(request)
                : ByNeighbours(call) ? RingGatherRound(request)
                                     : DirectRound(request);
      break;
    case switchyard::kBroadcast:
      goes_on = IsSmall(call) || choices_.chain == "0" ? DirectRound(request) : ChainBroadcastRound(request);
      break;
    case switchyard::kReduceScatter:
    case switchyard::kAllToAll:
      goes_on = DirectRound(request);
      break;
    default:  // barrier, split: split gathers its 8 bytes
      goes_on = GatherRound(request);
      break;
  }
  if (goes_on && request.round == 0) MeetNeighbours(request);
  return goes_on;
}

// The scratch holds the block of rank r + i (mod n) at i, and kPorts times as many after each round.
bool TcpCommunicator::GatherRound(sy_request& request) {
  const CallSignature& call = request.signature;
  const uint64_t block = call.count * BytesOf(call.dtype), size = static_cast<uint64_t>(size_),
                 rank = static_cast<uint64_t>(rank_);
  if (request.round == 0) {
    scratch_.resize(size * block);
    std::copy_n(request.send, block, scratch_.data());
  }
  uint64_t held = 1;
  for (int round = 0; round < request.round; ++round) held *= kPorts;
  for (uint64_t distance = held; distance < std::min(size, held * kPorts); distance += held) {
    const uint64_t bytes = std::min(held, size - distance) * block;
    Send(request, static_cast<int>((rank + size - distance) % size), scratch_.data(), bytes);
    Receive(request, static_cast<int>((rank + distance) % size), scratch_.data() + distance * block, bytes);
  }
  if (!request.messages.empty()) return true;
  const auto block_of = [&](uint64_t peer) { return scratch_.data() + (peer + size - rank) % size * block; };
  sources_.clear();
  for (uint64_t peer = 0; peer < size; ++peer) {
    if (call.kind == switchyard::kAllReduce)
      sources_.push_back(block_of(peer));
    else
      std::copy_n(block_of(peer), block, request.receive + peer * block);
  }
  if (call.kind == switchyard::kAllReduce) ReduceAll(request, request.receive, call.count);
  return false;
}

// result[i] = the sum of sources_ over all ranks, in rank order.
void TcpCommunicator::ReduceAll(const sy_request& request, void* result, uint64_t count) {
  switchyard::FindReduction(request.signature.dtype, request.signature.reduction)(&result, 1, sources_.data(), size_,
                                                                                  count);
}

// Adds our own piece to the sum of those before us, which lies in the scratch: into the result on the last rank and
// where the dtype is added as it is stored, else into sum_.
void TcpCommunicator::ReducePartial(const sy_request& request, uint64_t first, uint64_t count) {
  const CallSignature& call = request.signature;
  const uint64_t element = BytesOf(call.dtype);
  const bool is_last = rank_ == size_ - 1;
  const switchyard::WideForm* const wide = switchyard::FindWideForm(call.dtype);
  const void* const own = request.send + first * element;
  void* result = request.receive + first * element;
  if (wide == nullptr || size_ == 2) {
    const void* const sources[] = {scratch_.data(), own};
    switchyard::FindReduction(call.dtype, call.reduction)(&result, 1, sources, 2, count);
    return;
  }
  sum_.resize(2 * count * sizeof(float));
  float *const sum = reinterpret_cast<float*>(sum_.data()), *const widened = sum + count;
  const void* before = scratch_.data();
  if (rank_ == 1) {  // rank 0 sends its numbers as they are
    wide->widen(sum, scratch_.data(), count);
    before = sum;
  }
  wide->widen(widened, own, count);
  const void* const sources[] = {before, widened};
  void* const to = sum;
  switchyard::FindReduction(SY_F32, call.reduction)(&to, 1, sources, 2, count);
  if (is_last) wide->narrow(result, sum, count);
}

// In round t rank r adds its own to piece t - r and sends it on; the sum of piece p leaves the last rank, n - 1, in
// round p + n - 1, and goes down by one rank a round.
bool TcpCommunicator::ChainReduceRound(sy_request& request) {
  const CallSignature& call = request.signature;
  const Pieces pieces(call, size_);
  const uint64_t element = BytesOf(call.dtype);
  const bool is_wide = switchyard::FindWideForm(call.dtype) != nullptr;
  const int64_t round = request.round, last = size_ - 1;
  if (round >= pieces.count + 2 * last - 1) return false;
  const auto result = [&](int64_t piece) { return request.receive + pieces.First(piece) * element; };
  // From rank `from` to the next.
  const auto partial_bytes = [&](int64_t piece, int from) {
    return pieces.Elements(piece) * (is_wide && from > 0 ? sizeof(float) : element);
  };
  const int64_t up = round - rank_;
  if (rank_ > 0 && pieces.Has(up)) ReducePartial(request, pieces.First(up), pieces.Elements(up));
  if (rank_ < last && pieces.Has(up)) {
    const void* const partial = rank_ == 0 ? request.send + pieces.First(up) * element
                                : is_wide  ? sum_.data()
                                           : result(up);
    Send(request, rank_ + 1, partial, partial_bytes(up, rank_));
  }
  if (rank_ > 0 && pieces.Has(up + 1)) {
    scratch_.resize(std::max(scratch_.size(), pieces.each * std::max<uint64_t>(element, sizeof(float))));
    Receive(request, rank_ - 1, scratch_.data(), partial_bytes(up + 1, rank_ - 1));
  }
  const int64_t down = round - last - (last - rank_);
  if (rank_ > 0 && pieces.Has(down)) Send(request, rank_ - 1, result(down), pieces.Elements(down) * element);
  if (rank_ < last && pieces.Has(down + 1))
    Receive(request, rank_ + 1, result(down + 1), pieces.Elements(down + 1) * element);
  return true;
}

// In round t the rank that is d behind the root sends piece t - d on.
bool TcpCommunicator::ChainBroadcastRound(sy_request& request) {
  const Pieces pieces(request.signature, size_);
  const uint64_t element = BytesOf(request.signature.dtype);
  const int64_t behind_root = (rank_ - request.signature.root + size_) % size_, piece = request.round - behind_root;
  if (request.round >= pieces.count + size_ - 2) return false;
  const auto place = [&](int64_t of) { return request.receive + pieces.First(of) * element; };
  if (behind_root < size_ - 1 && pieces.Has(piece))
    Send(request, (rank_ + 1) % size_, place(piece), pieces.Elements(piece) * element);
  if (behind_root > 0 && pieces.Has(piece + 1))
    Receive(request, (rank_ + size_ - 1) % size_, place(piece + 1), pieces.Elements(piece + 1) * element);
  return true;
}

// Blocks go round: in round t rank r sends that of rank r - t on.
bool TcpCommunicator::RingGatherRound(sy_request& request) {
  const uint64_t block = request.signature.count * BytesOf(request.signature.dtype);
  const auto place = [&](int back) {
    return request.receive + static_cast<uint64_t>((rank_ + 2 * size_ - back) % size_) * block;
  };
  if (request.round == 0 && request.send != place(0)) std::copy_n(request.send, block, place(0));
  if (request.round >= size_ - 1) return false;
  Send(request, (rank_ + 1) % size_, place(request.round), block);
  Receive(request, (rank_ + size_ - 1) % size_, place(request.round + 1), block);
  return true;
}

// The first round brings each rank its share from all, the second brings all the shares that were added up.
bool TcpCommunicator::DirectReduceRound(sy_request& request) {
  const CallSignature& call = request.signature;
  const uint64_t element = BytesOf(call.dtype), size = static_cast<uint64_t>(size_);
  const uint64_t each = ((call.count + size - 1) / size + 63) / 64 * 64;  // whole cache lines, but for the last share
  const auto place = [&](int rank) { return std::min(call.count, each * static_cast<uint64_t>(rank)) * element; };
  const uint64_t mine = place(rank_), bytes = place(rank_ + 1) - mine;
  const auto theirs = [&](int peer) { return scratch_.data() + static_cast<uint64_t>(peer) * bytes; };
  if (request.round > 1) return false;
  if (request.round == 0) scratch_.resize(size * bytes);
  if (request.round == 1) {
    sources_.clear();
    for (int peer = 0; peer < size_; ++peer) sources_.push_back(peer == rank_ ? request.send + mine : theirs(peer));
    ReduceAll(request, request.receive + mine, bytes / element);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const uint64_t of_peer = place(peer + 1) - place(peer);
    if (request.round == 0) {
      Send(request, peer, request.send + place(peer), of_peer);
      Receive(request, peer, theirs(peer), bytes);
    } else {
      Send(request, peer, request.receive + mine, bytes);
      Receive(request, peer, request.receive + place(peer), of_peer);
    }
  }
  return true;
}

// One round from each rank to each other rank.
bool TcpCommunicator::DirectRound(sy_request& request) {
  const CallSignature& call = request.signature;
  const uint64_t block = call.count * BytesOf(call.dtype), size = static_cast<uint64_t>(size_),
                 rank = static_cast<uint64_t>(rank_);
  if (request.round > 0) {
    if (call.kind == switchyard::kReduceScatter) {
      sources_.clear();
      for (uint64_t peer = 0; peer < size; ++peer)
        sources_.push_back(peer == rank ? request.send + rank * block : scratch_.data() + peer * block);
      ReduceAll(request, request.receive, call.count);
    }
    return false;
  }
  if (call.kind == switchyard::kReduceScatter) scratch_.resize(size * block);
  if (call.kind == switchyard::kAllGather && request.send != request.receive + rank * block)
    std::copy_n(request.send, block, request.receive + rank * block);
  if (call.kind == switchyard::kAllToAll) {
    scratch_.assign(request.send, request.send + size * block);  // for it may be in place
    std::copy_n(scratch_.data() + rank * block, block, request.receive + rank * block);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const uint64_t at = static_cast<uint64_t>(peer) * block;
    switch (call.kind) {
      case switchyard::kReduceScatter:
        Send(request, peer, request.send + at, block);
        Receive(request, peer, scratch_.data() + at, block);
        break;
      case switchyard::kAllGather:
        Send(request, peer, request.receive + rank * block, block);
        Receive(request, peer, request.receive + at, block);
        break;
      case switchyard::kAllToAll:
        Send(request, peer, scratch_.data() + at, block);
        Receive(request, peer, request.receive + at, block);
        break;
      default:  // broadcast
        Send(request, peer, request.receive, rank_ == call.root ? block : 0);
        Receive(request, peer, request.receive, peer == call.root ? block : 0);
        break;
    }
  }
  return true;
}

}  // namespace tcp
