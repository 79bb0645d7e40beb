// Communicators and memory: everything but the calls that move data.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "tests/doubles/cuda_runtime/enqueue.h"
#include "tests/doubles/faults.h"
#include "tests/doubles/nccl/communicator.h"

namespace nccl_double {
namespace {

using doubles::Outcome;

struct Member {
  int color, key, rank;
};

// Memory from ncclMemAlloc, by address, and who has registered it.
struct Memory {
  std::mutex mutex;
  std::map<const char*, size_t> blocks;
  std::map<const void*, ncclComm_t> windows, registrations;
};
Memory& TheMemory() {
  static auto& memory = *new Memory;
  return memory;
}

// Is the range memory of ncclMemAlloc?
bool IsOwned(const void* address, size_t bytes) {
  std::lock_guard lock(TheMemory().mutex);
  auto next = TheMemory().blocks.upper_bound(static_cast<const char*>(address));
  if (next == TheMemory().blocks.begin()) return false;
  --next;
  return static_cast<const char*>(address) + bytes <= next->first + next->second;
}

// Ranks agree on `value`; what differs would hang in the real library, and does here.
ncclResult_t Agree(ncclComm& comm, uint64_t value) {
  std::vector<uint64_t> all(comm.size);
  if (comm.control.AllGather(&value, sizeof value, all.data(), value) == Outcome::kDone) return ncclSuccess;
  return comm.Fail(ncclRemoteError, "a rank left");
}

int CurrentDevice() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

struct Registration {
  ncclComm_t comm;
  void* address;
};

int Version() {
  static const int version =
      static_cast<int>(doubles::NumberFrom("NCCL_DOUBLE_VERSION", NCCL_VERSION_CODE, 1, 10'000'000));
  return version;
}

// Ends the program where the library would go on beside the thread of the call in progress.
void RequireSettled(const ncclComm& comm, const char* call) {
  if (comm.InProgress()) Die(std::string(call) + " while the communicator is in progress");
}

// Ends the program where the library would take the device that the thread happens to have: "the CUDA device has to be
// set before" (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/comms.html#ncclcomminitrank).
void RequireDevice(const char* call) {
  if (!cudaDoubleHasContext()) Die(std::string(call) + " on a thread that has not called cudaSetDevice");
}

// Ends the program where the library would put the call off, and give what it gives at the end of the group.
void RequireNoGroup(const char* call) {
  if (InGroup()) Die(std::string(call) + " inside an open group");
}

}  // namespace
}  // namespace nccl_double

using namespace nccl_double;

struct ncclWindow_vidmem {
  void* address;
};

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = Version();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code) {
  constexpr const char* kTexts[ncclNumResults] = {"no error",
                                                  "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                                  "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                                  "internal error",
                                                  "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                                  "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                                  "remote process exited or there was a network error",
                                                  "NCCL operation in progress"};
  return code >= 0 && code < ncclNumResults ? kTexts[code] : "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made{0};
  if (Strikes("id")) return FailWithout(ncclSystemError, "Bootstrap : no socket interface found");
  *id = {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id->internal, sizeof id->internal, "nccl-double/%d/%d/%lld", getpid(), made++,
                static_cast<long long>(now));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  RequireDevice("ncclCommInitRankConfig");
  *handle = nullptr;
  if (size < 1 || rank < 0 || rank >= size) return FailWithout(ncclInvalidArgument, "invalid rank or number of ranks");
  if (config != nullptr && config->magic != 0xcafebeef)
    return FailWithout(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  const bool blocking = config == nullptr || config->blocking != 0;
  const auto comm = std::make_shared<ncclComm>(std::string(id.internal, strnlen(id.internal, sizeof id.internal)), rank,
                                               size, CurrentDevice(), blocking);
  *handle = Add(comm);
  return comm->Apart([comm] { return comm->Join(); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(handle, size, id, rank, nullptr);
}

// Succeeds once this rank's work is done, the graphs that hold calls are gone, and all ranks have called it.
ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return comm->End(ready);
  return comm->Apart([comm = comm.get()] {
    while (comm->unfinished() > 0 && !comm->control.aborted()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    comm->WaitForGraphs();
    return Agree(*comm, 0xF1);
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  comm->WaitForGraphs();
  Remove(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  RequireNoGroup("ncclCommAbort");
  comm->Abort();
  Remove(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* result, ncclConfig_t*) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  RequireNoGroup("ncclCommSplit");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  *result = nullptr;
  const int number = comm->splits++;
  const ncclResult_t code = comm->Apart([comm = comm.get(), color, key, result, number]() -> ncclResult_t {
    const Member own{color, key, comm->rank};
    std::vector<Member> all(comm->size, own);
    const bool met = comm->control.AllGather(&own, sizeof own, all.data(), 0x5B) == Outcome::kDone;
    const auto missed = [&] { return comm->Fail(ncclRemoteError, "a rank left while splitting"); };
    if (color == NCCL_SPLIT_NOCOLOR) return met ? ncclSuccess : missed();
    std::erase_if(all, [&](const Member& member) { return member.color != color; });
    std::stable_sort(all.begin(), all.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
    int rank = 0;
    while (all[rank].rank != comm->rank) ++rank;
    const auto made =
        std::make_shared<ncclComm>(comm->name + "/" + std::to_string(number) + "." + std::to_string(color), rank,
                                   static_cast<int>(all.size()), comm->device, comm->blocking);
    comm->Raise(made);
    const ncclResult_t joined = met ? made->Join() : missed();
    comm->Raise(nullptr);
    made->End(joined);
    __atomic_store_n(result, Add(made), __ATOMIC_RELEASE);
    return joined;
  });
  return code == ncclInProgress ? ncclSuccess : code;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const auto comm = Find(handle);
  return comm == nullptr ? FailWithout(ncclInvalidArgument, "invalid communicator") : comm->Look(state);
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  *count = comm->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
  RequireDevice("ncclMemAlloc");
  *address = nullptr;
  constexpr size_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;
  if (Strikes("memory") || cudaMalloc(address, (bytes + kPage - 1) / kPage * kPage) != cudaSuccess)
    return FailWithout(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
  std::lock_guard lock(TheMemory().mutex);
  TheMemory().blocks[static_cast<const char*>(*address)] = bytes;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* address) {
  {
    std::lock_guard lock(TheMemory().mutex);
    for (auto* const known : {&TheMemory().windows, &TheMemory().registrations}) {
      const auto found = known->find(address);
      if (found == known->end()) continue;
      if (Find(found->second) != nullptr)  // the library would go on to use what was freed
        Die("ncclMemFree: a communicator that lives has registered this memory");
      known->erase(found);
    }
    if (TheMemory().blocks.erase(static_cast<const char*>(address)) == 0)
      return FailWithout(ncclInvalidArgument, "ncclMemFree: not memory of ncclMemAlloc");
  }
  return cudaFree(address) == cudaSuccess ? ncclSuccess : FailWithout(ncclUnhandledCudaError, "Cuda failure");
}

// Local, and done when it returns.
ncclResult_t ncclCommRegister(const ncclComm_t handle, void* address, size_t, void** registration) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  RequireSettled(*comm, "ncclCommRegister");
  *registration = new Registration{handle, address};
  std::lock_guard lock(TheMemory().mutex);
  TheMemory().registrations[address] = handle;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registration) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  RequireSettled(*comm, "ncclCommDeregister");
  const auto* const known = static_cast<Registration*>(registration);
  if (known->comm != handle) return comm->Fail(ncclInvalidArgument, "the registration belongs to another communicator");
  {
    std::lock_guard lock(TheMemory().mutex);
    TheMemory().registrations.erase(known->address);
  }
  delete known;
  return ncclSuccess;
}

// Called by all ranks with the same size.
ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void* address, size_t bytes, ncclWindow_t* window, int) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  static const bool has_windows = doubles::NumberFrom("NCCL_DOUBLE_WINDOWS", 1, 0, 1) != 0;
  RequireNoGroup("ncclCommWindowRegister");
  *window = nullptr;
  if (!has_windows) return ncclSuccess;
  if (const ncclResult_t ready = comm->EnsureReady(); ready != ncclSuccess) return ready;
  if (Strikes("window")) return FailWithout(ncclInvalidUsage, "symmetric memory is not supported here");
  if (!IsOwned(address, bytes)) return comm->Fail(ncclInvalidArgument, "the window is not memory of ncclMemAlloc");
  const bool ruins = Strikes("ruin");
  const ncclResult_t code = comm->Apart([comm = comm.get(), address, bytes, window, ruins]() -> ncclResult_t {
    if (ruins) return comm->Fail(ncclSystemError, "mapping the window failed");
    const ncclResult_t agreed = Agree(*comm, bytes);
    if (agreed != ncclSuccess) return agreed;
    *window = new ncclWindow_vidmem{address};
    std::lock_guard lock(TheMemory().mutex);
    TheMemory().windows[address] = comm;
    return ncclSuccess;
  });
  return code == ncclInProgress && Version() >= NCCL_VERSION(2, 28, 0) ? ncclSuccess : code;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t handle, ncclWindow_t window) {
  const auto comm = Find(handle);
  if (comm == nullptr) return FailWithout(ncclInvalidArgument, "invalid communicator");
  RequireSettled(*comm, "ncclCommWindowDeregister");
  if (Strikes("release")) return FailWithout(ncclUnhandledCudaError, "unmapping the window failed");
  {
    std::lock_guard lock(TheMemory().mutex);
    TheMemory().windows.erase(window->address);
  }
  delete window;
  return ncclSuccess;
}

int ncclDoubleCount(const char* what) {
  const std::string name = what;
  if (name == "communicators") return CountAlive();
  std::lock_guard lock(TheMemory().mutex);
  return static_cast<int>((name == "windows" ? TheMemory().windows : TheMemory().registrations).size());
}

}  // extern "C"
