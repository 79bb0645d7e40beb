// Streams and events. A stream is a queue and one worker thread that waits a little before each task.
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "tests/doubles/npu/simulator.h"

namespace simulator {
namespace {

std::atomic<int64_t> tasks{0};
std::array<std::atomic<bool>, 8> lost{};  // by device

// One record of an event, shared with the stream that will reach it and those that wait for it: a point of a stream,
// with the failure that the stream had by then.
class Point {
 public:
  void Reach(const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    outcome_ = outcome;
    changed_.notify_all();
  }
  Outcome Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
    return outcome_;
  }
  bool Query(Outcome* outcome) const {
    const std::lock_guard lock(mutex_);
    *outcome = outcome_;
    return reached_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  Outcome outcome_;
};

// Every record captures anew; who waits already is not affected by it, as the documentation of aclrtRecordEvent says of
// events made by aclrtCreateEventExWithFlag.
class Event {
 public:
  explicit Event(uint32_t flags) : flags(flags) { latest_->Reach({}); }
  std::shared_ptr<Point> Record() {
    auto point = std::make_shared<Point>();
    const std::lock_guard lock(mutex_);
    return latest_ = std::move(point);
  }
  std::shared_ptr<Point> Latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  const uint32_t flags;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Point> latest_ = std::make_shared<Point>();
};

class Stream {
 public:
  explicit Stream(int device)
      : device(device),
        delay_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_DELAY_US", 20)),
        fail_at_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", 0)),
        lost_at_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_LOST_AT", 0)),
        stays_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_STAYS", 0) == 1),
        worker_([this] { Run(); }) {}

  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    worker_.join();
  }

  // Commands (records and waits of events) run without delay, also on a failed stream where `always`.
  void Push(Work work, bool delayed, bool always) {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), delayed, always});
    ++pushed_;
    changed_.notify_all();
  }

  // The first failure, once.
  Outcome Drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
    Outcome told;
    if (!told_ || stays_ || lost[static_cast<size_t>(device)]) told = failure_;
    told_ = failure_.code != ACL_SUCCESS;
    return told;
  }

  void Finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, until = pushed_] { return done_ >= until; });
  }

  Outcome failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  const int device;

 private:
  struct Task {
    Work work;
    bool delayed, always;
  };

  void Run() {
    for (;;) {
      Task task;
      bool failed;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
        failed = failure_.code != ACL_SUCCESS;
      }
      Outcome outcome;
      if (!failed || task.always) {
        if (task.delayed && delay_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_));
        const int64_t number = (fail_at_ > 0 || lost_at_ > 0) && task.delayed ? ++tasks : 0;
        if (number > 0 && number == lost_at_) lost[static_cast<size_t>(device)] = true;
        if (lost[static_cast<size_t>(device)] && !task.always) {
          outcome = {kLost, "the device is lost, as it was told to be"};
        } else if (number > 0 && number == fail_at_) {
          outcome = {ACL_ERROR_RT_AICORE_EXCEPTION, "task " + std::to_string(fail_at_) + " fails as it was told to"};
        } else {
          outcome = task.work();
        }
      }
      task.work = nullptr;  // what it holds goes before anybody learns that it is done
      const std::lock_guard lock(mutex_);
      if (failure_.code == ACL_SUCCESS) failure_ = outcome;
      ++done_;
      changed_.notify_all();
    }
  }

  const int64_t delay_, fail_at_, lost_at_;
  const bool stays_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  uint64_t pushed_ = 0, done_ = 0;
  Outcome failure_;
  bool told_ = false, closing_ = false;
  std::thread worker_;  // last: starts when all else is there
};

std::mutex streams_mutex;
// Guarded by streams_mutex. Never destroyed: a process may end while a stream hangs.
auto& streams = *new std::map<Stream*, std::shared_ptr<Stream>>;

// The stream behind a handle, of the current device; nullptr after Fail.
Stream* Own(aclrtStream handle, aclError* code) {
  auto* stream = static_cast<Stream*>(handle);
  const std::lock_guard lock(streams_mutex);
  if (CurrentDevice() < 0) {
    *code = Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
  } else if (!streams.contains(stream)) {
    *code = Fail(ACL_ERROR_RT_PARAM_INVALID, "no such stream");
  } else if (stream->device != CurrentDevice()) {
    *code = Fail(ACL_ERROR_RT_STREAM_CONTEXT, "the stream is not of the current device");
  } else {
    return stream;
  }
  return nullptr;
}

Event& Of(aclrtEvent event) { return *static_cast<Event*>(event); }

}  // namespace

bool IsLost(int device) {
  if (device < 0 || !lost[static_cast<size_t>(device)]) return false;
  Fail(kLost, "the device is lost, as it was told to be");
  return true;
}

aclError Enqueue(aclrtStream handle, Work work) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(handle, &code);
  if (stream == nullptr) return code;
  if (IsLost(stream->device)) return kLost;
  stream->Push(std::move(work), true, false);
  return ACL_SUCCESS;
}

void WaitFor(aclrtStream handle) {
  aclError code = ACL_SUCCESS;
  if (Stream* stream = Own(handle, &code); stream != nullptr) stream->Finish();
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  if (CurrentDevice() < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
  if (IsLost(CurrentDevice())) return kLost;
  auto made = std::make_shared<Stream>(CurrentDevice());
  const std::lock_guard lock(streams_mutex);
  *stream = made.get();
  streams.emplace(made.get(), made);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtDestroyStream(aclrtStream handle) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(handle, &code);
  if (stream == nullptr) return code;
  std::shared_ptr<Stream> last;  // goes without the lock, since it ends what is queued
  const std::lock_guard lock(streams_mutex);
  last = std::move(streams.extract(stream).mapped());
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtSynchronizeStream(aclrtStream handle) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(handle, &code);
  if (stream == nullptr) return code;
  const Outcome outcome = stream->Drain();
  return IsLost(stream->device) ? kLost : Told(outcome);
}

NPU_EXPORT aclError aclrtSynchronizeDevice() {
  if (CurrentDevice() < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
  std::map<Stream*, std::shared_ptr<Stream>> all;
  {
    const std::lock_guard lock(streams_mutex);
    all = streams;
  }
  Outcome first;
  for (const auto& [stream, owner] : all) {
    if (stream->device != CurrentDevice()) continue;
    const Outcome outcome = stream->Drain();
    if (first.code == ACL_SUCCESS) first = outcome;
  }
  return Told(first);
}

NPU_EXPORT aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  if (flag == 0 || (flag & ~(ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS)) != 0)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "an event is for streams, for the host or for both");
  *event = new Event(flag);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtDestroyEvent(aclrtEvent event) {
  delete &Of(event);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(stream_handle, &code);
  if (stream == nullptr) return code;
  Event& event = Of(handle);
  stream->Push(
      [point = event.Record(), stream] {
        point->Reach(stream->failure());
        return Outcome{};
      },
      false, true);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(stream_handle, &code);
  if (stream == nullptr) return code;
  Event& event = Of(handle);
  if ((event.flags & ACL_EVENT_SYNC) == 0) return Fail(ACL_ERROR_RT_PARAM_INVALID, "the event is not for streams");
  stream->Push([point = event.Latest()] { return point->Wait(); }, false, false);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  if ((Of(handle).flags & ACL_EVENT_CAPTURE_STREAM_PROGRESS) == 0)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "the event is not for the host");
  Outcome outcome;
  const bool complete = Of(handle).Latest()->Query(&outcome);
  *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return complete ? Told(outcome) : ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  Event& event = Of(handle);
  if ((event.flags & ACL_EVENT_CAPTURE_STREAM_PROGRESS) == 0)
    return Fail(ACL_ERROR_RT_PARAM_INVALID, "the event is not for the host");
  return Told(event.Latest()->Wait());
}

NPU_EXPORT aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType, aclrtStream stream) {
  return Enqueue(stream, [=] {
    fn(userData);
    return Outcome{};
  });
}
