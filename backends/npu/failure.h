// What is known of a stream's failure, apart from the stream: events and semaphores tell of it when the stream may be
// gone. Two ways lead here. What the runtime tells of a failed task, once, to whoever waits next, is kept for those who
// ask later. What a stream has waited for in vain (a semaphore that a failed stream was to raise) the runtime does not
// know: all that the stream does from there on has failed, and so has who waits for that. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/abi/device.h"

namespace switchyard {

class StreamFailure : public std::enable_shared_from_this<StreamFailure> {
 public:
  // A place in the stream's order, behind all places before.
  uint64_t NextPlace();
  uint64_t LastPlace() const;

  // The runtime's answer for the whole stream. SY_OK tells nothing; of others the first is kept.
  void Keep(sy_status status, const sy_error& error);
  // What the stream does from `place` on has failed, and what other streams do that they made wait for that.
  void FailFrom(uint64_t place, sy_status status, const sy_error& error);
  // From its own `follower_place` on, `follower` waits for what this stream does up to `place`.
  void LetFollow(uint64_t place, const std::shared_ptr<StreamFailure>& follower, uint64_t follower_place);

  // The first failure, also into `error`; SY_OK where there is none.
  sy_status Tell(sy_error* error) const;
  // The stream has done what it does up to `place`: the same of FailFrom, among that. Where it is SY_OK nothing of it
  // can fail any more, nor what it waited for.
  sy_status TellEnded(uint64_t place, sy_error* error);

 private:
  struct Other {
    std::weak_ptr<StreamFailure> stream;
    uint64_t place, other_place;  // of this stream, and of that
  };

  mutable std::mutex mutex_;
  uint64_t places_ = 0;
  uint64_t failed_from_ = UINT64_MAX;
  sy_status status_ = SY_OK;
  sy_error error_{SY_HEADER(sy_error)};
  // Streams that wait for a place of this one, and places of others for which this one waits; until they have ended.
  std::vector<Other> followers_, leaders_;
};

}  // namespace switchyard
