#undef _FORTIFY_SOURCE  // its longjmp refuses to leave a stack upwards, which is what a fiber switch does
#include "tests/doubles/cuda_emulation/blocks.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/doubles/cuda_runtime/enqueue.h"

namespace switchyard::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10, kGuardBytes = 256, kSharedLimit = 48 << 10;
constexpr int kPoison = 0xFF;  // not a number as f32, bf16 and f16
constexpr int kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kExited };

// Stacks outlive the host threads that ran on them: a stream's thread is short-lived, fresh memory is slow.
class Stacks {
 public:
  std::unique_ptr<char[]> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
    std::unique_ptr<char[]> stack = std::move(idle_.back());
    idle_.pop_back();
    return stack;
  }
  void Give(std::unique_ptr<char[]> stack) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(stack));
  }
  static Stacks& Shared() {
    static auto* stacks = new Stacks;
    return *stacks;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> idle_;
};

struct Fiber {  // a stack, and where it was left
  std::unique_ptr<char[]> stack = Stacks::Shared().Take();
  jmp_buf context;
  ~Fiber() { Stacks::Shared().Give(std::move(stack)); }
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

struct Thread {
  Coordinates at;
  State state = State::kReady;
  Fiber* fiber = nullptr;      // null before its first instruction
  uint64_t value = 0;          // what it passes to its warp
  char shown[kMostShared];     // what it shows to its warp
  unsigned mask = 0;           // the warp barrier that it waits at
  std::vector<Copy> copies;    // not made yet, oldest first
  std::vector<size_t> groups;  // where each group that is not complete ends among them
};

struct Block {
  std::vector<Thread> threads;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::vector<char> shared;
  const std::function<void()>* body = nullptr;
  Thread* running = nullptr;
  jmp_buf scheduler;
  size_t shared_bytes = 0;

  void Run(dim3 grid, dim3 block, uint3 at);
  bool RunWarp(size_t first, bool ascending, size_t* left);
  void Resume(Thread& thread);
  void ReleaseBlock();
  void ReleaseWarp(size_t first, unsigned mask);
};

thread_local Block t_block;

[[noreturn]] void Fail(const char* what) {
  const Coordinates& c = Here();
  std::fprintf(stderr, "cuda emulation: block (%u, %u, %u), thread (%u, %u, %u): %s\n", c.block.x, c.block.y, c.block.z,
               c.thread.x, c.thread.y, c.thread.z, what);
  std::abort();
}

size_t Index(const Thread& thread) { return static_cast<size_t>(&thread - t_block.threads.data()); }

void SwitchToScheduler() {
  Block& block = t_block;
  if (_setjmp(block.running->fiber->context) == 0) _longjmp(block.scheduler, 1);
}

// First function on a new stack: runs one CUDA thread after another, as the scheduler hands them to this fiber.
void FiberMain() {
  for (;;) {
    Block& block = t_block;
    (*block.body)();
    Thread& done = *block.running;
    done.state = State::kExited;
    block.idle.push_back(done.fiber);
    block.ReleaseBlock();
    SwitchToScheduler();
  }
}

void Block::Resume(Thread& thread) {
  running = &thread;
  if (_setjmp(scheduler) != 0) return;
  if (thread.fiber != nullptr) _longjmp(thread.fiber->context, 1);
  if (!idle.empty()) {
    thread.fiber = idle.back();
    idle.pop_back();
    _longjmp(thread.fiber->context, 1);
  }
  fibers.push_back(std::make_unique<Fiber>());
  thread.fiber = fibers.back().get();
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread.fiber->stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, FiberMain, 0);
  setcontext(&context);
}

// Lets everybody past the block's barrier once all threads that have not exited are there.
void Block::ReleaseBlock() {
  for (const Thread& thread : threads) {
    if (thread.state != State::kAtBlockBarrier && thread.state != State::kExited) return;
  }
  for (Thread& thread : threads) {
    if (thread.state == State::kAtBlockBarrier) thread.state = State::kReady;
  }
}

void Block::ReleaseWarp(size_t first, unsigned mask) {
  for (size_t lane = 0; lane < kWarp; ++lane) {
    if (!(mask >> lane & 1) || first + lane >= threads.size()) continue;
    const Thread& thread = threads[first + lane];
    if (thread.state == State::kExited) Fail("a warp operation waits for a lane that has exited");
    if (thread.state != State::kAtWarpBarrier || thread.mask != mask) return;
  }
  for (size_t lane = 0; lane < kWarp && first + lane < threads.size(); ++lane) {
    if (mask >> lane & 1) threads[first + lane].state = State::kReady;
  }
}

// Runs the warp that starts at thread `first` until it can go no further; false if it could not go at all.
bool Block::RunWarp(size_t first, bool ascending, size_t* left) {
  const size_t lanes = std::min<size_t>(kWarp, threads.size() - first);
  for (bool progress = false, any = false;; progress = true) {
    any = false;
    for (size_t i = 0; i < lanes; ++i) {
      Thread& thread = threads[first + (ascending ? i : lanes - 1 - i)];
      if (thread.state != State::kReady) continue;
      any = true;
      Resume(thread);
      if (thread.state == State::kExited) --*left;
    }
    if (!any) return progress;
  }
}

void Block::Run(dim3 grid, dim3 dim, uint3 at) {
  const size_t count = size_t{dim.x} * dim.y * dim.z;
  threads.assign(count, Thread());
  for (size_t t = 0; t < count; ++t) {
    const auto i = static_cast<unsigned>(t);
    threads[t].at = {{i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)}, at, dim, grid};
  }
  std::memset(shared.data(), kPoison, shared_bytes + kGuardBytes);
  const size_t warps = (count + kWarp - 1) / kWarp;
  const bool ascending = (at.x + at.y + at.z) % 2 == 0;
  for (size_t left = count; left > 0;) {
    bool progress = false;
    for (size_t w = 0; w < warps; ++w)
      progress = RunWarp((ascending ? w : warps - 1 - w) * kWarp, ascending, &left) || progress;
    if (!progress) Fail("the threads of this block wait for each other: a barrier that not all of them reach");
  }
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (shared[shared_bytes + i] != static_cast<char>(kPoison)) Fail("a write beyond the dynamic shared memory");
  }
}

struct Grid {
  dim3 grid, block;
  size_t shared_bytes;
  std::function<void()> thread;
};

// A CUDA thread that touches memory which is not there ends its grid and loses the device, as on a GPU; the fibers that
// were left in the middle are given up.
thread_local bool t_running = false;
thread_local sigjmp_buf t_before_grid;

void OnFault(int signal) {
  if (!t_running) {  // not ours
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  const Coordinates& c = Here();
  std::fprintf(stderr, "cuda emulation: block (%u, %u, %u), thread (%u, %u, %u): illegal address\n", c.block.x,
               c.block.y, c.block.z, c.thread.x, c.thread.y, c.thread.z);
  siglongjmp(t_before_grid, 1);
}

void RunLaunch(const Grid& launch) {
  static const bool installed = std::signal(SIGSEGV, OnFault) != SIG_ERR && std::signal(SIGBUS, OnFault) != SIG_ERR;
  if (!installed) Fail("no signal handler");
  if (sigsetjmp(t_before_grid, 1) == 0) {
    t_running = true;
    RunGrid(launch.grid, launch.block, launch.shared_bytes, launch.thread);
  } else {
    t_block.idle.clear();
    cudaDoubleLoseDevice(cudaErrorIllegalAddress);
  }
  t_running = false;
}

}  // namespace

const Coordinates& Here() { return t_block.running->at; }
int Lane() { return static_cast<int>(Index(*t_block.running) % kWarp); }
char* DynamicShared() { return t_block.shared.data(); }

void SyncThreads() {
  Block& block = t_block;
  block.running->state = State::kAtBlockBarrier;
  block.ReleaseBlock();
  SwitchToScheduler();
}

void SyncWarp(unsigned mask) {
  Block& block = t_block;
  const size_t self = Index(*block.running), first = self / kWarp * kWarp;
  if (!(mask >> (self - first) & 1)) Fail("a warp operation whose mask lacks the calling lane");
  block.running->state = State::kAtWarpBarrier;
  block.running->mask = mask;
  block.ReleaseWarp(first, mask);
  SwitchToScheduler();
}

void Show(const void* value, size_t bytes, const char* (&lanes)[kWarp]) {
  Block& block = t_block;
  if (bytes > kMostShared) Fail("a warp shows too many bytes");
  std::memcpy(block.running->shown, value, bytes);
  const size_t first = Index(*block.running) / kWarp * kWarp;
  SyncWarp(~0u);
  for (size_t lane = 0; lane < kWarp; ++lane)
    lanes[lane] = first + lane < block.threads.size() ? block.threads[first + lane].shown : nullptr;
}

void CopyLater(void* to, const void* from, size_t bytes) { t_block.running->copies.push_back({to, from, bytes}); }

void CommitCopies() { t_block.running->groups.push_back(t_block.running->copies.size()); }

void WaitForCopies(size_t groups_left) {
  Thread& self = *t_block.running;
  if (self.groups.size() <= groups_left) return;
  const auto last = self.groups.end() - static_cast<std::ptrdiff_t>(groups_left);
  const size_t count = *(last - 1);
  for (size_t i = 0; i < count; ++i) {
    const Copy& copy = self.copies[i];
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(count));
  self.groups.erase(self.groups.begin(), last);
  for (size_t& end : self.groups) end -= count;
}

uint64_t Exchange(unsigned mask, uint64_t value, int from_lane) {
  Block& block = t_block;
  Thread& self = *block.running;
  self.value = value;
  SyncWarp(mask);
  const size_t from = Index(self) / kWarp * kWarp + static_cast<size_t>(from_lane);
  if (!(mask >> from_lane & 1) || from >= block.threads.size()) Fail("a shuffle from a lane outside its mask");
  const uint64_t result = block.threads[from].value;
  SyncWarp(mask);
  return result;
}

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  Block& here = t_block;
  here.body = &thread;
  here.shared_bytes = shared_bytes;
  here.shared.resize(kSharedLimit + kGuardBytes);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) here.Run(grid, block, {x, y, z});
    }
  }
}

cudaError_t Enqueue(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                    std::function<void()> thread) {
  const bool block_fits = block.x > 0 && block.y > 0 && block.z > 0 && block.z <= 64 &&
                          uint64_t{block.x} * block.y * block.z <= kMaxThreads;
  const bool grid_fits =
      grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535;
  if (!block_fits || !grid_fits || shared_bytes > kSharedLimit) return cudaErrorInvalidConfiguration;
  const auto run = [](void* data) { RunLaunch(*static_cast<const Grid*>(data)); };
  return cudaDoubleLaunch(kernel, stream, run, new Grid{grid, block, shared_bytes, std::move(thread)},
                          [](void* data) { delete static_cast<Grid*>(data); });
}

}  // namespace switchyard::emulation
