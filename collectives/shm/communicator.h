// A communicator over shared memory. Calls are queued and run one after another by whoever polls; each is a row of
// steps with a barrier between any two: work, arrive, wait for the others, work … Nothing runs while nobody polls.
// Every call starts by publishing a header that all ranks compare, so that disagreeing ranks are told apart before any
// data is touched. The first error ends the communicator. One call at a time, of whichever thread; Abort at any time.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/reduction/reduce.h"
#include "collectives/shm/meeting.h"
#include "collectives/shm/segment.h"
#include "collectives/shm/shared_layout.h"
#include "core/abi/call_queue.h"
#include "core/abi/collective_class.h"

namespace shm {

using namespace switchyard;  // the words of collective_class.h

}  // namespace shm

struct sy_request : switchyard::QueuedCall {
  shm::CallHeader header{};  // the signature with what else the ranks tell each other
  switchyard::ReduceFunction reduce = nullptr;

  // Progress of a collective.
  uint32_t step = 0, barriers = 1;  // barriers passed, and how many there are
  bool arrived = false;             // at the barrier after `step`
  bool slept = false;               // while waiting there, or for a message: this is no short wait, spin no more
  bool early = false;               // small: data travels with the header
  bool two_phase = false;           // staged all_reduce of many ranks: reduce own share, then collect
  bool direct = false;              // all ranks' data lies in owned segments
  uint64_t turn = 0;                // of the staging slots
  uint64_t began_ns = 0;            // when it came to the front of the queue

  // Progress of a batch of messages.
  struct Message {
    sy_transfer transfer;
    uint64_t done;  // bytes, its 8-byte length included
    uint64_t length_seen;
    bool IsThrough() const { return done == transfer.bytes + sizeof length_seen; }
  };
  std::vector<Message> messages;
};

namespace shm {

class ShmCommunicator {
 public:
  static void Describe(const sy_instance&, sy_collective_info& info);
  static bool Reduces(int32_t reduction, sy_dtype dtype) { return FindReduction(dtype, reduction) != nullptr; }
  // Not usable before Ready() answers SY_OK. Rank 0 tells the name of its socket through the store.
  static sy_status Create(const sy_instance&, const sy_init_request& request,
                          std::unique_ptr<ShmCommunicator>* communicator, sy_error* error);
  sy_status Ready(sy_error* error);

  // Queues a collective. `count` as in the ABI.
  sy_status Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                   int32_t reduction, int32_t root, sy_request** request, sy_error* error);
  sy_status SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error);
  // Progress of the whole queue; the outcome of `request`, again and again. Sleeps up to a millisecond where nothing
  // can go on.
  sy_status Poll(sy_request* request, sy_error* error);
  // A call that has not ended is given up, and the communicator with it: only polls of this rank touch a call's memory.
  void Release(sy_request* request);

  // These wait for the other ranks.
  sy_status Allocate(uint64_t bytes, void** address, sy_error* error);
  void Free(void* address);
  sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<ShmCommunicator>* result,
                  sy_error* error);

  void Abort();

 private:
  struct OwnedSegment {
    Segment memory;
    size_t stride = 0, bytes = 0;  // of one rank's part
  };
  ShmCommunicator(int rank, int size, uint64_t timeout_ms)
      : rank_(rank), size_(size), timeout_ms_(timeout_ms), layout_(size) {}

  // communicator.cc: the queue and the steps
  sy_request& Queue(const CallSignature& call, const void* send, void* receive,
                    std::span<const sy_transfer> transfers = {});
  sy_status RunNow(CollectiveKind kind, uint64_t count, int32_t value, int32_t other, sy_error* error);
  sy_status Advance(sy_request& request);
  sy_status AdvanceCollective(sy_request& request);
  void Begin(sy_request& request);
  sy_status AllArrived(sy_request& request);
  sy_status CompareHeaders(sy_request& request);
  sy_status CheckInterrupted(sy_request& request);
  const char* Missing(const sy_request& request, char* text, size_t room) const;
  bool Interrupted() const;
  sy_status TakeSegment(Segment* segment, sy_error* error);
  RankRecord& record(int rank) const { return records_[rank]; }
  const CallHeader& header(int rank, uint64_t call) const { return records_[rank].headers[call & 1]; }

  // calls.cc: what is done between barriers
  void Plan(sy_request& request);
  void Work(sy_request& request);
  void WorkDirect(sy_request& request);
  void CopyIn(sy_request& request, uint64_t piece);
  void CopyOut(sy_request& request, uint64_t piece);
  void ReduceOwnShare(sy_request& request, uint64_t piece);
  bool Locate(const void* address, uint64_t bytes, int32_t* segment, uint64_t* offset) const;
  char* PeerSend(int rank) const;  // where the data of `rank` in the current call lies, mapped here
  char* PeerReceive(int rank) const;
  char* slot(int rank, uint64_t turn) const;

  // messages.cc
  sy_status AdvanceMessages(sy_request& request);
  bool MoveSend(sy_request::Message& message);
  bool MoveReceive(sy_request::Message& message, sy_request& request, sy_status* status);

  int rank_, size_;
  uint64_t timeout_ms_;
  Layout layout_;
  std::unique_ptr<Meeting> meeting_;
  const sy_store* store_ = nullptr;  // asked for the name of rank 0's socket until it is there; then NULL
  std::string store_key_;
  Segment control_;
  std::atomic<ControlPage*> page_{nullptr};  // Abort may look at it while we join
  sy_request* joining_ = nullptr;            // the barrier that ends joining
  bool ready_ = false;
  RankRecord* records_ = nullptr;
  RingHeader* rings_ = nullptr;
  std::vector<std::unique_ptr<OwnedSegment>> owned_;   // by number; null: freed
  CallQueue<sy_request> calls_;
  uint64_t call_ = 0;                                  // collectives begun, equal on all ranks
  uint32_t generation_ = 0;                            // barriers reached
  uint64_t turn_ = 0;                                  // staging slots used
  int spins_ = 0;
  std::vector<void*> destinations_;
  std::vector<const void*> sources_;
  std::atomic<bool> aborted_{false};
};

}  // namespace shm
