// A device and a collective whose memory is of a kind that nobody else has heard of, "messages": a device of another
// plugin (MESSAGES_BASE, its library), whose memory has addresses of which none is mapped in the host, and messages
// between processes or threads, which reach that memory through what init names, the device and its backend. Nothing
// else is offered. Further settings: MESSAGES_ON_STREAM=1, work completes on the caller's stream; MESSAGES_HOST=1, host
// memory is reached too; MESSAGES_DEAF=1, a message never arrives and abort changes nothing.
// device_messages_endless, an exported function, counts such messages.
//
// MESSAGES_QUEUED=1, over the null device: collectives that are work of the caller's stream, on memory of the device
// only, which a capture records; MESSAGES_CAPTURABLE=0, which says that they may not be captured.
// device_messages_counts tells what has been asked for. Host calls (messages) know nothing of what is queued: whoever
// makes them has waited for that.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/null/host_call.h"
#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "tests/doubles/device_messages/counts.h"
#include "tests/doubles/mesh/collectives.h"
#include "tests/doubles/mesh/mesh.h"

struct sy_request {};  // of a call that never ends

namespace switchyard {
namespace {

constexpr char kKind[] = "messages";

struct Instance : sy_instance {
  bool Set(const char* name) const {
    const char* const value = Setting(name);
    return value != nullptr && value[0] == '1';
  }
  bool Denies(const char* name) const {
    const char* const value = Setting(name);
    return value != nullptr && value[0] == '0';
  }
  sy_plugin base{SY_HEADER(sy_plugin)};
  sy_device_v2 base_device{}, device{};  // of the other plugin, and what becomes of it here
  sy_collective_v2 queued{};             // with MESSAGES_QUEUED
};
Instance& Of(sy_instance* instance) { return static_cast<Instance&>(*instance); }

// --- the device ---

// Of all instances: what one of them names, the collective of another may be handed.
constexpr uint64_t kFirstAddress = 0x00F1'0000'0000'0000;  // no address of x86-64 or arm64 looks like it
constexpr int kOffsetBits = 32;
std::mutex buffers_mutex;
std::vector<sy_buffer*> buffers;

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, sy_error*) {
  const std::lock_guard lock(buffers_mutex);
  size_t index = 0;
  while (index < buffers.size() && buffers[index] != buffer) ++index;
  if (index == buffers.size()) buffers.push_back(buffer);
  *address = reinterpret_cast<void*>(kFirstAddress + (uint64_t{index} << kOffsetBits));
  return SY_OK;
}

sy_status NativeStream(sy_device*, sy_stream* stream, void** handle, sy_error*) {
  *handle = stream;
  return SY_OK;
}

// The other plugin's device, but for what takes the instance.
sy_device_v2 DeviceOver(const sy_device_v2& base) {
  sy_device_v2 table = base;
  table.header = SY_HEADER(sy_device_v2);
  table.count = [](sy_instance* self, int32_t* count, sy_error* error) {
    return Of(self).base_device.count(Of(self).base.instance, count, error);
  };
  table.open = [](sy_instance* self, int32_t index, const sy_open_options* options, sy_device** device,
                  sy_error* error) {
    return Of(self).base_device.open(Of(self).base.instance, index, options, device, error);
  };
  table.query = [](sy_instance* self, int32_t index, sy_device_info* info, sy_error* error) {
    const sy_status status = Of(self).base_device.query(Of(self).base.instance, index, info, error);
    if (status == SY_OK && SY_HAS(sy_device_info, info, memory_kind))
      std::snprintf(info->memory_kind, sizeof info->memory_kind, "%s", kKind);
    return status;
  };
  return table;
}

// --- the collective ---

struct Communicator {
  Communicator(const Instance& of, const sy_init_request& request)
      : instance(of),
        rank(request.rank),
        size(request.size),
        store(*request.store),
        key(std::string("messages/") + request.name),
        device(request.device),
        api(static_cast<const sy_device_v2*>(request.backend->get_interface(request.backend->instance, "device/2"))),
        calls(static_cast<const sy_null_host_call_v1*>(
            request.backend->get_interface(request.backend->instance, "null.host_call/1"))) {}
  ~Communicator() {
    if (joining.joinable()) {
      mesh.load()->Abort();
      joining.join();
    }
    delete mesh;
  }

  const Instance& instance;
  const int rank, size;
  const sy_store store;
  const std::string key;
  sy_device* const device;
  const sy_device_v2* const api;
  const sy_null_host_call_v1* const calls;
  std::mutex exchanging;                      // one at a time
  std::atomic<doubles::Mesh*> mesh{nullptr};  // made by poll
  std::thread joining;
  std::atomic<bool> joined{false}, aborted{false};
};
Communicator& Of(sy_communicator* handle) { return *reinterpret_cast<Communicator*>(handle); }

sy_status PlaceOf(const Communicator& communicator, void* address, sy_place* place, sy_error* error) {
  const auto value = reinterpret_cast<uint64_t>(address);
  *place = {nullptr, address, 0};
  if (value < kFirstAddress) {
    if (communicator.instance.Set("MESSAGES_HOST")) return SY_OK;
    return Refuse(error, SY_INVALID, "an address of the host was given to a device");
  }
  const std::lock_guard lock(buffers_mutex);
  const uint64_t index = (value - kFirstAddress) >> kOffsetBits;
  if (index >= buffers.size()) return Refuse(error, SY_INVALID, "an address of no buffer");
  *place = {buffers[index], nullptr, value & ((uint64_t{1} << kOffsetBits) - 1)};
  return SY_OK;
}

sy_status Move(const Communicator& communicator, sy_place to, sy_place from, uint64_t bytes, sy_error* error) {
  if (to.buffer != nullptr || from.buffer != nullptr)
    return communicator.api->copy(communicator.device, nullptr, to, from, bytes, nullptr, error);
  std::memcpy(to.host, from.host, bytes);
  return SY_OK;
}

std::atomic<int> endless_count{0};

sy_status SendReceive(sy_communicator* handle, const sy_call* call, const sy_transfer* transfers, uint32_t count,
                      sy_request** request, sy_error* error) {
  Communicator& communicator = Of(handle);
  *request = nullptr;
  if (communicator.instance.Set("MESSAGES_DEAF")) {
    *request = new sy_request;
    ++endless_count;
    return SY_OK;
  }
  if (call->stream != nullptr) {
    const sy_status status = communicator.api->synchronize(communicator.device, call->stream, nullptr, error);
    if (status != SY_OK) return status;
  }
  std::vector<std::string> staged(count);
  std::vector<doubles::Transfer> exchanged;
  for (uint32_t i = 0; i < count; ++i) {
    const sy_transfer& transfer = transfers[i];
    staged[i].resize(transfer.bytes);
    exchanged.push_back({transfer.peer, transfer.is_send != 0, staged[i].data(), transfer.bytes, 0});
    if (!transfer.is_send || transfer.bytes == 0) continue;
    sy_place from;
    if (const sy_status status = PlaceOf(communicator, transfer.address, &from, error); status != SY_OK) return status;
    const sy_status status = Move(communicator, {nullptr, staged[i].data(), 0}, from, transfer.bytes, error);
    if (status != SY_OK) return status;
  }
  {
    const std::lock_guard lock(communicator.exchanging);
    if (communicator.mesh.load()->Exchange(exchanged) != doubles::Outcome::kDone)
      return Refuse(error, SY_ABORTED, "aborted, or a peer is gone");
  }
  for (uint32_t i = 0; i < count; ++i) {
    const sy_transfer& transfer = transfers[i];
    if (transfer.is_send || transfer.bytes == 0) continue;
    sy_place to;
    if (const sy_status status = PlaceOf(communicator, transfer.address, &to, error); status != SY_OK) return status;
    const sy_status status = Move(communicator, to, {nullptr, staged[i].data(), 0}, transfer.bytes, error);
    if (status != SY_OK) return status;
  }
  return SY_OK;
}

// --- collectives that are queued ---

Counts counts;

struct QueuedCall {
  Communicator& communicator;
  doubles::Collective what;  // on addresses of the device

  // By a thread of the device, whenever the stream or a replay comes to it.
  sy_status Run(sy_error* error) const {
    using doubles::Kind;
    const auto ranks = static_cast<size_t>(communicator.size);
    const size_t bytes = what.count * doubles::BytesOf(what.type);
    const bool spreads = what.kind == Kind::kReduceScatter || what.kind == Kind::kAllToAll;
    const bool gathers = what.kind == Kind::kAllGather || what.kind == Kind::kAllToAll;
    std::vector<char> sent(bytes * (spreads ? ranks : 1)), received(bytes * (gathers ? ranks : 1));
    sy_place from, to;
    sy_status status = PlaceOf(communicator, const_cast<void*>(what.send), &from, error);
    if (status == SY_OK) status = PlaceOf(communicator, what.receive, &to, error);
    if (status == SY_OK) status = Move(communicator, {nullptr, sent.data(), 0}, from, sent.size(), error);
    if (status != SY_OK) return status;
    doubles::Collective staged = what;
    staged.send = sent.data();
    staged.receive = received.data();
    {
      const std::lock_guard lock(communicator.exchanging);
      if (doubles::RunCollective(*communicator.mesh.load(), staged) != doubles::Outcome::kDone) {
        if (const char* const late = communicator.instance.Setting("MESSAGES_LATE_MS"))
          std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(late)));
        return Refuse(error, SY_ABORTED, "aborted, or a peer is gone");
      }
    }
    return Move(communicator, to, {nullptr, received.data(), 0}, received.size(), error);
  }
};

thread_local int open_groups = 0;
thread_local std::vector<std::function<sy_status(sy_error*)>> grouped;  // what the group's end queues

sy_status Queue(sy_communicator* handle, const sy_call* call, doubles::Collective what, sy_request** request,
                sy_error* error) {
  Communicator& communicator = Of(handle);
  *request = nullptr;
  ++counts.calls;
  if (communicator.calls == nullptr) return Refuse(error, SY_UNSUPPORTED, "the device queues no calls of the host");
  const auto queue = [&communicator, what, stream = call->stream](sy_error* to) {
    auto made = std::make_unique<QueuedCall>(communicator, what);
    const sy_status status = communicator.calls->enqueue(
        communicator.device, stream,
        [](void* context, sy_error* failure) { return static_cast<const QueuedCall*>(context)->Run(failure); },
        made.get(), [](void* context) { delete static_cast<QueuedCall*>(context); }, to);
    if (status == SY_OK) static_cast<void>(made.release());
    return status;
  };
  if (open_groups == 0) return queue(error);
  grouped.push_back(queue);
  return SY_OK;
}

sy_status GroupBegin(sy_instance*, sy_error*) {
  ++open_groups;
  return SY_OK;
}

sy_status GroupEnd(sy_instance*, sy_error* error) {
  if (--open_groups > 0) return SY_OK;
  ++counts.groups;
  counts.in_groups += static_cast<int>(grouped.size());
  sy_status first = SY_OK;
  for (const auto& queue : std::exchange(grouped, {})) {
    if (first == SY_OK) first = queue(error);
  }
  return first;
}

sy_collective_v2 WithQueued(sy_collective_v2 table) {
  using doubles::Kind;
  static constexpr auto kTypeOf = [](sy_dtype dtype) { return static_cast<doubles::Type>(dtype); };
  table.reduces = [](sy_instance*, int32_t reduction, sy_dtype dtype, sy_error* error) {
    if (reduction >= 0 && reduction < SY_REDUCTION_COUNT && dtype >= 0 && dtype < SY_DTYPE_COUNT)
      return sy_status{SY_OK};
    return Refuse(error, SY_UNSUPPORTED, "an unknown reduction or dtype");
  };
  table.all_reduce = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                        sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
    const auto by = static_cast<doubles::Reduction>(reduction);
    return Queue(self, call, {Kind::kAllReduce, send, receive, count, kTypeOf(dtype), by}, request, error);
  };
  table.reduce_scatter = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                            sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
    const auto by = static_cast<doubles::Reduction>(reduction);
    return Queue(self, call, {Kind::kReduceScatter, send, receive, count, kTypeOf(dtype), by}, request, error);
  };
  table.all_gather = [](sy_communicator* self, const sy_call* call, const void* send, void* receive, uint64_t count,
                        sy_dtype dtype, sy_request** request, sy_error* error) {
    return Queue(self, call, {Kind::kAllGather, send, receive, count, kTypeOf(dtype)}, request, error);
  };
  table.broadcast = [](sy_communicator* self, const sy_call* call, void* address, uint64_t count, sy_dtype dtype,
                       int32_t root, sy_request** request, sy_error* error) {
    return Queue(self, call,
                 {Kind::kBroadcast, address, address, count, kTypeOf(dtype), doubles::Reduction::kSum, root}, request,
                 error);
  };
  table.group_begin = GroupBegin;
  table.group_end = GroupEnd;
  return table;
}

// What captures of the device there are, and replays of them.
sy_capture_v2 base_capture{};
const sy_capture_v2 counted_capture{
    .header = SY_HEADER(sy_capture_v2),
    .begin = [](sy_device* device, sy_stream* stream, const sy_capture_options* options,
                sy_error* error) { return base_capture.begin(device, stream, options, error); },
    .end = [](sy_device* device, sy_stream* stream, sy_graph** graph,
              sy_error* error) { return base_capture.end(device, stream, graph, error); },
    .launch =
        [](sy_device* device, sy_graph* graph, sy_stream* stream, sy_error* error) {
          ++counts.replays;
          return base_capture.launch(device, graph, stream, error);
        },
    .release = [](sy_device* device, sy_graph* graph) { base_capture.release(device, graph); }};

sy_status Query(sy_instance* instance, sy_collective_info* info, sy_error*) {
  static const char* const kOwn[] = {kKind, nullptr};
  static const char* const kBoth[] = {kKind, "host", nullptr};
  sy_collective_info own{};
  std::snprintf(own.name, sizeof own.name, "messages");
  const bool queued = Of(instance).Set("MESSAGES_QUEUED");
  own.completion = queued || Of(instance).Set("MESSAGES_ON_STREAM") ? SY_COMPLETES_ON_STREAM : SY_COMPLETES_BY_POLL;
  if (queued && !Of(instance).Denies("MESSAGES_CAPTURABLE")) own.flags = SY_COLLECTIVE_CAPTURABLE;
  own.memory_kinds = Of(instance).Set("MESSAGES_HOST") ? kBoth : kOwn;
  own.alignment = 64;
  FillStruct(info, own);
  return SY_OK;
}

sy_status Init(sy_instance* instance, const sy_init_request* request, sy_communicator** communicator, sy_error* error) {
  sy_device_info info{SY_HEADER(sy_device_info)};
  if (request->device != nullptr) {
    const auto* const api =
        static_cast<const sy_device_v2*>(request->backend->get_interface(request->backend->instance, "device/2"));
    const sy_status known = api->query(request->backend->instance, request->device_index, &info, error);
    if (known != SY_OK) return known;
  }
  if (std::strcmp(info.memory_kind, kKind) != 0)
    return SY_FAIL(error, SY_UNSUPPORTED, "only memory of the kind \"%s\" is reached, not \"%s\"", kKind,
                   info.memory_kind);
  return Guarded(error, [&]() -> sy_status {
    auto made = std::make_unique<Communicator>(Of(instance), *request);
    if (made->rank == 0) {  // the name that no other run has
      static std::atomic<int> count{0};
      const std::string name = Text("messages-", getpid(), "-", count++);
      const sy_status told = made->store.put(made->store.context, made->key.c_str(), name.data(),
                                             static_cast<uint32_t>(name.size()), error);
      if (told != SY_OK) return told;
    }
    *communicator = reinterpret_cast<sy_communicator*>(made.release());
    return SY_OK;
  });
}

sy_status Poll(sy_communicator* handle, sy_error* error) {
  Communicator& communicator = Of(handle);
  if (communicator.joined) return SY_OK;
  if (communicator.aborted) return Refuse(error, SY_ABORTED, "aborted while joining");
  if (communicator.mesh != nullptr) return SY_IN_PROGRESS;
  char name[64];
  uint32_t bytes = 0;
  const sy_status told = communicator.store.get(communicator.store.context, communicator.key.c_str(), name, sizeof name,
                                                &bytes, 0, nullptr);
  if (told == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (told != SY_OK) return Refuse(error, told, "the name of the communicator is not to be had");
  communicator.mesh = new doubles::Mesh(std::string(name, bytes), communicator.rank, communicator.size);
  communicator.joining = std::thread([&communicator] {  // for it waits
    if (communicator.mesh.load()->Join() == doubles::Outcome::kDone) communicator.joined = true;
  });
  if (communicator.aborted) communicator.mesh.load()->Abort();
  return SY_IN_PROGRESS;
}

void Abort(sy_communicator* handle) {
  if (Of(handle).instance.Set("MESSAGES_DEAF")) return;
  Of(handle).aborted = true;
  if (doubles::Mesh* const mesh = Of(handle).mesh) mesh->Abort();
}

void Destroy(sy_communicator* handle) { delete &Of(handle); }

const void* GetInterface(sy_instance* instance, const char* name) {
  static const sy_memory_ext_v2 memory{
      .header = SY_HEADER(sy_memory_ext_v2), .native_address = NativeAddress, .native_stream = NativeStream};
  static const sy_collective_v2 messages{
      .header = SY_HEADER(sy_collective_v2),
      .query = Query,
      .init = Init,
      .poll = Poll,
      .send_recv_batch = SendReceive,
      .abort = Abort,
      .destroy = Destroy,
      .request_poll = [](sy_communicator*, sy_request*, sy_error*) { return sy_status{SY_IN_PROGRESS}; },
      .request_release = [](sy_communicator*, sy_request* request) { delete request; }};
  if (std::strcmp(name, "device/2") == 0) return &Of(instance).device;
  if (std::strcmp(name, "memory_ext/2") == 0) return &memory;
  if (std::strcmp(name, "collective/2") == 0 && Of(instance).Set("MESSAGES_QUEUED")) {
    Of(instance).queued = WithQueued(messages);
    return &Of(instance).queued;
  }
  if (std::strcmp(name, "collective/2") == 0) return &messages;
  if (std::strcmp(name, "capture/2") == 0 && base_capture.launch != nullptr) return &counted_capture;
  return Of(instance).base.get_interface(Of(instance).base.instance, name);
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT int device_messages_endless() { return switchyard::endless_count; }
extern "C" SY_EXPORT const Counts* device_messages_counts() { return &switchyard::counts; }

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  using namespace switchyard;
  Instance instance;
  instance.host = host;
  const char* const path = instance.Setting("MESSAGES_BASE");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Refuse(error, SY_INTERNAL, "MESSAGES_BASE names no library");
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  if (const sy_status status = create(host, &instance.base, error); status != SY_OK) return status;
  instance.base_device =
      ReadStruct(static_cast<const sy_device_v2*>(instance.base.get_interface(instance.base.instance, "device/2")));
  instance.device = DeviceOver(instance.base_device);
  if (const void* const capture = instance.base.get_interface(instance.base.instance, "capture/2"))
    base_capture = ReadStruct(static_cast<const sy_capture_v2*>(capture));
  return AnswerCreate<Instance>(host, plugin, error, {"messages", "0.2.0", "Switchyard"}, GetInterface,
                                std::move(instance));
}
