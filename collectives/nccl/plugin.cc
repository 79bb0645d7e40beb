// The nccl plugin's one symbol.
#include <string.h>

#include "collectives/nccl/communicator.h"

namespace {

nccl::NcclCommunicator* Of(sy_communicator* handle) { return reinterpret_cast<nccl::NcclCommunicator*>(handle); }

sy_collective_v1 MakeTable() {
  sy_collective_v1 table = switchyard::CollectiveTable<nccl::NcclCommunicator>();
  table.query = nccl::NcclCommunicator::Query;
  table.group_begin = nccl::NcclCommunicator::GroupBegin;
  table.group_end = [](sy_error* error) {
    return switchyard::Guarded(error, [&] { return nccl::NcclCommunicator::GroupEnd(error); });
  };
  table.register_memory = [](sy_communicator* self, void* address, uint64_t bytes, void** registration,
                             sy_error* error) {
    return switchyard::Guarded(error, [&] { return Of(self)->Register(address, bytes, registration, error); });
  };
  table.deregister_memory = [](sy_communicator* self, void* registration) { Of(self)->Deregister(registration); };
  return table;
}

const void* Interface(const char* name) {
  static const sy_collective_v1 table = MakeTable();
  return strcmp(name, "collective/1") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "nccl", "1.0", Interface);
}
