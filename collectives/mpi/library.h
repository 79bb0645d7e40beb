// MPI as a library that is started when the first communicator is made, and ended when the process exits. MPI_Init
// waits for all ranks, so it runs on a thread of its own: a rank that dies meanwhile must not hold the others.
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <shared_mutex>
#include <source_location>

#include "core/abi/base.h"

namespace mpi {

// SY_OK, or SY_INTERNAL with MPI's own text for `code` and what was tried.
sy_status CheckMpi(sy_error* error, int code, const char* what,
                   std::source_location where = std::source_location::current());

// SY_UNSUPPORTED where this process was not started by mpirun or another MPI launcher though the run has more than one
// rank.
sy_status CheckLauncher(int size, sy_error* error);

// "Open MPI v4.1.4, …": the first line of what the library says of itself, whether it was started or not.
const char* LibraryVersion();

// Begins MPI_Init_thread once, and returns at once.
void StartLibrary();
// SY_IN_PROGRESS until it has finished.
sy_status LibraryReady(sy_error* error);

// From now on the process ends without MPI_Finalize, which could wait for a dead peer.
void AbandonLibrary();

// Whichever function of MPI runs, it goes on with all that is pending in this process. A call that MPI cannot cancel
// is therefore given up by calling MPI no more: QuitLibrary waits until nobody is inside, and nobody enters again. That
// does not reach what an adapter moves by itself, nor a thread that RunAbortable has left behind.
class InLibrary {  // while it lives; holds for nobody once the library was quit
 public:
  InLibrary();
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  std::shared_lock<std::shared_mutex> lock_;
};
void QuitLibrary();

// Runs `body` on a thread and waits for it, or until `aborted`: then the thread is left behind and SY_ABORTED returned.
// For the few calls of MPI that wait for peers and have no request to poll. What `body` captures must outlive the
// process or be owned by it. SY_ABORTED, too, once the library was quit.
sy_status RunAbortable(const std::atomic<bool>& aborted, std::function<sy_status(sy_error*)> body, sy_error* error);

}  // namespace mpi
