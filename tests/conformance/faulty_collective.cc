// The shm collective with one fault planted in it, as faulty_plugin.cc does for the reference: SWITCHYARD_FAULT names
// it, SWITCHYARD_FAULT_BASE the library.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "core/abi/collective.h"
#include "core/abi/plugin.h"

namespace {

const sy_host* host = nullptr;
sy_plugin base{};
const sy_collective_v1* real = nullptr;
sy_collective_v1 faulty{};

bool Fault(const char* name) {
  const char* fault = host->setting("FAULT");
  return fault != nullptr && strcmp(fault, name) == 0;
}

sy_status AllReduce(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  if (Fault("crashes") && count > 1000) kill(getpid(), SIGKILL);
  sy_status status = real->all_reduce(communicator, call, send, receive, count, dtype, reduction, request, error);
  if (!Fault("wrong_sum") || status != SY_OK || count < 257) return status;
  while (*request != nullptr && (status = real->request_poll(*request, error)) == SY_IN_PROGRESS) {
  }
  *request = nullptr;
  static_cast<char*>(receive)[256] ^= 1;
  return status;
}

sy_status Barrier(sy_communicator* communicator, const sy_call* call, sy_request** request, sy_error* error) {
  if (!Fault("leaves_early")) return real->barrier(communicator, call, request, error);
  *request = nullptr;
  return SY_OK;
}

const void* Interface(const char* name) { return strcmp(name, "collective/1") == 0 ? &faulty : nullptr; }

}  // namespace

extern "C" SY_EXPORT sy_status sy_plugin_query(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  host = given;
  void* const library = dlopen(host->setting("FAULT_BASE"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return SY_INTERNAL;
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(library, "sy_plugin_query"));
  base.header = SY_HEADER(sy_plugin);
  if (query(host, &base, error) != SY_OK) return SY_INTERNAL;
  real = static_cast<const sy_collective_v1*>(base.interface("collective/1"));
  faulty = *real;
  faulty.all_reduce = AllReduce;
  faulty.barrier = Barrier;
  *plugin = base;
  plugin->name = "faulty";
  plugin->interface = Interface;
  return SY_OK;
}
