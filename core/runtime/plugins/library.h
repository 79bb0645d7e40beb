// Opens one plugin library in this process and checks what it hands out: magic, sizes, versions and mandatory
// functions. The checks that need no code of the plugin to run (trust, manifest) are made before, in plugin.cc; the
// same code runs in the probe process. A library is never closed again. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/abi/plugin.h"
#include "core/base/status.h"
#include "core/runtime/plugins/collective_info.h"

namespace switchyard {

struct OpenedLibrary {
  std::string name, version, vendor;
  sy_plugin table{};  // as the plugin filled it, for interposers
  // By interface name ("device/2"): the plugin's struct, cut or padded with zeros to the size that this program knows,
  // so that a function which an older plugin does not have reads as NULL.
  std::map<std::string, std::vector<std::max_align_t>> interfaces;
};

// `stage` is told what is about to happen ("dlopen", "sy_plugin_create", "interface device/2"): the probe reports it,
// so that a crash has a place.
using Stage = std::function<void(const std::string&)>;
StatusOr<OpenedLibrary> OpenLibrary(const std::string& path, const Stage& stage);

// The same checks for a table that an interposer filled instead of sy_plugin_create.
StatusOr<OpenedLibrary> CheckPlugin(const sy_plugin& table, const Stage& stage);

// What a collective plugin's query answered, checked.
StatusOr<CollectiveInfo> ReadCollectiveInfo(const sy_collective_info& raw);

// What a plugin says of the libraries under it (sy_device_info.libraries), in printable characters; "" for NULL.
std::string ShownLibraries(const char* text);

// What plugins are given: log lines, and settings from SWITCHYARD_<NAME>.
const sy_host* Host();

// Gives the setting SWITCHYARD_<name> this value for plugins, whatever the environment says. The environment itself may
// not be changed any more once there are threads.
void ProvideSetting(const std::string& name, const std::string& value);

}  // namespace switchyard
