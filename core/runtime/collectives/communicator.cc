#include "core/runtime/collectives/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "core/base/environment.h"
#include "core/runtime/collectives/composition.h"
#include "core/runtime/collectives/peer_memory.h"
#include "core/runtime/collectives/progress_thread.h"
#include "core/runtime/collectives/watched_collective.h"

namespace switchyard {
namespace {

constexpr int kSplitMs = 60000;  // for the ranks of a group to find each other

// What a collective comes to on a single rank.
Status Identity(const void* send, void* receive, uint64_t bytes) {
  if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
  return OkStatus();
}

}  // namespace

struct Communicator::DeviceCall {
  std::string tag;
  Collective what;
  uint64_t send_bytes = 0, receive_bytes = 0;
  sy_place send{}, receive{};  // where the data lie on the device
  bool staged = false, through_peers = false;
  uint64_t send_at = 0;                // in the staging memory; what is received lies at its start
  const void* send_address = nullptr;  // the same for the plugin, unless staged
  void* receive_address = nullptr;
  Event* ready = nullptr;  // of the last Start; null: it waits for nothing
  const Stream* stream = nullptr;
  ProgressThread::Task task;
  uint64_t ticket = 0;  // of the last Start: Impl::done reaches it when the call has ended
};

struct Communicator::Impl {
  std::string plugin_name = "none";
  CollectiveInfo info{.memory_kinds = {kHostMemory}};
  Device* device = nullptr;
  int rank = 0, size = 1;
  bool several_hosts = false;
  std::atomic<double> wait_ms = 0;  // beside the plugin's; of whichever thread uses the communicator
  std::atomic<uint64_t> bytes_sent = 0;
  HostMemory staging;  // for device memory that the plugin cannot touch
  Buffer relay;        // for host memory that the plugin cannot touch
  Rendezvous* rendezvous = nullptr;
  std::unique_ptr<PeerMemory> peers;  // for device memory that the plugin cannot touch, where all ranks can
  // Null with one rank and no plugin. Ends before the memory that its calls use.
  std::unique_ptr<WatchedCollective> plugin;
  // Made by the first Start: what counts the calls that have ended, where the device has semaphores, and who makes
  // them, which ends before the plugin.
  Semaphore done;
  uint64_t started = 0;
  std::unique_ptr<ProgressThread> progress;

  bool completes_on_stream() const { return plugin != nullptr && plugin->completes_on_stream(); }
  bool reaches_host() const { return plugin == nullptr || plugin->reaches_host(); }
  template <typename Body>
  Status Relay(const void* send, uint64_t send_bytes, void* receive, uint64_t receive_bytes, Body body);
  Status Messages(const char* tag, const std::vector<sy_transfer>& transfers);
  Composition Composed(const char* tag);        // on host addresses only: the sums are the host's
  bool Composes(const Collective& what) const;  // because the plugin does not offer it
  bool Enqueues(const DeviceCall& call) const;  // Launch returns before it has finished
  Status JoinPeers(const std::string& name, int timeout_ms);
  uint64_t SendBytes(const Collective& what) const;
  uint64_t ReceiveBytes(const Collective& what) const;
  // On addresses that the plugin reaches, or the host where it is composed. Without a stream it has finished.
  Status Perform(const Collective& what, const char* tag, const Stream* stream, const void* send, void* receive);
  Status PerformOnHost(const Collective& what, const char* tag, const void* send, void* receive);
  Status Barrier(const char* tag);
};

// Runs body(send, receive) on device memory with the contents of `send`, and fetches `receive`. Where send lies inside
// receive (in place) it also does so on the device.
template <typename Body>
Status Communicator::Impl::Relay(const void* send, uint64_t send_bytes, void* receive, uint64_t receive_bytes,
                                 Body body) {
  const auto* const from = static_cast<const char*>(send);
  auto* const to = static_cast<char*>(receive);
  const bool inside = from >= to && from + send_bytes <= to + receive_bytes;
  const bool around = to >= from && to + receive_bytes <= from + send_bytes;  // reduce_scatter in place
  const uint64_t alignment = device->info().alignment;
  const uint64_t second = inside || around ? 0 : (receive_bytes + alignment - 1) / alignment * alignment;
  const uint64_t needed = inside ? receive_bytes : second + send_bytes;
  if (needed == 0) return body(nullptr, nullptr);
  if (relay.bytes() < needed) {
    relay.reset();
    SY_ASSIGN_OR_RETURN(relay, device->Allocate(needed));
  }
  SY_ASSIGN_OR_RETURN(void* const address, device->AddressOf(relay));
  auto* const base = static_cast<char*>(address);
  const uint64_t send_at = inside ? static_cast<uint64_t>(from - to) : second;
  const uint64_t receive_at = around ? static_cast<uint64_t>(to - from) : 0;
  if (send_bytes > 0) SY_RETURN_IF_ERROR(device->Upload(relay.at(send_at), send, send_bytes));
  SY_RETURN_IF_ERROR(body(base + send_at, base + receive_at));
  return receive_bytes > 0 ? device->Download(receive, relay.at(receive_at), receive_bytes) : OkStatus();
}

// Messages from and to host memory.
Status Communicator::Impl::Messages(const char* tag, const std::vector<sy_transfer>& transfers) {
  if (reaches_host()) return plugin->SendReceive(tag, transfers);
  // Side by side in device memory.
  const uint64_t alignment = device->info().alignment;
  std::vector<uint64_t> offsets;
  uint64_t needed = 0;
  for (const sy_transfer& transfer : transfers) {
    offsets.push_back(needed);
    needed += (transfer.bytes + alignment - 1) / alignment * alignment;
  }
  if (relay.bytes() < std::max<uint64_t>(needed, 1)) {
    relay.reset();
    SY_ASSIGN_OR_RETURN(relay, device->Allocate(std::max<uint64_t>(needed, 1)));
  }
  SY_ASSIGN_OR_RETURN(void* const address, device->AddressOf(relay));
  std::vector<sy_transfer> relayed = transfers;
  for (size_t i = 0; i < transfers.size(); ++i) {
    relayed[i].address = static_cast<char*>(address) + offsets[i];
    if (transfers[i].is_send && transfers[i].bytes > 0)
      SY_RETURN_IF_ERROR(device->Upload(relay.at(offsets[i]), transfers[i].address, transfers[i].bytes));
  }
  SY_RETURN_IF_ERROR(plugin->SendReceive(tag, relayed));
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (!transfers[i].is_send && transfers[i].bytes > 0)
      SY_RETURN_IF_ERROR(device->Download(transfers[i].address, relay.at(offsets[i]), transfers[i].bytes));
  }
  return OkStatus();
}

Composition Communicator::Impl::Composed(const char* tag) {
  return Composition(rank, size,
                     [this, tag](const std::vector<sy_transfer>& transfers) { return Messages(tag, transfers); });
}

bool Communicator::Impl::Composes(const Collective& what) const {
  if (plugin == nullptr) return false;
  switch (what.kind) {
    case Collective::kAllReduce:
      return !plugin->Reduces(&sy_collective_v2::all_reduce, what.dtype, what.reduction);
    case Collective::kReduceScatter:
      return !plugin->Reduces(&sy_collective_v2::reduce_scatter, what.dtype, what.reduction);
    case Collective::kAllGather:
      return !plugin->Has(&sy_collective_v2::all_gather);
    case Collective::kBroadcast:
      return !plugin->Has(&sy_collective_v2::broadcast);
    case Collective::kAllToAll:
      return !plugin->Has(&sy_collective_v2::all_to_all);
    case Collective::kSend:
    case Collective::kReceive:
      return false;
  }
  return false;
}

bool Communicator::Impl::Enqueues(const DeviceCall& call) const {
  return completes_on_stream() && !call.staged && !Composes(call.what);
}

// Where device memory would be staged through host memory and all ranks are of one host. SWITCHYARD_PEER_MEMORY=0 keeps
// to the host.
Status Communicator::Impl::JoinPeers(const std::string& name, int timeout_ms) {
  if (size == 1 || several_hosts) return OkStatus();
  PeerMemory::Request request;
  request.name = name;
  request.rank = rank;
  request.size = size;
  request.device = device;
  request.wanted = device != nullptr && reaches_host() && !info.Reaches(device->info().memory_kind) &&
                   EnvironmentInt("SWITCHYARD_PEER_MEMORY").value_or(1) != 0;
  request.timeout_ms = timeout_ms;
  SY_ASSIGN_OR_RETURN(peers, PeerMemory::Join(request, *rendezvous));
  return OkStatus();
}

uint64_t Communicator::Impl::SendBytes(const Collective& what) const {
  const bool whole = what.kind == Collective::kReduceScatter || what.kind == Collective::kAllToAll;
  if (what.kind == Collective::kReceive) return 0;
  return what.count * BytesOf(what.dtype) * static_cast<uint64_t>(whole ? size : 1);
}

uint64_t Communicator::Impl::ReceiveBytes(const Collective& what) const {
  const bool whole = what.kind == Collective::kAllGather || what.kind == Collective::kAllToAll;
  if (what.kind == Collective::kSend) return 0;
  return what.count * BytesOf(what.dtype) * static_cast<uint64_t>(whole ? size : 1);
}

Status Communicator::Impl::Perform(const Collective& what, const char* tag, const Stream* stream, const void* send,
                                   void* receive) {
  using C = Collective;
  const auto& [kind, count, dtype, reduction, peer] = what;
  if (kind != C::kBroadcast || rank == peer) bytes_sent += SendBytes(what);
  if (kind == C::kSend || kind == C::kReceive) {
    if (plugin == nullptr) return InvalidArgument("a message \"{}\": a single rank has no peer", tag);
    const bool is_send = kind == C::kSend;
    void* const address = is_send ? const_cast<void*>(send) : receive;
    const sy_transfer message{peer, is_send, address, count * BytesOf(dtype)};
    return plugin->SendReceive(tag, {&message, 1}, stream);
  }
  if (plugin == nullptr) return Identity(send, receive, count * BytesOf(dtype));
  if (Composes(what)) {
    Composition composed = Composed(tag);
    switch (kind) {
      case C::kAllReduce:
        return composed.AllReduce(send, receive, count, dtype, reduction);
      case C::kReduceScatter:
        return composed.ReduceScatter(send, receive, count, dtype, reduction);
      case C::kAllGather:
        return composed.AllGather(send, receive, count, dtype);
      case C::kBroadcast:
        return composed.Broadcast(receive, count, dtype, peer);
      default:
        return composed.AllToAll(send, receive, count, dtype);
    }
  }
  using V = sy_collective_v2;
  switch (kind) {
    case C::kAllReduce:
      return plugin->Call("all_reduce", &V::all_reduce, tag, stream, send, receive, count, dtype, reduction);
    case C::kReduceScatter:
      return plugin->Call("reduce_scatter", &V::reduce_scatter, tag, stream, send, receive, count, dtype, reduction);
    case C::kAllGather:
      return plugin->Call("all_gather", &V::all_gather, tag, stream, send, receive, count, dtype);
    case C::kBroadcast:
      return plugin->Call("broadcast", &V::broadcast, tag, stream, receive, count, dtype, peer);
    default:
      return plugin->Call("all_to_all", &V::all_to_all, tag, stream, send, receive, count, dtype);
  }
}

Status Communicator::Impl::PerformOnHost(const Collective& what, const char* tag, const void* send, void* receive) {
  if (reaches_host() || Composes(what)) return Perform(what, tag, nullptr, send, receive);
  return Relay(send, SendBytes(what), receive, ReceiveBytes(what),
               [&](const void* from, void* to) { return Perform(what, tag, nullptr, from, to); });
}

Communicator::Communicator() : impl_(std::make_unique<Impl>()) {}
Communicator::~Communicator() = default;

StatusOr<std::unique_ptr<Communicator>> Communicator::Join(std::shared_ptr<Plugin> plugin, const ProcessMap& processes,
                                                           Rendezvous& rendezvous, Device* device,
                                                           const std::string& name, int timeout_ms) {
  std::unique_ptr<Communicator> communicator(new Communicator);
  Impl& impl = *communicator->impl_;
  impl.device = device;
  impl.rank = processes.rank;
  impl.size = processes.world;
  impl.several_hosts = processes.nodes > 1;
  if (plugin == nullptr) {
    if (processes.world == 1) return communicator;
    return FailedPrecondition(
        "{} ranks need a collective plugin, found none; try --collective=shm on one node or mpi under mpirun",
        processes.world);
  }
  impl.plugin_name = plugin->name();
  SY_ASSIGN_OR_RETURN(impl.plugin, WatchedCollective::Query(std::move(plugin), rendezvous, device));
  impl.info = impl.plugin->info();
  SY_RETURN_IF_ERROR(rendezvous.Barrier("join/" + name, timeout_ms));  // names whoever is missing
  const bool memory_is_hosts = device == nullptr || impl.info.memory_kinds == std::vector<std::string>{kHostMemory};
  SY_RETURN_IF_ERROR(impl.plugin->Init(sy_init_request{.header = SY_HEADER(sy_init_request),
                                                       .rank = impl.rank,
                                                       .size = impl.size,
                                                       .hosts = processes.hosts.data(),
                                                       .name = name.c_str(),
                                                       .store = rendezvous.store(),
                                                       .timeout_ms = 0,
                                                       .device = memory_is_hosts ? nullptr : device->handle(),
                                                       .backend = memory_is_hosts ? nullptr : &device->plugin().table(),
                                                       .device_index = memory_is_hosts ? 0 : device->info().index},
                                       timeout_ms));
  impl.rendezvous = &rendezvous;
  SY_RETURN_IF_ERROR(impl.JoinPeers(name, timeout_ms));
  return communicator;
}

StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key, const std::string& name) {
  Drain();
  Impl& from = *impl_;
  std::unique_ptr<Communicator> communicator(new Communicator);
  Impl& impl = *communicator->impl_;
  impl.device = from.device;
  impl.info = from.info;
  impl.several_hosts = from.several_hosts;
  impl.plugin_name = from.plugin_name;
  if (from.plugin == nullptr) return color < 0 ? nullptr : std::move(communicator);

  // Who is in the new group, and where: everybody learns everybody's color and key.
  std::vector<int32_t> all(2 * static_cast<size_t>(from.size));
  const int32_t own[2] = {color, key};
  SY_RETURN_IF_ERROR(AllGather(name.c_str(), own, all.data(), 2, SY_I32));
  impl.size = impl.rank = 0;
  for (int peer = 0; peer < from.size; ++peer) {
    if (all[2 * peer] != color) continue;
    ++impl.size;
    const int32_t peer_key = all[2 * peer + 1];
    if (peer_key < key || (peer_key == key && peer < from.rank)) ++impl.rank;
  }
  SY_ASSIGN_OR_RETURN(impl.plugin, from.plugin->Split(color, key, name, impl.rank));
  if (impl.plugin == nullptr) return nullptr;
  impl.rendezvous = from.rendezvous;
  SY_RETURN_IF_ERROR(impl.JoinPeers(fmt::format("{}/{}", name, color), kSplitMs));
  return communicator;
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }
const CollectiveInfo& Communicator::info() const { return impl_->info; }
const std::string& Communicator::plugin_name() const { return impl_->plugin_name; }
bool Communicator::goes_through_peer_memory() const { return impl_->peers != nullptr; }
uint64_t Communicator::peer_memory_bytes() const {
  return goes_through_peer_memory() ? PeerMemory::BytesFor(impl_->size, impl_->device->info().alignment) : 0;
}

Status Communicator::AllReduce(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                               int reduction) {
  Drain();
  return impl_->PerformOnHost({Collective::kAllReduce, count, dtype, reduction}, tag, send, receive);
}

Status Communicator::AllGather(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  Drain();
  return impl_->PerformOnHost({Collective::kAllGather, count, dtype}, tag, send, receive);
}

Status Communicator::ReduceScatter(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                                   int reduction) {
  Drain();
  return impl_->PerformOnHost({Collective::kReduceScatter, count, dtype, reduction}, tag, send, receive);
}

Status Communicator::AllToAll(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  Drain();
  return impl_->PerformOnHost({Collective::kAllToAll, count, dtype}, tag, send, receive);
}

Status Communicator::Broadcast(const char* tag, void* address, uint64_t count, sy_dtype dtype, int root) {
  Drain();
  return impl_->PerformOnHost({Collective::kBroadcast, count, dtype, SY_SUM, root}, tag, address, address);
}

Status Communicator::Impl::Barrier(const char* tag) {
  if (plugin == nullptr) return OkStatus();
  if (!plugin->Has(&sy_collective_v2::barrier)) return Composed(tag).Barrier();
  return plugin->Call("barrier", &sy_collective_v2::barrier, tag, nullptr);
}

Status Communicator::Barrier(const char* tag) {
  Drain();
  return impl_->Barrier(tag);
}

Status Communicator::SendReceive(const char* tag, const std::vector<sy_transfer>& transfers) {
  Drain();
  if (impl_->plugin == nullptr) return InvalidArgument("send_recv_batch \"{}\": a single rank has no peer", tag);
  for (const sy_transfer& transfer : transfers) impl_->bytes_sent += transfer.is_send ? transfer.bytes : 0;
  return impl_->Messages(tag, transfers);
}

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

StatusOr<void*> Communicator::AllocateOwned(uint64_t bytes) {
  Drain();
  if (impl_->plugin == nullptr || !impl_->plugin->Has(&sy_collective_v2::buffer_alloc)) {
    return Unimplemented("collective {} owns no memory", impl_->plugin_name);
  }
  void* address = nullptr;
  sy_error error = EmptyError();
  const sy_status status = impl_->plugin->api().buffer_alloc(impl_->plugin->handle(), bytes, &address, &error);
  SY_RETURN_IF_ERROR(impl_->plugin->Explain(status, error, fmt::format("buffer_alloc of {} bytes", bytes)));
  return address;
}

StatusOr<Buffer> Communicator::AllocateShared(uint64_t bytes) {
  if (impl_->device == nullptr) return FailedPrecondition("this communicator was joined without a device");
  SY_ASSIGN_OR_RETURN(void* const address, AllocateOwned(bytes));
  return impl_->device->Import(address, impl_->info.memory_kinds.front(), bytes);
}

double Communicator::TakeWaitMilliseconds() {
  return impl_->plugin == nullptr ? 0 : impl_->wait_ms.exchange(0) + impl_->plugin->TakeWaitMilliseconds();
}
uint64_t Communicator::bytes_sent() const { return impl_->bytes_sent; }
Status Communicator::health() const { return impl_->rendezvous != nullptr ? impl_->rendezvous->health() : OkStatus(); }
void Communicator::CountSent(int64_t bytes) { impl_->bytes_sent += static_cast<uint64_t>(bytes); }
void Communicator::Abort() {
  if (impl_->plugin != nullptr) impl_->plugin->Abort();
}

}  // namespace switchyard
