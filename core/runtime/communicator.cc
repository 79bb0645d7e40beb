#include "core/runtime/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/runtime/composition.h"
#include "core/runtime/progress_thread.h"
#include "core/runtime/watched_collective.h"

namespace switchyard {
namespace {

// What a collective comes to on a single rank.
Status Identity(const void* send, void* receive, uint64_t bytes) {
  if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
  return OkStatus();
}

}  // namespace

struct Communicator::DeviceCall {
  std::string tag;
  bool is_broadcast = false;
  sy_place place{};         // where the data lies on the device
  void* address = nullptr;  // the same for the plugin; null: staged
  uint64_t count = 0, bytes = 0;
  sy_dtype dtype = SY_F32;
  int reduction = SY_SUM, root = 0;
  Event* ready = nullptr;  // of the last Start
  const Stream* stream = nullptr;
  ProgressThread::Task task;
};

struct Communicator::Impl {
  std::string plugin_name = "none";
  sy_collective_info info{SY_HEADER(sy_collective_info)};
  Device* device = nullptr;
  int rank = 0, size = 1;
  bool several_hosts = false;
  double wait_ms = 0;  // beside the plugin's; of whichever thread uses the communicator
  uint64_t bytes_sent = 0;
  HostMemory staging;  // for device memory that the plugin cannot touch
  Buffer relay;        // for host memory that the plugin cannot touch
  // Null with one rank and no plugin. Ends before the memory that its calls use.
  std::unique_ptr<WatchedCollective> plugin;
  std::unique_ptr<ProgressThread> progress;  // made by the first Start; ends before the plugin

  bool completes_on_stream() const { return plugin != nullptr && plugin->completes_on_stream(); }
  bool reaches_host() const { return plugin == nullptr || plugin->reaches_host(); }
  template <typename Body>
  Status Relay(const void* send, uint64_t send_bytes, void* receive, uint64_t receive_bytes, Body body);
  Status Messages(const char* tag, const std::vector<sy_transfer>& transfers);
  Composition Composed(const char* tag);  // on host addresses only: the sums are the host's
  bool Composes(const DeviceCall& call) const;
  Status AllReduce(const char* tag, const Stream* stream, const void* send, void* receive, uint64_t count,
                   sy_dtype dtype, int reduction);
  Status Broadcast(const char* tag, const Stream* stream, void* address, uint64_t count, sy_dtype dtype, int root);
  StatusOr<std::shared_ptr<DeviceCall>> Prepare(DeviceCall call, const Buffer& buffer, uint64_t offset);
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
  SY_ASSIGN_OR_RETURN(const Device::NativeAddress native, device->AddressOf(relay));
  auto* const base = static_cast<char*>(native.address);
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
  SY_ASSIGN_OR_RETURN(const Device::NativeAddress native, device->AddressOf(relay));
  std::vector<sy_transfer> relayed = transfers;
  for (size_t i = 0; i < transfers.size(); ++i) {
    relayed[i].address = static_cast<char*>(native.address) + offsets[i];
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

bool Communicator::Impl::Composes(const DeviceCall& call) const {
  if (plugin == nullptr) return false;
  return call.is_broadcast ? !plugin->Has(&sy_collective_v1::broadcast) : !plugin->Has(&sy_collective_v1::all_reduce);
}

Status Communicator::Impl::AllReduce(const char* tag, const Stream* stream, const void* send, void* receive,
                                     uint64_t count, sy_dtype dtype, int reduction) {
  const uint64_t bytes = count * BytesOf(dtype);
  bytes_sent += bytes;
  if (plugin == nullptr) return Identity(send, receive, bytes);
  if (!plugin->Has(&sy_collective_v1::all_reduce))
    return Composed(tag).AllReduce(send, receive, count, dtype, reduction);
  return plugin->Call("all_reduce", &sy_collective_v1::all_reduce, tag, stream, send, receive, count, dtype, reduction);
}

Status Communicator::Impl::Broadcast(const char* tag, const Stream* stream, void* address, uint64_t count,
                                     sy_dtype dtype, int root) {
  if (rank == root) bytes_sent += count * BytesOf(dtype);
  if (plugin == nullptr) return OkStatus();
  if (!plugin->Has(&sy_collective_v1::broadcast)) return Composed(tag).Broadcast(address, count, dtype, root);
  return plugin->Call("broadcast", &sy_collective_v1::broadcast, tag, stream, address, count, dtype, root);
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
  impl.info.memory_kinds = 1u << SY_MEMORY_HOST;
  impl.info.completion = SY_COMPLETES_BY_POLL;
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
  const bool memory_is_hosts = device == nullptr || (impl.info.memory_kinds & ~(1u << SY_MEMORY_HOST)) == 0;
  const std::string device_plugin = device == nullptr ? "" : device->info().plugin;
  SY_RETURN_IF_ERROR(impl.plugin->Init(sy_init_request{.header = SY_HEADER(sy_init_request),
                                                       .rank = impl.rank,
                                                       .size = impl.size,
                                                       .hosts = processes.hosts.data(),
                                                       .name = name.c_str(),
                                                       .store = rendezvous.store(),
                                                       .timeout_ms = 0,
                                                       .device = memory_is_hosts ? nullptr : device->handle(),
                                                       .device_plugin = device_plugin.c_str(),
                                                       .device_index = device == nullptr ? 0 : device->info().index},
                                       timeout_ms));
  return communicator;
}

StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key, const std::string& name) {
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
  return impl.plugin == nullptr ? nullptr : std::move(communicator);
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }
const sy_collective_info& Communicator::info() const { return impl_->info; }
const std::string& Communicator::plugin_name() const { return impl_->plugin_name; }

Status Communicator::AllReduce(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                               int reduction) {
  Impl& impl = *impl_;
  const uint64_t bytes = count * BytesOf(dtype);
  if (impl.plugin != nullptr && !impl.plugin->Reduces(&sy_collective_v1::all_reduce, dtype, reduction)) {
    impl.bytes_sent += bytes;
    return impl.Composed(tag).AllReduce(send, receive, count, dtype, reduction);
  }
  if (impl.reaches_host()) return impl.AllReduce(tag, nullptr, send, receive, count, dtype, reduction);
  return impl.Relay(send, bytes, receive, bytes, [&](const void* from, void* to) {
    return impl.AllReduce(tag, nullptr, from, to, count, dtype, reduction);
  });
}

Status Communicator::AllGather(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  Impl& impl = *impl_;
  const uint64_t bytes = count * BytesOf(dtype);
  impl.bytes_sent += bytes;
  if (impl.plugin == nullptr) return Identity(send, receive, bytes);
  if (!impl.plugin->Has(&sy_collective_v1::all_gather))
    return impl.Composed(tag).AllGather(send, receive, count, dtype);
  const auto call = [&](const void* from, void* to) {
    return impl.plugin->Call("all_gather", &sy_collective_v1::all_gather, tag, nullptr, from, to, count, dtype);
  };
  return impl.reaches_host() ? call(send, receive) : impl.Relay(send, bytes, receive, bytes * impl.size, call);
}

Status Communicator::ReduceScatter(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                                   int reduction) {
  Impl& impl = *impl_;
  const uint64_t bytes = count * BytesOf(dtype);
  impl.bytes_sent += bytes * impl.size;
  if (impl.plugin == nullptr) return Identity(send, receive, bytes);
  if (!impl.plugin->Reduces(&sy_collective_v1::reduce_scatter, dtype, reduction))
    return impl.Composed(tag).ReduceScatter(send, receive, count, dtype, reduction);
  const auto call = [&](const void* from, void* to) {
    return impl.plugin->Call("reduce_scatter", &sy_collective_v1::reduce_scatter, tag, nullptr, from, to, count, dtype,
                             reduction);
  };
  return impl.reaches_host() ? call(send, receive) : impl.Relay(send, bytes * impl.size, receive, bytes, call);
}

Status Communicator::AllToAll(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  Impl& impl = *impl_;
  const uint64_t bytes = count * BytesOf(dtype) * impl.size;
  impl.bytes_sent += bytes;
  if (impl.plugin == nullptr) return Identity(send, receive, bytes);
  if (!impl.plugin->Has(&sy_collective_v1::all_to_all)) return impl.Composed(tag).AllToAll(send, receive, count, dtype);
  const auto call = [&](const void* from, void* to) {
    return impl.plugin->Call("all_to_all", &sy_collective_v1::all_to_all, tag, nullptr, from, to, count, dtype);
  };
  return impl.reaches_host() ? call(send, receive) : impl.Relay(send, bytes, receive, bytes, call);
}

Status Communicator::Broadcast(const char* tag, void* address, uint64_t count, sy_dtype dtype, int root) {
  const bool composes = impl_->plugin != nullptr && !impl_->plugin->Has(&sy_collective_v1::broadcast);
  if (impl_->reaches_host() || composes) return impl_->Broadcast(tag, nullptr, address, count, dtype, root);
  const uint64_t bytes = count * BytesOf(dtype);
  return impl_->Relay(address, bytes, address, bytes, [&](const void*, void* relayed) {
    return impl_->Broadcast(tag, nullptr, relayed, count, dtype, root);
  });
}

Status Communicator::Barrier(const char* tag) {
  if (impl_->plugin == nullptr) return OkStatus();
  if (!impl_->plugin->Has(&sy_collective_v1::barrier)) return impl_->Composed(tag).Barrier();
  return impl_->plugin->Call("barrier", &sy_collective_v1::barrier, tag, nullptr);
}

Status Communicator::SendReceive(const char* tag, const std::vector<sy_transfer>& transfers) {
  if (impl_->plugin == nullptr) return InvalidArgument("send_recv_batch \"{}\": a single rank has no peer", tag);
  for (const sy_transfer& transfer : transfers) impl_->bytes_sent += transfer.is_send ? transfer.bytes : 0;
  return impl_->Messages(tag, transfers);
}

StatusOr<std::shared_ptr<Communicator::DeviceCall>> Communicator::Impl::Prepare(DeviceCall call, const Buffer& buffer,
                                                                                uint64_t offset) {
  call.bytes = call.count * BytesOf(call.dtype);
  if (device == nullptr) return FailedPrecondition("\"{}\": this communicator was joined without a device", call.tag);
  if (offset + call.bytes > buffer.bytes()) {
    return InvalidArgument("\"{}\": bytes {} to {} of a buffer of {} bytes", call.tag, offset, offset + call.bytes,
                           buffer.bytes());
  }
  call.place = buffer.at(offset);
  const auto native = device->AddressOf(buffer);
  const bool reached = native.ok() && (info.memory_kinds >> native->memory_kind & 1u) != 0;
  if (!reached && !reaches_host()) {
    return FailedPrecondition("{} reaches neither the memory of {} nor host memory; choose another --collective",
                              plugin_name, device->info().name);
  }
  if (reached && (native->memory_kind == SY_MEMORY_HOST || !Composes(call))) {
    call.address = static_cast<char*>(native->address) + offset;
  } else if (staging.bytes() < call.bytes) {
    SY_ASSIGN_OR_RETURN(staging, device->AllocateHost(call.bytes));
  }
  return std::make_shared<DeviceCall>(std::move(call));
}

StatusOr<std::shared_ptr<Communicator::DeviceCall>> Communicator::PrepareAllReduce(const std::string& tag,
                                                                                   const Buffer& buffer,
                                                                                   uint64_t offset, uint64_t count,
                                                                                   sy_dtype dtype, int reduction) {
  DeviceCall call{.tag = tag, .count = count, .dtype = dtype, .reduction = reduction};
  if (impl_->plugin != nullptr && impl_->plugin->Has(&sy_collective_v1::all_reduce) &&
      !impl_->plugin->Reduces(&sy_collective_v1::all_reduce, dtype, reduction)) {
    return Unimplemented("{} cannot reduce {} (all_reduce \"{}\")", impl_->plugin_name, DtypeName(dtype), tag);
  }
  return impl_->Prepare(std::move(call), buffer, offset);
}

StatusOr<std::shared_ptr<Communicator::DeviceCall>> Communicator::PrepareBroadcast(const std::string& tag,
                                                                                   const Buffer& buffer,
                                                                                   uint64_t offset, uint64_t count,
                                                                                   sy_dtype dtype, int root) {
  return impl_->Prepare(DeviceCall{.tag = tag, .is_broadcast = true, .count = count, .dtype = dtype, .root = root},
                        buffer, offset);
}

Status Communicator::Launch(DeviceCall& call, const Stream& stream) {
  Impl& impl = *impl_;
  if (impl.plugin == nullptr || call.bytes == 0) return OkStatus();
  const auto run = [&](void* address) {
    return call.is_broadcast
               ? impl.Broadcast(call.tag.c_str(), &stream, address, call.count, call.dtype, call.root)
               : impl.AllReduce(call.tag.c_str(), &stream, address, address, call.count, call.dtype, call.reduction);
  };
  if (call.address != nullptr) {
    const bool enqueues = impl.completes_on_stream() && !impl.Composes(call);
    if (!enqueues && impl.device->async()) SY_RETURN_IF_ERROR(Synchronize(stream));
    return run(call.address);
  }
  char* host = impl.staging.data();
  SY_RETURN_IF_ERROR(impl.device->Copy(stream, HostPlace(host), call.place, call.bytes));
  SY_RETURN_IF_ERROR(Synchronize(stream));
  SY_RETURN_IF_ERROR(run(host));
  SY_RETURN_IF_ERROR(impl.device->Copy(stream, call.place, HostPlace(host), call.bytes));
  return Synchronize(stream);
}

void Communicator::Start(DeviceCall& call, Event& ready, const Stream& stream) {
  if (impl_->progress == nullptr) impl_->progress = std::make_unique<ProgressThread>();
  call.ready = &ready;
  call.stream = &stream;
  if (!call.task.body) {
    call.task.body = [this, &call]() -> Status {
      SY_RETURN_IF_ERROR(call.ready->Wait());
      const double waited_before = impl_->plugin->TakeWaitMilliseconds();
      const Status status = Launch(call, *call.stream);
      impl_->plugin->TakeWaitMilliseconds();  // nobody waited: Finish counts who does
      impl_->wait_ms += waited_before;
      return status;
    };
  }
  impl_->progress->Submit(call.task);
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
         (impl.device->async() || (impl.several_hosts && call.address != nullptr));
}

Status Communicator::Wait(Event& event) {
  return impl_->completes_on_stream() ? impl_->plugin->WaitFor(event, "waiting for the device") : event.Wait();
}

Status Communicator::Synchronize(const Stream& stream) {
  return impl_->completes_on_stream() ? impl_->plugin->Synchronize(stream, "waiting for the device")
                                      : impl_->device->Synchronize(stream);
}

StatusOr<void*> Communicator::AllocateOwned(uint64_t bytes) {
  if (impl_->plugin == nullptr || !impl_->plugin->Has(&sy_collective_v1::buffer_alloc)) {
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
  int kind = SY_MEMORY_HOST;  // of the plugin's own memory: the only kind that it reaches, or the host's
  while (kind + 1 < SY_MEMORY_KIND_COUNT && (impl_->info.memory_kinds >> kind & 1u) == 0) ++kind;
  return impl_->device->Import(address, kind, bytes);
}

double Communicator::TakeWaitMilliseconds() {
  return impl_->plugin == nullptr ? 0 : std::exchange(impl_->wait_ms, 0) + impl_->plugin->TakeWaitMilliseconds();
}
uint64_t Communicator::bytes_sent() const { return impl_->bytes_sent; }
void Communicator::Abort() {
  if (impl_->plugin != nullptr) impl_->plugin->Abort();
}

}  // namespace switchyard
