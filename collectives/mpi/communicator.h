// A communicator over MPI. Every call first lets the ranks compare what they call (an all-reduce of 16 bytes;
// SWITCHYARD_CHECK_COLLECTIVES=0 leaves it out) and then starts MPI's own collective, in parts below 2^30 bytes because
// MPI counts in int. All are non-blocking and advance only when polled. After Abort, requests are given up and nothing
// of MPI is waited for; where MPI may still use the caller's memory then, it is called no more in this process, and all
// communicators have ended. One call at a time, of whichever thread; Abort at any time.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/abi/call_queue.h"
#include "core/abi/collective_class.h"

struct sy_request : switchyard::QueuedCall {
  enum { kQueued, kChecking, kComparing, kRunning, kClosing } state = kQueued;
  uint64_t check[2] = {}, agreed[2] = {};
  std::vector<switchyard::CallSignature> signatures;  // of all ranks, fetched where they disagree
  std::vector<sy_transfer> transfers;
  std::vector<MPI_Request> parts;
  std::vector<int> expected;  // messages only: bytes of each part that is received, -1 for sends
  std::vector<MPI_Status> statuses;
  std::vector<MPI_Datatype> types;  // to free at the end
  int64_t began_ms = 0;

  bool pending() const {  // at MPI, which then uses this object
    return std::any_of(parts.begin(), parts.end(), [](MPI_Request part) { return part != MPI_REQUEST_NULL; });
  }
};

namespace mpi {

using switchyard::CallSignature;
using switchyard::CollectiveKind;

struct Settings {
  uint64_t part_bytes = uint64_t{1} << 30;  // below 2^31; SWITCHYARD_MPI_PART_BYTES: largest part handed to MPI at once
  bool check = true;
  static Settings Read(const sy_instance& instance);
};

class MpiCommunicator {
 public:
  MpiCommunicator(const Settings& settings, int rank, int size, uint64_t timeout_ms)
      : settings_(settings), rank_(rank), size_(size), timeout_ms_(timeout_ms) {}
  ~MpiCommunicator();
  static void Describe(const sy_instance&, sy_collective_info& info);
  static bool Reduces(int32_t, sy_dtype) { return true; }  // every reduction of every dtype
  static sy_status Create(const sy_instance& instance, const sy_init_request& request,
                          std::unique_ptr<MpiCommunicator>* result, sy_error* error);
  sy_status Ready(sy_error* error);  // SY_IN_PROGRESS until MPI is up and this communicator is made

  sy_status Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                   int32_t reduction, int32_t root, sy_request** request, sy_error* error);
  sy_status SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error);
  sy_status Poll(sy_request* request, sy_error* error);
  void Release(sy_request* request);
  sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<MpiCommunicator>* result,
                  sy_error* error);
  void Abort();

 private:
  // collectives.cc: starts the requests of MPI
  sy_status Start(sy_request& request, sy_error* error);
  sy_status StartReduction(sy_request& request, sy_error* error);
  sy_status StartExchange(sy_request& request, sy_error* error);
  sy_status StartMessages(sy_request& request, sy_error* error);

  sy_request& Queue(const CallSignature& call, const void* send, void* receive,
                    std::span<const sy_transfer> transfers = {});
  void TakeBackMemory();
  static void TakeBackMemory(sy_request& request);
  sy_status Advance(sy_request& request, sy_error* error);
  sy_status AfterCheck(sy_request& request, sy_error* error);
  sy_status Disagreement(const sy_request& request, sy_error* error);
  sy_status Finish(sy_request& request, sy_error* error);

  Settings settings_;
  int rank_, size_;
  uint64_t timeout_ms_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  struct Joining {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::unique_ptr<Joining> joining_;
  bool ready_ = false;
  switchyard::CallQueue<sy_request> calls_;
  std::atomic<bool> aborted_{false};
};

}  // namespace mpi
