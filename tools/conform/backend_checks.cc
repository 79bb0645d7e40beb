#include "tools/conform/backend_checks.h"

#include "core/runtime/plugins/registry.h"
#include "tools/conform/argument_checks.h"
#include "tools/conform/capture_checks.h"
#include "tools/conform/child.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/device_ranks.h"
#include "tools/conform/given_struct.h"
#include "tools/conform/instance_checks.h"
#include "tools/conform/memory_checks.h"
#include "tools/conform/op_checks.h"
#include "tools/conform/peer_checks.h"
#include "tools/conform/refusal_checks.h"
#include "tools/conform/region_checks.h"
#include "tools/conform/rounding_checks.h"
#include "tools/conform/semaphore_checks.h"
#include "tools/conform/speed_checks.h"
#include "tools/conform/stride_checks.h"
#include "tools/conform/struct_checks.h"
#include "tools/conform/training_check.h"

namespace switchyard::conform {
namespace {

using nlohmann::json;

constexpr int kMostCrashes = 20;  // after so many the rest is not worth the time

// Where there is no device, the plugin says why, or answers 0.
Status CheckCount(const Plugin& plugin) {
  WatchedError error;
  int32_t count = -1;
  const auto* const api = plugin.Interface<sy_device_v2>("device/2");
  const sy_status status = api->count(plugin.table().instance, &count, error.get());
  SY_RETURN_IF_ERROR(error.Judge(status, "count"));
  SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_OK, SY_UNSUPPORTED}, "count"));
  return status == SY_OK && count < 0 ? Internal("count answered {} devices", count) : OkStatus();
}

Status RunAll(Recorder& recorder, const std::shared_ptr<Plugin>& plugin, const Options& options) {
  const auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
  if (!reference.ok()) return Annotate(reference.status(), "the reference plugin is needed to compare with");
  SY_ASSIGN_OR_RETURN(const auto reference_device, Device::Open(**reference, 0, {}));
  std::unique_ptr<Device> device;
  const Status opened = Caught([&]() -> Status {
    std::string reason;
    SY_ASSIGN_OR_RETURN(const int count, plugin->DeviceCount(&reason));
    if (options.device >= count) return NotFound("device {} of {}: {}", options.device, count, reason);
    SY_ASSIGN_OR_RETURN(device, Device::Open(*plugin, options.device, {}));
    return OkStatus();
  });
  recorder.Run("load/count", [&] { return CheckCount(*plugin); });
  if (opened.ok()) {
    recorder.Run("load/open", [&] { return opened; });
  } else {
    recorder.RunUnasked("load/open", [&] { return opened; });
  }
  if (!opened.ok() || options.limit < Level::kTrains) return OkStatus();
  CheckStructs(recorder, *plugin, *device);
  CheckArguments(recorder, *device);
  CheckRefusals(recorder, *plugin, *device);
  CheckDevice(recorder, *plugin, *device, options.seed);
  CheckInstances(recorder, *plugin, options.device);
  CheckThreadsAtWork(recorder, *device, options.seed);
  CheckMemory(recorder, *plugin, *device, options.seed);
  CheckOps(recorder, *device, *reference_device, options.seed);
  CheckRounding(recorder, *device);
  CheckStrides(recorder, *device, *reference_device, options.seed);
  CheckGradients(recorder, *device, *reference_device, options.seed);
  CheckTraining(recorder, *device, *reference_device, options.seed);
  CheckAsync(recorder, *device, options.seed);
  CheckCapture(recorder, *device);
  CheckProfiler(recorder, *plugin, *device);
  CheckSemaphores(recorder, *plugin, *device, options.seed);
  CheckPeers(recorder, *plugin, *device, options.seed);
  CheckRegions(recorder, *device, *reference_device, options.seed);
  if (options.limit >= Level::kFast) CheckSpeed(recorder, *device);
  return OkStatus();
}

// Children until every check has been tried; a child ends at the first check that takes it down.
Status RunInChildren(Recorder& recorder, const Plugin& plugin, const Options& options) {
  json task = {{"mode", "backend"},    {"plugin", plugin.path()}, {"device", options.device},
               {"seed", options.seed}, {"only", options.only},    {"limit", static_cast<int>(options.limit)},
               {"done", json::array()}};
  for (int crashes = 0;; ++crashes) {
    SY_ASSIGN_OR_RETURN(const auto children,
                        RunChildren(task, 1, {.self = options.self, .silence_s = options.check_timeout_s}));
    for (const ChildResult& result : children[0]) {
      if (result.name.empty() && !result.lost) return result.status;
      recorder.Add(result.name.empty() ? "load/process" : result.name, result.status, result.milliseconds);
      task["done"].push_back(result.name);
    }
    if (children[0].empty() || !children[0].back().lost || children[0].back().name.empty()) return OkStatus();
    if (crashes == kMostCrashes) {
      recorder.Add("load/process", Internal("{} checks took their process down; the rest was not tried", crashes + 1));
      return OkStatus();
    }
  }
}

// A check that spoils the device, and so has a process of its own.
Status CheckInChild(const char* mode, const Plugin& plugin, const Options& options) {
  SY_ASSIGN_OR_RETURN(const auto results,
                      RunChildren({{"mode", mode}, {"plugin", plugin.path()}, {"device", options.device}}, 1,
                                  {.self = options.self, .silence_s = options.check_timeout_s}));
  return results[0].empty() ? OkStatus() : results[0].front().status;
}

}  // namespace

Status CheckBackend(Recorder& recorder, const std::shared_ptr<Plugin>& plugin, const Options& options) {
  SY_RETURN_IF_ERROR(options.self.empty() ? RunAll(recorder, plugin, options)
                                          : RunInChildren(recorder, *plugin, options));
  const auto opened = recorder.FirstMiss({"load/"}, true);
  if (!opened.empty() || options.limit < Level::kTrains) return OkStatus();
  recorder.Run("device/sticky_error", [&] { return CheckInChild("sticky_error", *plugin, options); });
  recorder.Run("refusal/places", [&] { return CheckInChild("bad_places", *plugin, options); });
  recorder.Run("semaphore/failed_stream", [&] { return CheckInChild("failed_signal", *plugin, options); });
  if (options.limit >= Level::kDistributed) {
    recorder.Run("distributed/two_processes", [&] { return CheckDeviceRanks(*plugin, options); });
    CheckPeerProcesses(recorder, *plugin, options);
  }
  return OkStatus();
}

Status RunBackendChecks(const std::shared_ptr<Plugin>& plugin, const json& task, ResultLog& log) {
  std::set<std::string> done;
  for (const json& name : task.value("done", json::array())) done.insert(name.get<std::string>());
  Recorder recorder(NameFilter(task.value("only", "")), std::move(done), log);
  Options options;
  options.device = task.value("device", 0);
  options.seed = task.value("seed", uint64_t{42});
  options.limit = static_cast<Level>(task.value("limit", static_cast<int>(Level::kFast)));
  return RunAll(recorder, plugin, options);
}

}  // namespace switchyard::conform
