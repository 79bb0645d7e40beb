// Streams and events. A stream is a queue and one worker thread that waits a little before each task.
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

// The n-th record of an event, shared with the streams that will complete it or wait for it.
class Event {
 public:
  uint64_t Record() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void Complete(uint64_t record, const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    completed_ = std::max(completed_, record);
    outcome_ = outcome;
    changed_.notify_all();
  }
  uint64_t Latest() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  Outcome Wait(uint64_t record) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= record; });
    return outcome_;
  }
  bool Query(Outcome* outcome) const {
    const std::lock_guard lock(mutex_);
    *outcome = outcome_;
    return completed_ >= recorded_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0, completed_ = 0;
  Outcome outcome_;
};

class Stream {
 public:
  explicit Stream(int device)
      : device(device),
        delay_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_DELAY_US", 20)),
        fail_at_(NumberFromEnvironment("SWITCHYARD_NPU_SIMULATOR_FAIL_AT", 0)),
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
    if (!told_) told = failure_;
    told_ = failure_.code != ACL_SUCCESS;
    return told;
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
        outcome = fail_at_ > 0 && task.delayed && ++tasks == fail_at_
                      ? Outcome{ACL_ERROR_RT_AICORE_EXCEPTION,
                                "task " + std::to_string(fail_at_) + " fails as it was told to"}
                      : task.work();
      }
      task.work = nullptr;  // what it holds goes before anybody learns that it is done
      const std::lock_guard lock(mutex_);
      if (failure_.code == ACL_SUCCESS) failure_ = outcome;
      ++done_;
      changed_.notify_all();
    }
  }

  const int64_t delay_, fail_at_;
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

aclError Told(const Outcome& outcome) {
  return outcome.code == ACL_SUCCESS ? ACL_SUCCESS : Fail(outcome.code, outcome.text);
}

using EventHandle = std::shared_ptr<Event>;
EventHandle& Of(aclrtEvent event) { return *static_cast<EventHandle*>(event); }

}  // namespace

aclError Enqueue(aclrtStream handle, Work work) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(handle, &code);
  if (stream != nullptr) stream->Push(std::move(work), true, false);
  return code;
}

}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  if (CurrentDevice() < 0) return Fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no context: aclrtSetDevice first");
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
  return stream == nullptr ? code : Told(stream->Drain());
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

NPU_EXPORT aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
  *event = new EventHandle(std::make_shared<Event>());
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
  const EventHandle event = Of(handle);
  stream->Push(
      [event, stream, record = event->Record()] {
        event->Complete(record, stream->failure());
        return Outcome{};
      },
      false, true);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  aclError code = ACL_SUCCESS;
  Stream* stream = Own(stream_handle, &code);
  if (stream == nullptr) return code;
  const EventHandle event = Of(handle);
  stream->Push([event, record = event->Latest()] { return event->Wait(record); }, false, false);
  return ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  Outcome outcome;
  const bool complete = Of(handle)->Query(&outcome);
  *status = complete ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return complete ? Told(outcome) : ACL_SUCCESS;
}

NPU_EXPORT aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  const EventHandle event = Of(handle);
  return Told(event->Wait(event->Latest()));
}

NPU_EXPORT aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType, aclrtStream stream) {
  return Enqueue(stream, [=] {
    fn(userData);
    return Outcome{};
  });
}
