#include "backends/npu/failure.h"

#include <algorithm>

#include "core/abi/boundary.h"

namespace switchyard {

uint64_t StreamFailure::NextPlace() {
  const std::lock_guard lock(mutex_);
  return ++places_;
}

void StreamFailure::Keep(sy_status status, const sy_error& error) {
  const std::lock_guard lock(mutex_);
  if (status == SY_OK || status_ != SY_OK) return;
  status_ = status;
  error_ = error;
}

void StreamFailure::FailFrom(uint64_t place, sy_status status, const sy_error& error) {
  Keep(status, error);
  std::vector<Follower> taken;
  {
    const std::lock_guard lock(mutex_);
    if (failed_from_ <= place) return;  // streams that wait for each other end here
    failed_from_ = place;
    for (const Follower& each : followers_) {
      if (each.place >= place) taken.push_back(each);
    }
  }
  for (const Follower& each : taken) {
    if (const auto stream = each.stream.lock()) stream->FailFrom(each.follower_place, status, error);
  }
}

void StreamFailure::LetFollow(uint64_t place, const std::shared_ptr<StreamFailure>& follower, uint64_t follower_place) {
  sy_status status = SY_OK;
  sy_error error{SY_HEADER(sy_error)};
  {
    const std::lock_guard lock(mutex_);
    if (failed_from_ <= place) {
      status = status_;
      error = error_;
    } else {
      std::erase_if(followers_, [&](const Follower& each) {
        const auto stream = each.stream.lock();
        return stream == nullptr || stream == follower;
      });
      followers_.push_back({follower, place, follower_place});
    }
  }
  if (status != SY_OK) follower->FailFrom(follower_place, status, error);
}

sy_status StreamFailure::Tell(sy_error* error) const {
  const std::lock_guard lock(mutex_);
  if (status_ != SY_OK && error != nullptr) FillStruct(error, error_);
  return status_;
}

sy_status StreamFailure::TellAt(uint64_t place, sy_error* error) const {
  const std::lock_guard lock(mutex_);
  if (failed_from_ > place) return SY_OK;
  if (error != nullptr) FillStruct(error, error_);
  return status_;
}

}  // namespace switchyard
