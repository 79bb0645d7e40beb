// The shm collective with one fault planted in it, as faulty_plugin.cc does for the reference: SWITCHYARD_FAULT names
// it, SWITCHYARD_FAULT_BASE the library.
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "core/abi/collective.h"
#include "core/abi/plugin.h"

struct sy_instance {
  sy_plugin base;
};

namespace {

// The tables are the same for every instance; their first arguments are those of the base, but for query, init and the
// like, which take an instance of this plugin.
const sy_host* host = nullptr;  // of the first instance: it names the fault
const sy_collective_v2* real = nullptr;
sy_collective_v2 faulty{};

bool Fault(const char* name) {
  const char* fault = host->setting(host->context, "FAULT");
  return fault != nullptr && strcmp(fault, name) == 0;
}

sy_instance* BaseOf(sy_instance* instance) { return instance->base.instance; }

std::vector<sy_communicator*> joined;  // by init, in order

// The outcome of a call, now.
sy_status WaitFor(sy_communicator* communicator, sy_request** request, sy_error* error) {
  if (*request == nullptr) return SY_OK;
  sy_status status = SY_IN_PROGRESS;
  while (status == SY_IN_PROGRESS) status = real->request_poll(communicator, *request, error);
  real->request_release(communicator, *request);
  *request = nullptr;
  return status;
}

sy_status AllReduce(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, int32_t reduction, sy_request** request, sy_error* error) {
  if (Fault("crashes") && count > 1000) kill(getpid(), SIGKILL);
  sy_status status = real->all_reduce(communicator, call, send, receive, count, dtype, reduction, request, error);
  if (status == SY_OK && Fault("cuts_off_the_last_bit") && dtype == SY_BF16 && reduction == SY_SUM) {
    status = WaitFor(communicator, request, error);
    for (uint64_t i = 0; i < count; ++i) static_cast<char*>(receive)[2 * i] &= ~1;
  }
  const bool second = joined.size() > 1 && communicator == joined[1];
  if (status == SY_OK && Fault("wrong_sum") && count >= 257) {
    status = WaitFor(communicator, request, error);
    static_cast<char*>(receive)[256] ^= 1;
  }
  if (status == SY_OK && Fault("mixes_communicators") && second && count > 0) {
    status = WaitFor(communicator, request, error);
    static_cast<char*>(receive)[0] ^= 1;
  }
  return status;
}

sy_status AllGather(sy_communicator* communicator, const sy_call* call, const void* send, void* receive, uint64_t count,
                    sy_dtype dtype, sy_request** request, sy_error* error) {
  sy_call plain = *call;
  if (Fault("ignores_extensions_of_calls")) plain.header.next = nullptr;
  sy_status status = real->all_gather(communicator, &plain, send, receive, count, dtype, request, error);
  if (status == SY_OK && Fault("writes_too_far") && dtype == SY_F64) {
    status = WaitFor(communicator, request, error);
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
  if (Fault("moves_nothing")) {
    *request = nullptr;
    return SY_OK;
  }
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

sy_status Query(sy_instance* instance, sy_collective_info* info, sy_error* error) {
  if (Fault("ignores_extensions_of_info")) info->header.next = nullptr;
  const sy_status status = real->query(BaseOf(instance), info, error);
  if (Fault("writes_errors_on_success") && error != nullptr) error->message[0] = '\0';
  if (status == SY_OK && SY_HAS(sy_collective_info, info, libraries))
    info->libraries = Fault("writes_in_latin_1") ? "libfast 1.0, \xA9 1999" : "libfast 1.0";
  return status;
}

sy_status Reduces(sy_instance* instance, int32_t reduction, sy_dtype dtype, sy_error* error) {
  const sy_status status = real->reduces(BaseOf(instance), reduction, dtype, error);
  return Fault("calls_the_unknown_invalid") && status == SY_UNSUPPORTED ? SY_INVALID : status;
}

sy_status GroupBegin(sy_instance* instance, sy_error* error) { return real->group_begin(BaseOf(instance), error); }
sy_status GroupEnd(sy_instance* instance, sy_error* error) { return real->group_end(BaseOf(instance), error); }

sy_status Init(sy_instance* instance, const sy_init_request* given, sy_communicator** communicator, sy_error* error) {
  sy_init_request request = *given;
  if (Fault("wants_mpirun") && getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return SY_UNSUPPORTED;
  if (Fault("ignores_extensions_of_init")) request.header.next = nullptr;
  const sy_status status = real->init(BaseOf(instance), &request, communicator, error);
  if (Fault("gives_no_communicator")) *communicator = nullptr;
  if (status == SY_OK) joined.push_back(*communicator);
  return status;
}

bool going_on = false;  // with a call that was dropped, while the rest answers as if it had been aborted

sy_status RequestPoll(sy_communicator* communicator, sy_request* request, sy_error* error) {
  static std::set<sy_request*> ended;
  if (Fault("forgets_answers") && ended.count(request)) return SY_IN_PROGRESS;
  if (going_on) {
    if (error != nullptr) snprintf(error->message, sizeof error->message, "aborted");
    return SY_ABORTED;
  }
  const sy_status status = real->request_poll(communicator, request, error);
  if (status != SY_IN_PROGRESS) ended.insert(request);
  if (Fault("hangs_after_errors") && status == SY_ABORTED) return SY_IN_PROGRESS;
  if (Fault("has_no_deadline") && status == SY_TIMEOUT) return SY_IN_PROGRESS;
  if (Fault("hides_who_disagrees") && status == SY_INVALID) snprintf(error->message, sizeof error->message, "no");
  return status;
}

void RequestRelease(sy_communicator* communicator, sy_request* request) {
  const bool ended = real->request_poll(communicator, request, nullptr) != SY_IN_PROGRESS;
  if (Fault("waits_in_release")) {  // for the peer, or for ever
    while (real->request_poll(communicator, request, nullptr) == SY_IN_PROGRESS) {
    }
  }
  if (Fault("goes_on_after_release") && !ended) {  // and so writes to the memory of the call
    if (going_on) return;
    going_on = true;
    std::thread([=] {
      while (real->request_poll(communicator, request, nullptr) == SY_IN_PROGRESS) {
      }
    }).detach();
    return;
  }
  if (Fault("drops_nothing") && !ended) return;
  real->request_release(communicator, request);
}

void Abort(sy_communicator* communicator) {
  if (Fault("aborts_every_instance")) {
    for (sy_communicator* one : joined) real->abort(one);
  }
  if (!Fault("deaf_to_abort")) real->abort(communicator);
}

const void* Interface(sy_instance*, const char* name) { return strcmp(name, "collective/2") == 0 ? &faulty : nullptr; }

}  // namespace

extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* given, sy_plugin* plugin, sy_error* error) {
  if (host == nullptr) host = given;
  void* const library = dlopen(host->setting(host->context, "FAULT_BASE"), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return SY_INTERNAL;
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  auto* const instance = new sy_instance{{SY_HEADER(sy_plugin)}};
  if (create(given, &instance->base, error) != SY_OK) return SY_INTERNAL;
  real = static_cast<const sy_collective_v2*>(instance->base.get_interface(instance->base.instance, "collective/2"));
  faulty = *real;
  faulty.query = Query;
  faulty.init = Init;
  faulty.reduces = Reduces;
  if (real->group_begin != nullptr) faulty.group_begin = GroupBegin;
  if (real->group_end != nullptr) faulty.group_end = GroupEnd;
  faulty.request_poll = RequestPoll;
  faulty.request_release = RequestRelease;
  faulty.abort = Abort;
  faulty.send_recv_batch = Messages;
  faulty.all_reduce = AllReduce;
  faulty.all_gather = AllGather;
  faulty.broadcast = Broadcast;
  faulty.barrier = Barrier;
  faulty.split = Split;
  if (Fault("gives_no_memory"))
    faulty.buffer_alloc = [](sy_communicator*, uint64_t, void** address, sy_error*) -> sy_status {
      *address = nullptr;
      return SY_OK;
    };
  if (Fault("six_functions") || Fault("moves_nothing")) {  // those that are mandatory, with which requests go
    faulty = sy_collective_v2{.header = faulty.header,
                              .query = Query,
                              .init = Init,
                              .poll = faulty.poll,
                              .send_recv_batch = Messages,
                              .abort = Abort,
                              .destroy = faulty.destroy,
                              .request_poll = RequestPoll,
                              .request_release = RequestRelease};
  }
  *plugin = instance->base;
  plugin->name = "faulty";
  plugin->instance = instance;
  plugin->get_interface = Interface;
  return SY_OK;
}
