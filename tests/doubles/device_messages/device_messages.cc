// The null device with addresses, of which none is mapped in the host, and a collective for ranks that are threads of
// one process: it reaches those addresses and offers messages, nothing else. Settings: MESSAGES_BASE, the null plugin;
// MESSAGES_ON_STREAM=1, work completes on the caller's stream; MESSAGES_HOST=1, host memory is reached too;
// MESSAGES_DEAF=1, a message never arrives and abort changes nothing. device_messages_endless, an exported function,
// counts such messages.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "core/abi/boundary.h"
#include "core/abi/collective.h"
#include "core/abi/device.h"

struct sy_communicator {
  std::string name;
  int rank = 0;
  sy_device* device = nullptr;
  bool aborted = false;  // guarded by mailbox.mutex
};
struct sy_request {};  // of a call that never ends

namespace switchyard {
namespace {

const sy_host* host = nullptr;
const sy_device_v1* device_table = nullptr;
sy_plugin base{};
sy_request endless;
std::atomic<int> endless_count{0};

bool Set(const char* name) {
  const char* value = host->setting(name);
  return value != nullptr && value[0] == '1';
}

// --- addresses ---

constexpr uint64_t kFirstAddress = 0x00F1'0000'0000'0000;  // no address of x86-64 or arm64 looks like it
constexpr int kOffsetBits = 32;
std::mutex buffers_mutex;
std::vector<sy_buffer*> buffers;

sy_status NativeAddress(sy_device*, sy_buffer* buffer, void** address, int32_t* kind, sy_error*) {
  const std::lock_guard lock(buffers_mutex);
  size_t index = 0;
  while (index < buffers.size() && buffers[index] != buffer) ++index;
  if (index == buffers.size()) buffers.push_back(buffer);
  *address = reinterpret_cast<void*>(kFirstAddress + (uint64_t{index} << kOffsetBits));
  *kind = SY_MEMORY_CUDA;
  return SY_OK;
}

sy_status NativeStream(sy_device*, sy_stream* stream, void** handle, sy_error*) {
  *handle = stream;
  return SY_OK;
}

sy_status PlaceOf(void* address, sy_place* place, sy_error* error) {
  const auto value = reinterpret_cast<uint64_t>(address);
  *place = {nullptr, address, 0};
  if (value < kFirstAddress)
    return Set("MESSAGES_HOST") ? SY_OK : Refuse(error, SY_INVALID, "an address of the host was given to a device");
  const std::lock_guard lock(buffers_mutex);
  const uint64_t index = (value - kFirstAddress) >> kOffsetBits;
  if (index >= buffers.size()) return Refuse(error, SY_INVALID, "an address of no buffer");
  *place = {buffers[index], nullptr, value & ((uint64_t{1} << kOffsetBits) - 1)};
  return SY_OK;
}

sy_status Move(sy_communicator& communicator, sy_place to, sy_place from, uint64_t bytes, sy_error* error) {
  if (to.buffer != nullptr || from.buffer != nullptr)
    return device_table->copy(communicator.device, nullptr, to, from, bytes, error);
  std::memcpy(to.host, from.host, bytes);
  return SY_OK;
}

// --- messages ---

struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<std::string, int, int>, std::vector<std::string>> waiting;  // communicator, from, to
} mailbox;

sy_status SendReceive(sy_communicator* communicator, const sy_call* call, const sy_transfer* transfers, uint32_t count,
                      sy_request** request, sy_error* error) {
  *request = nullptr;
  if (Set("MESSAGES_DEAF")) {
    *request = &endless;
    ++endless_count;
    return SY_OK;
  }
  if (call->stream != nullptr) {
    if (const sy_status status = device_table->synchronize(communicator->device, call->stream, error); status != SY_OK)
      return status;
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (!transfers[i].is_send) continue;
    std::string bytes(transfers[i].bytes, '\0');
    sy_place from;
    if (const sy_status status = PlaceOf(transfers[i].address, &from, error); status != SY_OK) return status;
    if (const sy_status status = Move(*communicator, {nullptr, bytes.data(), 0}, from, bytes.size(), error);
        status != SY_OK)
      return status;
    const std::lock_guard lock(mailbox.mutex);
    mailbox.waiting[{communicator->name, communicator->rank, transfers[i].peer}].push_back(std::move(bytes));
    mailbox.changed.notify_all();
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (transfers[i].is_send) continue;
    std::string bytes;
    {
      std::unique_lock lock(mailbox.mutex);
      auto& queue = mailbox.waiting[{communicator->name, transfers[i].peer, communicator->rank}];
      mailbox.changed.wait(lock, [&] { return communicator->aborted || !queue.empty(); });
      if (queue.empty()) return Refuse(error, SY_ABORTED, "aborted");
      bytes = std::move(queue.front());
      queue.erase(queue.begin());
    }
    if (bytes.size() != transfers[i].bytes) return Refuse(error, SY_INVALID, "a message of another size");
    sy_place to;
    if (const sy_status status = PlaceOf(transfers[i].address, &to, error); status != SY_OK) return status;
    if (const sy_status status = Move(*communicator, to, {nullptr, bytes.data(), 0}, bytes.size(), error);
        status != SY_OK)
      return status;
  }
  return SY_OK;
}

sy_status RequestPoll(sy_request*, sy_error*) { return SY_IN_PROGRESS; }

sy_status Query(sy_collective_info* info, sy_error*) {
  sy_collective_info own{};
  std::snprintf(own.name, sizeof own.name, "messages");
  own.completion = Set("MESSAGES_ON_STREAM") ? SY_COMPLETES_ON_STREAM : SY_COMPLETES_BY_POLL;
  own.memory_kinds = 1u << SY_MEMORY_CUDA | (Set("MESSAGES_HOST") ? 1u << SY_MEMORY_HOST : 0u);
  own.alignment = 64;
  FillStruct(info, own);
  return SY_OK;
}

sy_status Init(const sy_init_request* request, sy_communicator** communicator, sy_error*) {
  *communicator = new sy_communicator{request->name, request->rank, request->device};
  return SY_OK;
}

sy_status Poll(sy_communicator*, sy_error*) { return SY_OK; }

void Abort(sy_communicator* communicator) {
  const std::lock_guard lock(mailbox.mutex);
  communicator->aborted = true;
  mailbox.changed.notify_all();
}

void Destroy(sy_communicator* communicator) { delete communicator; }

const void* Interface(const char* name) {
  static const sy_memory_ext_v1 memory{
      .header = SY_HEADER(sy_memory_ext_v1), .native_address = NativeAddress, .native_stream = NativeStream};
  static const sy_collective_v1 messages{.header = SY_HEADER(sy_collective_v1),
                                         .query = Query,
                                         .init = Init,
                                         .poll = Poll,
                                         .send_recv_batch = SendReceive,
                                         .abort = Abort,
                                         .destroy = Destroy,
                                         .request_poll = RequestPoll};
  if (std::strcmp(name, "memory_ext/1") == 0) return &memory;
  if (std::strcmp(name, "collective/1") == 0) return &messages;
  return base.interface(name);
}

}  // namespace
}  // namespace switchyard

extern "C" SY_EXPORT int device_messages_endless() { return switchyard::endless_count; }

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  using namespace switchyard;
  host = given;
  const char* const path = given->setting("MESSAGES_BASE");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Refuse(error, SY_INTERNAL, "MESSAGES_BASE names no library");
  base.header = SY_HEADER(sy_plugin);
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(library, "sy_plugin_query"));
  if (const sy_status status = query(given, &base, error); status != SY_OK) return status;
  device_table = static_cast<const sy_device_v1*>(base.interface("device/1"));
  return AnswerQuery(given, plugin, error, "device_messages", "0.1.0", Interface);
}
