#include "collectives/hccl/joining.h"

#include <mutex>
#include <thread>
#include <utility>

#include "core/abi/boundary.h"

namespace hccl {

struct Joining::Attempt {
  std::mutex mutex;
  bool finished = false, abandoned = false;
  HcclComm comm = nullptr;
  sy_status status = SY_OK;
  sy_error error{SY_HEADER(sy_error)};
};

void Joining::Start(const HcclRootInfo& root, int rank, int size, int device) {
  attempt_ = std::make_shared<Attempt>();
  const auto info = std::make_shared<const HcclRootInfo>(root);
  std::thread([attempt = attempt_, info, rank, size, device] {
    const Library& library = TheLibrary();
    HcclComm comm = nullptr;
    sy_error error{SY_HEADER(sy_error)};
    sy_status status = CheckAcl(&error, library.aclrtSetDevice(device), "aclrtSetDevice");
    if (status == SY_OK) {
      const HcclResult code =
          library.HcclCommInitRootInfo(static_cast<uint32_t>(size), info.get(), static_cast<uint32_t>(rank), &comm);
      status = CheckHccl(&error, code, "HcclCommInitRootInfo");
    }
    const std::lock_guard lock(attempt->mutex);
    if (attempt->abandoned && comm != nullptr) {
      static_cast<void>(library.HcclCommDestroy(comm));  // nobody is left to hear of a failure
      return;
    }
    attempt->finished = true;
    attempt->comm = comm;
    attempt->status = status;
    attempt->error = error;
  }).detach();
}

sy_status Joining::Poll(HcclComm* comm, sy_error* error) {
  const std::lock_guard lock(attempt_->mutex);
  if (!attempt_->finished) return SY_IN_PROGRESS;
  *comm = std::exchange(attempt_->comm, nullptr);
  if (attempt_->status != SY_OK && error != nullptr) switchyard::FillStruct(error, attempt_->error);
  return attempt_->status;
}

void Joining::Abandon() {
  if (attempt_ == nullptr) return;
  const std::lock_guard lock(attempt_->mutex);
  attempt_->abandoned = true;
  if (attempt_->comm != nullptr)
    static_cast<void>(TheLibrary().HcclCommDestroy(std::exchange(attempt_->comm, nullptr)));
}

}  // namespace hccl
