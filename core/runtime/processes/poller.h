// Waits for any of many descriptors, by epoll(7): a wait costs what is ready and not what is watched. Wait is one
// thread's, the rest is thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

class Poller {
 public:
  static StatusOr<std::unique_ptr<Poller>> Make();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // From now on Wait answers with `id` where the descriptor can be read, or its other side is gone, or, with `writes`,
  // it can be written. A descriptor that is watched already is watched so instead. False, with errno: the system has no
  // room for another one.
  bool Watch(int descriptor, int id, bool writes = false);
  // Before a watched descriptor is closed.
  void Forget(int descriptor);
  // The ids of those that are ready now, or as soon as one is; none after wait_ms. Valid until the next call.
  const std::vector<int>& Wait(int wait_ms);
  int descriptor() const { return descriptor_; }  // can be read while one is ready

 private:
  explicit Poller(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
  std::vector<int> ready_;
};

}  // namespace switchyard
