// A semaphore of semaphore/1 whose every call is judged: its status, and its words on refusal only. Thread-safe as the
// interface is.
#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/runtime/device/device.h"
#include "tools/conform/given_struct.h"

namespace switchyard::conform {

constexpr uint64_t kPatienceMs = 20000;                      // for what must come, however busy the machine is
constexpr auto kLongEnough = std::chrono::milliseconds(40);  // for what must not come to show itself
constexpr uint64_t kHighestCount = (uint64_t{1} << 63) - 1;

class Timeline {
 public:
  static StatusOr<std::unique_ptr<Timeline>> Make(Device& device, const sy_semaphore_v1& api) {
    std::unique_ptr<Timeline> made(new Timeline(device, api));
    SY_RETURN_IF_ERROR(made->Expect({SY_OK}, "create", [&](sy_error* error) {
      return api.create(device.handle(), nullptr, &made->handle_, error);
    }));
    if (made->handle_ == nullptr) return Internal("create answered no semaphore");
    return made;
  }
  // Lets go of whoever a check that failed has left waiting.
  ~Timeline() {
    if (handle_ == nullptr) return;
    (void)api_->signal(device_.handle(), handle_, kHighestCount, nullptr);
    (void)device_.api()->synchronize(device_.handle(), nullptr, nullptr, nullptr);
    api_->destroy(device_.handle(), handle_);
  }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  using Wanted = std::initializer_list<sy_status>;
  Status Signal(uint64_t value, Wanted wanted = {SY_OK}) {
    return Expect(wanted, fmt::format("signal to {}", value), [&](sy_error* error) { return Raise(value, error); });
  }
  sy_status Raise(uint64_t value, sy_error* error) { return api_->signal(device_.handle(), handle_, value, error); }
  Status Wait(uint64_t value, uint64_t timeout_ms = kPatienceMs, Wanted wanted = {SY_OK}) {
    return Expect(wanted, fmt::format("wait for {}", value),
                  [&](sy_error* error) { return api_->wait(device_.handle(), handle_, value, timeout_ms, error); });
  }
  StatusOr<uint64_t> Count() {
    uint64_t count = kHighestCount;
    SY_RETURN_IF_ERROR(Expect({SY_OK}, "query",
                              [&](sy_error* error) { return api_->query(device_.handle(), handle_, &count, error); }));
    return count;
  }
  Status ExpectCount(uint64_t expected, const char* when) {
    SY_ASSIGN_OR_RETURN(const uint64_t found, Count());
    return found == expected ? OkStatus() : Internal("{}: expected a count of {}, found {}", when, expected, found);
  }
  Status SignalOn(const Stream& stream, uint64_t value, Wanted wanted = {SY_OK}) {
    return Expect(wanted, fmt::format("stream_signal to {}", value), [&](sy_error* error) {
      return api_->stream_signal(device_.handle(), stream.handle(), handle_, value, error);
    });
  }
  Status HoldUp(const Stream& stream, uint64_t value, Wanted wanted = {SY_OK}) {
    return Expect(wanted, fmt::format("stream_wait for {}", value), [&](sy_error* error) {
      return api_->stream_wait(device_.handle(), stream.handle(), handle_, value, error);
    });
  }
  sy_semaphore* handle() const { return handle_; }

 private:
  Timeline(Device& device, const sy_semaphore_v1& api) : device_(device), api_(&api) {}
  template <typename Call>
  static Status Expect(Wanted wanted, const std::string& what, Call call) {
    WatchedError error;
    const sy_status status = call(error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, what));
    return ExpectStatus(status, wanted, what);
  }

  Device& device_;
  const sy_semaphore_v1* const api_;
  sy_semaphore* handle_ = nullptr;
};

}  // namespace switchyard::conform
