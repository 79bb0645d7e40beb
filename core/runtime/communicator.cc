#include "core/runtime/communicator.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/base/environment.h"
#include "core/runtime/composition.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
constexpr double kLookEveryMs = 100;        // how often a wait looks for the rarer ends of it
constexpr double kDepartureGraceMs = 2000;  // what a rank that said goodbye may have left for the others to finish

// What the watch thread needs to abort a communicator that may be destroyed meanwhile.
struct AbortHandle {
  std::mutex mutex;
  const sy_collective_v1* api = nullptr;
  sy_communicator* handle = nullptr;
  void Abort() {
    const std::lock_guard lock(mutex);
    if (handle != nullptr) api->abort(handle);
  }
};

}  // namespace

struct Communicator::DeviceCall {
  std::string tag;
  bool is_broadcast = false;
  sy_place place{};         // where the data lies on the device
  void* address = nullptr;  // the same for the plugin; null: staged
  uint64_t count = 0, bytes = 0;
  sy_dtype dtype = SY_F32;
  int reduction = SY_SUM, root = 0;
};

struct Communicator::Impl {
  std::shared_ptr<Plugin> plugin;
  std::string plugin_name = "none";
  const sy_collective_v1* api = nullptr;  // null with one rank and no plugin
  sy_communicator* handle = nullptr;
  sy_collective_info info{SY_HEADER(sy_collective_info)};
  std::shared_ptr<AbortHandle> abort_handle = std::make_shared<AbortHandle>();
  Rendezvous* rendezvous = nullptr;
  Device* device = nullptr;
  int rank = 0, size = 1;
  uint64_t sequence = 0, batches = 0;  // batches are counted apart: not every rank takes part in each
  uint64_t bytes_sent = 0;
  double wait_ms = 0, call_limit_ms = 600e3;
  HostMemory staging;  // for device memory that the plugin cannot touch
  Buffer relay;        // for host memory that the plugin cannot touch
  Stream stream;       // of host calls, where the plugin's work completes on a stream
  Event event;

  ~Impl() {
    {
      const std::lock_guard lock(abort_handle->mutex);
      abort_handle->handle = nullptr;
    }
    if (handle != nullptr) api->destroy(handle);
  }

  bool completes_on_stream() const { return api != nullptr && info.completion == SY_COMPLETES_ON_STREAM; }
  bool reaches_host() const { return (info.memory_kinds >> SY_MEMORY_HOST & 1u) != 0; }
  void Watch();
  Status OpenStream();
  Status WaitFor(Event& finished, const char* what);
  template <typename Body>
  Status Relay(const void* send, uint64_t send_bytes, void* receive, uint64_t receive_bytes, Body body);
  template <typename Start>
  Status Run(const char* what, const char* tag, const Stream* stream, Start start) {
    return Run(what, tag, stream, &sequence, start);
  }
  template <typename Start>
  Status Run(const char* what, const char* tag, const Stream* stream, uint64_t* counter, Start start);
  sy_status Wait(sy_request* request, Clock::time_point start, sy_error* error, Status* reason);
  Status PeerFailure(int patience_ms) const;
  Status Messages(const char* tag, const std::vector<sy_transfer>& transfers);
  Composition Composed(const char* tag);
  template <typename Function>
  bool Has(Function sy_collective_v1::*function) const {
    const auto offset = reinterpret_cast<const char*>(&(api->*function)) - reinterpret_cast<const char*>(api);
    return api->header.size >= static_cast<size_t>(offset) + sizeof(Function) && api->*function != nullptr;
  }
  // Has the plugin this function for numbers of this dtype? What it cannot reduce is composed from messages.
  template <typename Function>
  bool Reduces(Function sy_collective_v1::*function, sy_dtype dtype, int reduction) const {
    return Has(function) && reduction >= 0 && reduction < SY_REDUCTION_COUNT &&
           (info.reductions[reduction] >> dtype & 1u) != 0;
  }

  Status AllReduce(const char* tag, const Stream* stream, const void* send, void* receive, uint64_t count,
                   sy_dtype dtype, int reduction);
  Status Broadcast(const char* tag, const Stream* stream, void* address, uint64_t count, sy_dtype dtype, int root);
  StatusOr<std::shared_ptr<DeviceCall>> Prepare(DeviceCall call, const Buffer& buffer, uint64_t offset);
};

void Communicator::Impl::Watch() {
  abort_handle->api = api;
  abort_handle->handle = handle;
  rendezvous->OnFailure([weak = std::weak_ptr<AbortHandle>(abort_handle)](const Status&) {
    if (const auto held = weak.lock()) held->Abort();
  });
}

// Who failed. A plugin may see the loss of a peer a little earlier than the watch does.
Status Communicator::Impl::PeerFailure(int patience_ms) const {
  for (int waited = 0; waited < patience_ms && rendezvous->health().ok(); ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return rendezvous->health();
}

// Polls until the request has ended. *reason is set where the core gave up, not the plugin.
sy_status Communicator::Impl::Wait(sy_request* request, Clock::time_point start, sy_error* error, Status* reason) {
  std::string departed;
  double departed_ms = 0, looked_ms = 0;  // since the start: when somebody was found to have left; when we last looked
  for (uint64_t polls = 1;; ++polls) {
    const sy_status status = api->request_poll(request, error);
    if (status != SY_IN_PROGRESS) return status;
    if (polls % 16 != 0) continue;
    sched_yield();  // ranks may outnumber cores
    if (*reason = rendezvous->health(); !reason->ok()) break;
    const double waited_ms = MillisecondsSince(start);
    if (waited_ms - looked_ms < kLookEveryMs) continue;
    looked_ms = waited_ms;
    if (waited_ms > call_limit_ms) {
      *reason = DeadlineExceeded(
          "not finished after {:.0f} s; another rank is stuck or in another call "
          "(SWITCHYARD_COLLECTIVE_TIMEOUT changes the limit)",
          call_limit_ms / 1000);
      break;
    }
    if (departed.empty()) {
      departed = rendezvous->departed();
      departed_ms = waited_ms;
    } else if (waited_ms - departed_ms > kDepartureGraceMs) {
      *reason = Unavailable("{} has left the run", departed);
      break;
    }
  }
  api->abort(handle);
  // The plugin now gives the request up; its answer is not of interest.
  while (api->request_poll(request, error) == SY_IN_PROGRESS && MillisecondsSince(start) < call_limit_ms + 1000)
    sched_yield();
  return SY_ABORTED;
}

// One call of the plugin: start(call, request, error) begins it.
template <typename Start>
Status Communicator::Impl::Run(const char* what, const char* tag, const Stream* stream, uint64_t* counter,
                               Start start) {
  if (const Status health = rendezvous->health(); !health.ok())
    return Annotate(health, fmt::format("{} \"{}\"", what, tag));
  const bool waits = stream == nullptr && completes_on_stream();
  const Stream* const on = waits ? &this->stream : stream;
  sy_call call{SY_HEADER(sy_call), tag, (*counter)++, on == nullptr ? nullptr : on->handle(), nullptr};
  if (on != nullptr && completes_on_stream()) {
    SY_ASSIGN_OR_RETURN(call.native_stream, device->NativeStream(*on));
  }
  sy_request* request = nullptr;
  sy_error error = EmptyError();
  const auto began = Clock::now();
  Status reason;
  sy_status status = start(&call, &request, &error);
  if (status == SY_OK && request != nullptr) status = Wait(request, began, &error, &reason);
  if (status == SY_OK && waits) {
    SY_RETURN_IF_ERROR(event.Record(this->stream));
    reason = WaitFor(event, what);
    wait_ms += MillisecondsSince(began);
    return reason.ok() ? OkStatus()
                       : Annotate(reason, fmt::format("\"{}\" (call {} of rank {})", tag, call.sequence, rank));
  }
  wait_ms += MillisecondsSince(began);
  if (status == SY_OK) return OkStatus();
  if (reason.ok() && (status == SY_ABORTED || status == SY_INTERNAL))
    reason = PeerFailure(status == SY_ABORTED ? 500 : 50);
  // Another rank may have given up because somebody left: that one is the cause, not the messenger.
  if (reason.ok() && status == SY_ABORTED) {
    if (const std::string departed = rendezvous->departed(); !departed.empty())
      reason = Unavailable("{} has left the run", departed);
  }
  const std::string where = fmt::format("{} \"{}\" (call {} of rank {})", what, tag, call.sequence, rank);
  return reason.ok() ? FromAbi(status, error, fmt::format("{}: {}", plugin_name, where)) : Annotate(reason, where);
}

// What host calls of a plugin that works on streams need.
Status Communicator::Impl::OpenStream() {
  if (!completes_on_stream()) return OkStatus();
  if (device == nullptr) {
    return FailedPrecondition("{} works on the streams of a device, and this communicator has none", plugin_name);
  }
  SY_ASSIGN_OR_RETURN(stream, device->NewStream(1));
  SY_ASSIGN_OR_RETURN(event, device->NewEvent());
  return OkStatus();
}

// Waits for device work that holds collectives: looks for lost peers, and for failures that only the plugin knows of.
Status Communicator::Impl::WaitFor(Event& finished, const char* what) {
  const auto start = Clock::now();
  double looked_ms = 0;
  for (;;) {
    SY_ASSIGN_OR_RETURN(const bool done, finished.Done());
    if (done) return OkStatus();
    const double waited_ms = MillisecondsSince(start);
    if (waited_ms < 1) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(waited_ms < 20 ? 50 : 500));
    if (waited_ms - looked_ms < 10) continue;
    looked_ms = waited_ms;
    Status reason = rendezvous->health();
    sy_error error = EmptyError();
    if (reason.ok()) {
      if (const sy_status status = api->poll(handle, &error); status != SY_OK && status != SY_IN_PROGRESS) {
        reason = FromAbi(status, error, plugin_name);
        if (const Status failure = PeerFailure(500); !failure.ok()) reason = failure;
      }
    }
    if (reason.ok() && waited_ms > call_limit_ms) {
      reason = DeadlineExceeded(
          "not finished after {:.0f} s; another rank is stuck or in another call (SWITCHYARD_COLLECTIVE_TIMEOUT "
          "changes the limit)",
          call_limit_ms / 1000);
    }
    if (reason.ok()) continue;
    api->abort(handle);
    return Annotate(reason, what);
  }
}

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
  const auto run = [&](const std::vector<sy_transfer>& reachable) {
    return Run("send_recv_batch", tag, nullptr, &batches,
               [&](const sy_call* call, sy_request** request, sy_error* error) {
                 return api->send_recv_batch(handle, call, reachable.data(), static_cast<uint32_t>(reachable.size()),
                                             request, error);
               });
  };
  if (reaches_host()) return run(transfers);
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
  SY_RETURN_IF_ERROR(run(relayed));
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

Status Communicator::Impl::AllReduce(const char* tag, const Stream* stream, const void* send, void* receive,
                                     uint64_t count, sy_dtype dtype, int reduction) {
  const uint64_t bytes = count * BytesOf(dtype);
  bytes_sent += bytes;
  if (api == nullptr) {
    if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
    return OkStatus();
  }
  if (!Has(&sy_collective_v1::all_reduce)) return Composed(tag).AllReduce(send, receive, count, dtype, reduction);
  return Run("all_reduce", tag, stream, [&](const sy_call* call, sy_request** request, sy_error* error) {
    return api->all_reduce(handle, call, send, receive, count, dtype, reduction, request, error);
  });
}

Status Communicator::Impl::Broadcast(const char* tag, const Stream* stream, void* address, uint64_t count,
                                     sy_dtype dtype, int root) {
  if (rank == root) bytes_sent += count * BytesOf(dtype);
  if (api == nullptr) return OkStatus();
  if (!Has(&sy_collective_v1::broadcast)) return Composed(tag).Broadcast(address, count, dtype, root);
  return Run("broadcast", tag, stream, [&](const sy_call* call, sy_request** request, sy_error* error) {
    return api->broadcast(handle, call, address, count, dtype, root, request, error);
  });
}

Communicator::Communicator() : impl_(std::make_unique<Impl>()) {}
Communicator::~Communicator() = default;

StatusOr<std::unique_ptr<Communicator>> Communicator::Join(std::shared_ptr<Plugin> plugin, const ProcessMap& processes,
                                                           Rendezvous& rendezvous, Device* device,
                                                           const std::string& name, int timeout_ms) {
  std::unique_ptr<Communicator> communicator(new Communicator);
  Impl& impl = *communicator->impl_;
  impl.rendezvous = &rendezvous;
  impl.device = device;
  impl.rank = processes.rank;
  impl.size = processes.world;
  impl.info.memory_kinds = 1u << SY_MEMORY_HOST;
  impl.info.completion = SY_COMPLETES_BY_POLL;
  if (plugin == nullptr) {
    if (processes.world == 1) return communicator;
    return FailedPrecondition(
        "{} ranks need a collective plugin, found none; try --collective=shm on one node or mpi under mpirun",
        processes.world);
  }
  impl.plugin = plugin;
  impl.plugin_name = plugin->name();
  impl.api = plugin->Interface<sy_collective_v1>("collective/1");
  if (impl.api == nullptr)
    return FailedPrecondition("plugin {} at {} offers no collective/1", plugin->name(), plugin->path());
  if (const auto seconds = EnvironmentInt("SWITCHYARD_COLLECTIVE_TIMEOUT"); seconds && *seconds > 0)
    impl.call_limit_ms = *seconds * 1e3;

  sy_error error = EmptyError();
  const std::string what = fmt::format("{}: joining {} ranks", plugin->name(), impl.size);
  if (const sy_status status = impl.api->query(&impl.info, &error); status != SY_OK)
    return FromAbi(status, error, what);
  SY_RETURN_IF_ERROR(rendezvous.Barrier("join/" + name, timeout_ms));  // names whoever is missing
  const bool memory_is_hosts = device == nullptr || (impl.info.memory_kinds & ~(1u << SY_MEMORY_HOST)) == 0;
  const std::string device_plugin = device == nullptr ? "" : device->info().plugin;
  const sy_init_request request{SY_HEADER(sy_init_request),
                                impl.rank,
                                impl.size,
                                processes.hosts.data(),
                                name.c_str(),
                                rendezvous.store(),
                                static_cast<uint64_t>(impl.call_limit_ms),
                                memory_is_hosts ? nullptr : device->handle(),
                                device_plugin.c_str(),
                                device == nullptr ? 0 : device->info().index};
  const auto start = Clock::now();
  sy_status status = impl.api->init(&request, &impl.handle, &error);
  if (status == SY_OK) impl.Watch();
  if (status == SY_OK) status = SY_IN_PROGRESS;
  while (status == SY_IN_PROGRESS) {
    status = impl.api->poll(impl.handle, &error);
    if (status != SY_IN_PROGRESS) break;
    if (const Status health = rendezvous.health(); !health.ok()) return Annotate(health, what);
    if (MillisecondsSince(start) > timeout_ms)
      return DeadlineExceeded("{}: not all ranks came within {} ms", what, timeout_ms);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (status == SY_ABORTED) {
    if (const Status failure = impl.PeerFailure(500); !failure.ok()) return Annotate(failure, what);
  }
  if (status != SY_OK) return FromAbi(status, error, what);
  SY_RETURN_IF_ERROR(impl.OpenStream());
  return communicator;
}

StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key, const std::string& name) {
  Impl& from = *impl_;
  std::unique_ptr<Communicator> communicator(new Communicator);
  Impl& impl = *communicator->impl_;
  impl.rendezvous = from.rendezvous;
  impl.device = from.device;
  impl.info = from.info;
  impl.plugin = from.plugin;
  impl.plugin_name = from.plugin_name;
  impl.call_limit_ms = from.call_limit_ms;
  if (from.api == nullptr) return color < 0 ? nullptr : std::move(communicator);
  if (!from.Has(&sy_collective_v1::split)) return Unimplemented("{} cannot split a communicator", from.plugin_name);

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
  sy_error error = EmptyError();
  const sy_status status = from.api->split(from.handle, color, key, name.c_str(), &impl.handle, &error);
  const std::string what = fmt::format("{}: split into \"{}\"", from.plugin_name, name);
  if (status == SY_ABORTED) {
    if (const Status failure = from.PeerFailure(500); !failure.ok()) return Annotate(failure, what);
  }
  if (status != SY_OK) return FromAbi(status, error, what);
  if (impl.handle == nullptr) return nullptr;
  impl.api = from.api;
  impl.Watch();
  SY_RETURN_IF_ERROR(impl.OpenStream());
  return communicator;
}

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }
const sy_collective_info& Communicator::info() const { return impl_->info; }
const std::string& Communicator::plugin_name() const { return impl_->plugin_name; }

Status Communicator::AllReduce(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                               int reduction) {
  const uint64_t bytes = count * BytesOf(dtype);
  if (impl_->api != nullptr && !impl_->Reduces(&sy_collective_v1::all_reduce, dtype, reduction)) {
    impl_->bytes_sent += bytes;
    return impl_->Composed(tag).AllReduce(send, receive, count, dtype, reduction);
  }
  if (impl_->reaches_host()) return impl_->AllReduce(tag, nullptr, send, receive, count, dtype, reduction);
  return impl_->Relay(send, bytes, receive, bytes, [&](const void* from, void* to) {
    return impl_->AllReduce(tag, nullptr, from, to, count, dtype, reduction);
  });
}

Status Communicator::AllGather(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  const uint64_t bytes = count * BytesOf(dtype);
  impl_->bytes_sent += bytes;
  if (impl_->api == nullptr) {
    if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
    return OkStatus();
  }
  if (!impl_->Has(&sy_collective_v1::all_gather)) return impl_->Composed(tag).AllGather(send, receive, count, dtype);
  const auto run = [&](const void* from, void* to) {
    return impl_->Run("all_gather", tag, nullptr, [&](const sy_call* call, sy_request** request, sy_error* error) {
      return impl_->api->all_gather(impl_->handle, call, from, to, count, dtype, request, error);
    });
  };
  return impl_->reaches_host() ? run(send, receive) : impl_->Relay(send, bytes, receive, bytes * impl_->size, run);
}

Status Communicator::ReduceScatter(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype,
                                   int reduction) {
  const uint64_t bytes = count * BytesOf(dtype);
  impl_->bytes_sent += bytes * impl_->size;
  if (impl_->api == nullptr) {
    if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
    return OkStatus();
  }
  if (!impl_->Reduces(&sy_collective_v1::reduce_scatter, dtype, reduction))
    return impl_->Composed(tag).ReduceScatter(send, receive, count, dtype, reduction);
  const auto run = [&](const void* from, void* to) {
    return impl_->Run("reduce_scatter", tag, nullptr, [&](const sy_call* call, sy_request** request, sy_error* error) {
      return impl_->api->reduce_scatter(impl_->handle, call, from, to, count, dtype, reduction, request, error);
    });
  };
  return impl_->reaches_host() ? run(send, receive) : impl_->Relay(send, bytes * impl_->size, receive, bytes, run);
}

Status Communicator::AllToAll(const char* tag, const void* send, void* receive, uint64_t count, sy_dtype dtype) {
  const uint64_t bytes = count * BytesOf(dtype);
  impl_->bytes_sent += bytes * impl_->size;
  if (impl_->api == nullptr) {
    if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
    return OkStatus();
  }
  if (!impl_->Has(&sy_collective_v1::all_to_all)) return impl_->Composed(tag).AllToAll(send, receive, count, dtype);
  const auto run = [&](const void* from, void* to) {
    return impl_->Run("all_to_all", tag, nullptr, [&](const sy_call* call, sy_request** request, sy_error* error) {
      return impl_->api->all_to_all(impl_->handle, call, from, to, count, dtype, request, error);
    });
  };
  const uint64_t all = bytes * impl_->size;
  return impl_->reaches_host() ? run(send, receive) : impl_->Relay(send, all, receive, all, run);
}

Status Communicator::Broadcast(const char* tag, void* address, uint64_t count, sy_dtype dtype, int root) {
  if (impl_->reaches_host()) return impl_->Broadcast(tag, nullptr, address, count, dtype, root);
  const uint64_t bytes = count * BytesOf(dtype);
  return impl_->Relay(address, bytes, address, bytes, [&](const void*, void* relayed) {
    return impl_->Broadcast(tag, nullptr, relayed, count, dtype, root);
  });
}

Status Communicator::Barrier(const char* tag) {
  if (impl_->api == nullptr) return OkStatus();
  if (!impl_->Has(&sy_collective_v1::barrier)) return impl_->Composed(tag).Barrier();
  return impl_->Run("barrier", tag, nullptr, [&](const sy_call* call, sy_request** request, sy_error* error) {
    return impl_->api->barrier(impl_->handle, call, request, error);
  });
}

Status Communicator::SendReceive(const char* tag, const std::vector<sy_transfer>& transfers) {
  if (impl_->api == nullptr) return InvalidArgument("send_recv_batch \"{}\": a single rank has no peer", tag);
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
  if (native.ok() && (info.memory_kinds >> native->memory_kind & 1u) != 0) {
    call.address = static_cast<char*>(native->address) + offset;
  } else if (!reaches_host()) {
    return FailedPrecondition("{} reaches neither the memory of {} nor host memory; choose another --collective",
                              plugin_name, device->info().name);
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
  if (impl_->api != nullptr && (impl_->info.reductions[reduction] >> dtype & 1u) == 0 &&
      impl_->Has(&sy_collective_v1::all_reduce)) {
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
  if (impl.api == nullptr || call.bytes == 0) return OkStatus();
  const auto run = [&](void* address) {
    return call.is_broadcast
               ? impl.Broadcast(call.tag.c_str(), &stream, address, call.count, call.dtype, call.root)
               : impl.AllReduce(call.tag.c_str(), &stream, address, address, call.count, call.dtype, call.reduction);
  };
  if (call.address != nullptr) {
    if (!impl.completes_on_stream()) SY_RETURN_IF_ERROR(impl.device->Synchronize(stream));
    return run(call.address);
  }
  char* host = impl.staging.data();
  SY_RETURN_IF_ERROR(impl.device->Copy(stream, HostPlace(host), call.place, call.bytes));
  SY_RETURN_IF_ERROR(impl.device->Synchronize(stream));
  SY_RETURN_IF_ERROR(run(host));
  SY_RETURN_IF_ERROR(impl.device->Copy(stream, call.place, HostPlace(host), call.bytes));
  return impl.device->Synchronize(stream);
}

Status Communicator::Wait(Event& event) {
  return impl_->completes_on_stream() ? impl_->WaitFor(event, "waiting for the device") : event.Wait();
}

Status Communicator::Synchronize(const Stream& stream) {
  if (!impl_->completes_on_stream()) return impl_->device->Synchronize(stream);
  SY_RETURN_IF_ERROR(impl_->event.Record(stream));
  return Wait(impl_->event);
}

StatusOr<void*> Communicator::AllocateOwned(uint64_t bytes) {
  if (impl_->api == nullptr || !impl_->Has(&sy_collective_v1::buffer_alloc)) {
    return Unimplemented("collective {} owns no memory", impl_->plugin_name);
  }
  void* address = nullptr;
  sy_error error = EmptyError();
  const sy_status status = impl_->api->buffer_alloc(impl_->handle, bytes, &address, &error);
  if (status == SY_ABORTED) {
    if (const Status failure = impl_->PeerFailure(500); !failure.ok()) return failure;
  }
  if (status != SY_OK)
    return FromAbi(status, error, fmt::format("{}: buffer_alloc of {} bytes", impl_->plugin_name, bytes));
  return address;
}

StatusOr<Buffer> Communicator::AllocateShared(uint64_t bytes) {
  if (impl_->device == nullptr) return FailedPrecondition("this communicator was joined without a device");
  SY_ASSIGN_OR_RETURN(void* const address, AllocateOwned(bytes));
  int kind = SY_MEMORY_HOST;  // of the plugin's own memory: the only kind that it reaches, or the host's
  while (kind + 1 < SY_MEMORY_KIND_COUNT && (impl_->info.memory_kinds >> kind & 1u) == 0) ++kind;
  return impl_->device->Import(address, kind, bytes);
}

double Communicator::TakeWaitMilliseconds() { return std::exchange(impl_->wait_ms, 0); }
uint64_t Communicator::bytes_sent() const { return impl_->bytes_sent; }
void Communicator::Abort() { impl_->abort_handle->Abort(); }

}  // namespace switchyard
