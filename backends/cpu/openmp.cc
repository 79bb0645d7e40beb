// The entry points of OpenMP that this plugin and oneDNN call, over teams whose waits know when the machine is busy
// (waiting.h). libgomp reads once, when it is loaded, how long its threads spin, and no one time is right: one that is
// best alone loses a core's worth of time beside other processes. The loader looks for oneDNN's symbols in this plugin
// before it looks in libgomp, so that plugin and oneDNN share one team; where another part of the process has brought
// libgomp into the global scope, both are served from there. CMake leaves this file out where oneDNN calls more than
// is here. Semantics, also which thread gets which part of a loop: OpenMP 4.5.
#include "backends/cpu/openmp.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "backends/cpu/team.h"

namespace switchyard {

int CoresAllowed() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

namespace {

thread_local int most_threads = 0;  // 0: as many as there are cores

int MostThreads() {
  if (most_threads == 0) most_threads = CoresAllowed();
  return most_threads;
}

// The regions around the one that this thread runs.
std::vector<TeamPlace>& Around() {
  static thread_local std::vector<TeamPlace> around;
  return around;
}

void Begin(void (*body)(void*), void* data, unsigned threads) {
  TeamPlace& place = ThisPlace();
  Around().push_back(place);
  const int wanted = threads == 0 ? MostThreads() : static_cast<int>(threads);
  if (place.inside || wanted == 1) {
    place = {nullptr, 0, 1, place.inside};
    return;
  }
  Team& team = Team::OfThisThread();
  const int size = team.Start(wanted, body, data);
  place = {&team, 0, size, size > 1};
}

void End() {
  TeamPlace& place = ThisPlace();
  if (place.team != nullptr) place.team->Finish();
  place = Around().back();
  Around().pop_back();
}

// Where this thread stands in the loop that it runs.
struct StaticLoop {
  long begin = 0, step = 0, count = 0, chunk = 0, next = 0;  // iterations, and the next chunk of this thread
};
thread_local StaticLoop loop;

bool NextPart(long* first, long* last) {
  const TeamPlace& place = ThisPlace();
  long from = 0, to = 0;
  if (loop.chunk > 0) {
    from = (loop.next * place.size + place.number) * loop.chunk;
    to = std::min(loop.count, from + loop.chunk);
  } else if (loop.next == 0) {
    const long each = loop.count / place.size, rest = loop.count % place.size;
    from = place.number * each + std::min<long>(place.number, rest);
    to = from + each + (place.number < rest ? 1 : 0);
  }
  ++loop.next;
  if (from >= to) return false;
  *first = loop.begin + from * loop.step;
  *last = loop.begin + to * loop.step;
  return true;
}

}  // namespace
}  // namespace switchyard

#define SY_OPENMP extern "C" __attribute__((visibility("default")))

SY_OPENMP void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  switchyard::Begin(body, data, threads);
  body(data);
  switchyard::End();
}
SY_OPENMP void GOMP_parallel_start(void (*body)(void*), void* data, unsigned threads) {
  switchyard::Begin(body, data, threads);
}
SY_OPENMP void GOMP_parallel_end() { switchyard::End(); }
SY_OPENMP void GOMP_barrier() {
  if (switchyard::ThisPlace().team != nullptr) switchyard::ThisPlace().team->Barrier();
}
SY_OPENMP bool GOMP_loop_static_start(long begin, long end, long step, long chunk, long* first, long* last) {
  const long count = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
  switchyard::loop = {begin, step, std::max(0L, count), chunk, 0};
  return switchyard::NextPart(first, last);
}
SY_OPENMP bool GOMP_loop_static_next(long* first, long* last) { return switchyard::NextPart(first, last); }
SY_OPENMP void GOMP_loop_end_nowait() {}
SY_OPENMP void GOMP_loop_end() { GOMP_barrier(); }

SY_OPENMP int omp_get_thread_num() noexcept { return switchyard::ThisPlace().number; }
SY_OPENMP int omp_get_num_threads() noexcept { return switchyard::ThisPlace().size; }
SY_OPENMP int omp_in_parallel() noexcept { return switchyard::ThisPlace().inside; }
SY_OPENMP int omp_get_max_threads() noexcept { return switchyard::MostThreads(); }
SY_OPENMP void omp_set_num_threads(int threads) noexcept { switchyard::most_threads = std::max(1, threads); }
SY_OPENMP void omp_set_dynamic(int) noexcept {}
