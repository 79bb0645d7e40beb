#include "core/runtime/plugins/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <set>

#include "core/abi/collective.h"
#include "core/abi/device.h"
#include "core/abi/interpose.h"
#include "core/abi/kernel.h"
#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/runtime/plugins/abi_status.h"

namespace switchyard {
namespace {

constexpr uint32_t kLargestStruct = 1 << 16;  // a header that claims more is not a header
constexpr size_t kLongestText = 4096, kLongestName = 64, kLongestLibraries = 512;  // bytes

void HostLog(void*, int32_t level, const char* text) {
  if (text != nullptr) LogLine(static_cast<LogLevel>(std::clamp(level, 0, 3)), Printable(text, kLongestText));
}

std::string Shown(const char* text, size_t limit) { return text == nullptr ? "" : Printable(text, limit); }

// Never destroyed: plugins may ask until the process ends, and values stay where they are until then, as the interface
// promises.
struct Settings {
  std::mutex mutex;
  std::map<std::string, std::string> provided;
  std::set<std::string> values;
};
Settings& AllSettings() {
  static auto* const settings = new Settings;
  return *settings;
}

const char* HostSetting(void*, const char* name) {
  if (name == nullptr) return nullptr;
  Settings& settings = AllSettings();
  const std::lock_guard lock(settings.mutex);
  const auto provided = settings.provided.find(name);
  const auto value = provided != settings.provided.end() ? std::optional(provided->second)
                                                         : Environment(std::string("SWITCHYARD_") + name);
  return value ? settings.values.insert(*value).first->c_str() : nullptr;
}

// One interface that this program knows: its size, the size through its last mandatory function, and the places of
// those functions.
struct KnownInterface {
  const char* name;
  size_t size, mandatory_size;
  std::vector<std::pair<const char*, size_t>> mandatory;
};

#define SY_FUNCTION(type, function) \
  { #function, offsetof(type, function) }

const std::vector<KnownInterface>& KnownInterfaces() {
  static const auto* const known = new std::vector<KnownInterface>{
      {"device/2",
       sizeof(sy_device_v2),
       offsetof(sy_device_v2, stream_create),
       {SY_FUNCTION(sy_device_v2, count), SY_FUNCTION(sy_device_v2, open), SY_FUNCTION(sy_device_v2, close),
        SY_FUNCTION(sy_device_v2, query), SY_FUNCTION(sy_device_v2, alloc), SY_FUNCTION(sy_device_v2, free),
        SY_FUNCTION(sy_device_v2, copy), SY_FUNCTION(sy_device_v2, synchronize)}},
      {"kernel/2",
       sizeof(sy_kernel_v2),
       offsetof(sy_kernel_v2, write_constants),
       {SY_FUNCTION(sy_kernel_v2, prepare), SY_FUNCTION(sy_kernel_v2, bind), SY_FUNCTION(sy_kernel_v2, unbind),
        SY_FUNCTION(sy_kernel_v2, release)}},
      {"collective/2",
       sizeof(sy_collective_v2),
       offsetof(sy_collective_v2, all_reduce),
       {SY_FUNCTION(sy_collective_v2, query), SY_FUNCTION(sy_collective_v2, init), SY_FUNCTION(sy_collective_v2, poll),
        SY_FUNCTION(sy_collective_v2, send_recv_batch), SY_FUNCTION(sy_collective_v2, abort),
        SY_FUNCTION(sy_collective_v2, destroy)}},
      {"memory_ext/2", sizeof(sy_memory_ext_v2), sizeof(sy_header), {}},
      {"capture/2",
       sizeof(sy_capture_v2),
       sizeof(sy_capture_v2),
       {SY_FUNCTION(sy_capture_v2, begin), SY_FUNCTION(sy_capture_v2, end), SY_FUNCTION(sy_capture_v2, launch),
        SY_FUNCTION(sy_capture_v2, release)}},
      {"semaphore/1",
       sizeof(sy_semaphore_v1),
       sizeof(sy_semaphore_v1),
       {SY_FUNCTION(sy_semaphore_v1, create), SY_FUNCTION(sy_semaphore_v1, destroy),
        SY_FUNCTION(sy_semaphore_v1, signal), SY_FUNCTION(sy_semaphore_v1, query), SY_FUNCTION(sy_semaphore_v1, wait),
        SY_FUNCTION(sy_semaphore_v1, stream_signal), SY_FUNCTION(sy_semaphore_v1, stream_wait)}},
      {"peer/1",
       sizeof(sy_peer_v1),
       sizeof(sy_peer_v1),
       {SY_FUNCTION(sy_peer_v1, export_memory), SY_FUNCTION(sy_peer_v1, import_memory)}},
      {"profiler/2",
       sizeof(sy_profiler_v2),
       sizeof(sy_profiler_v2),
       {SY_FUNCTION(sy_profiler_v2, start), SY_FUNCTION(sy_profiler_v2, drain), SY_FUNCTION(sy_profiler_v2, stop)}},
      {"region/2",
       sizeof(sy_region_v2),
       sizeof(sy_region_v2),
       {SY_FUNCTION(sy_region_v2, partition), SY_FUNCTION(sy_region_v2, prepare)}},
      {"interpose/2", sizeof(sy_interpose_v2), sizeof(sy_interpose_v2), {SY_FUNCTION(sy_interpose_v2, wrap)}},
  };
  return *known;
}
#undef SY_FUNCTION

// This program knows no extension.
Status CheckExtensions(const char* what, const sy_header& header) {
  constexpr int kMostLinks = 64;
  int links = 0;
  for (const sy_extension* link = header.next; link != nullptr; link = link->header.next) {
    if (++links > kMostLinks) return FailedPrecondition("{} has a chain of more than {} extensions", what, kMostLinks);
    if (link->required == 0) continue;
    return FailedPrecondition("{} requires the extension {}, which this program does not know", what,
                              Shown(link->name, kLongestName));
  }
  return OkStatus();
}

// The plugin's struct in our size, or why it is refused.
StatusOr<std::vector<std::max_align_t>> TakeInterface(const KnownInterface& known, const void* given) {
  sy_header header;
  std::memcpy(&header, given, sizeof header);
  if (header.major != SY_ABI_MAJOR) {
    return FailedPrecondition("{} has major version {}; this program knows {}", known.name, header.major, SY_ABI_MAJOR);
  }
  if (header.size < known.mandatory_size || header.size > kLargestStruct) {
    return FailedPrecondition("{} says that it has {} bytes; expected at least {} and at most {}", known.name,
                              header.size, known.mandatory_size, kLargestStruct);
  }
  SY_RETURN_IF_ERROR(CheckExtensions(known.name, header));
  std::vector<std::max_align_t> copy((known.size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  std::memset(copy.data(), 0, known.size);
  std::memcpy(copy.data(), given, std::min<size_t>(known.size, header.size));
  for (const auto& [function, offset] : known.mandatory) {
    const void* pointer = nullptr;
    std::memcpy(&pointer, reinterpret_cast<const char*>(copy.data()) + offset, sizeof pointer);
    if (pointer == nullptr) return FailedPrecondition("{} lacks the mandatory function {}", known.name, function);
  }
  return copy;
}

// What a collective lacks of the functions that go with others that it has, and what of its answers makes no sense.
Status CheckCollective(const sy_collective_v2& api, sy_instance* instance) {
  if ((api.all_reduce != nullptr || api.reduce_scatter != nullptr) && api.reduces == nullptr) {
    return FailedPrecondition("collective/2 reduces but lacks the function reduces");
  }
  if (api.buffer_alloc != nullptr && api.buffer_free == nullptr) {
    return FailedPrecondition("collective/2 has buffer_alloc but lacks the function buffer_free");
  }
  sy_collective_info info{};
  info.header = SY_HEADER(sy_collective_info);
  sy_error error = EmptyError();
  if (api.query(instance, &info, &error) != SY_OK) return OkStatus();  // why, it says to everybody who asks
  SY_RETURN_IF_ERROR(ReadCollectiveInfo(info).status());
  if (info.completion == SY_COMPLETES_BY_POLL && (api.request_poll == nullptr || api.request_release == nullptr)) {
    return FailedPrecondition("collective/2 completes by poll but lacks the function {}",
                              api.request_poll == nullptr ? "request_poll" : "request_release");
  }
  return OkStatus();
}

// A plugin of edition 1 exports another symbol, and its manifest says so too.
constexpr char kRebuild[] =
    "it was built for edition 1 of the plugin ABI, this program knows edition {}: build it against these headers "
    "(core/abi/CHANGELOG.md says what changed)";

}  // namespace

const sy_host* Host() {
  static const sy_host host = {SY_HEADER(sy_host), nullptr, HostLog, HostSetting};
  return &host;
}

void ProvideSetting(const std::string& name, const std::string& value) {
  Settings& settings = AllSettings();
  const std::lock_guard lock(settings.mutex);
  settings.provided[name] = value;
}

std::string ShownLibraries(const char* text) { return Shown(text, kLongestLibraries); }

StatusOr<CollectiveInfo> ReadCollectiveInfo(const sy_collective_info& raw) {
  if (raw.completion > SY_COMPLETES_BY_POLL)
    return Internal("query answered the unknown completion {}", raw.completion);
  if (raw.memory_kinds == nullptr) return Internal("query named no memory_kinds");
  CollectiveInfo info;
  info.completes_on_stream = raw.completion == SY_COMPLETES_ON_STREAM;
  info.flags = raw.flags;
  info.libraries = ShownLibraries(raw.libraries);
  constexpr size_t kMostKinds = 16;  // a list that is longer has no end
  for (const char* const* kind = raw.memory_kinds; *kind != nullptr; ++kind) {
    if (info.memory_kinds.size() == kMostKinds)
      return Internal("query answered memory_kinds that do not end within {} names", kMostKinds);
    info.memory_kinds.push_back(Printable(*kind, sizeof sy_device_info::memory_kind));
  }
  return info;
}

StatusOr<OpenedLibrary> OpenLibrary(const std::string& path, const Stage& stage) try {
  stage("dlopen");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return FailedPrecondition("it cannot be loaded: {}", dlerror());
  const auto create = reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  if (create == nullptr && dlsym(library, "sy_plugin_query") != nullptr) {
    return FailedPrecondition(kRebuild, SY_ABI_MAJOR);
  }
  if (create == nullptr) return FailedPrecondition("it is not a Switchyard plugin: it exports no sy_plugin_create");
  sy_plugin table{};
  table.header = SY_HEADER(sy_plugin);
  sy_error error = EmptyError();
  stage("sy_plugin_create");
  const sy_status status = create(Host(), &table, &error);
  if (status != SY_OK) return FromAbi(status, error, "sy_plugin_create failed");
  return CheckPlugin(table, stage);
} catch (const std::exception& exception) {
  return FailedPrecondition("it threw a C++ exception across the plugin interface: {}",
                            Printable(exception.what(), kLongestText));
} catch (...) {
  return FailedPrecondition("it threw a C++ exception across the plugin interface");
}

StatusOr<OpenedLibrary> CheckPlugin(const sy_plugin& table, const Stage& stage) {
  if (table.magic != SY_PLUGIN_MAGIC) {
    return FailedPrecondition("wrong magic {:#x}; expected {:#x}", table.magic, SY_PLUGIN_MAGIC);
  }
  if (table.header.major != SY_ABI_MAJOR) {
    return FailedPrecondition("it was built for ABI version {}; this program knows {}: build it against these headers",
                              table.header.major, SY_ABI_MAJOR);
  }
  if (table.header.size < sizeof(sy_plugin) || table.header.size > kLargestStruct) {
    return FailedPrecondition("sy_plugin says that it has {} bytes; expected at least {}", table.header.size,
                              sizeof(sy_plugin));
  }
  SY_RETURN_IF_ERROR(CheckExtensions("sy_plugin", table.header));
  if (table.name == nullptr || *table.name == '\0') return FailedPrecondition("sy_plugin.name is empty");
  if (table.get_interface == nullptr) return FailedPrecondition("sy_plugin lacks the mandatory function get_interface");
  OpenedLibrary opened;
  opened.name = Shown(table.name, kLongestName);
  opened.version = Shown(table.version, kLongestName);
  opened.vendor = Shown(table.vendor, kLongestName);
  opened.table = table;
  for (const KnownInterface& known : KnownInterfaces()) {
    stage(std::string("interface ") + known.name);
    const void* const given = table.get_interface(table.instance, known.name);
    if (given == nullptr) continue;
    SY_ASSIGN_OR_RETURN(opened.interfaces[known.name], TakeInterface(known, given));
  }
  if (const auto found = opened.interfaces.find("collective/2"); found != opened.interfaces.end()) {
    stage("query");
    SY_RETURN_IF_ERROR(
        CheckCollective(*reinterpret_cast<const sy_collective_v2*>(found->second.data()), table.instance));
  }
  if (!opened.interfaces.count("device/2") && !opened.interfaces.count("collective/2") &&
      !opened.interfaces.count("interpose/2")) {
    return FailedPrecondition("it offers neither device/2 nor collective/2 nor interpose/2");
  }
  return opened;
}

}  // namespace switchyard
