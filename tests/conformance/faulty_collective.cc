// The shm collective with one fault planted in it, as faulty_plugin.cc does for the reference: SWITCHYARD_FAULT names
// it, SWITCHYARD_FAULT_BASE the library.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

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

std::vector<sy_communicator*> joined;  // by init, in order

// The outcome of a call, now.
sy_status WaitFor(sy_request** request, sy_error* error) {
  sy_status status = SY_OK;
  while (*request != nullptr && (status = real->request_poll(*request, error)) == SY_IN_PROGRESS) {
  }
  *request = nullptr;
  return status;
}

sy_status AllReduce(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  if (Fault("crashes") && count > 1000) kill(getpid(), SIGKILL);
  sy_status status = real->all_reduce(communicator, call, send, receive, count, dtype, reduction, request, error);
  if (status == SY_OK && Fault("cuts_off_the_last_bit") && dtype == SY_BF16 && reduction == SY_SUM) {
    status = WaitFor(request, error);
    for (uint64_t i = 0; i < count; ++i) static_cast<char*>(receive)[2 * i] &= ~1;
  }
  const bool second = joined.size() > 1 && communicator == joined[1];
  if (status == SY_OK && Fault("wrong_sum") && count >= 257) {
    status = WaitFor(request, error);
    static_cast<char*>(receive)[256] ^= 1;
  }
  if (status == SY_OK && Fault("mixes_communicators") && second && count > 0) {
    status = WaitFor(request, error);
    static_cast<char*>(receive)[0] ^= 1;
  }
  return status;
}

sy_status AllGather(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, sy_request** request, sy_error* error) {
  sy_status status = real->all_gather(communicator, call, send, receive, count, dtype, request, error);
  if (status == SY_OK && Fault("writes_too_far") && dtype == SY_F64) {
    status = WaitFor(request, error);
    static_cast<char*>(receive)[2 * count * 8] = 1;  // of two ranks
  }
  return status;
}

sy_status Broadcast(sy_communicator* communicator, const sy_call* call, void* address, uint64_t count, sy_dtype dtype,
                    int32_t root, sy_request** request, sy_error* error) {
  if (Fault("has_one_root") || (Fault("takes_nonsense") && root > 1)) root = 0;
  return real->broadcast(communicator, call, address, count, dtype, root, request, error);
}

sy_status Barrier(sy_communicator* communicator, const sy_call* call, sy_request** request, sy_error* error) {
  if (!Fault("leaves_early")) return real->barrier(communicator, call, request, error);
  *request = nullptr;
  return SY_OK;
}

sy_status Messages(sy_communicator* communicator, const sy_call* call, const sy_transfer* transfers, uint32_t count,
                   sy_request** request, sy_error* error) {
  std::vector<sy_transfer> changed(transfers, transfers + count);
  if (Fault("exchanges_messages")) {  // the first two that this rank sends to one peer
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t j = 0; j < i; ++j) {
        const bool pair = changed[i].is_send && changed[j].is_send && changed[i].peer == changed[j].peer;
        if (pair && changed[i].bytes > 0)
          memcpy(changed[i].address, changed[j].address,
                 changed[j].bytes < changed[i].bytes ? changed[j].bytes : changed[i].bytes);
      }
    }
  }
  return real->send_recv_batch(communicator, call, changed.data(), count, request, error);
}

sy_status Split(sy_communicator* communicator, int32_t color, int32_t key, const char* name, sy_communicator** result,
                sy_error* error) {
  if (Fault("leaks_descriptors")) (void)dup(0);
  return real->split(communicator, color, Fault("splits_in_wrong_order") ? 0 : key, name, result, error);
}

sy_status Init(const sy_init_request* request, sy_communicator** communicator, sy_error* error) {
  const sy_status status = real->init(request, communicator, error);
  if (status == SY_OK) joined.push_back(*communicator);
  return status;
}

sy_status RequestPoll(sy_request* request, sy_error* error) {
  const sy_status status = real->request_poll(request, error);
  if (Fault("hangs_after_errors") && status == SY_ABORTED) return SY_IN_PROGRESS;
  if (Fault("has_no_deadline") && status == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (Fault("hides_who_disagrees") && status == SY_INVALID) snprintf(error->message, sizeof error->message, "no");
  return status;
}

void Abort(sy_communicator* communicator) {
  if (!Fault("deaf_to_abort")) real->abort(communicator);
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
  faulty.init = Init;
  faulty.request_poll = RequestPoll;
  faulty.abort = Abort;
  faulty.send_recv_batch = Messages;
  faulty.all_reduce = AllReduce;
  faulty.all_gather = AllGather;
  faulty.broadcast = Broadcast;
  faulty.barrier = Barrier;
  faulty.split = Split;
  *plugin = base;
  plugin->name = "faulty";
  plugin->interface = Interface;
  return SY_OK;
}
