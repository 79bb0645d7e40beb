// Whoever connects to a listening socket and has not yet proved who it is. Each is sent a challenge and has a few
// seconds for its first message, of a few KiB at most. They are bounded in number too: where more come than that, or
// where descriptors run out, the one that has waited longest is dropped, once it has had time for an answer; nothing
// here spins while that is awaited. Once descriptors have run out, fewer are let in. One thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/runtime/processes/message_link.h"

namespace switchyard {

class Strangers {
 public:
  explicit Strangers(int listener);

  struct Arrival {
    std::unique_ptr<MessageLink> link;
    std::string nonce;  // with which it was challenged
    Frame first;        // what it said
  };
  void AddTo(std::vector<pollfd>* polled) const;  // call Serve at least ten times a second
  std::vector<Arrival> Serve();                   // does not wait

 private:
  using Clock = std::chrono::steady_clock;
  struct Stranger {
    std::unique_ptr<MessageLink> link;
    std::string nonce;
    Clock::time_point came;
  };
  bool MayDropOldest(Clock::time_point now) const;
  bool MayAccept(Clock::time_point now) const;
  void Accept(Clock::time_point now);

  int listener_;
  size_t most_;
  std::vector<Stranger> strangers_;  // the oldest first
  Clock::time_point pause_until_;    // descriptors had run out
};

}  // namespace switchyard
