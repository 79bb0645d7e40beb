// Which device this process drives: --device, --device_list, --ranks_per_device and --cpu_devices, resolved against
// what the plugins offer. ChooseDevice is a pure function of what SurveyDevices found. Names are plugin names; "gpu" is
// cuda; only "auto" may fall back, to the plugin of the highest priority that has a device, and it says what it chose
// and why. Thread-safe. SurveyDevices provides the setting SWITCHYARD_CPU_DEVICES, for the rest of the process.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {

struct DeviceRequest {
  std::string device = "auto";
  std::optional<std::string> device_list;  // "0,1,4,5"; else all
  std::optional<int> ranks_per_device;     // else one, or as many as needed where the device can be shared
  std::optional<int> cpu_devices;          // devices that a CPU plugin exposes; else one per local rank
  int local_rank = 0, local_world = 1;
};

// What one plugin offers, or why it cannot be used.
struct PluginDevices {
  std::string plugin, path;
  int priority = 0;
  Status verdict;
  std::vector<DeviceInfo> devices;
};

struct DeviceChoice {
  std::string plugin;
  int index = 0;         // the id that this rank opens
  std::vector<int> ids;  // all ids of the run on this node, ascending
  int ranks_per_device = 1;
  std::optional<double> static_loss_scale;  // DeviceInfo's
  std::string why;                          // for the start banner: "cpu: highest priority of …"
};

// Ids ascending. No id, a word, a negative id or a duplicate is an error that names it.
StatusOr<std::vector<int>> ParseDeviceList(const std::string& text);

// Loads and asks the named plugin; for "auto" each plugin by priority until one has a device. A plugin that cannot be
// used is listed with its reason.
std::vector<PluginDevices> SurveyDevices(Registry& registry, const DeviceRequest& request);

// Errors: no such plugin or no hardware (every plugin tried, where, why); unusable --device_list; more local ranks than
// devices.
StatusOr<DeviceChoice> ChooseDevice(const DeviceRequest& request, const std::vector<PluginDevices>& survey);

// How many replicas one process drives in mode dp: `devices` where given, else one for each device of the list, or of
// the plugin that is chosen, times ranks_per_device. Errors are those of ChooseDevice for so many ranks; and where
// nobody gave a number, that there is one device alone.
StatusOr<int> CountReplicas(Registry& registry, DeviceRequest request, std::optional<int> devices);

}  // namespace switchyard
