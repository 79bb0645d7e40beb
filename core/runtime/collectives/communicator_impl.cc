#include "core/runtime/collectives/communicator_impl.h"

#include <algorithm>
#include <cstring>

#include "core/base/environment.h"

namespace switchyard {
namespace {

// What a collective comes to on a single rank.
Status Identity(const void* send, void* receive, uint64_t bytes) {
  if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
  return OkStatus();
}

}  // namespace

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
  if (size == 1 || several_hosts || leaves_peer_memory) return OkStatus();
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

Status Communicator::Impl::Barrier(const char* tag) {
  if (plugin == nullptr) return OkStatus();
  if (!plugin->Has(&sy_collective_v2::barrier)) return Composed(tag).Barrier();
  return plugin->Call("barrier", &sy_collective_v2::barrier, tag, nullptr);
}

}  // namespace switchyard
