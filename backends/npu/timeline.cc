#include "backends/npu/timeline.h"

#include <algorithm>
#include <chrono>

#include "core/abi/boundary.h"

namespace switchyard {

using Clock = std::chrono::steady_clock;

Timeline::~Timeline() {
  if (copy_ != nullptr && device_.Enter(nullptr) == SY_OK) device_.acl->aclrtFree(copy_);
}

sy_status Timeline::Prepare(sy_error* error) {
  const sy_status status =
      CheckAcl(error, device_.acl->aclrtMalloc(&copy_, sizeof count_, ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc");
  return status == SY_OK ? Write(0, error) : status;
}

sy_status Timeline::Write(uint64_t value, sy_error* error) {
  const sy_status status =
      CheckAcl(error, device_.acl->aclrtMemcpy(copy_, sizeof value, &value, sizeof value, ACL_MEMCPY_HOST_TO_DEVICE),
               "aclrtMemcpy");
  if (status != SY_OK) return status;
  count_ = value;
  std::erase_if(held_up_, [&](const HeldUp& each) { return each.value <= value; });
  raised_.notify_all();
  return SY_OK;
}

sy_status Timeline::Told(sy_error* error) const {
  if (status_ != SY_OK && error != nullptr) FillStruct(error, error_);
  return status_;
}

sy_status Timeline::Raise(uint64_t value, sy_error* error) {
  const std::lock_guard lock(mutex_);
  if (count_ >= value)
    return Refuse(error, SY_INVALID, Text("semaphore: the count is ", count_, " and cannot become ", value));
  return Write(value, error);
}

void Timeline::Fail(uint64_t value, sy_status status, const sy_error& error) {
  const std::lock_guard lock(mutex_);
  if (status_ == SY_OK) {
    status_ = status;
    error_ = error;
  }
  for (const HeldUp& each : held_up_) {
    if (each.value > value) continue;
    if (const auto stream = each.stream.lock()) stream->FailFrom(each.place, status, error);
  }
  if (count_ < value && Write(value, nullptr) != SY_OK) count_ = value;  // the device is lost, and nobody waits on it
  raised_.notify_all();
}

sy_status Timeline::Query(uint64_t* value, sy_error* error) {
  const std::lock_guard lock(mutex_);
  *value = count_;
  return Told(error);
}

sy_status Timeline::Wait(uint64_t value, uint64_t timeout_ms, sy_error* error) {
  constexpr uint64_t kLongest = uint64_t{1} << 40;  // milliseconds: what the clock can add to now
  const auto most = std::chrono::milliseconds(std::min(timeout_ms, kLongest));
  std::unique_lock lock(mutex_);
  if (raised_.wait_for(lock, most, [&] { return count_ >= value; })) return Told(error);
  return Refuse(error, SY_TIMEOUT,
                Text("semaphore: the count is ", count_, " after ", timeout_ms, " ms, expected ", value));
}

// The runtime's call may wait for room in its queue, which only a signal makes: it is made without the lock.
sy_status Timeline::HoldUp(sy_stream& stream, uint64_t value, sy_error* error) {
  const uint64_t place = stream.failure->NextPlace();
  {
    const std::lock_guard lock(mutex_);
    if (count_ >= value) {
      if (status_ != SY_OK) stream.failure->FailFrom(place, status_, error_);
      return SY_OK;
    }
    held_up_.push_back({stream.failure, place, value});
  }
  const sy_status status = CheckAcl(
      error, device_.acl->aclrtValueWait(copy_, value, ACL_STREAM_WAIT_VALUE_GEQ, stream.stream), "aclrtValueWait");
  if (status == SY_OK) return SY_OK;
  const std::lock_guard lock(mutex_);
  std::erase_if(held_up_,
                [&](const HeldUp& each) { return each.stream.lock() == stream.failure && each.place == place; });
  return status;
}

Signals::~Signals() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (const Signal& each : open_) idle_.push_back(each.event);
  for (const aclrtEvent event : idle_) device_.acl->aclrtDestroyEvent(event);
}

// As HoldUp, the runtime's call is made without the lock.
sy_status Signals::Add(sy_stream& stream, std::shared_ptr<Timeline> timeline, uint64_t value, sy_error* error) {
  aclrtEvent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
  }
  sy_status status = SY_OK;
  if (event == nullptr)
    status = CheckAcl(error, device_.acl->aclrtCreateEventExWithFlag(&event, ACL_EVENT_CAPTURE_STREAM_PROGRESS),
                      "aclrtCreateEventExWithFlag");
  if (status != SY_OK) return status;
  status = CheckAcl(error, device_.acl->aclrtRecordEvent(event, stream.stream), "aclrtRecordEvent");
  const std::lock_guard lock(mutex_);
  if (status != SY_OK) {
    idle_.push_back(event);
    return status;
  }
  open_.push_back({event, stream.failure, stream.failure->NextPlace(), std::move(timeline), value});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
  return SY_OK;
}

bool Signals::Look() {
  const std::lock_guard lock(mutex_);
  const size_t before = open_.size();
  for (auto each = open_.begin(); each != open_.end();) {
    aclrtEventRecordedStatus state = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    sy_error error{SY_HEADER(sy_error)};
    sy_status status =
        CheckAcl(&error, device_.acl->aclrtQueryEventStatus(each->event, &state), "aclrtQueryEventStatus");
    if (status == SY_OK && state != ACL_EVENT_RECORDED_STATUS_COMPLETE) {
      ++each;
      continue;
    }
    Carry(*each, status, error);
    idle_.push_back(each->event);
    each = open_.erase(each);
  }
  return open_.size() != before;
}

void Signals::Carry(const Signal& signal, sy_status status, const sy_error& told) {
  sy_error error = told;
  signal.stream->Keep(status, told);
  if (status != SY_OK) {
    status = signal.stream->Tell(&error);
  } else {
    status = signal.stream->TellEnded(signal.place, &error);
  }
  // A count that is that far stays.
  if (status == SY_OK) status = signal.timeline->Raise(signal.value, &error);
  if (status != SY_OK && status != SY_INVALID) signal.timeline->Fail(signal.value, status, error);
}

void Signals::Run() {
  constexpr std::chrono::microseconds kShortestNap(20), kLongestNap(200);
  device_.Enter(nullptr);
  auto nap = kShortestNap;
  for (;;) {
    nap = Look() ? kShortestNap : std::min(2 * nap, kLongestNap);
    std::unique_lock lock(mutex_);
    if (open_.empty()) {
      changed_.wait(lock, [this] { return closing_ || !open_.empty(); });
      nap = kShortestNap;
    } else {
      changed_.wait_for(lock, nap, [this] { return closing_; });
    }
    if (closing_) return;
  }
}

}  // namespace switchyard
