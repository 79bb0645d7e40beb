// Finds races in kernels that run on the emulation. Linked beside blocks.cc into a program whose kernels were compiled
// with -fsanitize=thread, it takes the calls that the compiler put before each access (the library of the thread
// sanitizer is not there) and ends the process after a grid in which
//   - two threads of a block met at a byte of shared or global memory, at least one of them writing and not both by
//     atomic operations, with no __syncthreads between them, nor a __syncwarp if they are of one warp
//   - two blocks met at a byte of global memory in that way: nothing orders blocks of one grid
//   - anybody, the thread itself too, touched memory into which an asynchronous copy was under way
// Whether two accesses are ordered does not depend on the order in which the emulation ran them, so one run of a kernel
// tells for all orders of the same accesses. Shuffles and products of matrices keep a warp together, but order no
// memory. Every access that was made since the last barrier counts, by the byte. Of a block that runs no more it is
// kept whether one block or several came, of a thread whether others of its warp or other warps did: that is all that a
// race depends on. Not thread-safe, but each host thread has its own.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/doubles/cuda_emulation/blocks.h"

namespace switchyard::emulation {
namespace {

constexpr size_t kWarpLanes = 32, kWord = 4, kPageWords = 1024, kMostReports = 4;

enum Kind { kRead, kWrite, kAtomic };
constexpr bool Conflict(Kind a, Kind b) { return a != b || a == kWrite; }

// Who has made accesses of one kind to one place.
struct Accesses {
  uint32_t interval = 0;  // between which two barriers the latest were, counted over all blocks; the rest is of those
  uint32_t warps = 0, clock = 0, lanes = 0;  // their warps; lanes of the latest warp since its barrier number `clock`
  uint32_t block = 0;                        // of the latest, counted from 1; 0: there was none
  bool of_several_blocks = false;
  uint16_t thread = 0;  // the latest, and its instruction
  uintptr_t code = 0;
};

// A word or a byte of memory.
struct Place {
  uint32_t owner = 0;      // the grid, of shared memory the block, that the rest belongs to
  uint16_t copying = 0;    // the thread whose copy is under way, counted from 1
  bool has_bytes = false;  // of a word: its bytes have been accessed one by one
  Accesses by[3];
};

struct Page {  // words, and their bytes once anybody asks for them
  std::unique_ptr<Place[]> words{new Place[kPageWords]}, bytes;
};

struct Range {
  uintptr_t start = 0;
  size_t size = 0;
  bool Has(uintptr_t address) const { return address - start < size; }
};

// Where the static shared memory of this module is for the calling thread: all of the module's thread-local variables.
thread_local char t_anchor = 0;
Range StaticShared() {
  *const_cast<volatile char*>(&t_anchor) = 0;  // makes them be there
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* found) {
        Range tls;
        bool ours = false;
        for (int i = 0; i < module->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = module->dlpi_phdr[i];
          const Range loaded{module->dlpi_addr + part.p_vaddr, part.p_memsz};
          if (part.p_type == PT_LOAD) ours = ours || loaded.Has(reinterpret_cast<uintptr_t>(&StaticShared));
          if (part.p_type == PT_TLS) tls = {reinterpret_cast<uintptr_t>(module->dlpi_tls_data), part.p_memsz};
        }
        if (ours) *static_cast<Range*>(found) = tls;
        return ours ? 1 : 0;
      },
      &range);
  return range;
}

class Races;
thread_local Races* t_watching = nullptr;  // while a CUDA thread's instructions run

class Races : public Observer {
 public:
  void GridStarts() override {
    ++grid_;
    static_shared_ = StaticShared();
  }
  void GridEnds() override {
    if (reports_ == 0) return;
    std::fprintf(stderr, "cuda emulation: a grid with races\n");
    std::abort();
  }
  void BlockStarts(size_t threads, size_t shared_bytes, const void* own, size_t own_bytes) override {
    ++block_, ++interval_;
    block_of_grid_ = 0;
    warp_clock_.assign((threads + kWarpLanes - 1) / kWarpLanes, 0);
    shared_ = {reinterpret_cast<uintptr_t>(DynamicShared()), shared_bytes};
    own_ = {reinterpret_cast<uintptr_t>(own), own_bytes};
  }
  void BlockBarrier() override { ++interval_; }
  void WarpBarrier(size_t warp) override { ++warp_clock_[warp]; }
  void Runs(size_t thread, const char* stack, size_t stack_bytes) override {
    if (block_of_grid_ == 0) block_of_grid_ = BlockNumber();
    thread_ = static_cast<uint16_t>(thread);
    warp_ = thread / kWarpLanes;
    stack_ = {reinterpret_cast<uintptr_t>(stack), stack_bytes};
    t_watching = this;
  }
  void Pauses() override { t_watching = nullptr; }
  void CopyStarts(void* to, const void* from, size_t bytes, const void* code) override {
    const auto address = reinterpret_cast<uintptr_t>(to);
    if (from != nullptr) Access(kRead, reinterpret_cast<uintptr_t>(from), bytes, reinterpret_cast<uintptr_t>(code));
    Access(kWrite, address, bytes, reinterpret_cast<uintptr_t>(code));
    for (size_t at = 0; at < bytes; at += kWord) Word(address + at)->copying = static_cast<uint16_t>(thread_ + 1);
  }
  void CopyEnds(void* to, size_t bytes, const void* code) override {
    const auto address = reinterpret_cast<uintptr_t>(to);
    for (size_t at = 0; at < bytes; at += kWord) Word(address + at)->copying = 0;
    Access(kWrite, address, bytes, reinterpret_cast<uintptr_t>(code));
  }

  void Access(Kind kind, uintptr_t address, size_t bytes, uintptr_t code) {
    if (stack_.Has(address) || own_.Has(address)) return;
    Races* const watching = std::exchange(t_watching, nullptr);  // what this calls may have been compiled like a kernel
    for (const uintptr_t end = address + bytes; address < end;) {
      const size_t in_word = address % kWord, here = std::min<size_t>(kWord - in_word, end - address);
      Page* page = PageOf(address);
      Place& word = Current(page->words[address / kWord % kPageWords]);
      Check(word, kind, address, code);
      if (here == kWord) {
        for (size_t i = 0; word.has_bytes && i < kWord; ++i) Check(Byte(page, address + i), kind, address + i, code);
        Add(&word, kind, code);
      } else {
        word.has_bytes = true;
        for (size_t i = 0; i < here; ++i) {
          Place& byte = Byte(page, address + i);
          Check(byte, kind, address + i, code);
          Add(&byte, kind, code);
        }
      }
      address += here;
    }
    t_watching = watching;
  }

 private:
  bool IsShared(uintptr_t address) const { return shared_.Has(address) || static_shared_.Has(address); }

  Page* PageOf(uintptr_t address) {
    const uintptr_t number = address / (kWord * kPageWords);
    auto& [cached, page] = latest_[number % std::size(latest_)];
    if (cached != number || page == nullptr) cached = number, page = &pages_[number];
    owner_ = IsShared(address) ? block_ : grid_;
    shared_place_ = IsShared(address);
    return page;
  }
  Place& Current(Place& place) const {
    if (place.owner != owner_) place = Place(), place.owner = owner_;
    return place;
  }
  Place* Word(uintptr_t address) { return &Current(PageOf(address)->words[address / kWord % kPageWords]); }
  Place& Byte(Page* page, uintptr_t address) const {
    if (page->bytes == nullptr) page->bytes.reset(new Place[kPageWords * kWord]);
    return Current(page->bytes[address % (kPageWords * kWord)]);
  }

  static uint32_t BlockNumber() {
    const Coordinates& c = Here();
    return c.block.x + c.grid_dim.x * (c.block.y + c.grid_dim.y * c.block.z) + 1;
  }

  void Check(const Place& place, Kind kind, uintptr_t address, uintptr_t code) {
    if (place.copying != 0) Report(place, kind, kWrite, "a copy that was not waited for", address, code);
    const uint32_t warp = 1u << warp_, lane = 1u << (thread_ % kWarpLanes);
    for (const Kind other : {kRead, kWrite, kAtomic}) {
      if (!Conflict(kind, other)) continue;
      const Accesses& a = place.by[other];
      if (a.interval == interval_ &&
          ((a.warps & ~warp) != 0 || (a.warps != 0 && a.clock == warp_clock_[warp_] && (a.lanes & ~lane) != 0)))
        Report(place, kind, other, "no barrier between them", address, code);
      if (!shared_place_ && a.block != 0 && (a.of_several_blocks || a.block != block_of_grid_))
        Report(place, kind, other, "blocks have no order", address, code);
    }
  }
  void Add(Place* place, Kind kind, uintptr_t code) const {
    Accesses& a = place->by[kind];
    const uint32_t warp = 1u << warp_, lane = 1u << (thread_ % kWarpLanes), clock = warp_clock_[warp_];
    if (a.interval != interval_) a.interval = interval_, a.warps = 0;
    if (a.warps != warp || a.clock != clock) a.lanes = 0;
    a.warps |= warp, a.clock = clock, a.lanes |= lane;
    a.of_several_blocks = a.of_several_blocks || (a.block != 0 && a.block != block_of_grid_);
    a.block = block_of_grid_, a.thread = thread_, a.code = code;
  }

  // Each pair of instructions once.
  void Report(const Place& place, Kind kind, Kind other, const char* why, uintptr_t address, uintptr_t code) {
    static const char* const kWords[] = {"reads", "writes", "adds to"};
    const Accesses& a = place.by[other];
    const bool known = reported_[{code, a.code}]++ != 0;
    ++reports_;
    if (known || reported_.size() > kMostReports) return;
    const Coordinates& c = Here();
    char where[64];
    if (shared_.Has(address)) {
      std::snprintf(where, sizeof where, "byte %zu of the dynamic shared memory", address - shared_.start);
    } else {
      std::snprintf(where, sizeof where, "%s memory at %#zx", shared_place_ ? "shared" : "global", address);
    }
    std::fprintf(stderr, "cuda emulation: a race: %s. Block (%u, %u, %u), thread %u %s %s\n", why, c.block.x, c.block.y,
                 c.block.z, unsigned{thread_}, kWords[kind], where);
    PrintPlace(code);
    std::fprintf(stderr, "  and block number %u, thread %u %s it (the latest that did)\n", a.block - 1,
                 unsigned{a.thread}, kWords[other]);
    PrintPlace(a.code);
  }
  // The function and line of an instruction, as addr2line knows them.
  static void PrintPlace(uintptr_t code) {
    Dl_info module;
    if (code == 0 || dladdr(reinterpret_cast<void*>(code), &module) == 0) return;
    std::fprintf(stderr, "    %s+%#zx\n", module.dli_fname, code - 1 - reinterpret_cast<uintptr_t>(module.dli_fbase));
    char command[512];
    std::snprintf(command, sizeof command, "addr2line -Cfpise '%s' %#zx 2>/dev/null | sed 's/^/    /' >&2",
                  module.dli_fname, code - 1 - reinterpret_cast<uintptr_t>(module.dli_fbase));
    std::fflush(stderr);
    if (std::system(command) != 0) std::fprintf(stderr, "    (addr2line is not there)\n");
  }

  struct Hash {
    size_t operator()(const std::pair<uintptr_t, uintptr_t>& p) const { return p.first * 31 + p.second; }
  };
  uint32_t grid_ = 0, block_ = 0, interval_ = 0, block_of_grid_ = 0;
  uint16_t thread_ = 0;
  size_t warp_ = 0;
  std::vector<uint32_t> warp_clock_;
  Range shared_, static_shared_, stack_, own_;
  std::unordered_map<uintptr_t, Page> pages_;
  std::pair<uintptr_t, Page*> latest_[256] = {};
  uint32_t owner_ = 0;         // of the place that is looked at
  bool shared_place_ = false;  // the same
  std::unordered_map<std::pair<uintptr_t, uintptr_t>, int, Hash> reported_;
  size_t reports_ = 0;
};

Observer* OfThisThread() {
  thread_local Races races;
  return &races;
}
[[maybe_unused]] const bool kSet = (SetObserver(OfThisThread), true);

}  // namespace

// An instruction of this kind, for the calls below.
__attribute__((always_inline)) inline void Watch(Kind kind, const void* address, size_t bytes, const void* code) {
  if (Races* const races = t_watching; races != nullptr)
    races->Access(kind, reinterpret_cast<uintptr_t>(address), bytes, reinterpret_cast<uintptr_t>(code));
}

}  // namespace switchyard::emulation

// What g++ and clang++ call under -fsanitize=thread (sanitizer/tsan_interface.h and compiler-rt/lib/tsan).
#define HIDDEN __attribute__((visibility("hidden")))
#define WATCH(kind, address, bytes) \
  ::switchyard::emulation::Watch(::switchyard::emulation::kind, address, bytes, __builtin_return_address(0))
using T8 = uint8_t;
using T32 = uint32_t;
using T64 = uint64_t;
#define ACCESSES(bytes)                                                                     \
  HIDDEN void __tsan_read##bytes(void* address) { WATCH(kRead, address, bytes); }           \
  HIDDEN void __tsan_write##bytes(void* address) { WATCH(kWrite, address, bytes); }         \
  HIDDEN void __tsan_unaligned_read##bytes(void* address) { WATCH(kRead, address, bytes); } \
  HIDDEN void __tsan_unaligned_write##bytes(void* address) { WATCH(kWrite, address, bytes); }
#define ATOMIC(bits, type, name, parameters, operation)                                 \
  HIDDEN type __tsan_atomic##bits##_##name(volatile T##bits* address, parameters int) { \
    WATCH(kAtomic, const_cast<T##bits*>(address), sizeof(T##bits));                     \
    return operation;                                                                   \
  }
#define VALUE(bits) T##bits value,
#define PAIR(bits) T##bits *expected, T##bits value, int,
#define FETCH(bits, name) ATOMIC(bits, T##bits, name, VALUE(bits), __atomic_##name(address, value, __ATOMIC_SEQ_CST))
#define COMPARE(bits, name)           \
  ATOMIC(bits, int, name, PAIR(bits), \
         __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define ATOMICS(bits)                                                                                 \
  ATOMIC(bits, T##bits, load, , __atomic_load_n(address, __ATOMIC_SEQ_CST))                           \
  ATOMIC(bits, void, store, VALUE(bits), __atomic_store_n(address, value, __ATOMIC_SEQ_CST))          \
  ATOMIC(bits, T##bits, exchange, VALUE(bits), __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST)) \
  FETCH(bits, fetch_add)                                                                              \
  FETCH(bits, fetch_sub)                                                                              \
  FETCH(bits, fetch_and)                                                                              \
  FETCH(bits, fetch_or)                                                                               \
  COMPARE(bits, compare_exchange_strong)                                                              \
  COMPARE(bits, compare_exchange_weak)

extern "C" {

HIDDEN void __tsan_init() {}
HIDDEN void __tsan_func_entry(void*) {}
HIDDEN void __tsan_func_exit() {}
HIDDEN void __tsan_vptr_read(void**) {}
HIDDEN void __tsan_vptr_update(void**, void*) {}
HIDDEN void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }  // orders nothing here
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
HIDDEN void __tsan_read_range(void* address, size_t bytes) { WATCH(kRead, address, bytes); }
HIDDEN void __tsan_write_range(void* address, size_t bytes) { WATCH(kWrite, address, bytes); }
ATOMICS(8)
ATOMICS(32)
ATOMICS(64)

}  // extern "C"
