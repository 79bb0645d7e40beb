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

constexpr uint32_t kLargestStruct = 1 << 16;              // a header that claims more is not a header
constexpr size_t kLongestText = 4096, kLongestName = 64;  // bytes

void HostLog(int32_t level, const char* text) {
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

const char* HostSetting(const char* name) {
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
      {"device/1",
       sizeof(sy_device_v1),
       offsetof(sy_device_v1, stream_create),
       {SY_FUNCTION(sy_device_v1, count), SY_FUNCTION(sy_device_v1, open), SY_FUNCTION(sy_device_v1, close),
        SY_FUNCTION(sy_device_v1, query), SY_FUNCTION(sy_device_v1, alloc), SY_FUNCTION(sy_device_v1, free),
        SY_FUNCTION(sy_device_v1, copy), SY_FUNCTION(sy_device_v1, synchronize)}},
      {"kernel/1",
       sizeof(sy_kernel_v1),
       sizeof(sy_kernel_v1),
       {SY_FUNCTION(sy_kernel_v1, prepare), SY_FUNCTION(sy_kernel_v1, bind), SY_FUNCTION(sy_kernel_v1, unbind),
        SY_FUNCTION(sy_kernel_v1, release)}},
      {"collective/1",
       sizeof(sy_collective_v1),
       offsetof(sy_collective_v1, all_reduce),
       {SY_FUNCTION(sy_collective_v1, query), SY_FUNCTION(sy_collective_v1, init), SY_FUNCTION(sy_collective_v1, poll),
        SY_FUNCTION(sy_collective_v1, send_recv_batch), SY_FUNCTION(sy_collective_v1, abort),
        SY_FUNCTION(sy_collective_v1, destroy)}},
      {"memory_ext/1", sizeof(sy_memory_ext_v1), sizeof(sy_header), {}},
      {"capture/1",
       sizeof(sy_capture_v1),
       sizeof(sy_capture_v1),
       {SY_FUNCTION(sy_capture_v1, begin), SY_FUNCTION(sy_capture_v1, end), SY_FUNCTION(sy_capture_v1, launch),
        SY_FUNCTION(sy_capture_v1, release)}},
      {"profiler/1",
       sizeof(sy_profiler_v1),
       sizeof(sy_profiler_v1),
       {SY_FUNCTION(sy_profiler_v1, start), SY_FUNCTION(sy_profiler_v1, drain), SY_FUNCTION(sy_profiler_v1, stop)}},
      {"region/1",
       sizeof(sy_region_v1),
       sizeof(sy_region_v1),
       {SY_FUNCTION(sy_region_v1, partition), SY_FUNCTION(sy_region_v1, prepare)}},
      {"interpose/1", sizeof(sy_interpose_v1), sizeof(sy_interpose_v1), {SY_FUNCTION(sy_interpose_v1, wrap)}},
  };
  return *known;
}
#undef SY_FUNCTION

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
  std::vector<std::max_align_t> copy((known.size + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  std::memset(copy.data(), 0, known.size);
  std::memcpy(copy.data(), given, std::min<size_t>(known.size, header.size));
  for (const auto& [function, offset] : known.mandatory) {
    const void* pointer = nullptr;
    std::memcpy(&pointer, reinterpret_cast<const char*>(copy.data()) + offset, sizeof pointer);
    if (pointer == nullptr) return FailedPrecondition("{} lacks the mandatory function {}", known.name, function);
  }
  const auto* collective = reinterpret_cast<const sy_collective_v1*>(copy.data());
  if (std::strcmp(known.name, "collective/1") == 0 && collective->request_poll == nullptr) {
    sy_collective_info info{};
    info.header = SY_HEADER(sy_collective_info);
    sy_error error = EmptyError();
    if (collective->query(&info, &error) == SY_OK && info.completion == SY_COMPLETES_BY_POLL) {
      return FailedPrecondition("collective/1 completes by poll but lacks the function request_poll");
    }
  }
  return copy;
}

}  // namespace

const sy_host* Host() {
  static const sy_host host = {SY_HEADER(sy_host), HostLog, HostSetting};
  return &host;
}

void ProvideSetting(const std::string& name, const std::string& value) {
  Settings& settings = AllSettings();
  const std::lock_guard lock(settings.mutex);
  settings.provided[name] = value;
}

StatusOr<OpenedLibrary> OpenLibrary(const std::string& path, const Stage& stage) try {
  stage("dlopen");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return FailedPrecondition("it cannot be loaded: {}", dlerror());
  const auto query = reinterpret_cast<sy_plugin_query_fn>(dlsym(library, "sy_plugin_query"));
  if (query == nullptr) return FailedPrecondition("it is not a Switchyard plugin: it exports no sy_plugin_query");
  sy_plugin table{};
  table.header = SY_HEADER(sy_plugin);
  sy_error error = EmptyError();
  stage("sy_plugin_query");
  const sy_status status = query(Host(), &table, &error);
  if (status != SY_OK) return FromAbi(status, error, "sy_plugin_query failed");
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
  if (table.name == nullptr || *table.name == '\0') return FailedPrecondition("sy_plugin.name is empty");
  if (table.interface == nullptr) return FailedPrecondition("sy_plugin lacks the mandatory function interface");
  OpenedLibrary opened;
  opened.name = Shown(table.name, kLongestName);
  opened.version = Shown(table.version, kLongestName);
  opened.vendor = Shown(table.vendor, kLongestName);
  opened.table = table;
  for (const KnownInterface& known : KnownInterfaces()) {
    stage(std::string("interface ") + known.name);
    const void* const given = table.interface(known.name);
    if (given == nullptr) continue;
    SY_ASSIGN_OR_RETURN(opened.interfaces[known.name], TakeInterface(known, given));
  }
  if (!opened.interfaces.count("device/1") && !opened.interfaces.count("collective/1") &&
      !opened.interfaces.count("interpose/1")) {
    return FailedPrecondition("it offers neither device/1 nor collective/1 nor interpose/1");
  }
  return opened;
}

}  // namespace switchyard
