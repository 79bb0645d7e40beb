#include "core/runtime/collectives/watched_collective.h"

#include <mutex>
#include <thread>
#include <utility>

#include "core/base/environment.h"
#include "core/runtime/device/kept.h"

namespace switchyard {

struct WatchedCollective::AbortHandle {
  std::mutex mutex;
  const sy_collective_v2* api = nullptr;
  sy_communicator* handle = nullptr;
  void Abort() {
    const std::lock_guard lock(mutex);
    if (handle != nullptr) api->abort(handle);
  }
};

WatchedCollective::WatchedCollective(std::shared_ptr<Plugin> plugin, const sy_collective_v2* api,
                                     Rendezvous& rendezvous, Device* device)
    : plugin_(std::move(plugin)),
      api_(api),
      rendezvous_(&rendezvous),
      device_(device),
      abort_handle_(std::make_shared<AbortHandle>()) {}

WatchedCollective::~WatchedCollective() {
  {
    const std::lock_guard lock(abort_handle_->mutex);
    abort_handle_->handle = nullptr;
  }
  if (deaf_) {
    KeepForever(handle_);
  } else if (handle_ != nullptr) {
    api_->destroy(handle_);
  }
}

// --- joining ---

StatusOr<std::unique_ptr<WatchedCollective>> WatchedCollective::Query(std::shared_ptr<Plugin> plugin,
                                                                      Rendezvous& rendezvous, Device* device) {
  const auto* const api = plugin->Interface<sy_collective_v2>("collective/2");
  if (api == nullptr)
    return FailedPrecondition("plugin {} at {} offers no collective/2", plugin->name(), plugin->path());
  std::unique_ptr<WatchedCollective> collective(new WatchedCollective(std::move(plugin), api, rendezvous, device));
  if (const auto seconds = EnvironmentInt("SWITCHYARD_COLLECTIVE_TIMEOUT"); seconds && *seconds > 0)
    collective->call_limit_ms_ = *seconds * 1e3;
  SY_ASSIGN_OR_RETURN(collective->info_, collective->plugin_->DescribeCollective());
  return collective;
}

Status WatchedCollective::Init(sy_init_request request, int timeout_ms) {
  const std::string what = fmt::format("joining {} ranks", request.size);
  rank_ = request.rank;
  request.timeout_ms = static_cast<uint64_t>(call_limit_ms_);
  const auto start = Clock::now();
  sy_error error = EmptyError();
  sy_status status = api_->init(instance(), &request, &handle_, &error);
  if (status == SY_OK) {
    if (handle_ == nullptr) return Internal("{}: {}: init succeeded without a communicator", plugin_name(), what);
    Watch();
    status = SY_IN_PROGRESS;
  }
  while (status == SY_IN_PROGRESS) {
    status = api_->poll(handle_, &error);
    if (status != SY_IN_PROGRESS) break;
    if (const Status health = rendezvous_->health(); !health.ok())
      return Annotate(health, fmt::format("{}: {}", plugin_name(), what));
    if (MillisecondsSince(start) > timeout_ms)
      return DeadlineExceeded(
          "{}: {}: all are there, but not connected to each other within {} ms; a firewall between the hosts or a "
          "network interface that others cannot reach may be in the way, and --init_timeout_ms allows more time",
          plugin_name(), what, timeout_ms);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  SY_RETURN_IF_ERROR(Explain(status, error, what));
  return OpenStream();
}

StatusOr<std::unique_ptr<WatchedCollective>> WatchedCollective::Split(int color, int key, const std::string& name,
                                                                      int rank) {
  if (!Has(&sy_collective_v2::split)) return Unimplemented("{} cannot split a communicator", plugin_name());
  std::unique_ptr<WatchedCollective> group(new WatchedCollective(plugin_, api_, *rendezvous_, device_));
  group->info_ = info_;
  group->call_limit_ms_ = call_limit_ms_;
  group->rank_ = rank;
  sy_error error = EmptyError();
  const sy_status status = api_->split(handle_, color, key, name.c_str(), &group->handle_, &error);
  SY_RETURN_IF_ERROR(Explain(status, error, fmt::format("split into \"{}\"", name)));
  if (group->handle_ == nullptr && color >= 0)
    return Internal("{}: split into \"{}\" succeeded without a communicator", plugin_name(), name);
  if (group->handle_ == nullptr) return nullptr;
  group->Watch();
  SY_RETURN_IF_ERROR(group->OpenStream());
  return group;
}

void WatchedCollective::Watch() {
  abort_handle_->api = api_;
  abort_handle_->handle = handle_;
  rendezvous_->OnFailure([weak = std::weak_ptr<AbortHandle>(abort_handle_)](const Status&) {
    if (const auto held = weak.lock()) held->Abort();
  });
}

// What host calls of a plugin that works on streams need.
Status WatchedCollective::OpenStream() {
  if (!completes_on_stream()) return OkStatus();
  if (device_ == nullptr) {
    return FailedPrecondition("{} works on the streams of a device, and this communicator has none", plugin_name());
  }
  SY_ASSIGN_OR_RETURN(stream_, device_->NewStream(1));
  SY_ASSIGN_OR_RETURN(event_, device_->NewEvent());
  return OkStatus();
}

// --- calls ---

Status WatchedCollective::Run(const char* what, const char* tag, const Stream* stream, uint64_t* counter, Start start) {
  if (const Status health = rendezvous_->health(); !health.ok())
    return Annotate(health, fmt::format("{} \"{}\"", what, tag));
  const bool waits = stream == nullptr && completes_on_stream();
  const Stream* const on = waits ? &stream_ : stream;
  sy_call call{SY_HEADER(sy_call), tag, (*counter)++, on == nullptr ? nullptr : on->handle(), nullptr};
  if (on != nullptr && completes_on_stream()) {
    SY_ASSIGN_OR_RETURN(call.native_stream, device_->NativeStream(*on));
  }
  sy_request* request = nullptr;
  sy_error error = EmptyError();
  const auto began = Clock::now();
  Status reason;
  sy_status status = start(&call, &request, &error);
  if (status == SY_OK && request != nullptr) {
    status = Wait(request, began, &error, &reason);
    if (deaf_)
      KeepForever(request);
    else
      api_->request_release(handle_, request);
  }
  if (status == SY_OK && waits) {
    SY_RETURN_IF_ERROR(event_.Record(stream_));
    reason = WaitFor(event_, what);
    wait_ms_ += MillisecondsSince(began);
    return reason.ok() ? OkStatus()
                       : Annotate(reason, fmt::format("\"{}\" (call {} of rank {})", tag, call.sequence, rank_));
  }
  wait_ms_ += MillisecondsSince(began);
  if (status == SY_OK) return OkStatus();
  if (reason.ok() && status == SY_INTERNAL) reason = PeerFailure(50);
  const std::string where = fmt::format("{} \"{}\" (call {} of rank {})", what, tag, call.sequence, rank_);
  return reason.ok() ? Explain(status, error, where) : Annotate(reason, fmt::format("{}: {}", plugin_name(), where));
}

Status WatchedCollective::SendReceive(const char* tag, std::span<const sy_transfer> transfers, const Stream* stream) {
  return Run("send_recv_batch", tag, stream, &batches_,
             [&](const sy_call* call, sy_request** request, sy_error* error) {
               return api_->send_recv_batch(handle_, call, transfers.data(), static_cast<uint32_t>(transfers.size()),
                                            request, error);
             });
}

// --- who is at fault ---

Status WatchedCollective::PeerFailure(int patience_ms) const {
  for (int waited = 0; waited < patience_ms && rendezvous_->health().ok(); ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return rendezvous_->health();
}

Status WatchedCollective::Explain(sy_status status, const sy_error& error, const std::string& what) const {
  if (status == SY_OK) return OkStatus();
  const std::string where = fmt::format("{}: {}", plugin_name(), what);
  if (status == SY_ABORTED) {
    if (const Status failure = PeerFailure(); !failure.ok()) return Annotate(failure, where);
    // Another rank may have given up because somebody left: that one is the cause, not the messenger.
    if (const std::string departed = rendezvous_->departed(); !departed.empty())
      return Annotate(Unavailable("{} has left the run", departed), where);
  }
  return FromAbi(status, error, where);
}

void WatchedCollective::Abort() { abort_handle_->Abort(); }

}  // namespace switchyard
