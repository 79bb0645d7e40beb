// Anonymous shared memory (memfd), which needs no file system and no /dev/shm, and the sockets over which its
// descriptor reaches the other ranks. Sockets have abstract names: nothing to clean up, and only processes of the same
// user are let in. One thread at a time.
#pragma once

#include <stddef.h>

#include <string>

#include "core/abi/base.h"

namespace shm {

// A mapped memfd. Moves; unmaps and closes at its end.
class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept { *this = static_cast<Segment&&>(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment() { Reset(); }
  void Reset();

  sy_status Create(size_t bytes, sy_error* error);  // zero-filled, not yet backed by memory
  sy_status Map(int descriptor, sy_error* error);   // somebody else's; takes the descriptor over
  // Backs a part with memory now, so that a lack of it is an error here and not a signal later.
  sy_status Reserve(size_t offset, size_t bytes, sy_error* error);
  char* base() const { return base_; }
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  char* base_ = nullptr;
  size_t bytes_ = 0;
  int descriptor_ = -1;
};

// Sockets. All descriptors are close-on-exec; -1 where there is nothing yet.
sy_status ListenOnNewName(int* listener, std::string* name, sy_error* error);
int AcceptFromOwnUser(int listener);                                             // non-blocking
sy_status ConnectToName(const std::string& name, int* socket, sy_error* error);  // SY_IN_PROGRESS: try again
bool SendNumber(int socket, int number);
// SY_IN_PROGRESS: not yet; SY_ABORTED: nothing of that kind will come.
sy_status ReceiveNumber(int socket, int* number);
bool SendDescriptor(int socket, int descriptor);
// SY_IN_PROGRESS while none has come (waits up to wait_ms); SY_ABORTED when the other side is gone.
sy_status ReceiveDescriptor(int socket, int wait_ms, int* descriptor, sy_error* error);

}  // namespace shm
