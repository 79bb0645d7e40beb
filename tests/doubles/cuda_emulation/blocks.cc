#undef _FORTIFY_SOURCE  // its longjmp refuses to leave a stack upwards, as a fault on the stack of a fiber does
#include "tests/doubles/cuda_emulation/blocks.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"

namespace switchyard::emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10, kGuardBytes = 256, kSharedLimit = 48 << 10;
constexpr int kPoison = 0xFF;  // not a number as f32, bf16 and f16
constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

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

// Where code was left, for the compiler's own setjmp and longjmp: unlike the C library's they know of no cleanups, and
// take a stack as it is.
using Context = void* [5];

struct Fiber {  // a stack, and where it was left
  std::unique_ptr<char[]> stack = Stacks::Shared().Take();
  Context context;
  ~Fiber() { Stacks::Shared().Give(std::move(stack)); }
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

// Which lanes of a warp can go on, have met at a barrier of the warp, each with its mask, and are done. Those that are
// none of this wait at the block's barrier. A bit each.
struct Warp {
  unsigned lanes = 0, ready = 0, met = 0, exited = 0;
  unsigned masks[kWarp];
};

struct Thread {
  Coordinates at;
  size_t warp = 0;
  unsigned lane = 0;
  Fiber* fiber = nullptr;  // null before its first instruction
  // What it shows to its warp: in turn in the first two places to the whole warp, in the third to some lanes.
  char shown[3][kMostShared];
  unsigned turn = 0;
  std::vector<Copy> copies;    // not made yet, oldest first
  std::vector<size_t> groups;  // where each group that is not complete ends among them
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::vector<char> shared;
  const std::function<void()>* body = nullptr;
  Thread* running = nullptr;
  Context scheduler;
  size_t shared_bytes = 0;
  size_t waiting = 0, exited = 0;  // threads at the block's barrier, and those that are done
  bool ascending = true;           // the order of warps and lanes, where it is not
  bool shuffled = false;
  std::minstd_rand random;  // the order where it is
  std::vector<size_t> block_order, warp_order, lane_order;
  Observer* observer = nullptr;

  void Run(dim3 grid, dim3 block, uint3 at);
  void Begin(dim3 grid, dim3 block, uint3 at);
  bool RunWarp(size_t warp);
  void SetOrder(std::vector<size_t>* items, size_t count, bool upwards);
  Thread& ThreadOf(size_t warp, unsigned lane) { return threads[warp * kWarp + lane]; }
  Thread* FirstReady(size_t warp);
  Thread* NextReady();
  void Resume(Thread& thread);
  void Leave();
  void Exit();
  void ReleaseBlock();
  void MeetWarp(unsigned mask, bool ordered);
  void ReleaseWarp(size_t warp, unsigned mask, bool ordered);
  size_t Show(unsigned mask, const void* value, size_t bytes);
};

// Of the host thread, where it runs a grid. A pointer, since what has a destructor is looked for anew by every access.
constinit thread_local Block* t_block = nullptr;

std::atomic<uint64_t>& Seed() {
  static std::atomic<uint64_t> seed(static_cast<uint64_t>(doubles::NumberFrom("CUDA_EMULATION_SEED", 0, 0, INT32_MAX)));
  return seed;
}
std::atomic<Observer* (*)()> g_observer{nullptr};

[[noreturn]] void Fail(const char* what) {
  const Coordinates& c = Here();
  std::fprintf(stderr, "cuda emulation: block (%u, %u, %u), thread (%u, %u, %u): %s\n", c.block.x, c.block.y, c.block.z,
               c.thread.x, c.thread.y, c.thread.z, what);
  std::abort();
}

// The first lane of the warp, in its order, that can go on; null: none can.
Thread* Block::FirstReady(size_t warp) {
  const unsigned ready = warps[warp].ready;
  if (ready == 0) return nullptr;
  return &ThreadOf(warp, static_cast<unsigned>(ascending ? std::countr_zero(ready) : std::bit_width(ready) - 1));
}

// The lane that comes after the running one in the order of its warp, and after the last the first; null: none can go
// on.
Thread* Block::NextReady() {
  const unsigned ready = warps[running->warp].ready, lower = (1u << running->lane) - 1, self = 1u << running->lane;
  const unsigned later = ready & (ascending ? ~(lower | self) : lower);
  if (later == 0) return FirstReady(running->warp);
  return &ThreadOf(running->warp,
                   static_cast<unsigned>(ascending ? std::countr_zero(later) : std::bit_width(later) - 1));
}

// The running thread goes on when its turn has come again. Another lane of its warp goes on at once, where the order is
// no matter of chance and nobody watches; else the scheduler finds who does.
void Block::Leave() {
  Thread* const next = shuffled || observer != nullptr ? nullptr : NextReady();
  if (next == running) return;
  if (observer != nullptr) observer->Pauses();
  if (__builtin_setjmp(running->fiber->context) != 0) return;
  if (next == nullptr || next->fiber == nullptr) __builtin_longjmp(scheduler, 1);
  running = next;
  __builtin_longjmp(next->fiber->context, 1);
}

void Block::Exit() {
  Warp& warp = warps[running->warp];
  warp.ready &= ~(1u << running->lane);
  warp.exited |= 1u << running->lane;
  ++exited;
  idle.push_back(running->fiber);
  ReleaseBlock();
}

// First function on a new stack: runs one CUDA thread after another, as the scheduler hands them to this fiber.
void FiberMain() {
  for (;;) {
    Block& block = *t_block;
    (*block.body)();
    block.Exit();
    Thread* const next = block.shuffled || block.observer != nullptr ? nullptr : block.NextReady();
    if (next != nullptr && next->fiber == nullptr) {  // a lane that has not begun: here and now
      next->fiber = block.idle.back();
      block.idle.pop_back();
      block.running = next;
    } else {
      block.Leave();
    }
  }
}

void Block::Resume(Thread& thread) {
  running = &thread;
  if (__builtin_setjmp(scheduler) != 0) return;
  bool fresh = false;
  if (thread.fiber == nullptr && !idle.empty()) {
    thread.fiber = idle.back();
    idle.pop_back();
  } else if (thread.fiber == nullptr) {
    fibers.push_back(std::make_unique<Fiber>());
    thread.fiber = fibers.back().get();
    fresh = true;
  }
  if (observer != nullptr) observer->Runs(thread.warp * kWarp + thread.lane, thread.fiber->stack.get(), kStackBytes);
  if (!fresh) __builtin_longjmp(thread.fiber->context, 1);
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
  if (waiting + exited < threads.size()) return;
  waiting = 0;
  for (Warp& warp : warps) warp.ready = warp.lanes & ~warp.exited & ~warp.met;
  if (observer != nullptr) observer->BlockBarrier();
}

void Block::ReleaseWarp(size_t number, unsigned mask, bool ordered) {
  Warp& warp = warps[number];
  const unsigned expected = mask & warp.lanes;
  if ((warp.exited & expected) != 0) Fail("a warp operation waits for a lane that has exited");
  if ((warp.met & expected) != expected) return;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((expected >> lane & 1) != 0 && warp.masks[lane] != mask) return;
  }
  warp.met &= ~expected;
  warp.ready |= expected;
  if (observer == nullptr || !ordered) return;
  if ((warp.lanes & ~warp.exited & ~mask) != 0) Fail("a warp barrier of some of its lanes, which nobody can watch yet");
  observer->WarpBarrier(number);
}

void Block::MeetWarp(unsigned mask, bool ordered) {
  Warp& warp = warps[running->warp];
  const unsigned self = 1u << running->lane;
  if ((mask & self) == 0) Fail("a warp operation whose mask lacks the calling lane");
  warp.ready &= ~self;
  warp.met |= self;
  warp.masks[running->lane] = mask;
  ReleaseWarp(running->warp, mask, ordered);
  Leave();
}

// Shows bytes to the lanes of `mask`, and returns the place in which each of them shows its own. What the whole warp
// shows stays for one more time that it does: no lane passes that before all have read.
size_t Block::Show(unsigned mask, const void* value, size_t bytes) {
  const size_t place = mask == ~0u ? running->turn++ % 2 : 2;
  std::memcpy(running->shown[place], value, bytes);
  MeetWarp(mask, false);
  return place;
}

// Where warps or lanes are taken: 0 … count - 1, upwards, downwards or in an order of chance.
void Block::SetOrder(std::vector<size_t>* items, size_t count, bool upwards) {
  items->resize(count);
  std::iota(items->begin(), items->end(), size_t{0});
  if (shuffled) {
    std::shuffle(items->begin(), items->end(), random);
  } else if (!upwards) {
    std::reverse(items->begin(), items->end());
  }
}

// Runs the warp until it can go no further, or until each lane has met one barrier where the order is shuffled; false
// if it could not go at all.
bool Block::RunWarp(size_t number) {
  Warp& warp = warps[number];
  if (warp.ready == 0) return false;
  if (!shuffled) {
    for (Thread* next = FirstReady(number); next != nullptr; next = NextReady()) Resume(*next);
    return true;
  }
  SetOrder(&lane_order, static_cast<size_t>(std::popcount(warp.lanes)), true);
  for (const size_t lane : lane_order) {
    if ((warp.ready >> lane & 1) != 0) Resume(ThreadOf(number, static_cast<unsigned>(lane)));
  }
  return true;
}

void Block::Begin(dim3 grid, dim3 dim, uint3 at) {
  const size_t count = size_t{dim.x} * dim.y * dim.z;
  threads.resize(count);
  warps.resize((count + kWarp - 1) / kWarp);
  waiting = exited = 0;
  for (size_t t = 0; t < count; ++t) {
    const auto i = static_cast<unsigned>(t);
    Thread& thread = threads[t];
    thread.at = {{i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)}, at, dim, grid};
    thread.warp = t / kWarp;
    thread.lane = i % kWarp;
    thread.fiber = nullptr;
    thread.turn = 0;
    thread.copies.clear();
    thread.groups.clear();
  }
  for (size_t w = 0; w < warps.size(); ++w) {
    const size_t lanes = std::min<size_t>(kWarp, count - w * kWarp);
    warps[w].lanes = warps[w].ready = ~0u >> (kWarp - lanes);
    warps[w].met = warps[w].exited = 0;
  }
  std::memset(shared.data(), kPoison, shared_bytes + kGuardBytes);
  ascending = (at.x + at.y + at.z) % 2 == 0;
}

void Block::Run(dim3 grid, dim3 dim, uint3 at) {
  Begin(grid, dim, at);
  const size_t count = threads.size();
  if (observer != nullptr) observer->BlockStarts(count, shared_bytes, threads.data(), count * sizeof(Thread));
  while (exited < count) {
    bool progress = false;
    SetOrder(&warp_order, warps.size(), ascending);
    for (const size_t warp : warp_order) progress = RunWarp(warp) || progress;
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
    t_block->idle.clear();
    if (t_block->observer != nullptr) t_block->observer->Pauses();
    cudaDoubleLoseDevice(cudaErrorIllegalAddress);
  }
  t_running = false;
}

}  // namespace

const Coordinates& Here() { return t_block->running->at; }
int Lane() { return static_cast<int>(t_block->running->lane); }
char* DynamicShared() { return t_block->shared.data(); }

void SyncThreads() {
  Block& block = *t_block;
  block.warps[block.running->warp].ready &= ~(1u << block.running->lane);
  ++block.waiting;
  block.ReleaseBlock();
  block.Leave();
}

void SyncWarp(unsigned mask) { t_block->MeetWarp(mask, true); }

Shown Show(const void* value, size_t bytes) {
  Block& block = *t_block;
  const Thread& self = *block.running;
  if (bytes > kMostShared) Fail("a warp shows too many bytes");
  if (block.warps[self.warp].lanes != ~0u) Fail("a warp without all of its lanes shows what it has");
  const size_t place = block.Show(~0u, value, bytes);
  return {block.ThreadOf(self.warp, 0).shown[place], sizeof(Thread)};
}

void CopyLater(void* to, const void* from, size_t bytes) {
  t_block->running->copies.push_back({to, from, bytes});
  if (t_block->observer != nullptr) t_block->observer->CopyStarts(to, from, bytes, __builtin_return_address(0));
}

void CommitCopies() { t_block->running->groups.push_back(t_block->running->copies.size()); }

void WaitForCopies(size_t groups_left) {
  Thread& self = *t_block->running;
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
    if (t_block->observer != nullptr) t_block->observer->CopyEnds(copy.to, copy.bytes, __builtin_return_address(0));
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(count));
  self.groups.erase(self.groups.begin(), last);
  for (size_t& end : self.groups) end -= count;
}

uint64_t Exchange(unsigned mask, uint64_t value, int from_lane) {
  Block& block = *t_block;
  const size_t warp = block.running->warp, place = block.Show(mask, &value, sizeof value);
  if (((mask & block.warps[warp].lanes) >> from_lane & 1) == 0) Fail("a shuffle from a lane outside its mask");
  uint64_t result;
  std::memcpy(&result, block.ThreadOf(warp, static_cast<unsigned>(from_lane)).shown[place], sizeof result);
  if (mask != ~0u) block.MeetWarp(mask, false);
  return result;
}

void RunGrid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  thread_local Block here;
  t_block = &here;
  here.body = &thread;
  here.shared_bytes = shared_bytes;
  here.shared.resize(kSharedLimit + kGuardBytes);
  const uint64_t seed = Seed();
  here.shuffled = seed != 0;
  here.random.seed(static_cast<unsigned>(seed));
  Observer* (*const observer)() = g_observer;
  here.observer = observer != nullptr ? observer() : nullptr;
  here.SetOrder(&here.block_order, size_t{grid.x} * grid.y * grid.z, true);
  if (here.observer != nullptr) here.observer->GridStarts();
  for (const size_t at : here.block_order) {
    const size_t row = at / grid.x;
    here.Run(
        grid, block,
        {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(row % grid.y), static_cast<unsigned>(row / grid.y)});
  }
  if (here.observer != nullptr) here.observer->GridEnds();
}

extern "C" void cudaEmulationShuffle(uint64_t seed) { Seed() = seed; }
void SetObserver(Observer* (*of_this_thread)()) { g_observer = of_this_thread; }

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
