// A communicator of the double. Setting up, splitting, registering and finalizing run on threads of their own, since
// they meet the other ranks; a non-blocking communicator is in progress meanwhile, and begins only when its state was
// looked at twice, or after 50 ms. Of the calls that begin so, ncclCommSplit (as in 2.18 to 2.30) and
// ncclCommWindowRegister (2.28 to 2.30; 2.27 does not) answer ncclSuccess at once all the same, and what they give is
// written later, by that thread; only ncclCommGetAsyncError tells. A call on a communicator in progress answers
// ncclInvalidArgument and leaves its state, but for a collective and ncclCommFinalize, which are its end; the
// deregistrations, of which the library does not check it, end the program. What fails apart stays the communicator's
// state, and the answer of every later call. A split that failed gives a child all the same, which is to be aborted.
// Split and window registration inside a group, where they would be put off until its end, end the program.
//
// Collectives are put on streams, by a non-blocking communicator only after a few looks at its state: a program that
// does not wait until a call was taken up orders its events wrongly, and a test sees it. ncclCommFinalize,
// ncclCommDestroy and ncclCommAbort wait until the graphs that hold calls of the communicator were destroyed, and
// ncclCommAbort also for the thread of a call in progress, as the library does.
//
//   NCCL_DOUBLE_LOOKS   how many looks a collective takes; default 2
//   NCCL_DOUBLE_VERSION what ncclGetVersion answers, and whose ways it has (22501 is 2.25.1); default: the headers'
//   NCCL_DOUBLE_WINDOWS 0: communicators have no symmetric memory, and ncclCommWindowRegister answers ncclSuccess, but
//                       gives no window (2.29); default 1
//   NCCL_DOUBLE_FAULT   "call@3,remote@2,hang@1,id@1,join@1,memory@1": which event of its kind fails in this process:
//                       call:   a collective is refused at once (ncclUnhandledCudaError)
//                       remote: a collective finds on its stream that a peer is gone (ncclRemoteError), and hangs
//                       hang:   a collective never ends on its stream
//                       id:     ncclGetUniqueId (ncclSystemError)
//                       join:   this rank never comes, though its call is in progress
//                       memory: ncclMemAlloc (ncclUnhandledCudaError)
//                       window: ncclCommWindowRegister (ncclInvalidUsage), and the communicator goes on
//                       ruin:   ncclCommWindowRegister (ncclSystemError), and the communicator is at its end
//                       release: ncclCommWindowDeregister (ncclUnhandledCudaError), and the communicator goes on
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/doubles/mesh/collectives.h"
#include "tests/doubles/mesh/mesh.h"

namespace nccl_double {

bool Strikes(const char* kind);
bool InGroup();                                  // has this thread a group open?
[[noreturn]] void Die(const std::string& text);  // at what would be undefined in the library

struct Operation {
  bool is_message;  // to or from `peer`; else a collective of this kind
  doubles::Kind kind;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  int peer;  // or root
  cudaStream_t stream;
};

// One unit of work on a stream: one collective, or the messages of a group.
using Bundle = std::vector<Operation>;

}  // namespace nccl_double

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  ncclComm(std::string name, int rank, int size, int device, bool blocking);
  ~ncclComm();

  // As the library's ncclCommEnsureReady: ncclInvalidArgument in progress, else what has failed apart.
  ncclResult_t EnsureReady();
  // Runs `body` apart from the caller, who sees ncclInProgress until it has returned; a blocking communicator waits.
  ncclResult_t Apart(std::function<ncclResult_t()> body);
  ncclResult_t End(ncclResult_t code) { return state_ = code; }  // its state from here on
  void Raise(const std::shared_ptr<ncclComm>& child);  // is being split from it, and aborted with it until null follows
  ncclResult_t Fail(ncclResult_t code, const std::string& text);
  ncclResult_t Join();                                           // meets all ranks; runs apart
  ncclResult_t Start(std::vector<nccl_double::Bundle> bundles);  // puts them on their streams, now or a few looks later
  ncclResult_t Look(ncclResult_t* state);
  void Abort();  // ends what runs on streams and apart, and then waits for the graphs
  bool InProgress() const { return state_ == ncclInProgress; }
  void WaitForGraphs() const;  // until all that hold calls of it were destroyed
  std::string last_error();

  const std::string name;
  const int rank, size, device;
  const bool blocking;
  doubles::Mesh control;  // for everything but data
  doubles::Mesh data;
  int splits = 0;

 private:
  void WaitForLooks() const;
  void AbortMeshes();
  ncclResult_t Launch(nccl_double::Bundle bundle);
  void Run(const nccl_double::Bundle& bundle);  // on the stream's thread

  std::atomic<ncclResult_t> state_{ncclSuccess};
  std::atomic<int> looked_{0};  // since the last call that runs apart
  std::atomic<int> apart_{0};   // calls that do
  std::mutex mutex_;            // of what follows
  std::string last_error_;
  std::shared_ptr<ncclComm> child_;
  std::vector<nccl_double::Bundle> waiting_;  // until `looks_` more looks
  int looks_ = 0;
  std::mutex running_;  // one bundle at a time
  cudaEvent_t order_ = nullptr;                   // behind its last work
  std::atomic<int> unfinished_{0}, captured_{0};  // bundles on streams, and in graphs

 public:
  int unfinished() const { return unfinished_; }
};

namespace nccl_double {

// The communicator behind a handle that is alive, or null.
std::shared_ptr<ncclComm> Find(ncclComm_t handle);
ncclComm_t Add(std::shared_ptr<ncclComm> made);
void Remove(ncclComm_t handle);

int CountAlive();

// The message that ncclGetLastError answers where there is no communicator.
ncclResult_t FailWithout(ncclResult_t code, const std::string& text);

}  // namespace nccl_double

// Not the library's: for tests, the number of "communicators", of "windows" or of "registrations" by ncclCommRegister
// that are alive in this process.
extern "C" int ncclDoubleCount(const char* what);
