// A communicator of a collective plugin whose calls and waits end: when the plugin is done or fails, when a peer dies
// or freezes (the Status names it), when a peer has said goodbye, or after the time limit of a call
// (SWITCHYARD_COLLECTIVE_TIMEOUT seconds, default 600; half as much again where a plugin that is polled does not end
// the call itself). After an error it is of no more use. One thread at a time; Abort from any thread.
#pragma once

#include <absl/functional/function_ref.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/abi/collective.h"
#include "core/base/status.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/plugin.h"
#include "core/runtime/processes/rendezvous.h"

namespace switchyard {

class WatchedCollective {
 public:
  // Asks the plugin what it can do. `device` is null where no device takes part; it and `rendezvous` must outlive this.
  static StatusOr<std::unique_ptr<WatchedCollective>> Query(std::shared_ptr<Plugin> plugin, Rendezvous& rendezvous,
                                                            Device* device);
  // Joins the ranks of `request` (whose time limit it fills in), waiting for them at most timeout_ms.
  Status Init(sy_init_request request, int timeout_ms);
  // As sy_collective_v2.split; null for a rank that is in no group. `rank`: this rank's in the new group.
  StatusOr<std::unique_ptr<WatchedCollective>> Split(int color, int key, const std::string& name, int rank);
  ~WatchedCollective();

  const sy_collective_v2& api() const { return *api_; }
  sy_communicator* handle() const { return handle_; }
  sy_instance* instance() const { return plugin_->table().instance; }
  const CollectiveInfo& info() const { return info_; }
  const std::string& plugin_name() const { return plugin_->name(); }
  bool completes_on_stream() const { return info_.completes_on_stream; }
  bool reaches_host() const { return info_.Reaches(kHostMemory); }
  // Does the plugin have this function?
  template <typename Function>
  bool Has(Function sy_collective_v2::*function) const {
    return api_->*function != nullptr;
  }
  // Does it have it for numbers of this dtype?
  template <typename Function>
  bool Reduces(Function sy_collective_v2::*function, sy_dtype dtype, int reduction) const {
    return Has(function) && api_->reduces(instance(), reduction, dtype, nullptr) == SY_OK;
  }

  // One call of a function of the plugin that takes `arguments` between the call and the request. With a device stream
  // it may be only enqueued on return (completion on stream); without one it has finished. Allocates nothing where it
  // succeeds. `name` is for the error.
  template <typename... Parameters, typename... Arguments>
  Status Call(const char* name,
              sy_status (*sy_collective_v2::*function)(sy_communicator*, const sy_call*, Parameters...),
              const char* tag, const Stream* stream, Arguments... arguments) {
    return Run(name, tag, stream, [&](const sy_call* call, sy_request** request, sy_error* error) {
      return (api_->*function)(handle_, call, arguments..., request, error);
    });
  }
  Status SendReceive(const char* tag, std::span<const sy_transfer> transfers, const Stream* stream = nullptr);
  // Waits for device work that holds collectives; `what` is for the error.
  Status WaitFor(Event& finished, const char* what);
  // The same for all work of a stream. Only where the plugin completes on streams.
  Status Synchronize(const Stream& stream, const char* what);

  // `status` of a plugin's function as a Status that names the peer at fault, where there is one.
  Status Explain(sy_status status, const sy_error& error, const std::string& what) const;
  double TakeWaitMilliseconds() { return wait_ms_.exchange(0); }  // from any thread
  void Abort();

 private:
  using Clock = std::chrono::steady_clock;
  static double MillisecondsSince(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
  // What the watch thread needs to abort a communicator that may be destroyed meanwhile.
  struct AbortHandle;

  WatchedCollective(std::shared_ptr<Plugin> plugin, const sy_collective_v2* api, Rendezvous& rendezvous,
                    Device* device);
  void Watch();
  Status OpenStream();
  using Start = absl::FunctionRef<sy_status(const sy_call*, sy_request**, sy_error*)>;
  Status Run(const char* what, const char* tag, const Stream* stream, Start start) {
    return Run(what, tag, stream, &calls_, start);
  }
  Status Run(const char* what, const char* tag, const Stream* stream, uint64_t* counter, Start start);
  sy_status Wait(sy_request* request, Clock::time_point start, sy_error* error, Status* reason);
  void AwaitEnd(absl::FunctionRef<bool()> ended);
  // A plugin may see the loss of a peer a little earlier than the watch does.
  Status PeerFailure(int patience_ms = 500) const;
  static Status Overdue(double limit_ms);

  std::shared_ptr<Plugin> plugin_;
  const sy_collective_v2* api_;
  CollectiveInfo info_;
  Rendezvous* rendezvous_;
  Device* device_;
  sy_communicator* handle_ = nullptr;
  bool deaf_ = false;  // a call went on after abort: the communicator is left as it is
  std::shared_ptr<AbortHandle> abort_handle_;
  int rank_ = 0;
  double call_limit_ms_ = 600e3;
  std::atomic<double> wait_ms_ = 0;
  uint64_t calls_ = 0, batches_ = 0;  // batches are counted apart: not every rank takes part in each
  Stream stream_;                     // of host calls, where the plugin's work completes on a stream
  Event event_;
};

}  // namespace switchyard
