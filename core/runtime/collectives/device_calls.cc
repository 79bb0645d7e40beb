// Collectives on the device's memory: made ready once, then launched, put into groups or started on the communicator's
// own thread.
#include <algorithm>
#include <chrono>

#include "core/runtime/collectives/communicator_impl.h"

namespace switchyard {

StatusOr<std::shared_ptr<Communicator::DeviceCall>> Communicator::Prepare(const std::string& tag,
                                                                          const Collective& what, DevicePlace send,
                                                                          DevicePlace receive) {
  Drain();  // what has been started uses the staging memory
  Impl& impl = *impl_;
  if (impl.device == nullptr) return FailedPrecondition("\"{}\": this communicator was joined without a device", tag);
  auto call = std::make_shared<DeviceCall>();
  call->tag = tag;
  call->what = what;
  call->send_bytes = impl.SendBytes(what);
  call->receive_bytes = impl.ReceiveBytes(what);
  const bool in_place = send.buffer == receive.buffer && send.offset == receive.offset;
  bool direct = true;
  const auto look_at = [&](const DevicePlace& at, uint64_t bytes, sy_place* place, void** address) -> Status {
    if (bytes == 0) return OkStatus();
    if (at.buffer == nullptr || at.offset + bytes > at.buffer->bytes()) {
      return InvalidArgument("\"{}\": bytes {} to {} of a buffer of {} bytes", tag, at.offset, at.offset + bytes,
                             at.buffer == nullptr ? 0 : at.buffer->bytes());
    }
    *place = at.buffer->at(at.offset);
    const std::string& kind = impl.device->info().memory_kind;
    const auto native = impl.device->AddressOf(*at.buffer);
    const bool reached = native.ok() && impl.info.Reaches(kind);
    if (!reached && !impl.reaches_host()) {
      return FailedPrecondition("{} reaches neither the memory of {} nor host memory; choose another --collective",
                                impl.plugin_name, impl.device->info().name);
    }
    direct = direct && reached && (kind == kHostMemory || !impl.Composes(what));
    if (reached) *address = static_cast<char*>(*native) + at.offset;
    return OkStatus();
  };
  void* send_address = nullptr;
  SY_RETURN_IF_ERROR(look_at(send, call->send_bytes, &call->send, &send_address));
  SY_RETURN_IF_ERROR(look_at(receive, call->receive_bytes, &call->receive, &call->receive_address));
  call->send_address = send_address;
  call->staged = !direct;
  if (!call->staged) return call;
  call->through_peers = impl.peers != nullptr && impl.peers->Takes(what);
  if (call->through_peers) {
    SY_ASSIGN_OR_RETURN(call->through_peers, impl.peers->Prepare(what, tag));
    if (call->through_peers) return call;
  }
  call->send_at = in_place ? 0 : (call->receive_bytes + 63) / 64 * 64;
  const uint64_t needed = std::max(call->receive_bytes, call->send_at + call->send_bytes);
  if (impl.staging.bytes() < needed) {
    SY_ASSIGN_OR_RETURN(impl.staging, impl.device->AllocateHost(needed));
  }
  return call;
}

// Calls that were started come before whatever else uses the plugin.
void Communicator::Drain() {
  if (impl_->progress != nullptr) impl_->progress->Drain();
}

Status Communicator::Launch(DeviceCall& call, const Stream& stream) {
  Drain();
  return LaunchNow(call, stream);
}

Status Communicator::LaunchNow(DeviceCall& call, const Stream& stream) {
  Impl& impl = *impl_;
  const uint64_t sent = call.send_bytes, received = call.receive_bytes;
  if (sent + received == 0) return OkStatus();
  if (impl.plugin == nullptr) {
    const bool in_place = call.send.buffer == call.receive.buffer && call.send.offset == call.receive.offset;
    return in_place ? OkStatus() : impl.device->Copy(stream, call.receive, call.send, received);
  }
  const char* const tag = call.tag.c_str();
  if (!call.staged) {
    if (!impl.Enqueues(call) && impl.device->async()) SY_RETURN_IF_ERROR(Synchronize(stream));
    return impl.Perform(call.what, tag, &stream, call.send_address, call.receive_address);
  }
  if (call.through_peers) {
    if (impl.peers == nullptr) return Internal("{}: prepared before LeavePeerMemory", call.tag);
    if (call.what.kind != Collective::kBroadcast || impl.rank == call.what.peer) impl.bytes_sent += sent;
    return impl.peers->Run(call.what, call.send, call.receive, stream, [&] { return impl.Barrier(tag); });
  }
  char* const host = impl.staging.data();
  if (sent > 0) SY_RETURN_IF_ERROR(impl.device->Copy(stream, HostPlace(host + call.send_at), call.send, sent));
  SY_RETURN_IF_ERROR(Synchronize(stream));
  SY_RETURN_IF_ERROR(impl.Perform(call.what, tag, &stream, host + call.send_at, host));
  if (received > 0) SY_RETURN_IF_ERROR(impl.device->Copy(stream, call.receive, HostPlace(host), received));
  return Synchronize(stream);
}

bool Communicator::GoesInGroups(const DeviceCall& call) const {
  if (call.what.kind == Collective::kSend || call.what.kind == Collective::kReceive) return false;
  return impl_->plugin != nullptr && impl_->plugin->Has(&sy_collective_v2::group_begin) &&
         impl_->plugin->Has(&sy_collective_v2::group_end) && impl_->Enqueues(call);
}

bool Communicator::SharesPlugin(const Communicator& other) const {
  return impl_->plugin != nullptr && other.impl_->plugin != nullptr &&
         impl_->plugin->instance() == other.impl_->plugin->instance() &&
         &impl_->plugin->api() == &other.impl_->plugin->api();
}

bool Communicator::MayBeCaptured(const DeviceCall& call) const {
  return impl_->Enqueues(call) && (impl_->info.flags & SY_COLLECTIVE_CAPTURABLE) != 0;
}

Status Communicator::LaunchTogether(std::span<const Grouped> calls) {
  const WatchedCollective& plugin = *calls.front().communicator->impl_->plugin;
  sy_error error = EmptyError();
  sy_status status = plugin.api().group_begin(plugin.instance(), &error);
  if (status != SY_OK) return plugin.Explain(status, error, "group_begin");
  Status launched;
  for (const Grouped& one : calls) {
    launched = one.communicator->Launch(*one.call, *one.stream);
    if (!launched.ok()) break;
  }
  status = plugin.api().group_end(plugin.instance(), &error);  // whatever became of the calls
  if (!launched.ok()) return launched;
  return status == SY_OK ? OkStatus()
                         : plugin.Explain(status, error, fmt::format("group_end of {} calls", calls.size()));
}

Status Communicator::Start(DeviceCall& call, Event* ready, const Stream& stream) {
  Impl& impl = *impl_;
  if (impl.progress == nullptr) {
    auto done = impl.device->NewSemaphore();
    if (done.ok())
      impl.done = std::move(*done);
    else if (done.status().code() != absl::StatusCode::kUnimplemented)
      return done.status();
    impl.progress = std::make_unique<ProgressThread>();
  }
  SY_RETURN_IF_ERROR(impl.progress->Wait(call.task));
  call.ready = ready;
  call.stream = &stream;
  call.ticket = ++impl.started;
  if (!call.task.body) {
    call.task.body = [this, &call]() -> Status {
      Status status = call.ready != nullptr ? call.ready->Wait() : OkStatus();
      for (const auto& await : call.behind) {
        if (status.ok()) status = await();
      }
      const double waited_before = impl_->plugin->TakeWaitMilliseconds();
      if (status.ok()) status = LaunchNow(call, *call.stream);
      impl_->plugin->TakeWaitMilliseconds();  // nobody waited: Finish counts who does
      impl_->wait_ms += waited_before;
      // Also after a failure, or the streams that wait would wait for ever.
      const Status signalled = impl_->done ? impl_->done.Signal(call.ticket) : OkStatus();
      return status.ok() ? signalled : status;
    };
  }
  impl.progress->Submit(call.task);
  return OkStatus();
}

Status Communicator::Before(DeviceCall& call, const Stream& stream) {
  return impl_->done ? impl_->done.Before(stream, call.ticket) : Finish(call);
}

Status Communicator::Finish(DeviceCall& call) {
  if (impl_->progress == nullptr) return OkStatus();
  const auto began = std::chrono::steady_clock::now();
  const Status status = impl_->progress->Wait(call.task);
  impl_->wait_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  return status;
}

Status Communicator::Await(const DeviceCall& call) {
  return impl_->progress == nullptr ? OkStatus() : impl_->progress->Await(call.task);
}

void Communicator::BeginsBehind(DeviceCall& call, std::function<Status()> await) {
  call.behind.push_back(std::move(await));
}

bool Communicator::BetterStarted(const DeviceCall& call) const {
  const Impl& impl = *impl_;
  return impl.plugin != nullptr && !impl.completes_on_stream() && impl.device != nullptr &&
         (impl.device->async() || (impl.several_hosts && !call.staged));
}

Status Communicator::Wait(Event& event) {
  return impl_->completes_on_stream() ? impl_->plugin->WaitFor(event, "waiting for the device") : event.Wait();
}

Status Communicator::Synchronize(const Stream& stream) {
  return impl_->completes_on_stream() ? impl_->plugin->Synchronize(stream, "waiting for the device")
                                      : impl_->device->Synchronize(stream);
}

}  // namespace switchyard
