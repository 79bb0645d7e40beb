#include "backends/cpu/team.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <functional>

namespace switchyard {
namespace {

thread_local std::unique_ptr<Team> own_team;

}  // namespace

TeamPlace& ThisPlace() {
  static thread_local TeamPlace place;
  return place;
}

Team& Team::OfThisThread() {
  // A child that fork made has none of the threads, and must not wait for them.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { (void)own_team.release(); });
  (void)registered;
  if (own_team == nullptr) own_team.reset(new Team);
  return *own_team;
}

Team::~Team() {
  stopping_ = true;
  for (const auto& worker : workers_) worker->go.Advance();
  for (const auto& worker : workers_) worker->thread.join();
}

void Team::Grow(int size) {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    while (static_cast<int>(workers_.size()) + 1 < size) {
      auto worker = std::make_unique<Worker>();
      Worker& added = *worker;
      workers_.push_back(std::move(worker));
      try {
        added.thread = std::thread(&Team::Work, this, std::ref(added), static_cast<int>(workers_.size()));
      } catch (...) {
        workers_.pop_back();
        throw;
      }
    }
  } catch (const std::exception&) {
    // The system gives no more threads: the work is split among those that there are.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Team::Work(Worker& worker, int number) {
  for (uint32_t seen = 0;; ++seen) {
    worker.go.Wait(seen);
    if (stopping_) return;
    ThisPlace() = {this, number, size_, true};
    body_(data_);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_.Advance();
  }
}

int Team::Start(int size, void (*body)(void*), void* data) {
  if (static_cast<int>(workers_.size()) + 1 < size) Grow(size);
  size_ = std::min(size, static_cast<int>(workers_.size()) + 1);
  body_ = body;
  data_ = data;
  seen_ = finished_.value();
  running_.store(size_ - 1, std::memory_order_relaxed);
  for (int i = 0; i + 1 < size_; ++i) workers_[i]->go.Advance();
  return size_;
}

void Team::Finish() {
  if (size_ > 1) finished_.Wait(seen_);
}

void Team::Barrier() {
  const uint32_t seen = barrier_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_.Advance();
  } else {
    barrier_.Wait(seen);
  }
}

}  // namespace switchyard
