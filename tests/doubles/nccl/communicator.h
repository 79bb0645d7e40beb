// A communicator of the double. Setting up, splitting, registering and finalizing run on threads of their own, since
// they meet the other ranks; a non-blocking communicator answers ncclInProgress meanwhile. Collectives are put on
// streams, by a non-blocking one only after a few looks at its state: a program that does not wait until a call was
// taken up orders its events wrongly, and a test sees it. ncclCommFinalize, ncclCommDestroy and ncclCommAbort wait
// until the graphs that hold calls of the communicator were destroyed, as the library does.
//
//   NCCL_DOUBLE_LOOKS   how many looks a call takes; default 2
//   NCCL_DOUBLE_VERSION what ncclGetVersion answers (22501 is 2.25.1); default: that of the headers
//   NCCL_DOUBLE_FAULT   "call@3,remote@2,hang@1,id@1,join@1,memory@1": which event of its kind fails in this process:
//                       call:   a collective is refused at once (ncclUnhandledCudaError)
//                       remote: a collective finds on its stream that a peer is gone (ncclRemoteError), and hangs
//                       hang:   a collective never ends on its stream
//                       id:     ncclGetUniqueId (ncclSystemError)
//                       join:   this rank never comes, though its call is in progress
//                       memory: ncclMemAlloc (ncclUnhandledCudaError)
//                       window: ncclCommWindowRegister (ncclInvalidUsage), and the communicator goes on
//                       ruin:   ncclCommWindowRegister (ncclSystemError), and the communicator is at its end
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
bool InGroup();  // has this thread a group open?

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

  // Runs `body` apart from the caller, who sees ncclInProgress until it has returned; a blocking communicator waits.
  ncclResult_t Apart(std::function<ncclResult_t()> body);
  ncclResult_t Fail(ncclResult_t code, const std::string& text);
  ncclResult_t Join();                                           // meets all ranks; runs apart
  ncclResult_t Start(std::vector<nccl_double::Bundle> bundles);  // puts them on their streams, now or a few looks later
  ncclResult_t Look(ncclResult_t* state);
  void Abort();                // ends what runs on streams, and then waits for the graphs
  void WaitForGraphs() const;  // until all that hold calls of it were destroyed
  std::string last_error();

  const std::string name;
  const int rank, size, device;
  const bool blocking;
  doubles::Mesh control;  // for everything but data
  doubles::Mesh data;
  int splits = 0;

 private:
  ncclResult_t Launch(nccl_double::Bundle bundle);
  void Run(const nccl_double::Bundle& bundle);  // on the stream's thread

  std::atomic<ncclResult_t> state_{ncclSuccess};
  std::mutex mutex_;  // of what follows
  std::string last_error_;
  std::vector<nccl_double::Bundle> waiting_;  // until `looks_` more looks
  int looks_ = 0;
  std::mutex running_;  // one bundle at a time
  cudaEvent_t order_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
  std::atomic<int> unfinished_{0}, captured_{0};  // bundles on streams, and in graphs

 public:
  int unfinished() const { return unfinished_; }
};

namespace nccl_double {

// The communicator behind a handle that is alive, or null.
std::shared_ptr<ncclComm> Find(ncclComm_t handle);
ncclComm_t Add(std::shared_ptr<ncclComm> made);
void Remove(ncclComm_t handle);

// The message that ncclGetLastError answers where there is no communicator.
ncclResult_t FailWithout(ncclResult_t code, const std::string& text);

}  // namespace nccl_double
