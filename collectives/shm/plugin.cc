// The C face of the plugin: nothing but casts, and no exception may pass.
#include "core/abi/plugin.h"

#include <string.h>

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "collectives/shm/communicator.h"
#include "collectives/shm/failure.h"
#include "core/abi/device.h"

// The communicator and how it bootstraps: rank 0 tells the name of its socket through the store.
struct sy_communicator {
  std::unique_ptr<shm::Communicator> shared;
  const sy_store* store = nullptr;
  std::string key;
  bool named = false;  // the others know, or this rank knows, the name of rank 0's socket
  int rank = 0;
};

namespace shm {
namespace {

template <typename Body>
sy_status Guarded(sy_error* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return SHM_FAIL(error, SY_OUT_OF_MEMORY, "no host memory");
  } catch (const std::exception& problem) {
    return SHM_FAIL(error, SY_INTERNAL, "%s", problem.what());
  }
}

sy_status Query(sy_collective_info* info, sy_error*) {
  const sy_header header = info->header;
  sy_collective_info own{header};
  snprintf(own.name, sizeof own.name, "shm");
  own.completion = SY_COMPLETES_BY_POLL;
  own.flags = SY_COLLECTIVE_ONE_NODE | SY_COLLECTIVE_DETERMINISTIC;
  own.memory_kinds = 1u << SY_MEMORY_HOST;
  for (uint32_t& dtypes : own.reductions) dtypes = (1u << SY_DTYPE_COUNT) - 1;
  own.alignment = 4096;
  memcpy(info, &own, header.size < sizeof own ? header.size : sizeof own);
  return SY_OK;
}

sy_status Init(const sy_init_request* request, sy_communicator** communicator, sy_error* error) {
  return Guarded(error, [&] {
    auto made = std::make_unique<sy_communicator>();
    made->store = request->store;
    made->rank = request->rank;
    made->key = std::string("shm/") + request->name;
    if (const sy_status status = Communicator::Create(*request, &made->shared, error); status != SY_OK) return status;
    if (request->rank == 0 && request->size > 1) {
      const std::string& name = made->shared->meeting().name();
      const sy_status put = request->store->put(request->store->context, made->key.c_str(), name.data(),
                                                static_cast<uint32_t>(name.size()), error);
      if (put != SY_OK) return put;
    }
    made->named = request->rank == 0;
    *communicator = made.release();
    return sy_status{SY_OK};
  });
}

sy_status Poll(sy_communicator* communicator, sy_error* error) {
  return Guarded(error, [&] {
    if (!communicator->named) {
      char name[128];
      uint32_t bytes = 0;
      const sy_store& store = *communicator->store;
      const sy_status found = store.get(store.context, communicator->key.c_str(), name, sizeof name, &bytes, 0, error);
      if (found == SY_TIMEOUT) return sy_status{SY_IN_PROGRESS};
      if (found != SY_OK) return found;
      communicator->shared->meeting().Attend(std::string(name, bytes));
      communicator->named = true;
    }
    return communicator->shared->Ready(error);
  });
}

void Abort(sy_communicator* communicator) { communicator->shared->Abort(); }
void Destroy(sy_communicator* communicator) { delete communicator; }

sy_status RequestPoll(sy_request* request, sy_error* error) {
  return Guarded(error, [&] { return request->owner->Poll(request, error); });
}

sy_status SendRecvBatch(sy_communicator* communicator, const sy_call* call, const sy_transfer* transfers,
                        uint32_t count, sy_request** request, sy_error* error) {
  return Guarded(error, [&] { return communicator->shared->SubmitMessages(call, transfers, count, request, error); });
}

sy_status AllReduce(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kAllReduce, call, send, receive, count, dtype, reduction, 0, request, error);
}

sy_status ReduceScatter(sy_communicator* communicator, const sy_call* call, const void* send, void* receive,
                        uint64_t count, sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kReduceScatter, call, send, receive, count, dtype, reduction, 0, request, error);
}

sy_status AllGather(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kAllGather, call, send, receive, count, dtype, SY_SUM, 0, request, error);
}

sy_status Broadcast(sy_communicator* communicator, const sy_call* call, void* address, uint64_t count, sy_dtype dtype,
                    int32_t root, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kBroadcast, call, address, address, count, dtype, SY_SUM, root, request, error);
}

sy_status AllToAll(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                   sy_dtype dtype, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kAllToAll, call, send, receive, count, dtype, SY_SUM, 0, request, error);
}

sy_status Barrier(sy_communicator* communicator, const sy_call* call, sy_request** request, sy_error* error) {
  return communicator->shared->Submit(kBarrier, call, nullptr, nullptr, 0, SY_U8, SY_SUM, 0, request, error);
}

sy_status Split(sy_communicator* communicator, int32_t color, int32_t key, const char*, sy_communicator** result,
                sy_error* error) {
  return Guarded(error, [&] {
    auto made = std::make_unique<sy_communicator>();
    made->named = true;
    *result = nullptr;
    if (const sy_status status = communicator->shared->Split(color, key, &made->shared, error); status != SY_OK)
      return status;
    if (made->shared != nullptr) *result = made.release();
    return sy_status{SY_OK};
  });
}

sy_status BufferAlloc(sy_communicator* communicator, uint64_t bytes, void** address, sy_error* error) {
  return Guarded(error, [&] { return communicator->shared->Allocate(bytes, address, error); });
}

void BufferFree(sy_communicator* communicator, void* address) { communicator->shared->Free(address); }

const sy_collective_v1 kCollective = {
    .header = SY_HEADER(sy_collective_v1),
    .query = Query,
    .init = Init,
    .poll = Poll,
    .send_recv_batch = SendRecvBatch,
    .abort = Abort,
    .destroy = Destroy,
    .request_poll = RequestPoll,
    .all_reduce = AllReduce,
    .reduce_scatter = ReduceScatter,
    .all_gather = AllGather,
    .broadcast = Broadcast,
    .all_to_all = AllToAll,
    .barrier = Barrier,
    .split = Split,
    .group_begin = nullptr,
    .group_end = nullptr,
    .buffer_alloc = BufferAlloc,
    .buffer_free = BufferFree,
    .register_memory = nullptr,
    .deregister_memory = nullptr,
};

const void* Interface(const char* name) { return strcmp(name, "collective/1") == 0 ? &kCollective : nullptr; }

}  // namespace
}  // namespace shm

sy_status sy_plugin_query(const sy_host*, sy_plugin* plugin, sy_error*) {
  const uint32_t room = plugin->header.size;
  const sy_plugin own{SY_HEADER(sy_plugin), SY_PLUGIN_MAGIC, "shm", "1.0", "Switchyard", shm::Interface};
  memcpy(plugin, &own, room < sizeof own ? room : sizeof own);
  return SY_OK;
}
