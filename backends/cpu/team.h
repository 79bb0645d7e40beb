// The threads over which the device's work is split. Each host thread that launches has a team of its own, which grows
// to the size asked for and ends with that thread; thread 0 of a team is the host thread itself. Start and Finish are
// the host thread's, Barrier that of every thread of a running team.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "backends/cpu/waiting.h"

namespace switchyard {

class Team {
 public:
  static Team& OfThisThread();
  ~Team();

  // body(data) on `size` threads, of which the caller is one, by itself: it calls body between Start and Finish. Fewer
  // threads where the system gives no more; the number of them.
  int Start(int size, void (*body)(void*), void* data);
  void Finish();
  void Barrier();

 private:
  struct Worker {
    Gate go;
    std::thread thread;
  };
  Team() = default;
  void Work(Worker& worker, int number);
  void Grow(int size);

  std::vector<std::unique_ptr<Worker>> workers_;  // thread i is workers_[i - 1]
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  int size_ = 1;
  uint32_t seen_ = 0;  // finished_ at Start
  bool stopping_ = false;
  std::atomic<int> running_{0}, arrived_{0};
  Gate finished_, barrier_;
};

// Which thread of which team the calling thread is. A region inside of a region has a team of one.
struct TeamPlace {
  Team* team = nullptr;
  int number = 0, size = 1;
  bool inside = false;  // of a region of several threads
};
TeamPlace& ThisPlace();

}  // namespace switchyard
