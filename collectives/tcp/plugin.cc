// The tcp plugin's one symbol.
#include <string.h>

#include "collectives/tcp/communicator.h"

namespace {

const void* GetInterface(sy_instance*, const char* name) {
  static const sy_collective_v2 table = switchyard::CollectiveTable<tcp::TcpCommunicator>();
  return strcmp(name, "collective/2") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_create(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerCreate(host, plugin, error, {"tcp", "2.0", "Switchyard"}, GetInterface);
}
