// Collectives between ranks of one node through memory of their devices: each rank lets the others copy from a buffer
// of its own (peer/1), so that what a collective plugin could only move through host memory goes from device to device.
// Sums are taken on the device in rank order, half types in f32 and rounded once, which gives the bits that host
// collectives with a fixed order give. A collective goes part by part:
//
//   all_reduce      own part → own window ‖ slice r of every window → sum → window of r ‖ all sums → result
//   reduce_scatter  own blocks → own window ‖ block r of every window → sum → result ‖
//   all_gather, broadcast, all_to_all   own part → own window ‖ the others' windows → result ‖
//
// ‖ is a barrier of all ranks, which the caller provides, for the store is too slow and the device knows of no other
// process. The windows are of one size, made when the ranks join; nothing is allocated by Run. One thread at a time.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/device/device.h"
#include "core/runtime/processes/rendezvous.h"

namespace switchyard {

struct Collective;

class PeerMemory {
 public:
  // What a rank says of itself before anybody looks at the others.
  struct Request {
    std::string name;  // of the communicator: new in the run, equal on all ranks
    int rank = 0, size = 1;
    Device* device = nullptr;
    bool wanted = true;  // by this rank
    int timeout_ms = kInitTimeoutMs;
  };
  // All ranks call it. Null on all of them where one does not want it, lacks peer/1, cannot reach another's memory, or
  // finds other bytes there than were written (patterns of 64 KiB go both ways between any two); an error only where
  // ranks are gone. `rendezvous` and the device must outlive it.
  static StatusOr<std::unique_ptr<PeerMemory>> Join(const Request& request, Rendezvous& rendezvous);
  // Frees what it has of the others, and its own window once they have done the same; where that is not to be known,
  // memory of the device is kept.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;

  // What each of `ranks` allocates on its device: bytes, with places aligned to `alignment`. 0 where so many ranks go
  // through host memory.
  static uint64_t BytesFor(int ranks, uint64_t alignment);

  // The same answer on all ranks.
  bool Takes(const Collective& what) const;
  // Makes the kernels of a call; every call that is run was prepared. All ranks prepare calls of one tag in one order.
  // False on all of them where one has no kernel for its part: then the call goes through host memory.
  StatusOr<bool> Prepare(const Collective& what, const std::string& tag);
  using Barrier = absl::FunctionRef<Status()>;
  // Counts are as in core/abi/collective.h. What stands on `stream` comes before; it has finished on return.
  Status Run(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier);

 private:
  struct Sum {  // of `count` elements of the slots into the result
    Kernel kernel;
    BoundKernel bound;
  };
  PeerMemory(const Request& request, Rendezvous& rendezvous) : request_(request), rendezvous_(rendezvous) {}
  static constexpr uint64_t kWindowBytes = uint64_t{4} << 20;  // of blocks; a part of a call is no larger
  static constexpr int kMostRanks = 16;                        // a sum is one kernel of so many inputs

  // peer_memory_join.cc. Tell: what each rank says, by rank. Agree: did it go well for all?
  StatusOr<std::vector<std::string>> Tell(const std::string& what, const std::string& own);
  StatusOr<bool> Agree(const std::string& what, const Status& own);
  Status MakeWindow();
  Status ReachOthers(const std::vector<std::string>& descriptions);
  std::vector<uint64_t> OwnerPlaces() const;
  uint64_t PlaceOf(int writer) const;
  Status MarkOwn();
  Status ReadOthers();
  Status MarkOthers();
  Status ReadOwn();
  Status Expect(sy_place place, const std::string& pattern, int writer);
  Status MakeSums(const Collective& what);
  StatusOr<Sum> MakeSum(int32_t dtype, uint64_t count);
  Status RunParts(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier);
  Status AllReduce(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier);
  Status Spread(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier);
  Status Gather(const Collective& what, sy_place send, sy_place receive, const Stream& stream, Barrier barrier);
  Status AddUp(const Collective& what, uint64_t at, uint64_t count, const Stream& stream);
  uint64_t Align(uint64_t bytes) const;  // as windows are cut
  uint64_t MostOfBlock() const;          // bytes of a block where a window holds one for each rank
  std::vector<uint64_t> SumsOf(const Collective& what) const;
  const Buffer& window(int rank) const { return windows_[static_cast<size_t>(rank)]; }
  Status Copy(const Stream& stream, sy_place to, sy_place from, uint64_t bytes) const;

  const Request request_;
  Rendezvous& rendezvous_;
  uint32_t sums_of_ = 0;         // bits 1 << dtype: what the devices of all ranks add
  std::vector<Buffer> windows_;  // by rank; this rank's own is exported: blocks, and behind them the sum
  Buffer slots_;                 // what is added up, by rank: kernels do not reach memory of others
  std::map<std::pair<int32_t, uint64_t>, Sum> sums_;  // by dtype and number of elements
  std::map<std::string, int> prepared_;               // how often calls of a tag were
};

}  // namespace switchyard
