#include "backends/npu/failure.h"

#include <algorithm>
#include <iterator>

#include "core/abi/boundary.h"

namespace switchyard {

uint64_t StreamFailure::NextPlace() {
  const std::lock_guard lock(mutex_);
  return ++places_;
}

uint64_t StreamFailure::LastPlace() const {
  const std::lock_guard lock(mutex_);
  return places_;
}

void StreamFailure::Keep(sy_status status, const sy_error& error) {
  const std::lock_guard lock(mutex_);
  if (status == SY_OK || status_ != SY_OK) return;
  status_ = status;
  error_ = error;
}

void StreamFailure::FailFrom(uint64_t place, sy_status status, const sy_error& error) {
  Keep(status, error);
  std::vector<Other> taken;
  {
    const std::lock_guard lock(mutex_);
    if (failed_from_ <= place) return;  // streams that wait for each other end here
    failed_from_ = place;
    std::copy_if(followers_.begin(), followers_.end(), std::back_inserter(taken),
                 [&](const Other& each) { return each.place >= place; });
  }
  for (const Other& each : taken) {
    if (const auto stream = each.stream.lock()) stream->FailFrom(each.other_place, status, error);
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
      followers_.push_back({follower, place, follower_place});
    }
  }
  if (status != SY_OK) return follower->FailFrom(follower_place, status, error);
  const std::lock_guard lock(follower->mutex_);
  follower->leaders_.push_back({weak_from_this(), follower_place, place});
}

sy_status StreamFailure::Tell(sy_error* error) const {
  const std::lock_guard lock(mutex_);
  if (status_ != SY_OK && error != nullptr) FillStruct(error, error_);
  return status_;
}

sy_status StreamFailure::TellEnded(uint64_t place, sy_error* error) {
  std::vector<Other> ended;
  {
    const std::lock_guard lock(mutex_);
    if (failed_from_ <= place) {
      if (error != nullptr) FillStruct(error, error_);
      return status_;
    }
    const auto has_ended = [&](const Other& each) { return each.place <= place; };
    std::erase_if(followers_, has_ended);
    std::copy_if(leaders_.begin(), leaders_.end(), std::back_inserter(ended), has_ended);
    std::erase_if(leaders_, has_ended);
  }
  for (const Other& each : ended) {
    if (const auto stream = each.stream.lock()) stream->TellEnded(each.other_place, nullptr);
  }
  return SY_OK;
}

}  // namespace switchyard
