// The shm plugin's one symbol.
#include <string.h>

#include "collectives/shm/communicator.h"

namespace {

const void* Interface(const char* name) {
  static const sy_collective_v1 table = switchyard::CollectiveTable<shm::ShmCommunicator>();
  return strcmp(name, "collective/1") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "shm", "1.0", Interface);
}
