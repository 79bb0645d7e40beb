#include "collectives/nccl/communicator.h"

#include <stdio.h>
#include <string.h>

#include <exception>
#include <thread>
#include <utility>

#include "core/abi/device.h"

namespace nccl {
namespace {

constexpr char kMemoryKind[] = "cuda";  // as sy_device_info.memory_kind names it
constexpr uint64_t kTokenBytes = 4;
constexpr int kFinalizeMs = 1000;  // how long destroy lets peers finish what they still read from this rank
constexpr int kAbortMs = 5000;     // how long destroy waits for ncclCommAbort

// A call that NCCL takes up at once is the rule: look closely first.
void Pause(int look) {
  if (look < 100) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(look < 1000 ? 20 : 500));
  }
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// NCCL is handed addresses of CUDA device memory and CUDA streams, whoever made them. The device's number at its
// backend is CUDA's own.
sy_status RequireCudaMemory(const sy_init_request& request, sy_error* error) {
  if (request.device == nullptr)
    return SY_FAIL(error, SY_UNSUPPORTED,
                   "nccl joins GPUs, and this rank names host memory; choose another --collective");
  const auto* const device =
      request.backend == nullptr
          ? nullptr
          : static_cast<const sy_device_v2*>(request.backend->get_interface(request.backend->instance, "device/2"));
  if (device == nullptr) return SY_FAIL(error, SY_INVALID, "init names a device, but not the backend that opened it");
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  const sy_status asked = device->query(request.backend->instance, request.device_index, &info, error);
  if (asked != SY_OK) return asked;
  if (strcmp(info.memory_kind, kMemoryKind) == 0) return SY_OK;
  return SY_FAIL(
      error, SY_UNSUPPORTED,
      "nccl reaches memory of kind \"%s\", and that of device %d of the backend \"%s\" is of kind \"%.31s\"; "
      "choose another --collective",
      kMemoryKind, request.device_index, request.backend->name, info.memory_kind);
}

thread_local int group_depth = 0;
thread_local std::vector<NcclCommunicator*> grouped;  // that have calls in this thread's group

}  // namespace

void NcclCommunicator::Describe(const sy_instance&, sy_collective_info& info) {
  static const char* const kMemoryKinds[] = {kMemoryKind, nullptr};
  snprintf(info.name, sizeof info.name, "nccl");
  info.completion = SY_COMPLETES_ON_STREAM;
  info.flags = SY_COLLECTIVE_DISTINCT_DEVICES | SY_COLLECTIVE_PROGRESSES_ALONE | SY_COLLECTIVE_CAPTURABLE;
  info.memory_kinds = kMemoryKinds;
  info.alignment = 256;
  info.libraries = TheLibrary().version.c_str();
}

sy_status NcclCommunicator::Create(const sy_instance& instance, const sy_init_request& request,
                                   std::unique_ptr<NcclCommunicator>* result, sy_error* error) {
  if (FindLibrary(instance, error) == nullptr) return SY_UNSUPPORTED;
  if (const sy_status reached = RequireCudaMemory(request, error); reached != SY_OK) return reached;
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size)
    return SY_FAIL(error, SY_INVALID, "rank %d of %d", request.rank, request.size);
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(request.device_index), "cudaSetDevice");
      set != SY_OK)
    return set;
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(instance, request.name, request.rank, request.size,
                                                              request.device_index, request.timeout_ms));
  made->store_ = request.store;
  if (const sy_status allocated = CheckCuda(error, library.cudaMalloc(&made->token_, kTokenBytes), "cudaMalloc");
      allocated != SY_OK)
    return allocated;
  const std::string here = switchyard::Format("nccl/%s/rank/%d", made->name_.c_str(), made->rank_);
  if (const sy_status put = made->store_->put(made->store_->context, here.c_str(), "here", 4, error); put != SY_OK)
    return put;
  if (made->rank_ == 0) {
    ncclUniqueId id;
    if (const sy_status got = CheckNccl(error, library.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr); got != SY_OK)
      return got;
    const std::string key = "nccl/" + made->name_ + "/id";
    if (const sy_status put = made->store_->put(made->store_->context, key.c_str(), &id, sizeof id, error);
        put != SY_OK)
      return put;
  }
  *result = std::move(made);
  return SY_OK;
}

NcclCommunicator::~NcclCommunicator() {
  if (!Finalized()) Abort();
  if (!AbortEnded()) {
    instance_.Log(2, switchyard::Format("nccl: \"%.64s\": ncclCommAbort has not ended after %d ms: is a captured graph "
                                        "with calls of the communicator still alive? Their memory is kept",
                                        name_.c_str(), kAbortMs));
    return;
  }
  while (!owned_.empty()) Free(owned_.begin()->first);
  sy_error error{SY_HEADER(sy_error)};
  const auto check = [&](cudaError_t code, const char* what) {
    const sy_status status = CheckCuda(&error, code, what);
    LogFailure(status, error);
    return status == SY_OK;
  };
  const Library& library = TheLibrary();
  if (!check(library.cudaSetDevice(device_), "cudaSetDevice")) return;
  for (const auto& [stream, used] : scratch_used_) check(library.cudaEventDestroy(used), "cudaEventDestroy");
  for (void* const memory : scratch_) check(library.cudaFree(memory), "cudaFree");
  check(library.cudaFree(token_), "cudaFree");  // NULL is ignored
}

void NcclCommunicator::LogFailure(sy_status status, const sy_error& error) const {
  if (status != SY_OK) instance_.Log(2, switchyard::Format("nccl: \"%.64s\": %.300s", name_.c_str(), error.message));
}

// True if the communicator was taken down in agreement with its peers. Peers may still read what this rank has sent.
bool NcclCommunicator::Finalized() {
  std::unique_lock lock(mutex_);
  if (comm_ == nullptr) return true;
  if (!ready_ || failed_ != SY_OK || aborted_) return false;
  const Library& library = TheLibrary();
  for (auto& [address, owned] : owned_) {  // both are done when they return
    const Owned one = std::exchange(owned, {});
    if (one.window != nullptr && library.ncclCommWindowDeregister(comm_, one.window) != ncclSuccess) return false;
    if (one.registration != nullptr && library.ncclCommDeregister(comm_, one.registration) != ncclSuccess) return false;
  }
  ncclResult_t code = library.ncclCommFinalize(comm_);
  const auto deadline = Clock::now() + std::chrono::milliseconds(kFinalizeMs);
  for (int look = 0; code == ncclInProgress && Clock::now() < deadline; ++look) {
    lock.unlock();
    Pause(look);
    lock.lock();
    if (comm_ == nullptr) return true;  // aborted meanwhile
    if (library.ncclCommGetAsyncError(comm_, &code) != ncclSuccess) return false;
  }
  if (code != ncclSuccess || library.ncclCommDestroy(comm_) != ncclSuccess) return false;
  comm_ = nullptr;
  return true;
}

void NcclCommunicator::Abort() {
  aborted_ = true;
  const std::lock_guard lock(mutex_);
  GiveUp();
}

// NCCL sets the flags that end its kernels, replayed ones too, and then waits until every graph that holds calls of the
// communicator was destroyed. Whoever calls us may be the one to destroy them. Where there can be none, nothing touches
// the memory of calls any more on return.
//
// It also waits for NCCL's thread in a split, which leaves a child even where it fails; NCCL's flag for the child is
// known to the parent, which therefore goes first.
void NcclCommunicator::GiveUp() {
  if (comm_ == nullptr || in_group_) return;
  const auto abort = [comm = std::exchange(comm_, nullptr), child = std::exchange(child_, nullptr)] {
    // What it answers changes nothing: nobody uses it any more.
    static_cast<void>(TheLibrary().ncclCommAbort(comm));
    if (child != nullptr && *child != nullptr) static_cast<void>(TheLibrary().ncclCommAbort(*child));
  };
  try {
    std::packaged_task<void()> task(abort);
    abort_ended_ = task.get_future();
    aborter_ = std::thread(std::move(task));
    if (!was_captured_) aborter_.join();
  } catch (const std::exception&) {  // there is no thread to be had, and what hangs on the device has to end
    abort();
  }
}

bool NcclCommunicator::AbortEnded() {
  if (!aborter_.joinable()) return true;
  const bool ended = abort_ended_.wait_for(std::chrono::milliseconds(kAbortMs)) == std::future_status::ready;
  if (ended) {
    aborter_.join();
  } else {
    aborter_.detach();
  }
  return ended;
}

sy_status NcclCommunicator::Usable(sy_error* error) const {
  if (failed_ != SY_OK) {
    if (error != nullptr) switchyard::FillStruct(error, failure_);
    return failed_;
  }
  if (aborted_ || comm_ == nullptr) return SY_FAIL(error, SY_ABORTED, "communicator \"%s\" was aborted", name_.c_str());
  return SY_OK;
}

// The first error stays.
sy_status NcclCommunicator::Fail(sy_status status, sy_error* error) {
  if (failed_ != SY_OK) return status;
  failed_ = status;
  GiveUp();  // what waits on a stream for a peer that is gone would wait for ever
  if (error != nullptr) {
    switchyard::FillStruct(&failure_, switchyard::ReadStruct(error));
  } else {
    SY_FAIL(&failure_, status, "communicator \"%s\" failed in an earlier call", name_.c_str());
  }
  return status;
}

std::string NcclCommunicator::Absent() const {
  std::string absent;
  if (store_ == nullptr) return absent;
  for (int rank = 0; rank < size_; ++rank) {
    char value[8];
    uint32_t bytes = 0;
    const std::string key = switchyard::Format("nccl/%s/rank/%d", name_.c_str(), rank);
    if (store_->get(store_->context, key.c_str(), value, sizeof value, &bytes, 0, nullptr) != SY_OK)
      absent += (absent.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return absent;
}

sy_status NcclCommunicator::Begin(sy_error* error) {
  ncclUniqueId id;
  uint32_t bytes = 0;
  const std::string key = "nccl/" + name_ + "/id";
  sy_error missing{SY_HEADER(sy_error)};  // what has not come yet is no error of the caller's
  const sy_status found = store_->get(store_->context, key.c_str(), &id, sizeof id, &bytes, 0, &missing);
  if (found == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (found != SY_OK) {
    if (error != nullptr) switchyard::FillStruct(error, missing);
    return found;
  }
  if (bytes != sizeof id) {
    return SY_FAIL(error, SY_INVALID, "the unique id of rank 0 has %u bytes; expected %zu (do all ranks use one NCCL?)",
                   bytes, sizeof id);
  }
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(device_), "cudaSetDevice"); set != SY_OK) return set;
  ncclConfig_t config = NonBlocking();
  const ncclResult_t code = library.ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
  const sy_status status = CheckNccl(error, code, "ncclCommInitRankConfig", nullptr);
  return status == SY_OK ? SY_IN_PROGRESS : status;
}

sy_status NcclCommunicator::Ready(sy_error* error) {
  std::unique_lock lock(mutex_);
  if (failed_ != SY_OK || aborted_) return Usable(error);
  if (comm_ == nullptr) {
    const sy_status begun = Begin(error);
    if (begun != SY_OK && begun != SY_IN_PROGRESS) return Fail(begun, error);
  }
  const Library& library = TheLibrary();
  ncclResult_t state = ncclInProgress;
  if (comm_ != nullptr) {
    sy_status status = CheckNccl(error, library.ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    if (status == SY_OK) status = CheckNccl(error, state, ready_ ? "a collective" : "ncclCommInitRankConfig", comm_);
    if (status != SY_OK) return Fail(status, error);
  }
  if (ready_) return SY_OK;
  if (state == ncclSuccess) {
    sy_status status = CheckNccl(error, library.ncclCommCount(comm_, &size_), "ncclCommCount", comm_);
    if (status == SY_OK) status = CheckNccl(error, library.ncclCommUserRank(comm_, &rank_), "ncclCommUserRank", comm_);
    if (status != SY_OK) return Fail(status, error);
    ready_ = true;
    store_ = nullptr;
    return SY_OK;
  }
  if (timeout_ms_ == 0 || Clock::now() - began_ < std::chrono::milliseconds(timeout_ms_)) return SY_IN_PROGRESS;
  const std::string absent = Absent();
  return Fail(SY_FAIL(error, SY_TIMEOUT,
                      "rank %d waited %llu ms for the %d ranks of \"%s\" to join%s%s; NCCL_DEBUG=INFO "
                      "shows what NCCL does",
                      rank_, static_cast<unsigned long long>(timeout_ms_), size_, name_.c_str(),
                      absent.empty() ? "" : "; absent: ", absent.c_str()),
              error);
}

sy_status NcclCommunicator::Open(const char* what, sy_error* error) {
  if (const sy_status usable = Usable(error); usable != SY_OK) return usable;
  if (!ready_) return SY_FAIL(error, SY_INVALID, "%s before poll answered SY_OK", what);
  return CheckCuda(error, TheLibrary().cudaSetDevice(device_), "cudaSetDevice");
}

sy_status NcclCommunicator::Taken(std::unique_lock<std::mutex>& lock, const char* what, ncclResult_t code,
                                  sy_error* error, Need need) {
  if (group_depth == 0) return Settle(lock, what, code, error, need);
  in_group_ = true;
  if (grouped.empty() || grouped.back() != this) grouped.push_back(this);
  const sy_status status = CheckNccl(error, code, what, comm_);
  return status == SY_OK ? SY_OK : Refused(status, code, what, error, need);
}

// A refusal of what is optional ends nothing, unless NCCL says that the communicator is at its end with it.
sy_status NcclCommunicator::Refused(sy_status status, ncclResult_t code, const char* what, sy_error* error, Need need) {
  ncclResult_t state = code;
  const Library& library = TheLibrary();
  if (need == kRequired || library.ncclCommGetAsyncError(comm_, &state) != ncclSuccess || state != ncclSuccess)
    return Fail(status, error);
  if (!std::exchange(has_warned_, true))
    instance_.Log(2, switchyard::Format("nccl: \"%.64s\" goes on without %s: %s", name_.c_str(), what,
                                        library.ncclGetErrorString(code)));
  return SY_OK;
}

// A non-blocking communicator may take a call up a little later, whatever the call has answered; until then nothing
// else may be done with it, and an event recorded behind it would come before it.
sy_status NcclCommunicator::Settle(std::unique_lock<std::mutex>& lock, const char* what, ncclResult_t code,
                                   sy_error* error, Need need) {
  const auto began = Clock::now();
  ncclResult_t state = ncclInProgress;
  for (int look = 0;; ++look) {
    const sy_status asked =
        CheckNccl(error, TheLibrary().ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    if (asked != SY_OK) return Fail(asked, error);
    if (state != ncclInProgress) break;
    if (timeout_ms_ != 0 && Clock::now() - began > std::chrono::milliseconds(timeout_ms_)) {
      return Fail(SY_FAIL(error, SY_TIMEOUT, "%s: NCCL has not taken it up after %llu ms", what,
                          static_cast<unsigned long long>(timeout_ms_)),
                  error);
    }
    lock.unlock();
    Pause(look);
    lock.lock();
    if (aborted_ || comm_ == nullptr) return Usable(error);
  }
  if (code == ncclSuccess || code == ncclInProgress) code = state;
  const sy_status status = CheckNccl(error, code, what, comm_);
  return status == SY_OK ? SY_OK : Refused(status, code, what, error, need);
}

sy_status NcclCommunicator::GroupBegin(const sy_instance& instance, sy_error* error) {
  if (FindLibrary(instance, error) == nullptr) return SY_UNSUPPORTED;
  const sy_status status = CheckNccl(error, TheLibrary().ncclGroupStart(), "ncclGroupStart", nullptr);
  if (status == SY_OK) ++group_depth;
  return status;
}

sy_status NcclCommunicator::GroupEnd(sy_error* error) {
  if (group_depth == 0) return SY_FAIL(error, SY_INVALID, "group_end without group_begin");
  const bool outermost = --group_depth == 0;
  std::vector<NcclCommunicator*> touched;
  if (outermost) touched.swap(grouped);
  ncclResult_t code = ncclSuccess;
  {
    // An abort between the calls and here would free what NCCL is about to launch.
    std::vector<std::unique_lock<std::mutex>> locks;
    for (NcclCommunicator* const one : touched) {
      bool held = false;
      for (const auto& lock : locks) held = held || lock.mutex() == &one->mutex_;
      if (!held) locks.emplace_back(one->mutex_);
    }
    code = TheLibrary().ncclGroupEnd();
    for (NcclCommunicator* const one : touched) {
      one->in_group_ = false;
      one->scratch_taken_ = 0;
      if (one->aborted_ || one->failed_ != SY_OK) one->GiveUp();  // what was put off until here
    }
  }
  sy_status result = SY_OK;
  for (NcclCommunicator* const one : touched) {
    std::unique_lock lock(one->mutex_);
    sy_status status = one->Usable(result == SY_OK ? error : nullptr);
    if (status == SY_OK) {
      status = one->Settle(lock, "ncclGroupEnd", code, result == SY_OK ? error : nullptr, kRequired);
      if (status == SY_OK) status = one->MarkScratchUsed(result == SY_OK ? error : nullptr);
    }
    if (result == SY_OK) result = status;
  }
  return touched.empty() ? CheckNccl(error, code, "ncclGroupEnd", nullptr) : result;
}

sy_status NcclCommunicator::Split(int32_t color, int32_t key, const char* name,
                                  std::unique_ptr<NcclCommunicator>* result, sy_error* error) {
  result->reset();
  if (group_depth > 0) return SY_FAIL(error, SY_INVALID, "split of \"%s\" inside a group", name_.c_str());
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(instance_, name, 0, 0, device_, timeout_ms_));
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(device_), "cudaSetDevice"); set != SY_OK) return set;
  if (const sy_status allocated = CheckCuda(error, library.cudaMalloc(&made->token_, kTokenBytes), "cudaMalloc");
      allocated != SY_OK)
    return allocated;
  ncclConfig_t config = NonBlocking();
  const auto child = std::make_shared<ncclComm_t>(nullptr);
  const sy_status split = Enqueue(
      "ncclCommSplit",
      [&](ncclComm_t comm) {
        child_ = child;
        return library.ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, child.get(), &config);
      },
      error);
  if (split != SY_OK) return split;
  {
    const std::lock_guard lock(mutex_);
    if (child_ == nullptr) return Usable(error);  // aborted meanwhile, and the child with it
    made->comm_ = *std::exchange(child_, nullptr);
  }
  if (color < 0) return SY_OK;
  if (made->comm_ == nullptr) return SY_FAIL(error, SY_INTERNAL, "ncclCommSplit gave nothing for color %d", color);
  for (int look = 0;; ++look) {
    const sy_status ready = made->Ready(error);
    if (ready == SY_OK) break;
    if (ready != SY_IN_PROGRESS) return ready;
    if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while splitting \"%s\"", name_.c_str());
    Pause(look);
  }
  *result = std::move(made);
  return SY_OK;
}

sy_status NcclCommunicator::Allocate(uint64_t bytes, void** address, sy_error* error) {
  if (instance_.NumberSetting("NCCL_OWNED_MEMORY", 1, 0) == 0)
    return SY_FAIL(error, SY_UNSUPPORTED, "owned memory is switched off by SWITCHYARD_NCCL_OWNED_MEMORY=0");
  const Library& library = TheLibrary();
  if (const sy_status set = CheckCuda(error, library.cudaSetDevice(device_), "cudaSetDevice"); set != SY_OK) return set;
  void* memory = nullptr;
  sy_status status = CheckNccl(error, library.ncclMemAlloc(&memory, bytes), "ncclMemAlloc", nullptr);
  if (status != SY_OK) {
    const bool exhausted = status == SY_INTERNAL && error != nullptr && error->native_code == ncclUnhandledCudaError;
    return exhausted ? SY_OUT_OF_MEMORY : status;
  }
  Owned& owned = owned_[memory];         // a thread of NCCL's fills it
  sy_error reason{SY_HEADER(sy_error)};  // of what may be refused without harm
  bool asked = false;
  status = SY_OK;
  const bool knows_windows = library.ncclCommWindowRegister != nullptr && library.ncclCommWindowDeregister != nullptr;
  if (knows_windows && group_depth == 0)
    status = Enqueue(
        "ncclCommWindowRegister",
        [&](ncclComm_t comm) {
          asked = true;
          return library.ncclCommWindowRegister(comm, memory, bytes, &owned.window, NCCL_WIN_COLL_SYMMETRIC);
        },
        &reason, kOptional);
  if (status == SY_OK && owned.window == nullptr)
    status = Enqueue(
        "ncclCommRegister",
        [&](ncclComm_t comm) {
          asked = true;
          return library.ncclCommRegister(comm, memory, bytes, &owned.registration);
        },
        &reason, kOptional);
  if (status == SY_OK) {
    *address = memory;
    return SY_OK;
  }
  Free(memory);
  // A peer that is gone or does not come would be missed in other calls as well.
  const bool was_refused = asked && status != SY_ABORTED && status != SY_TIMEOUT;
  SY_FAIL(error, status, "%.400s%s", reason.message,
          was_refused ? "; SWITCHYARD_NCCL_OWNED_MEMORY=0 does without such memory" : "");
  if (error != nullptr) error->native_code = reason.native_code;
  return status;
}

void NcclCommunicator::Free(void* address) {
  const auto found = owned_.find(address);
  if (found == owned_.end()) return;
  if (!Deregister(found->second)) return;  // destroy frees it
  {
    const std::lock_guard lock(mutex_);
    if (aborter_.joinable()) return;  // ncclCommAbort may still look at it: destroy frees it
  }
  sy_error error{SY_HEADER(sy_error)};
  LogFailure(CheckNccl(&error, TheLibrary().ncclMemFree(address), "ncclMemFree", nullptr), error);
  owned_.erase(found);
}

// What was registered went with a communicator that was aborted.
bool NcclCommunicator::Deregister(Owned& owned) {
  bool released = true;
  const auto release = [&](const char* what, auto deregister, auto& handle) {
    if (handle == nullptr) return;
    const auto call = [&](ncclComm_t comm) {
      const ncclResult_t code = deregister(comm, handle);
      released = released && code == ncclSuccess;
      return code;
    };
    Enqueue(what, call, nullptr, kOptional);
    handle = nullptr;
  };
  release("ncclCommWindowDeregister", TheLibrary().ncclCommWindowDeregister, owned.window);
  release("ncclCommDeregister", TheLibrary().ncclCommDeregister, owned.registration);
  return released;
}

}  // namespace nccl
