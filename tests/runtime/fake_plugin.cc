// A small backend over malloc, and every way to be wrong that a plugin can think of. Which way, its own file name says:
// a copy of this library called switchyard_backend_hangs.so hangs. FaultName() is compared where the fault has its
// place.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/kernel.h"
#include "core/abi/plugin.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

struct sy_instance {
  const sy_host* host;
};
struct sy_device {
  int index;
};
struct sy_buffer {
  char* bytes;
  uint64_t size;
};

#if defined(FAKE_UNDEFINED_SYMBOL)
extern "C" void switchyard_nobody_defines_this();
#endif
#if defined(FAKE_MISSING_LIBRARY)
extern "C" int switchyard_library_that_goes_away();
#endif

namespace {

constexpr uint64_t kMemory = 1 << 20;
uint64_t used = 0;

// "hangs" of "/anywhere/switchyard_backend_hangs.so".
std::string FaultName() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&FaultName), &self) == 0 || self.dli_fname == nullptr) return "";
  const std::string path = self.dli_fname, prefix = "switchyard_backend_";
  const size_t begin = path.rfind(prefix);
  const size_t end = path.rfind(".so");
  if (begin == std::string::npos || end == std::string::npos) return "";
  return path.substr(begin + prefix.size(), end - begin - prefix.size());
}

bool Fault(const char* name) {
  static const std::string fault = FaultName();
  return fault == name;
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

// Not a loop to any compiler, and no end before that of the stack.
__attribute__((noinline)) int Overflow(volatile char* above) {
  volatile char room[4096];
  room[0] = above == nullptr ? 1 : above[0];
  if (room[0] == 77) return 0;
  return Overflow(room) + room[0];
}

sy_status Fail(sy_status status, sy_error* error, const char* text) {
  if (error != nullptr) {
    strncpy(error->message, text, sizeof error->message - 1);
    error->native_code = 77;
    strncpy(error->location, "fake.cc:1", sizeof error->location - 1);
  }
  return status;
}

// More bytes than the caller's struct has; what lies behind it is not the plugin's.
template <typename T>
void WriteBehind(T* given) {
  memset(static_cast<void*>(given + 1), 0x5a, 64);
}

sy_status Count(sy_instance* self, int32_t* count, sy_error* error) {
  if (Fault("crashes_in_count")) raise(SIGSEGV);
  if (Fault("hangs_in_count")) Hang();
  if (Fault("throws_in_count")) throw std::runtime_error("no devices today");
  if (Fault("changes_the_environment_in_count")) setenv("OMP_NUM_THREADS", "1", 1);
  if (Fault("forks_in_count") && fork() == 0) Hang();
  if (Fault("has_too_many_devices")) {
    *count = INT32_MAX;
    return SY_OK;
  }
  if (Fault("has_fewer_than_none")) {
    *count = -1;
    return SY_OK;
  }
  if (Fault("says_unsupported_without_a_word")) return SY_UNSUPPORTED;
  if (Fault("writes_behind_the_error")) {
    WriteBehind(error);
    return Fail(SY_UNSUPPORTED, error, "the fake hardware is unplugged");
  }
  const char* text = self->host->setting(self->host->context, "FAKE_DEVICES");
  const int found = text == nullptr ? 2 : atoi(text);
  if (found <= 0) return Fail(SY_UNSUPPORTED, error, "the fake hardware is unplugged");
  *count = found;
  return SY_OK;
}
sy_status Open(sy_instance*, int32_t index, const sy_open_options*, sy_device** device, sy_error*) {
  *device = new sy_device{index};
  return SY_OK;
}
void Close(sy_device* device) { delete device; }
sy_status Query(sy_instance*, int32_t index, sy_device_info* info, sy_error* error) {
  if (Fault("crashes_in_device_query")) abort();
  if (index < 0 || index > 1) return Fail(SY_INVALID, error, "there are two devices");
  strcpy(info->name, Fault("paints_the_terminal") ? "fa\x1b[31mke" : "fake");
  if (Fault("paints_the_terminal")) info->libraries = "lib\x1b[31mfake";
  info->uuid[15] = static_cast<uint8_t>(index);
  info->memory_bytes = kMemory;
  info->free_bytes = kMemory - used;
  info->alignment = 64;
  info->address_kind = SY_ADDRESS_HOST;
  info->dtypes = 1u << SY_F32;
  strcpy(info->memory_kind, "host");
  if (Fault("device_name_without_end")) memset(info->name, 'x', sizeof info->name);
  if (Fault("memory_kind_without_end")) memset(info->memory_kind, 'x', sizeof info->memory_kind);
  if (Fault("copies_in_steps_of_3")) info->copy_granularity = 3;
  if (Fault("copies_in_steps_above_the_alignment")) info->copy_granularity = 2 * info->alignment;
  if (Fault("aligns_to_48")) info->alignment = 48;
  if (Fault("gives_memory_in_pieces")) info->largest_allocation = kMemory / 4;
  if (Fault("unknown_address_kind")) info->address_kind = 7;
  if (Fault("writes_behind_the_device_info")) WriteBehind(info);
  return SY_OK;
}
sy_status Alloc(sy_device*, uint64_t bytes, const sy_alloc_options*, sy_buffer** buffer, sy_error* error) {
  if (Fault("answers_a_later_status")) return static_cast<sy_status>(99);
  if (Fault("exits_in_alloc")) exit(0);
  if (Fault("throws_in_alloc")) throw std::runtime_error("no memory today");
  if (Fault("throws_a_number_in_alloc")) throw 42;
  if (used + bytes > kMemory) return Fail(SY_OUT_OF_MEMORY, error, "the fake memory is full");
  used += bytes;
  *buffer = new sy_buffer{static_cast<char*>(malloc(bytes)), bytes};
  return SY_OK;
}
void Free(sy_device*, sy_buffer* buffer) {
  if (buffer == nullptr) return;
  if (Fault("throws_in_free")) throw std::runtime_error("no freedom today");
  used -= buffer->size;
  free(buffer->bytes);
  delete buffer;
}
char* Address(sy_place place) {
  return place.buffer != nullptr ? place.buffer->bytes + place.offset : static_cast<char*>(place.host) + place.offset;
}
sy_status Copy(sy_device*, sy_stream*, sy_place destination, sy_place source, uint64_t bytes, const sy_copy_options*,
               sy_error*) {
  memmove(Address(destination), Address(source), bytes);
  return SY_OK;
}
sy_status Synchronize(sy_device*, sy_stream*, const sy_synchronize_options*, sy_error*) { return SY_OK; }

sy_device_v2 device_interface = {.header = SY_HEADER(sy_device_v2),
                                 .count = Count,
                                 .open = Open,
                                 .close = Close,
                                 .query = Query,
                                 .alloc = Alloc,
                                 .free = Free,
                                 .copy = Copy,
                                 .synchronize = Synchronize};

// Its kernels do nothing, but ask for constants that there is no function to write.
sy_kernel_v2 kernel_interface = {.header = SY_HEADER(sy_kernel_v2),
                                 .prepare = [](sy_device*, const sy_prepare_request*, sy_kernel** kernel,
                                               sy_kernel_info* info, sy_error*) -> sy_status {
                                   *kernel = reinterpret_cast<sy_kernel*>(info);
                                   info->constant_bytes = 64;
                                   return SY_OK;
                                 },
                                 .bind = [](sy_device*, sy_kernel*, const sy_binding*, sy_bound**, sy_launch*,
                                            sy_error*) -> sy_status { return SY_UNSUPPORTED; },
                                 .unbind = [](sy_device*, sy_bound*) {},
                                 .release = [](sy_device*, sy_kernel*) {}};

// Semaphores that nobody can wait for.
sy_semaphore_v1 semaphore_interface = {
    .header = SY_HEADER(sy_semaphore_v1),
    .create = [](sy_device*, const sy_semaphore_options*, sy_semaphore**, sy_error*) -> sy_status {
      return SY_UNSUPPORTED;
    },
    .destroy = [](sy_device*, sy_semaphore*) {},
    .signal = [](sy_device*, sy_semaphore*, uint64_t, sy_error*) -> sy_status { return SY_UNSUPPORTED; },
    .query = [](sy_device*, sy_semaphore*, uint64_t*, sy_error*) -> sy_status { return SY_UNSUPPORTED; }};

constexpr const char* kHostMemory[] = {"host", nullptr};

// A collective that can do everything that is mandatory, in name.
sy_collective_v2 collective_interface = {
    .header = SY_HEADER(sy_collective_v2),
    .query = [](sy_instance*, sy_collective_info* info, sy_error*) -> sy_status {
      static const char* const* const endless = [] {
        static const char* names[4096];
        std::fill(std::begin(names), std::end(names), "host");
        return names;
      }();
      if (Fault("collective_crashes_in_query")) abort();
      info->completion = Fault("collective_completes_otherwise") ? 9 : SY_COMPLETES_BY_POLL;
      info->memory_kinds = Fault("collective_names_no_memory_kinds")            ? nullptr
                           : Fault("collective_names_memory_kinds_without_end") ? endless
                           : Fault("collective_memory_kinds_are_garbage") ? reinterpret_cast<const char* const*>(0x10)
                                                                          : kHostMemory;
      return SY_OK;
    },
    .init = [](sy_instance*, const sy_init_request*, sy_communicator**, sy_error*) -> sy_status {
      return SY_UNSUPPORTED;
    },
    .poll = [](sy_communicator*, sy_error*) -> sy_status { return SY_OK; },
    .send_recv_batch = [](sy_communicator*, const sy_call*, const sy_transfer*, uint32_t, sy_request**,
                          sy_error*) -> sy_status { return SY_UNSUPPORTED; },
    .abort = [](sy_communicator*) {},
    .destroy = [](sy_communicator*) {},
    .request_poll = [](sy_communicator*, sy_request*, sy_error*) -> sy_status { return SY_OK; },
    .request_release = [](sy_communicator*, sy_request*) {}};

sy_status AllReduce(sy_communicator*, const sy_call*, const void*, void*, uint64_t, sy_dtype, int32_t, sy_request**,
                    sy_error*) {
  return SY_UNSUPPORTED;
}

const void* GetInterface(sy_instance* self, const char* name) {
  if (Fault("crashes_in_interface")) abort();
  if (Fault("hangs_in_interface")) Hang();
  if (Fault("throws_in_interface")) throw std::runtime_error("no interfaces today");
  if (Fault("no_interface")) return nullptr;
  if (Fault("interface_is_garbage")) return reinterpret_cast<const void*>(0x10);
  if (self->host == nullptr) return nullptr;
  const bool lacks_kernel_function = Fault("kernel_lacks_bind") || Fault("kernel_lacks_write_constants");
  if (lacks_kernel_function && strcmp(name, "kernel/2") == 0) return &kernel_interface;
  if (Fault("semaphore_lacks_wait") && strcmp(name, "semaphore/1") == 0) return &semaphore_interface;
  static const bool collective = FaultName().starts_with("collective_");
  if (collective) return strcmp(name, "collective/2") == 0 ? &collective_interface : nullptr;
  return strcmp(name, "device/2") == 0 ? &device_interface : nullptr;
}

// What must not be done to the process that loads a plugin.
void Interfere() {
  if (Fault("prints")) {
    printf("Thank you for choosing the fake device!\n");
    fflush(stdout);
  }
  if (Fault("forks") && fork() == 0) Hang();
  if (Fault("closes_standard_output")) close(STDOUT_FILENO);
  if (Fault("closes_everything")) {
    for (int descriptor = 0; descriptor < 1024; ++descriptor) close(descriptor);
  }
  if (Fault("changes_the_folder") && chdir("/") != 0) abort();
  if (Fault("changes_the_locale") && setlocale(LC_ALL, "C.UTF-8") == nullptr) abort();
  if (Fault("changes_the_file_mode_mask")) umask(0);
  if (Fault("takes_signals")) signal(SIGINT, SIG_IGN);
  if (Fault("blocks_signals")) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
  }
  if (Fault("adds_to_the_environment")) setenv("FAKE_WAS_HERE", "\x1b[31m", 1);
  if (Fault("removes_from_the_environment")) unsetenv("XDG_CACHE_HOME");
  if (Fault("lowers_a_limit")) {
    const rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  if (Fault("takes_one_core")) {
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    int kept = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &cores) && kept++ > 0) CPU_CLR(core, &cores);
    }
    sched_setaffinity(0, sizeof cores, &cores);
  }
  if (Fault("takes_lower_priority")) setpriority(PRIO_PROCESS, 0, 5);
  if (Fault("sets_a_timer")) {
    const itimerval late{{0, 0}, {1000, 0}};
    setitimer(ITIMER_REAL, &late, nullptr);
  }
  if (Fault("starts_a_thread")) {
    pthread_t thread;
    pthread_create(
        &thread, nullptr, [](void*) -> void* { Hang(); }, nullptr);
  }
  if (Fault("joins_its_thread")) {
    pthread_t thread;
    pthread_create(
        &thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
    pthread_join(thread, nullptr);
  }
  if (Fault("catches_exceptions")) std::set_terminate([] { _exit(0); });
  if (Fault("becomes_a_daemon") && fork() == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    Hang();
  }
  if (Fault("crashes_at_exit")) atexit([] { abort(); });
  if (Fault("hangs_at_exit")) atexit([] { Hang(); });
  if (Fault("exits_at_exit")) atexit([] { _exit(0); });
  if (Fault("forks_at_exit")) {
    atexit([] {
      if (fork() == 0) Hang();
    });
  }
#if defined(__SSE__)
  if (Fault("flushes_subnormals")) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

}  // namespace

__attribute__((constructor)) static void AtLoad() {
  if (Fault("crashes_in_dlopen")) raise(SIGSEGV);
  if (Fault("hangs_in_dlopen")) Hang();
  if (Fault("exits_in_dlopen")) _exit(7);
}

#if defined(FAKE_NO_SYMBOL)
#define sy_plugin_create another_function
#elif defined(FAKE_EDITION_1)
#define sy_plugin_create sy_plugin_query
#endif
extern "C" SY_EXPORT sy_status sy_plugin_create(const sy_host* given, sy_plugin* plugin, sy_error* error) {
#if defined(FAKE_UNDEFINED_SYMBOL)
  switchyard_nobody_defines_this();
#endif
#if defined(FAKE_MISSING_LIBRARY)
  if (switchyard_library_that_goes_away() != 0) return SY_INTERNAL;
#endif
  static sy_instance instance;
  instance.host = given;
  if (Fault("refuses_in_colour")) return Fail(SY_UNSUPPORTED, error, "\x1b]0;owned\x07 no\r\nlicence \xc2\x9b");
  if (Fault("refuses")) return Fail(SY_UNSUPPORTED, error, "this fake needs a licence");
  if (Fault("refuses_without_a_word")) return SY_INTERNAL;
  if (Fault("throws")) throw std::runtime_error("no plugin today");
  if (Fault("throws_a_number")) throw 42;
  if (Fault("aborts")) abort();
  if (Fault("crashes")) raise(SIGSEGV);
  if (Fault("overflows_the_stack")) return Overflow(nullptr);
  if (Fault("hangs")) Hang();
  if (Fault("exits")) exit(0);
  Interfere();
  plugin->header = SY_HEADER(sy_plugin);
  plugin->magic = SY_PLUGIN_MAGIC;
  plugin->name = "fake";
  plugin->version = "1.2";
  plugin->vendor = "tests";
  plugin->instance = &instance;
  plugin->get_interface = GetInterface;
  if (Fault("fills_nothing_in")) *plugin = {};
  if (Fault("wrong_magic")) plugin->magic = 0x12345678;
  if (Fault("magic_of_edition_1")) plugin->magic = 0x31595753;  // "SWY1"
  if (Fault("wrong_version")) plugin->header.major = 9;
  if (Fault("instance_is_garbage")) plugin->instance = reinterpret_cast<sy_instance*>(0x10);
  if (Fault("wrong_size")) plugin->header.size = 8;
  if (Fault("huge_size")) plugin->header.size = 1u << 20;
  if (Fault("no_name")) plugin->name = nullptr;
  if (Fault("name_is_garbage")) plugin->name = reinterpret_cast<const char*>(0x10);
  if (Fault("no_get_interface")) plugin->get_interface = nullptr;
  if (Fault("missing_function")) device_interface.alloc = nullptr;
  if (Fault("interface_wrong_version")) device_interface.header.major = 3;
  if (Fault("interface_too_small")) device_interface.header.size = 16;
  if (Fault("interface_too_large")) device_interface.header.size = 1u << 20;
  if (Fault("older")) {
    device_interface.header.size = offsetof(sy_device_v2, stream_create);
    device_interface.fill = [](sy_device*, sy_stream*, sy_place, uint8_t, uint64_t, const sy_fill_options*,
                               sy_error*) -> sy_status { abort(); };
  }
  static sy_extension optional = {SY_HEADER(sy_extension), "fake.hint/1", 0};
  static sy_extension required = {SY_HEADER(sy_extension), "fake.secret/1", 1};
  if (Fault("optional_extension")) device_interface.header.next = &optional;
  if (Fault("required_extension")) {
    optional.header.next = &required;
    device_interface.header.next = &optional;
  }
  if (Fault("plugin_requires_extension")) plugin->header.next = &required;
  if (Fault("extensions_loop")) {
    optional.header.next = &optional;
    device_interface.header.next = &optional;
  }
  if (Fault("extension_is_garbage")) device_interface.header.next = reinterpret_cast<const sy_extension*>(0x10);
  if (Fault("kernel_lacks_bind")) kernel_interface.bind = nullptr;
  if (Fault("collective_lacks_request_poll")) collective_interface.request_poll = nullptr;
  if (Fault("collective_lacks_request_release")) collective_interface.request_release = nullptr;
  if (Fault("collective_lacks_buffer_free"))
    collective_interface.buffer_alloc = [](sy_communicator*, uint64_t, void**, sy_error*) -> sy_status {
      return SY_UNSUPPORTED;
    };
  if (Fault("collective_lacks_reduces")) collective_interface.all_reduce = AllReduce;
  if (Fault("newer")) {
    static struct {
      sy_device_v2 known;
      void (*later)();
    } larger;
    larger.known = device_interface;
    larger.known.header.size = sizeof larger;
    larger.known.header.minor = 7;
    plugin->get_interface = [](sy_instance*, const char* name) -> const void* {
      return strcmp(name, "device/2") == 0 ? &larger : nullptr;
    };
  }
  return SY_OK;
}
