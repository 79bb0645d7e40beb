#include "collectives/hccl/communicator.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/abi/device.h"

namespace hccl {
namespace {

constexpr char kMemoryKind[] = "npu";

struct Member {
  int32_t color, key;
};

// SY_UNSUPPORTED, and what was found instead, unless the rank names memory that HCCL reaches.
sy_status CheckDevice(const sy_init_request& request, sy_error* error) {
  constexpr char kJoins[] = "hccl joins devices whose memory is of the kind";
  if (request.device == nullptr || request.backend == nullptr) {
    return SY_FAIL(error, SY_UNSUPPORTED, "%s \"%s\", and this rank names host memory; choose another --collective",
                   kJoins, kMemoryKind);
  }
  const sy_plugin& backend = *request.backend;
  const auto* const devices = static_cast<const sy_device_v2*>(backend.get_interface(backend.instance, "device/2"));
  if (devices == nullptr)
    return SY_FAIL(error, SY_INVALID, "the backend \"%s\" of the device has no device/2", backend.name);
  sy_device_info info{};
  info.header = SY_HEADER(sy_device_info);
  if (const sy_status status = devices->query(backend.instance, request.device_index, &info, error); status != SY_OK)
    return status;
  if (strcmp(info.memory_kind, kMemoryKind) == 0) return SY_OK;
  return SY_FAIL(
      error, SY_UNSUPPORTED,
      "%s \"%s\", and that of device %d of the backend \"%s\" is of the kind \"%s\"; choose another --collective",
      kJoins, kMemoryKind, request.device_index, backend.name, info.memory_kind);
}

}  // namespace

sy_status HcclCommunicator::Query(sy_instance* instance, sy_collective_info* info, sy_error* error) {
  if (!switchyard::KnowsExtensions(info, error) || FindLibrary(*instance, error) == nullptr) return SY_UNSUPPORTED;
  sy_collective_info own{};
  Describe(*instance, own);
  switchyard::FillStruct(info, own);
  return SY_OK;
}

void HcclCommunicator::Describe(const sy_instance&, sy_collective_info& info) {
  static constexpr const char* kKinds[] = {kMemoryKind, nullptr};
  snprintf(info.name, sizeof info.name, "hccl");
  info.completion = SY_COMPLETES_ON_STREAM;
  info.flags = SY_COLLECTIVE_DISTINCT_DEVICES | SY_COLLECTIVE_PROGRESSES_ALONE;
  info.memory_kinds = kKinds;
  if (!TheLibrary().place.empty()) info.libraries = TheLibrary().place.c_str();
}

// The types of HcclAllReduce and HcclReduceScatter; bfloat16 is not multiplied.
bool HcclCommunicator::Reduces(int32_t reduction, sy_dtype dtype) {
  return dtype == SY_F32 || dtype == SY_F16 || dtype == SY_I32 || (dtype == SY_BF16 && reduction != SY_PRODUCT);
}

sy_status HcclCommunicator::Create(const sy_instance& instance, const sy_init_request& request,
                                   std::unique_ptr<HcclCommunicator>* result, sy_error* error) {
  if (FindLibrary(instance, error) == nullptr) return SY_UNSUPPORTED;
  if (const sy_status checked = CheckDevice(request, error); checked != SY_OK) return checked;
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size)
    return SY_FAIL(error, SY_INVALID, "rank %d of %d", request.rank, request.size);
  std::unique_ptr<HcclCommunicator> made(new HcclCommunicator(request.name, std::string("hccl/") + request.name,
                                                              request.rank, request.size, request.device_index,
                                                              request.timeout_ms, request.store));
  if (const sy_status announced = made->Announce(error); announced != SY_OK) return announced;
  *result = std::move(made);
  return SY_OK;
}

sy_status HcclCommunicator::Announce(sy_error* error) {
  if (const sy_status put = Put(std::to_string(rank_), "here", 4, error); put != SY_OK || rank_ != 0) return put;
  const Library& library = TheLibrary();
  HcclRootInfo root;
  sy_status status = CheckAcl(error, library.aclrtSetDevice(device_), "aclrtSetDevice");
  if (status == SY_OK) status = CheckHccl(error, library.HcclGetRootInfo(&root), "HcclGetRootInfo");
  return status == SY_OK ? Put("root", &root, sizeof root, error) : status;
}

sy_status HcclCommunicator::Put(const std::string& key, const void* value, uint32_t bytes, sy_error* error) const {
  return store_->put(store_->context, (place_ + "/" + key).c_str(), value, bytes, error);
}

// Answers at once: SY_TIMEOUT, without a message, where nobody has put it yet.
sy_status HcclCommunicator::Get(const std::string& key, void* value, uint32_t capacity, uint32_t* bytes,
                                sy_error* error) const {
  sy_error found{SY_HEADER(sy_error)};
  const sy_status status =
      store_->get(store_->context, (place_ + "/" + key).c_str(), value, capacity, bytes, 0, &found);
  if (status != SY_OK && status != SY_TIMEOUT && error != nullptr) switchyard::FillStruct(error, found);
  return status;
}

HcclCommunicator::~HcclCommunicator() {
  const Library& library = TheLibrary();
  if (aborted_ || failed_ != SY_OK || library.aclrtSetDevice(device_) != 0) return;
  if (comm_ != nullptr) static_cast<void>(library.HcclCommDestroy(comm_));  // there is nobody left to tell
  for (void* const memory : scratch_) library.aclrtFree(memory);
}

void HcclCommunicator::Abort() {
  aborted_ = true;
  StopStreams();
  // Whoever has the lock is in a collective that may end only now that its stream has been stopped: nobody joins then.
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) joining_.Abandon();
}

void HcclCommunicator::StopStreams() {
  std::vector<aclrtStream> streams;
  {
    const std::lock_guard lock(streams_mutex_);
    streams.swap(streams_);
  }
  const Library& library = TheLibrary();
  if (library.aclrtStreamAbort == nullptr || library.aclrtSetDevice(device_) != 0) return;
  for (const aclrtStream stream : streams) library.aclrtStreamAbort(stream);
}

sy_status HcclCommunicator::Usable(sy_error* error) const {
  if (failed_ != SY_OK) {
    if (error != nullptr) switchyard::FillStruct(error, failure_);
    return failed_;
  }
  if (aborted_) return SY_FAIL(error, SY_ABORTED, "communicator \"%s\" was aborted", name_.c_str());
  return SY_OK;
}

// The first error stays.
sy_status HcclCommunicator::Fail(sy_status status, sy_error* error) {
  if (failed_ != SY_OK) return status;
  failed_ = status;
  if (error != nullptr) switchyard::FillStruct(&failure_, switchyard::ReadStruct(error));
  return status;
}

// Who has not even asked to join, if anybody.
sy_status HcclCommunicator::Late(sy_error* error) const {
  std::string absent;
  for (int rank = 0; rank < size_; ++rank) {
    char value[8];
    uint32_t bytes = 0;
    if (Get(std::to_string(rank), value, sizeof value, &bytes, nullptr) != SY_OK)
      absent += (absent.empty() ? "; absent: rank " : ", ") + std::to_string(rank);
  }
  return SY_FAIL(error, SY_TIMEOUT, "rank %d waited %llu ms for the %d ranks of \"%s\" to join%s", rank_,
                 static_cast<unsigned long long>(timeout_ms_), size_, name_.c_str(), absent.c_str());
}

sy_status HcclCommunicator::Begin(sy_error* error) {
  HcclRootInfo root;
  uint32_t bytes = 0;
  const sy_status found = Get("root", &root, sizeof root, &bytes, error);
  if (found == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (found != SY_OK) return found;
  if (bytes != sizeof root) {
    return SY_FAIL(error, SY_INVALID, "the root info of rank 0 has %u bytes; expected %zu (do all ranks use one HCCL?)",
                   bytes, sizeof root);
  }
  joining_.Start(root, rank_, size_, device_);
  return SY_IN_PROGRESS;
}

sy_status HcclCommunicator::Ready(sy_error* error) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {  // a collective is being submitted; polling does not wait for it
    if (aborted_) return SY_FAIL(error, SY_ABORTED, "communicator \"%s\" was aborted", name_.c_str());
    return joined_ ? SY_OK : SY_IN_PROGRESS;
  }
  if (const sy_status usable = Usable(error); usable != SY_OK) return usable;
  if (comm_ != nullptr) {
    HcclResult state = HCCL_SUCCESS;
    sy_status status = CheckHccl(error, TheLibrary().HcclGetCommAsyncError(comm_, &state), "HcclGetCommAsyncError");
    if (status == SY_OK) status = CheckHccl(error, state, "a collective");
    if (status == SY_OK) return SY_OK;
    StopStreams();  // what waits on a stream for the peer that is gone would wait for ever
    return Fail(status, error);
  }
  const sy_status status = joining_.started() ? joining_.Poll(&comm_, error) : Begin(error);
  joined_ = status == SY_OK;
  if (status == SY_OK) return SY_OK;
  if (status != SY_IN_PROGRESS) return Fail(status, error);
  if (timeout_ms_ == 0 || Clock::now() - began_ < std::chrono::milliseconds(timeout_ms_)) return SY_IN_PROGRESS;
  joining_.Abandon();
  return Fail(Late(error), error);
}

// Ranks learn of each other's color and key by the store; each group joins anew.
sy_status HcclCommunicator::Split(int32_t color, int32_t key, const char* name,
                                  std::unique_ptr<HcclCommunicator>* result, sy_error* error) {
  result->reset();
  const std::string number = std::to_string(splits_++), prefix = "split/" + number + "/";  // the same on all ranks
  const Member own{color, key};
  if (const sy_status put = Put(prefix + std::to_string(rank_), &own, sizeof own, error); put != SY_OK) return put;
  const auto began = Clock::now();
  const auto waited_long = [&] {
    return timeout_ms_ != 0 && Clock::now() - began > std::chrono::milliseconds(timeout_ms_);
  };
  int rank = 0, size = 0;
  for (int peer = 0; peer < size_; ++peer) {
    Member member{};
    uint32_t bytes = 0;
    sy_status found = SY_TIMEOUT;
    while ((found = Get(prefix + std::to_string(peer), &member, sizeof member, &bytes, error)) == SY_TIMEOUT) {
      if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while splitting \"%s\"", name_.c_str());
      if (waited_long()) {
        return SY_FAIL(error, SY_TIMEOUT, "rank %d has not called split(\"%s\") after %llu ms", peer, name,
                       static_cast<unsigned long long>(timeout_ms_));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (found != SY_OK) return found;
    if (member.color != color) continue;
    ++size;
    rank += member.key < key || (member.key == key && peer < rank_);
  }
  if (color < 0) return SY_OK;
  const std::string place = switchyard::Format("%s/%s.%d", place_.c_str(), number.c_str(), color);
  std::unique_ptr<HcclCommunicator> made(new HcclCommunicator(name, place, rank, size, device_, timeout_ms_, store_));
  if (const sy_status announced = made->Announce(error); announced != SY_OK) return announced;
  sy_status status;
  while ((status = made->Ready(error)) == SY_IN_PROGRESS) {
    if (aborted_) return SY_FAIL(error, SY_ABORTED, "aborted while splitting \"%s\"", name_.c_str());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (status == SY_OK) *result = std::move(made);
  return status;
}

}  // namespace hccl
