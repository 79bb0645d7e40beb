#include "backends/cpu/team.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <utility>

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

bool Team::Worker::Take(uint32_t region) {
  uint32_t before = region - 1;
  return taken.compare_exchange_strong(before, region, std::memory_order_acq_rel);
}

bool Team::Do(int number) {
  TeamPlace& place = ThisPlace();
  const TeamPlace before = std::exchange(place, {this, number, size_, true});
  body_(data_);
  place = before;
  return unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void Team::Work(Worker& worker, int number) {
  for (uint32_t seen = 0;;) {
    worker.go.Wait(seen);
    seen = worker.go.value();  // the host thread may have gone through several regions without this thread
    if (stopping_) return;
    if (worker.Take(seen) && Do(number)) finished_.Advance();
  }
}

int Team::Start(int size, void (*body)(void*), void* data) {
  if (static_cast<int>(workers_.size()) + 1 < size) Grow(size);
  size_ = std::min(size, static_cast<int>(workers_.size()) + 1);
  body_ = body;
  data_ = data;
  seen_ = finished_.value();
  unfinished_.store(size_ - 1, std::memory_order_relaxed);
  for (int i = 0; i + 1 < size_; ++i) workers_[i]->go.Advance();
  return size_;
}

void Team::Finish() {
  for (int i = size_ - 1; i > 0; --i) {
    Worker& worker = *workers_[i - 1];
    if (worker.Take(worker.go.value()) && Do(i)) return;
  }
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
