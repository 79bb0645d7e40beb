// One more instance of a plugin's library, with a host of its own beside the program's: what sy_plugin_create promises
// may be made as often as somebody likes. Instances and hosts live as long as the process. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/plugin.h"

namespace switchyard::conform {

class OwnInstance {
 public:
  // Of the library behind `plugin`, whatever is interposed. At most kMost in one process.
  static StatusOr<std::unique_ptr<OwnInstance>> Make(const Plugin& plugin);
  static constexpr int kMost = 4;

  sy_instance* handle() const { return library_.table.instance; }
  const sy_plugin& table() const { return library_.table; }
  template <typename T>
  const T* Interface(const std::string& name) const {
    const auto found = library_.interfaces.find(name);
    return found == library_.interfaces.end() ? nullptr : reinterpret_cast<const T*>(found->second.data());
  }
  // The interfaces that it offers: "device/2, kernel/2".
  std::string Interfaces() const;
  // kInternal where a function of a host was called with the context of another.
  static Status HostsAreApart();

 private:
  OwnInstance() = default;
  OpenedLibrary library_;
};

}  // namespace switchyard::conform
