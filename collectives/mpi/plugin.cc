// The C face of the plugin: nothing but casts, and no exception may pass.
#include "core/abi/plugin.h"

#include <stdlib.h>
#include <string.h>

#include <exception>
#include <memory>
#include <new>

#include "collectives/mpi/communicator.h"
#include "collectives/mpi/failure.h"
#include "collectives/mpi/library.h"
#include "core/abi/device.h"

struct sy_communicator {
  std::unique_ptr<mpi::Communicator> joined;
};

namespace mpi {
namespace {

const sy_host* host = nullptr;

Settings ReadSettings() {
  Settings settings;
  if (const char* const bytes = host->setting("MPI_PART_BYTES"); bytes != nullptr && atoll(bytes) >= 8)
    settings.part_bytes = strtoull(bytes, nullptr, 10);
  if (const char* const check = host->setting("CHECK_COLLECTIVES")) settings.check = strcmp(check, "0") != 0;
  return settings;
}

template <typename Body>
sy_status Guarded(sy_error* error, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return SY_MPI_FAIL(error, SY_OUT_OF_MEMORY, "no host memory");
  } catch (const std::exception& problem) {
    return SY_MPI_FAIL(error, SY_INTERNAL, "%s", problem.what());
  }
}

sy_status Query(sy_collective_info* info, sy_error*) {
  const sy_header header = info->header;
  sy_collective_info own{header};
  snprintf(own.name, sizeof own.name, "mpi");
  own.completion = SY_COMPLETES_BY_POLL;
  own.memory_kinds = 1u << SY_MEMORY_HOST;
  for (uint32_t& dtypes : own.reductions) dtypes = (1u << SY_DTYPE_COUNT) - 1;
  own.alignment = 64;
  memcpy(info, &own, header.size < sizeof own ? header.size : sizeof own);
  return SY_OK;
}

sy_status Init(const sy_init_request* request, sy_communicator** communicator, sy_error* error) {
  return Guarded(error, [&] {
    if (const sy_status launched = CheckLauncher(request->size, error); launched != SY_OK) return launched;
    auto made = std::make_unique<sy_communicator>();
    made->joined = std::make_unique<Communicator>(ReadSettings(), request->rank, request->size, request->timeout_ms);
    StartLibrary();
    *communicator = made.release();
    return sy_status{SY_OK};
  });
}

sy_status Poll(sy_communicator* communicator, sy_error* error) {
  return Guarded(error, [&] { return communicator->joined->Ready(error); });
}

void Abort(sy_communicator* communicator) { communicator->joined->Abort(); }
void Destroy(sy_communicator* communicator) { delete communicator; }

sy_status RequestPoll(sy_request* request, sy_error* error) {
  return Guarded(error, [&] { return request->owner->Poll(request, error); });
}

sy_status SendRecvBatch(sy_communicator* communicator, const sy_call* call, const sy_transfer* transfers,
                        uint32_t count, sy_request** request, sy_error* error) {
  return Guarded(error, [&] { return communicator->joined->SubmitMessages(call, transfers, count, request, error); });
}

sy_status AllReduce(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kAllReduce, call, send, receive, count, dtype, reduction, 0, request, error);
  });
}

sy_status ReduceScatter(sy_communicator* communicator, const sy_call* call, const void* send, void* receive,
                        uint64_t count, sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kReduceScatter, call, send, receive, count, dtype, reduction, 0, request,
                                        error);
  });
}

sy_status AllGather(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kAllGather, call, send, receive, count, dtype, SY_SUM, 0, request, error);
  });
}

sy_status Broadcast(sy_communicator* communicator, const sy_call* call, void* address, uint64_t count, sy_dtype dtype,
                    int32_t root, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kBroadcast, call, address, address, count, dtype, SY_SUM, root, request, error);
  });
}

sy_status AllToAll(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                   sy_dtype dtype, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kAllToAll, call, send, receive, count, dtype, SY_SUM, 0, request, error);
  });
}

sy_status Barrier(sy_communicator* communicator, const sy_call* call, sy_request** request, sy_error* error) {
  return Guarded(error, [&] {
    return communicator->joined->Submit(kBarrier, call, nullptr, nullptr, 0, SY_U8, SY_SUM, 0, request, error);
  });
}

sy_status Split(sy_communicator* communicator, int32_t color, int32_t key, const char*, sy_communicator** result,
                sy_error* error) {
  return Guarded(error, [&] {
    auto made = std::make_unique<sy_communicator>();
    *result = nullptr;
    if (const sy_status status = communicator->joined->Split(color, key, &made->joined, error); status != SY_OK)
      return status;
    if (made->joined != nullptr) *result = made.release();
    return sy_status{SY_OK};
  });
}

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
    .buffer_alloc = nullptr,
    .buffer_free = nullptr,
    .register_memory = nullptr,
    .deregister_memory = nullptr,
};

const void* Interface(const char* name) { return strcmp(name, "collective/1") == 0 ? &kCollective : nullptr; }

}  // namespace
}  // namespace mpi

sy_status sy_plugin_query(const sy_host* given, sy_plugin* plugin, sy_error*) {
  mpi::host = given;
  const uint32_t room = plugin->header.size;
  const sy_plugin own{SY_HEADER(sy_plugin), SY_PLUGIN_MAGIC, "mpi", "1.0", "Switchyard", mpi::Interface};
  memcpy(plugin, &own, room < sizeof own ? room : sizeof own);
  return SY_OK;
}
