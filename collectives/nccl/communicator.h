// A communicator over NCCL, one GPU per rank, of a backend whose memory is CUDA's. All of NCCL is used without
// blocking: rank 0 puts the unique id into the store, the others fetch it, and Ready polls the rest
// (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html). Collectives are enqueued on the
// caller's CUDA stream, also while it is being captured, and are finished when the stream is; what fails there is found
// by Ready. Calls are not compared between ranks: nothing but the data travels.
//
// What a call answers does not say whether NCCL has it in hand still: ncclCommSplit (2.18 to 2.30) and
// ncclCommWindowRegister (2.28 to 2.30) lose the ncclInProgress of the group that they open for themselves, answer
// ncclSuccess, and are carried out by a thread of NCCL's, which writes the child's handle or the window when it is
// done. The next call would be refused with ncclInvalidArgument ("Attempt to use communicator before the previous
// operation returned ncclSuccess"), and those that are not checked, the deregistrations and ncclCommRegister, would run
// beside that thread. So after every call ncclCommGetAsyncError is asked until it is no longer in progress, and the
// result is read only then. Neither call is made inside a group, whose end alone would bring their results.
//
// Abort has two phases: the flag makes every call that waits return SY_ABORTED and lets go of the communicator, then
// ncclCommAbort ends the work that hangs on the device, replays of captured calls included. It runs on a thread of the
// communicator's own, and so never inside a group that the calling thread has open, where NCCL would put it off or mix
// it with the calls of the group; where the communicator itself has calls in an open group, it waits for the group's
// end. It returns only once all graphs that hold calls of the communicator were destroyed, which may be up to whoever
// aborts: so it is waited for only where no call was captured. Then nothing touches the memory of calls any more, while
// replays have ended when their stream is idle. A failure that Ready or a call finds ends the communicator in the same
// way. The destructor waits in any case, but not for ever: where a graph is alive against the promise, it says so and
// keeps the memory. Abort: any thread. Everything else: one thread at a time, and Ready.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/library.h"
#include "core/abi/collective_class.h"

namespace nccl {

class NcclCommunicator {
 public:
  static void Describe(const sy_instance& instance, sy_collective_info& info);
  static bool Reduces(int32_t, sy_dtype) { return true; }  // every dtype of the ABI, by every reduction of it
  static sy_status Create(const sy_instance& instance, const sy_init_request& request,
                          std::unique_ptr<NcclCommunicator>* result, sy_error* error);
  ~NcclCommunicator();

  sy_status Ready(sy_error* error);
  sy_status Submit(int32_t kind, const sy_call* call, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                   int32_t reduction, int32_t root, sy_request** request, sy_error* error);
  sy_status SubmitMessages(const sy_call* call, const sy_transfer* transfers, uint32_t count, sy_request** request,
                           sy_error* error);
  sy_status Split(int32_t color, int32_t key, const char* name, std::unique_ptr<NcclCommunicator>* result,
                  sy_error* error);
  void Abort();

  // Device memory from ncclMemAlloc. It is registered as a symmetric window where NCCL knows windows (2.27) and gives
  // one; where there is none (ranks that do not reach each other's memory, or refused at the call), or in an open
  // group, by ncclCommRegister, which is local and done when it returns. Without either it is used as it is, and what
  // was refused is logged once. A window that fails later, while the ranks map it, is the end of the communicator in
  // NCCL itself, which repeats that error for every later call.
  sy_status Allocate(uint64_t bytes, void** address, sy_error* error);
  void Free(void* address);

  // Calls of this thread between the two, on any communicators, proceed together.
  static sy_status GroupBegin(const sy_instance& instance, sy_error* error);
  static sy_status GroupEnd(sy_error* error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Owned {
    ncclWindow_t window = nullptr;
    void* registration = nullptr;
  };

  NcclCommunicator(const sy_instance& instance, std::string name, int rank, int size, int device, uint64_t timeout_ms)
      : instance_(instance),
        name_(std::move(name)),
        rank_(rank),
        size_(size),
        device_(device),
        timeout_ms_(timeout_ms) {}

  sy_status Begin(sy_error* error);                   // of init: the id, then ncclCommInitRankConfig
  std::string Absent() const;                         // "ranks 1, 3", or "" where the store cannot tell
  sy_status Usable(sy_error* error) const;            // under mutex_
  sy_status Fail(sy_status status, sy_error* error);  // under mutex_: the first error stays, and ends its work
  void GiveUp();      // under mutex_: begins ncclCommAbort, at the end of its group at the earliest
  bool AbortEnded();  // bounded; true where nothing was aborted
  // Runs call(ncclComm_t) and waits until NCCL has taken it up (not until it has finished). A call that is `kOptional`
  // may be refused, as long as the communicator itself goes on.
  enum Need { kRequired, kOptional };
  template <typename Call>
  sy_status Enqueue(const char* what, Call call, sy_error* error, Need need = kRequired);
  sy_status Open(const char* what, sy_error* error);  // under mutex_: may this thread make a call now?
  sy_status Taken(std::unique_lock<std::mutex>& lock, const char* what, ncclResult_t code, sy_error* error, Need need);
  sy_status Settle(std::unique_lock<std::mutex>& lock, const char* what, ncclResult_t code, sy_error* error, Need need);
  sy_status Refused(sy_status status, ncclResult_t code, const char* what, sy_error* error, Need need);
  // Gives `owned` back to NCCL; false where NCCL refuses, and may still use the memory.
  bool Deregister(Owned& owned);
  // The stream that a call goes to, and whether it is being captured. The thread's device is this one's from then on.
  struct Target {
    cudaStream_t stream = nullptr;
    bool captured = false;
  };
  sy_status TargetOf(const sy_call* call, Target* target, sy_error* error);
  ncclResult_t AllToAll(const char* send, char* receive, uint64_t block, cudaStream_t stream) const;
  sy_status AllocateScratch(uint64_t bytes, void** address, sy_error* error);
  sy_status Scratch(uint64_t bytes, const Target& target, void** address, sy_error* error);
  sy_status MarkScratchUsed(sy_error* error);
  bool Finalized();                                                // bounded
  void LogFailure(sy_status status, const sy_error& error) const;  // of what frees, and cannot fail by its signature

  const sy_instance& instance_;
  const std::string name_;
  int rank_, size_;
  const int device_;
  const uint64_t timeout_ms_;
  const sy_store* store_ = nullptr;  // until the id is known; NULL for a part of another communicator
  Clock::time_point began_ = Clock::now();

  mutable std::mutex mutex_;  // of what follows; never held while waiting for a peer or a graph
  ncclComm_t comm_ = nullptr;
  std::shared_ptr<ncclComm_t> child_;  // of a split that NCCL has in hand, whose thread writes it
  bool ready_ = false;
  std::thread aborter_;            // in ncclCommAbort
  std::future<void> abort_ended_;  // its end
  bool in_group_ = false;          // calls wait for the end of an open group, which must still find the communicator
  bool has_warned_ = false;        // that NCCL refused an optional call
  sy_status failed_ = SY_OK;
  sy_error failure_{SY_HEADER(sy_error)};
  std::map<void*, Owned> owned_;
  std::vector<void*> scratch_;      // all of it
  void* shared_scratch_ = nullptr;  // the largest, for calls that are not captured; a smaller one may be in use still
  uint64_t scratch_bytes_ = 0, scratch_taken_ = 0;    // of shared_scratch_; taken by calls of an open group
  std::vector<cudaStream_t> scratch_users_;           // of what was taken since the last marks
  std::map<cudaStream_t, cudaEvent_t> scratch_used_;  // behind the last use on each stream
  void* token_ = nullptr;  // 4 bytes for barriers
  std::atomic<bool> aborted_{false};
  std::atomic<bool> was_captured_{false};  // graphs may hold calls of it
};

template <typename Call>
sy_status NcclCommunicator::Enqueue(const char* what, Call call, sy_error* error, Need need) {
  std::unique_lock lock(mutex_);
  const sy_status open = Open(what, error);
  return open == SY_OK ? Taken(lock, what, call(comm_), error, need) : open;
}

}  // namespace nccl
