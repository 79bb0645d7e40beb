// The threads over which the device's work is split. Each host thread that launches has a team of its own, which grows
// to the size asked for and ends with that thread; thread 0 of a team is the host thread itself. Start and Finish are
// the host thread's, Barrier that of every thread of a running team.
//
// A region has one part for each thread, and parts differ by their numbers alone. What a thread has not begun when the
// host thread is done with its own part, because another process has the core, the host thread does for it, under its
// number: results do not depend on who computes, and no time is lost to a thread that has nothing in hand. A part that
// waits for others at a barrier may count on them: nobody takes over before he has finished a part without them, and
// one that was not taken over is begun by its own thread sooner or later.
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

  // body(data) for each of `size` parts; the caller does part 0 by itself: it calls body between Start and Finish.
  // Fewer parts where the system gives no more threads; the number of them.
  int Start(int size, void (*body)(void*), void* data);
  void Finish();
  void Barrier();

 private:
  struct Worker {
    Gate go;                         // moves on with every region that this worker is part of
    std::atomic<uint32_t> taken{0};  // the value of `go` up to which its parts were begun, by it or by the host thread
    std::thread thread;
    bool Take(uint32_t region);  // whether the part of that region is the caller's to do
  };
  Team() = default;
  void Work(Worker& worker, int number);
  bool Do(int number);  // the part of a worker; true: it was the last
  void Grow(int size);

  std::vector<std::unique_ptr<Worker>> workers_;  // thread i is workers_[i - 1]
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  int size_ = 1;
  uint32_t seen_ = 0;  // finished_ at Start
  std::atomic<bool> stopping_{false};
  std::atomic<int> unfinished_{0}, arrived_{0};  // parts of workers; threads at the barrier
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
