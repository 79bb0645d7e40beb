// The mpi plugin's one symbol.
#include <string.h>

#include "collectives/mpi/communicator.h"

namespace {

const void* Interface(const char* name) {
  static const sy_collective_v1 table = switchyard::CollectiveTable<mpi::MpiCommunicator>();
  return strcmp(name, "collective/1") == 0 ? &table : nullptr;
}

}  // namespace

sy_status sy_plugin_query(const sy_host* host, sy_plugin* plugin, sy_error* error) {
  return switchyard::AnswerQuery(host, plugin, error, "mpi", "1.0", Interface);
}
