#include "core/runtime/collectives/communicator.h"

#include "core/runtime/collectives/communicator_impl.h"

namespace switchyard {
namespace {

constexpr int kSplitMs = 60000;  // for the ranks of a group to find each other

}  // namespace

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
  impl.leaves_peer_memory = from.leaves_peer_memory;
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

void Communicator::LeavePeerMemory() {
  Drain();
  impl_->leaves_peer_memory = true;
  impl_->peers.reset();
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

StatusOr<void*> Communicator::AllocateOwned(uint64_t bytes) {
  Drain();
  if (impl_->plugin == nullptr || !impl_->plugin->Has(&sy_collective_v2::buffer_alloc)) {
    return Unimplemented("collective {} owns no memory", impl_->plugin_name);
  }
  void* address = nullptr;
  sy_error error = EmptyError();
  const sy_status status = impl_->plugin->api().buffer_alloc(impl_->plugin->handle(), bytes, &address, &error);
  SY_RETURN_IF_ERROR(impl_->plugin->Explain(status, error, fmt::format("buffer_alloc of {} bytes", bytes)));
  if (address == nullptr)
    return Internal("{}: buffer_alloc of {} bytes succeeded without memory", impl_->plugin_name, bytes);
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
