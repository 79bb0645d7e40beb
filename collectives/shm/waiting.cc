#include "collectives/shm/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace shm {
namespace {

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void WakeSleepers(Bell& bell) {
  if (bell.sleepers.load() > 0) syscall(SYS_futex, &bell.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Notify(Bell& bell, uint32_t value) {
  bell.value.store(value);
  WakeSleepers(bell);
}

void Notify(Bell& bell) {
  bell.value.fetch_add(1);
  WakeSleepers(bell);
}

bool WaitForChange(Bell& bell, uint32_t seen, int spins) {
  for (int spin = 0; spin < spins; ++spin) {
    if (bell.value.load(std::memory_order_acquire) != seen) return true;
    Pause();
  }
  const timespec limit{0, 1000000};
  bell.sleepers.fetch_add(1);  // before the kernel compares the value: whoever changes it later sees us
  syscall(SYS_futex, &bell.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  bell.sleepers.fetch_sub(1);
  return bell.value.load() != seen;
}

}  // namespace shm
