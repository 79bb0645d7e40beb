// A communicator over the sockets of a mesh. Calls are queued and run one after another by whoever polls. Each call is
// a row of rounds (rounds.cc), each of messages that move together; every message opens with the call's signature,
// which the receiver compares with its own. In the first round of every collective each rank hears from and tells the
// ranks before and behind it, if only that signature, so that disagreeing ranks are told apart before data is mixed.
// Reductions add in rank order, whenever what arrives: the same bits on every rank, every time, and the same as those
// of plugin shm. The first error ends the communicator. One call at a time, of whichever thread; Abort at any time.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/tcp/mesh.h"
#include "core/abi/call_queue.h"
#include "core/abi/collective_class.h"

namespace tcp {

using switchyard::CallSignature;

// What precedes the bytes of every message. Ranks are of one architecture: numbers travel as they lie in memory.
struct Frame {
  uint64_t magic, bytes;
  CallSignature call;
};

}  // namespace tcp

struct sy_request : switchyard::QueuedCall {
  struct Message {
    sy_transfer transfer;
    uint64_t done = 0;  // bytes, its frame included
    tcp::Frame frame{};
    uint64_t size() const { return sizeof(tcp::Frame) + transfer.bytes; }
  };
  std::vector<Message> messages;  // of the current round
  int round = -1;                 // -1: not begun
  std::chrono::steady_clock::time_point began;
};

namespace tcp {

class TcpCommunicator {
 public:
  static void Describe(const sy_instance&, sy_collective_info& info);
  static bool Reduces(int32_t reduction, sy_dtype dtype);
  static sy_status Create(const sy_instance& instance, const sy_init_request& request,
                          std::unique_ptr<TcpCommunicator>* result, sy_error* error);
  sy_status Ready(sy_error* error);
  sy_status Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                   int32_t reduction, int32_t root, sy_request** request, sy_error* error);
  sy_status SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error);
  // Progress of the whole queue; the outcome of `request`, again and again. Sleeps up to a millisecond where no socket
  // has anything.
  sy_status Poll(sy_request* request, sy_error* error);
  // A call that has not ended is given up, and the communicator with it: only polls touch a call's memory.
  void Release(sy_request* request);
  // Waits for the other ranks.
  sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<TcpCommunicator>* result,
                  sy_error* error);
  void Abort() { aborted_ = true; }

 private:
  struct Choices {          // of the user, for what is split from a communicator too
    std::string interface;  // of the network; "": any
    std::string chain;      // "1": chains and rings always, "0": never, "": where they pay; the same on all ranks
  };
  TcpCommunicator(const sy_init_request& request, const Choices& choices, std::unique_ptr<Mesh> mesh);
  static sy_status Open(const sy_init_request& request, const Choices& choices,
                        std::unique_ptr<TcpCommunicator>* result, sy_error* error);
  sy_request& Queue(const CallSignature& call, const void* send, void* receive,
                    std::span<const sy_transfer> transfers = {});
  sy_status Advance(sy_request& request);
  bool BeginRound(sy_request& request);  // after the one before has ended; false where no round is left
  bool GatherRound(sy_request& request);
  bool ChainReduceRound(sy_request& request);
  bool ChainBroadcastRound(sy_request& request);
  bool DirectReduceRound(sy_request& request);
  bool RingGatherRound(sy_request& request);
  bool DirectRound(sy_request& request);
  bool IsSmall(const CallSignature& call) const;
  double SavingOfNeighbours() const;
  bool ByNeighbours(const CallSignature& call) const;  // by a chain or a ring
  void ReducePartial(const sy_request& request, uint64_t first, uint64_t count);
  void ReduceAll(const sy_request& request, void* result, uint64_t count);
  void Send(sy_request& request, int peer, const void* from, uint64_t bytes);
  void Receive(sy_request& request, int peer, void* to, uint64_t bytes);
  void MeetNeighbours(sy_request& request);
  sy_status MoveAll(sy_request& request, bool* moved, bool* finished);
  sy_status Move(sy_request& request, sy_request::Message& message, bool* moved);
  sy_status CheckFrame(const sy_request& request, const sy_request::Message& message, sy_error* error) const;
  sy_status CheckTime(const sy_request& request, sy_error* error) const;
  void WaitForSockets();

  int rank_, size_;
  uint64_t timeout_ms_;
  std::string name_;
  Choices choices_;
  const sy_store* store_;
  std::vector<int32_t> hosts_;
  double saving_ = 0;  // SavingOfNeighbours, of an all_reduce; the ring of an all_gather goes by it too
  std::unique_ptr<Mesh> mesh_;
  switchyard::CallQueue<sy_request> calls_;
  std::vector<char> scratch_, sum_;  // one call runs at a time; sum_: in f32, of half types
  std::vector<short> waits_for_;     // poll events, by peer
  std::vector<const void*> sources_;
  std::vector<pollfd> polled_;
  std::atomic<bool> aborted_{false};
};

}  // namespace tcp
