// A plugin library that was loaded and checked, and the interfaces that it offers. Loading checks that nobody else can
// have written the file (trust.h), tries it in a process of its own (probe.h), opens it (library.h) and keeps it open
// for the rest of the process. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/abi/plugin.h"
#include "core/base/status.h"
#include "core/runtime/plugins/collective_info.h"
#include "core/runtime/plugins/device_info.h"

namespace switchyard {

enum class PluginKind { kBackend, kCollective, kInterposer };
const char* KindName(PluginKind kind);  // "backend", "collective", "interposer"
// What every plugin of this kind offers: "device/2", "collective/2", "interpose/2".
const char* MainInterface(PluginKind kind);

constexpr int kMostDevices = 1024;  // of one plugin on one node; more is nonsense, and each is asked about

// One loaded plugin.
class Plugin {
 public:
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }
  const sy_plugin& table() const { return table_; }  // with the instance that functions take
  // The interface struct, or nullptr; checked for a known major version and a sane size when loaded.
  template <typename T>
  const T* Interface(const char* interface_name) const {
    return static_cast<const T*>(FindInterface(interface_name));
  }
  // Number of devices, at most kMostDevices, with the plugin's own words on why there are none.
  StatusOr<int> DeviceCount(std::string* reason = nullptr) const;
  StatusOr<DeviceInfo> Describe(int index) const;
  StatusOr<CollectiveInfo> DescribeCollective() const;
  // Held while a device is opened or closed: an instance does one of these at a time.
  std::mutex& opening() const { return *opening_; }

  // Loads one library, with every check, no search. `path` may be relative (a path that the user typed). A library is
  // loaded once: the same path gives the same Plugin.
  static StatusOr<std::shared_ptr<Plugin>> Load(const std::string& path);
  // `inner` behind an interposer, with the same checks; name, path and version stay those of `inner`.
  // core/runtime/plugins/interpose.h names interposers.
  static StatusOr<std::shared_ptr<Plugin>> Wrap(std::shared_ptr<Plugin> inner, const Plugin& interposer,
                                                const std::string& argument);

 private:
  Plugin() = default;
  const void* FindInterface(const char* interface_name) const;
  std::string name_, path_, version_;
  sy_plugin table_{};                                                // as it was filled
  std::shared_ptr<Plugin> inner_;                                    // of an interposed plugin
  std::shared_ptr<std::mutex> opening_ = std::make_shared<std::mutex>();  // of an interposed plugin its inner one's
  std::map<std::string, std::vector<std::max_align_t>> interfaces_;  // in the size that this program knows
};

}  // namespace switchyard
