// The hccl plugin's one symbol.
#include <string.h>

#include "collectives/hccl/communicator.h"

namespace {

const void* Interface(const char* name) {
  static const sy_collective_v1 table = [] {
    sy_collective_v1 made = switchyard::CollectiveTable<hccl::HcclCommunicator>();
    made.query = hccl::HcclCommunicator::Query;
    return made;
  }();
  return strcmp(name, "collective/1") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "hccl", "1.0", Interface);
}
