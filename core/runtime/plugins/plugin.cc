#include "core/runtime/plugins/plugin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <tuple>

#include "core/abi/interpose.h"
#include "core/base/text.h"
#include "core/runtime/plugins/abi_status.h"
#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/probe.h"
#include "core/runtime/plugins/trust.h"

namespace switchyard {

const char* KindName(PluginKind kind) {
  return kind == PluginKind::kBackend ? "backend" : kind == PluginKind::kCollective ? "collective" : "interposer";
}

const char* MainInterface(PluginKind kind) {
  return kind == PluginKind::kBackend ? "device/2" : kind == PluginKind::kCollective ? "collective/2" : "interpose/2";
}

const void* Plugin::FindInterface(const char* interface_name) const {
  const auto found = interfaces_.find(interface_name);
  return found == interfaces_.end() ? nullptr : found->second.data();
}

StatusOr<std::shared_ptr<Plugin>> Plugin::Load(const std::string& path) {
  static std::mutex mutex;
  static auto* const loaded = new std::map<std::string, std::shared_ptr<Plugin>>();
  const std::lock_guard lock(mutex);
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  if (error) return NotFound("plugin {}: {}", path, error.message());
  if (const auto found = loaded->find(real); found != loaded->end()) return found->second;
  if (!std::filesystem::is_regular_file(real, error)) return FailedPrecondition("plugin {}: it is not a file", real);
  const std::string context = "plugin " + real;
  for (const std::string& place : {std::filesystem::path(real).parent_path().string(), real}) {
    if (const Status trust = CheckTrusted(place); !trust.ok()) return Annotate(trust, context);
  }
  if (const Status probe = ProbeLibrary(real); !probe.ok()) return Annotate(probe, context);
  auto library = OpenLibrary(real, [](const std::string&) {});
  if (!library.ok()) return Annotate(library.status(), context);
  std::shared_ptr<Plugin> plugin(new Plugin());
  plugin->name_ = library->name;
  plugin->version_ = library->version;
  plugin->path_ = real;
  plugin->table_ = library->table;
  plugin->interfaces_ = std::move(library->interfaces);
  (*loaded)[real] = plugin;
  return plugin;
}

StatusOr<std::shared_ptr<Plugin>> Plugin::Wrap(std::shared_ptr<Plugin> inner, const Plugin& interposer,
                                               const std::string& argument) {
  const auto* api = interposer.Interface<sy_interpose_v2>("interpose/2");
  if (api == nullptr) return FailedPrecondition("plugin {} offers no interpose/2", interposer.path());
  sy_plugin table{};
  table.header = SY_HEADER(sy_plugin);
  sy_error error = EmptyError();
  const sy_status status = api->wrap(interposer.table_.instance, &inner->table_, argument.c_str(), &table, &error);
  if (status != SY_OK) return FromAbi(status, error, interposer.name() + " around " + inner->name());
  auto checked = CheckPlugin(table, [](const std::string&) {});
  if (!checked.ok()) return Annotate(checked.status(), "what " + interposer.name() + " made of " + inner->name());
  for (const PluginKind kind : {PluginKind::kBackend, PluginKind::kCollective}) {
    const char* const name = MainInterface(kind);
    if ((inner->FindInterface(name) != nullptr) != (checked->interfaces.count(name) > 0)) {
      return FailedPrecondition("{} added or hid {} of {}", interposer.name(), name, inner->name());
    }
  }
  std::shared_ptr<Plugin> plugin(new Plugin());
  plugin->name_ = inner->name_;
  plugin->version_ = inner->version_;
  plugin->path_ = inner->path_;
  plugin->table_ = table;
  plugin->interfaces_ = std::move(checked->interfaces);
  plugin->opening_ = inner->opening_;
  plugin->inner_ = std::move(inner);
  return plugin;
}

StatusOr<int> Plugin::DeviceCount(std::string* reason) const {
  const auto* api = Interface<sy_device_v2>("device/2");
  if (api == nullptr) return FailedPrecondition("{} ({}) has no device/2: it is not a backend", name_, path_);
  int32_t count = 0;
  sy_error error = EmptyError();
  const sy_status status = api->count(table_.instance, &count, &error);
  if (status == SY_UNSUPPORTED) {
    const size_t words = strnlen(error.message, sizeof error.message);
    if (reason != nullptr) {
      *reason = words == 0 ? "count answered unsupported without a reason"
                           : Printable({error.message, words}, 2 * sizeof error.message);
    }
    return 0;
  }
  if (status != SY_OK) return FromAbi(status, error, name_ + ": count");
  if (count < 0 || count > kMostDevices) {
    return Internal("{}: count answered {} devices; expected 0 to {}", name_, count, kMostDevices);
  }
  return static_cast<int>(count);
}

StatusOr<DeviceInfo> Plugin::Describe(int index) const {
  const auto* api = Interface<sy_device_v2>("device/2");
  if (api == nullptr) return FailedPrecondition("{} ({}) has no device/2: it is not a backend", name_, path_);
  sy_device_info raw{};
  raw.header = SY_HEADER(sy_device_info);
  raw.alignment = 64;
  sy_error error = EmptyError();
  const sy_status status = api->query(table_.instance, index, &raw, &error);
  if (status != SY_OK) return FromAbi(status, error, fmt::format("{}: query of device {}", name_, index));
  if (raw.alignment == 0 || (raw.alignment & (raw.alignment - 1)) != 0) {
    return Internal("{}: device {} asks for an alignment of {} bytes; expected a power of two", name_, index,
                    raw.alignment);
  }
  const uint32_t granularity = std::max(raw.copy_granularity, 1u);
  if ((granularity & (granularity - 1)) != 0 || granularity > raw.alignment) {
    return Internal(
        "{}: device {} copies in steps of {} bytes; expected a power of two of at most its alignment of {} bytes",
        name_, index, granularity, raw.alignment);
  }
  for (const auto& [what, text, size] : {std::tuple("name", raw.name, sizeof raw.name),
                                         std::tuple("memory_kind", raw.memory_kind, sizeof raw.memory_kind)}) {
    if (strnlen(text, size) == size)
      return Internal("{}: device {}: {} does not end within {} bytes", name_, index, what, size);
  }
  if (raw.address_kind > SY_ADDRESS_OPAQUE) {
    return Internal("{}: device {} has the unknown address kind {}", name_, index, raw.address_kind);
  }
  if (!std::isfinite(raw.static_loss_scale) || raw.static_loss_scale < 0)
    return Internal("{}: device {} asks for a loss scale of {}; expected a positive number, or 0 for a dynamic one",
                    name_, index, raw.static_loss_scale);
  DeviceInfo info;
  info.index = index;
  info.plugin = name_;
  info.name = Printable({raw.name, strnlen(raw.name, sizeof raw.name)}, 2 * sizeof raw.name);
  for (const uint8_t byte : raw.uuid) info.uuid += fmt::format("{:02x}", byte);
  info.memory_bytes = raw.memory_bytes;
  info.free_bytes = raw.free_bytes;
  info.largest_allocation = raw.largest_allocation != 0 ? raw.largest_allocation : UINT64_MAX;
  info.alignment = raw.alignment;
  info.copy_granularity = granularity;
  info.memory_kind = Printable(raw.memory_kind, sizeof raw.memory_kind);
  info.address_kind = raw.address_kind;
  info.flags = raw.flags;
  info.dtypes = raw.dtypes;
  if (raw.static_loss_scale > 0) info.static_loss_scale = raw.static_loss_scale;
  info.libraries = ShownLibraries(raw.libraries);
  return info;
}

StatusOr<CollectiveInfo> Plugin::DescribeCollective() const {
  const auto* api = Interface<sy_collective_v2>("collective/2");
  if (api == nullptr) return FailedPrecondition("plugin {} at {} offers no collective/2", name_, path_);
  sy_collective_info raw{};
  raw.header = SY_HEADER(sy_collective_info);
  sy_error error = EmptyError();
  if (const sy_status status = api->query(table_.instance, &raw, &error); status != SY_OK)
    return FromAbi(status, error, name_ + ": query");
  auto info = ReadCollectiveInfo(raw);
  return info.ok() ? info : Annotate(info.status(), name_);
}

}  // namespace switchyard
