#include "core/train/stopping.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace switchyard {
namespace {

constexpr double kAgreeEverySeconds = 0.5;
constexpr double kMostStepsBetween = 10000;  // from one agreement to the next

std::atomic<int> training = 0;    // Stoppings that live
std::atomic<bool> asked = false;  // a signal came since the first of them was made
std::mutex making;                // of them

// A scheduler and a launcher may both send a SIGTERM. One that comes so long after the first is of somebody who no
// longer wants to wait.
constexpr std::chrono::seconds kSameRequest(3);
std::atomic<std::chrono::steady_clock::time_point> first_request{};  // the epoch: no SIGTERM came

// A launcher sends its signal to one rank after the other. The ranks that another one's copy has stopped still get
// their own, which then asks for nothing more: one that comes within this time is dropped.
constexpr std::chrono::seconds kCopyUnderWay(10);
std::atomic<std::chrono::steady_clock::time_point> copy_until{};  // the epoch: none is awaited

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// What the signal would have done had it not been blocked, on this thread's own stack.
void LetThrough(int signal) {
  const sigset_t set = SetOf({signal});
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// The thread that waits for the signals, while any StopSignals lives.
class Waiter {
 public:
  void Add() {
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
    ending_ = false;
    sigset_t all, before;  // other signals are the program's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { Wait(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    {
      const std::lock_guard none_is_let_through(delivery_);
      ending_ = true;
      pthread_kill(thread_.native_handle(), SIGUSR1);
    }
    thread_.join();
  }

 private:
  static bool EndsAtOnce(int signal) {
    if (signal != SIGTERM) return false;
    const auto now = std::chrono::steady_clock::now();
    auto first = std::chrono::steady_clock::time_point{};
    return !first_request.compare_exchange_strong(first, now) && now - first > kSameRequest;
  }

  void Wait() {
    const sigset_t awaited = SetOf({SIGTERM, SIGUSR1});
    for (;;) {
      const int signal = sigwaitinfo(&awaited, nullptr);
      const std::lock_guard lock(delivery_);
      if (ending_) return;
      if (signal < 0) continue;
      if (training > 0 && !EndsAtOnce(signal)) {
        asked = true;
      } else if (training > 0 ||
                 std::chrono::steady_clock::now() > copy_until.exchange(std::chrono::steady_clock::time_point{})) {
        LetThrough(signal);
      }
    }
  }

  std::mutex mutex_;  // of users_ and thread_
  int users_ = 0;
  std::thread thread_;
  std::mutex delivery_;  // of ending_; held while a signal is let through, so that none is unblocked when we send one
  bool ending_ = false;
};

// Never destroyed: a StopSignals may outlive the static objects of the program.
Waiter& TheWaiter() {
  static auto* const waiter = new Waiter;
  return *waiter;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t awaited = SetOf({SIGTERM, SIGUSR1});
  pthread_sigmask(SIG_BLOCK, &awaited, &before_);
  TheWaiter().Add();
}

StopSignals::~StopSignals() {
  TheWaiter().Remove();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Stopping::Stopping(Communicator* communicator) : communicator_(communicator), agreed_(Clock::now()) {
  const std::lock_guard lock(making);
  if (training == 0) {
    asked = false;
    first_request = copy_until = Clock::time_point{};
  }
  ++training;
}

Stopping::~Stopping() { --training; }

StatusOr<bool> Stopping::After(int64_t step) {
  if (communicator_ == nullptr) return asked.load();
  if (step < next_) return false;
  const double seconds = std::chrono::duration<double>(Clock::now() - agreed_).count();
  const auto passed = static_cast<double>(std::max<int64_t>(1, step - agreed_at_));
  // What few steps took says little of many, among which checkpoints are written: no farther than twice as many.
  const double most = std::min(2 * passed, kMostStepsBetween);
  const double steps = next_ == 0 ? 1 : std::clamp(kAgreeEverySeconds * passed / seconds, 1.0, most);
  // Each rank's wish to stop, and how many steps it would let pass until they talk again: the fewest of all.
  int32_t votes[2] = {asked, -static_cast<int32_t>(steps)};
  SY_RETURN_IF_ERROR(communicator_->AllReduce("stop", votes, votes, 2, SY_I32, SY_MAX));
  next_ = step - votes[1];
  agreed_at_ = step;
  agreed_ = Clock::now();
  if (votes[0] != 0 && !asked) copy_until = agreed_ + kCopyUnderWay;
  return votes[0] != 0;
}

}  // namespace switchyard
