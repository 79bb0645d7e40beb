#include "core/runtime/collectives/progress_thread.h"

#include <utility>

namespace switchyard {

ProgressThread::ProgressThread() : thread_([this] { Run(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  submitted_.notify_one();
  thread_.join();
}

void ProgressThread::Submit(Task& task) {
  {
    const std::lock_guard lock(mutex_);
    task.submitted = true;
    task.done = false;
    task.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &task;
    last_ = &task;
  }
  submitted_.notify_one();
}

Status ProgressThread::Wait(Task& task) {
  std::unique_lock lock(mutex_);
  if (!task.submitted) return OkStatus();
  done_.wait(lock, [&] { return task.done; });
  task.submitted = false;
  return std::exchange(task.result, OkStatus());
}

Status ProgressThread::Await(const Task& task) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return !task.submitted || task.done; });
  return task.result;
}

void ProgressThread::Drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return first_ == nullptr && !working_; });
}

void ProgressThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [this] { return first_ != nullptr || ending_; });
    if (first_ == nullptr) return;
    Task& task = *std::exchange(first_, first_->next);
    working_ = true;
    lock.unlock();
    Status result = task.body();
    lock.lock();
    working_ = false;
    task.result = std::move(result);
    task.done = true;
    done_.notify_all();
  }
}

}  // namespace switchyard
