// The counts behind semaphore/1, and the thread that raises them for streams. A count lives on the host, which alone
// raises it, so that it never falls whatever streams and threads do at once; a copy of it lies in device memory, where
// streams wait for it. Behind the work in front of a stream's signal an event is recorded; a thread looks at those
// events and raises the counts, or, where the stream has failed, lets those go who wait for it. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/npu/device.h"

namespace switchyard {

class Timeline {
 public:
  explicit Timeline(const sy_device& device) : device_(device) {}
  ~Timeline();
  sy_status Prepare(sy_error* error);  // before all else

  // SY_INVALID where the count is `value` already, or more.
  sy_status Raise(uint64_t value, sy_error* error);
  // Who waits for counts up to `value` goes on, with that failure; so does who asks from now on.
  void Fail(uint64_t value, sy_status status, const sy_error& error);
  sy_status Query(uint64_t* value, sy_error* error);
  // SY_TIMEOUT after `timeout_ms`.
  sy_status Wait(uint64_t value, uint64_t timeout_ms, sy_error* error);
  sy_status HoldUp(sy_stream& stream, uint64_t value, sy_error* error);

 private:
  struct HeldUp {
    std::weak_ptr<StreamFailure> stream;
    uint64_t place, value;
  };
  sy_status Write(uint64_t value, sy_error* error);  // with mutex_ held, and the count below `value`
  sy_status Told(sy_error* error) const;             // the first failure; with mutex_ held

  const sy_device& device_;
  void* copy_ = nullptr;  // 64 bits on the device
  std::mutex mutex_;
  std::condition_variable raised_;
  uint64_t count_ = 0;
  sy_status status_ = SY_OK;
  sy_error error_{SY_HEADER(sy_error)};
  std::vector<HeldUp> held_up_;  // streams that wait for more than the count
};

// What the streams of a device are to do with its timelines.
class Signals {
 public:
  explicit Signals(const sy_device& device) : device_(device) {}
  ~Signals();  // with the device's context alive

  sy_status Add(sy_stream& stream, std::shared_ptr<Timeline> timeline, uint64_t value, sy_error* error);
  // Does what is due. Returns whether anything was.
  bool Look();

 private:
  struct Signal {
    aclrtEvent event;
    std::shared_ptr<StreamFailure> stream;
    uint64_t place;
    std::shared_ptr<Timeline> timeline;
    uint64_t value;
  };
  void Run();
  void Carry(const Signal& signal, sy_status status, const sy_error& error);

  const sy_device& device_;
  std::mutex mutex_;  // before a timeline's own
  std::condition_variable changed_;
  std::list<Signal> open_;
  std::vector<aclrtEvent> idle_;  // events for the next ones
  bool closing_ = false;
  std::thread thread_;  // from the first signal on
};

}  // namespace switchyard
