// The hccl plugin's one symbol.
#include <string.h>

#include "collectives/hccl/communicator.h"

namespace {

const void* GetInterface(sy_instance*, const char* name) {
  static const sy_collective_v2 table = [] {
    sy_collective_v2 made = switchyard::CollectiveTable<hccl::HcclCommunicator>();
    made.query = hccl::HcclCommunicator::Query;
    return made;
  }();
  return strcmp(name, "collective/2") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"hccl", "1.0", "Switchyard"}, GetInterface);
}
