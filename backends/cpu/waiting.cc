#include "backends/cpu/waiting.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace switchyard {
namespace {

// Spins before anything is asked: a few microseconds, in which most waits end.
constexpr int kFirstSpins = 200;
constexpr int64_t kMillisecond = 1000000;
// Longer than the serial stretches of a step.
constexpr int64_t kPatience = 4 * kMillisecond;
constexpr int64_t kUnknownPatience = kMillisecond / 20;
constexpr int64_t kWindow = 10 * kMillisecond;
// The cores are crowded where a thread was kept from them for this share of a window.
constexpr int64_t kCrowdedShare = 10;  // one tenth

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 * kMillisecond + now.tv_nsec;
}

// Until then some thread of this process has found the cores crowded.
std::atomic<int64_t> crowded_until{0};

// How long this thread was ready to run and had no core, as the kernel counts it.
class CoreDelay {
 public:
  ~CoreDelay() {
    if (file_ >= 0) close(file_);
  }
  bool known() const { return file_ >= 0; }

  // Looks once a window, and tells the others.
  void Look(int64_t now) {
    if (now - looked_ < kWindow) return;
    if (!opened_) {
      opened_ = true;
      file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    }
    char text[96];
    const ssize_t bytes = file_ < 0 ? -1 : pread(file_, text, sizeof text - 1, 0);
    long long ran = 0, delayed = 0;
    if (bytes > 0) text[bytes] = '\0';
    if (bytes <= 0 || std::sscanf(text, "%lld %lld", &ran, &delayed) != 2 || ran == 0) {
      if (file_ >= 0) close(file_);
      file_ = -1;
      looked_ = now;
      return;
    }
    if (looked_ > 0 && (delayed - delayed_) * kCrowdedShare > now - looked_)
      crowded_until.store(now + 2 * kWindow, std::memory_order_relaxed);
    delayed_ = delayed;
    looked_ = now;
  }

 private:
  bool opened_ = false;
  int file_ = -1;
  int64_t looked_ = 0, delayed_ = 0;  // ns
};

// How long a wait that lasts until now is worth spinning, in ns.
int64_t Patience(int64_t now) {
  static const int64_t fixed = [] {
    const char* const policy = std::getenv("OMP_WAIT_POLICY");
    if (policy == nullptr) return int64_t{-1};
    return strcasecmp(policy, "active") == 0    ? INT64_MAX
           : strcasecmp(policy, "passive") == 0 ? int64_t{0}
                                                : int64_t{-1};
  }();
  if (fixed >= 0) return fixed;
  static thread_local CoreDelay delay;
  delay.Look(now);
  if (now < crowded_until.load(std::memory_order_relaxed)) return 0;
  return delay.known() ? kPatience : kUnknownPatience;
}

}  // namespace

bool Gate::Spin(uint32_t seen) const {
  for (int spin = 0; spin < kFirstSpins; ++spin) {
    if (Moved(seen)) return true;
    Pause();
  }
  const int64_t begin = Now();
  for (int64_t now = begin; now - begin < Patience(now); now = Now()) {
    for (int spin = 0; spin < 32; ++spin) {
      if (Moved(seen)) return true;
      Pause();
    }
  }
  return Moved(seen);
}

void Gate::Wait(uint32_t seen) {
  if (Spin(seen)) return;
  sleepers_.fetch_add(1);  // before the kernel compares the value: whoever moves it later sees us
  while (value_.load() == seen) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1);
}

void Gate::Advance() {
  value_.fetch_add(1);
  if (sleepers_.load() > 0) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace switchyard
