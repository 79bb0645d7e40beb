// The tcp plugin's one symbol.
#include "core/abi/plugin.h"

#include <string.h>

#include "collectives/tcp/communicator.h"

namespace {

const void* Interface(const char* name) {
  static const sy_collective_v1 table = switchyard::CollectiveTable<tcp::TcpCommunicator>();
  return strcmp(name, "collective/1") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error*) {
  tcp::host = host;
  const sy_plugin own{SY_HEADER(sy_plugin), SY_PLUGIN_MAGIC, "tcp", "1.0", "Switchyard", Interface};
  switchyard::FillStruct(plugin, own);
  return SY_OK;
}
