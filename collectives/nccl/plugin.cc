// The nccl plugin's one symbol.
#include <string.h>

#include "collectives/nccl/communicator.h"

namespace {

sy_collective_v2 MakeTable() {
  sy_collective_v2 table = switchyard::CollectiveTable<nccl::NcclCommunicator>();
  static const auto described = table.query;
  table.query = [](sy_instance* instance, sy_collective_info* info, sy_error* error) {
    return nccl::FindLibrary(*instance, error) == nullptr ? sy_status{SY_UNSUPPORTED}
                                                          : described(instance, info, error);
  };
  table.group_begin = [](sy_instance* instance, sy_error* error) {
    return nccl::NcclCommunicator::GroupBegin(*instance, error);
  };
  table.group_end = [](sy_instance*, sy_error* error) {
    return switchyard::Guarded(error, [&] { return nccl::NcclCommunicator::GroupEnd(error); });
  };
  return table;
}

const void* Interface(sy_instance*, const char* name) {
  static const sy_collective_v2 table = MakeTable();
  return strcmp(name, "collective/2") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"nccl", "1.0", "Switchyard"}, Interface);
}
