// The entry points of OpenMP that this plugin calls: those of its own teams (openmp.cc), or libgomp's. They are called
// by name, as g++ does for a pragma, so that the plugin needs no compiler with OpenMP and shares its threads with
// oneDNN whichever compiled it.
#pragma once

extern "C" {
// body(data) on each thread of a team of at most `threads` (0: as omp_set_num_threads says), the caller among them;
// returns when all have finished. `flags` is 0.
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
void GOMP_barrier();  // of the threads of the running team
// A loop over begin, begin + step, … before `end`, of which each thread of the team takes its parts [*first, *last) in
// turn; false: none is left. `chunk`: iterations a part, dealt in turn; 0: one part a thread.
bool GOMP_loop_static_start(long begin, long end, long step, long chunk, long* first, long* last);
bool GOMP_loop_static_next(long* first, long* last);
int omp_get_thread_num() noexcept;
int omp_get_num_threads() noexcept;
int omp_in_parallel() noexcept;
void omp_set_num_threads(int threads) noexcept;
void omp_set_dynamic(int dynamic) noexcept;
}

namespace switchyard {

int CoresAllowed();  // how many this thread may run on, at least 1

// body() on each thread of a team of `threads`, fewer where the system gives no more.
template <typename Body>
void ParallelRegion(int threads, const Body& body) {
  GOMP_parallel([](void* data) noexcept { (*static_cast<const Body*>(data))(); }, const_cast<Body*>(&body),
                static_cast<unsigned>(threads), 0);
}

}  // namespace switchyard
