// HcclCommInitRootInfo waits for the other ranks, so it runs on a thread of its own; poll looks at how far it is. The
// thread is left behind when nobody waits any longer, and gives back what it made. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "collectives/hccl/library.h"

namespace hccl {

class Joining {
 public:
  Joining() = default;
  Joining(const Joining&) = delete;
  ~Joining() { Abandon(); }

  // Begins: this rank's part of a group of `size` ranks that have `root` in common.
  void Start(const HcclRootInfo& root, int rank, int size, int device);
  bool started() const { return attempt_ != nullptr; }
  // SY_IN_PROGRESS; or SY_OK and the communicator, once; or what went wrong.
  sy_status Poll(HcclComm* comm, sy_error* error);
  void Abandon();

 private:
  struct Attempt;
  std::shared_ptr<Attempt> attempt_;
};

}  // namespace hccl
