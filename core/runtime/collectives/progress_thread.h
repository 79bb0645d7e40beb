// A thread that performs blocking tasks in the order in which they are submitted, beside the thread that submits them:
// what drives collectives that complete as host requests. It sleeps where there is nothing to do. Submit and Wait
// allocate nothing. One thread submits and waits; any may await.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/base/status.h"

namespace switchyard {

class ProgressThread {
 public:
  // Made once, submitted again and again; must stay where it is until it has been waited for.
  struct Task {
    std::function<Status()> body;
    Status result;
    bool submitted = false, done = false;
    Task* next = nullptr;
  };

  ProgressThread();
  ~ProgressThread();  // what was submitted is done first
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void Submit(Task& task);
  // Until everything that was submitted is done.
  void Drain();
  // The result of the last submission; OK at once where there was none since the last Wait.
  Status Wait(Task& task);
  // The same, and leaves the result to Wait. Not for tasks that were submitted to this thread behind one of its own.
  Status Await(const Task& task);

 private:
  void Run();

  std::mutex mutex_;  // of everything below, and of tasks that are submitted
  std::condition_variable submitted_, done_;
  Task *first_ = nullptr, *last_ = nullptr;
  bool ending_ = false, working_ = false;
  std::thread thread_;
};

}  // namespace switchyard
