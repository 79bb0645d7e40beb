#include "tools/conform/conform.h"

#include <fstream>
#include <map>
#include <memory>

#include "core/runtime/plugin.h"
#include "tools/conform/child.h"
#include "tools/conform/collective_checks.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/device_ranks.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_checks.h"
#include "tools/conform/recorder.h"
#include "tools/conform/speed_checks.h"
#include "tools/conform/struct_checks.h"
#include "tools/conform/training_check.h"

namespace switchyard::conform {
namespace {

// What a level asks for: no failed check under `clean`; under each of `whole` some checks, none of them failed or
// unsupported.
struct Demand {
  Level level;
  std::vector<std::string> clean, whole;
};

const std::vector<Demand> kBackendDemands = {
    {Level::kLoads, {}, {"load/"}},
    {Level::kTrains, {"device/", "struct/", "op/", "gradient/"}, {"train/mlp"}},
    {Level::kAsync, {"async/"}, {"async/"}},
    {Level::kDistributed, {}, {"distributed/"}},
    {Level::kFast, {}, {"fast/", "train/native"}},
};
const std::vector<Demand> kCollectiveDemands = {
    {Level::kLoads, {}, {"load/"}},
    {Level::kDistributed, {"collective/"}, {"collective/send_recv_batch/"}},
    {Level::kFast, {}, {"collective/all_reduce/", "collective/owned_memory/"}},
};

void Grade(const Recorder& recorder, const std::vector<Demand>& demands, Report& report) {
  for (const Demand& demand : demands) {
    std::string miss = recorder.FirstMiss(demand.clean, false);
    if (miss.empty()) miss = recorder.FirstMiss(demand.whole, true);
    for (const std::string& prefix : demand.whole) {
      if (miss.empty() && !recorder.Any(prefix)) miss = prefix + "*, which was not tried";
    }
    if (!miss.empty()) {
      report.lacks = fmt::format("{} lacks {}", LevelName(demand.level), miss);
      return;
    }
    report.level = demand.level;
  }
}

StatusOr<std::map<std::string, std::string>> ReadExpectedFailures(const std::string& path) {
  std::map<std::string, std::string> expected;
  if (path.empty()) return expected;
  std::ifstream file(path);
  const auto list = nlohmann::json::parse(file, nullptr, false);
  if (!list.is_object()) {
    return InvalidArgument("{}: expected a JSON object of check names and reasons", path);
  }
  for (const auto& [name, reason] : list.items()) {
    if (!reason.is_string()) return InvalidArgument("{}: the reason of \"{}\" is not a text", path, name);
    expected[name] = reason.get<std::string>();
  }
  return expected;
}

Status CheckInChild(const char* mode, const Plugin& plugin, const Options& options) {
  SY_ASSIGN_OR_RETURN(
      const auto results,
      RunChildren({{"mode", mode}, {"plugin", plugin.path()}, {"device", options.device}}, 1, {.self = options.self}));
  for (const auto& [name, status] : results[0]) {
    // A crash of a driver on a broken call is no broken promise.
    if (status.code() == absl::StatusCode::kUnavailable) return Unimplemented("{}", Message(status));
    SY_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status CheckBackend(Recorder& recorder, const std::shared_ptr<Plugin>& plugin, const Options& options) {
  auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
  if (!reference.ok()) return Annotate(reference.status(), "the reference plugin is needed to compare with");
  SY_ASSIGN_OR_RETURN(const auto reference_device, Device::Open(**reference, 0, {}));
  std::unique_ptr<Device> device;
  const Status opened = [&]() -> Status {
    std::string reason;
    SY_ASSIGN_OR_RETURN(const int count, plugin->DeviceCount(&reason));
    if (options.device >= count) return NotFound("device {} of {}: {}", options.device, count, reason);
    SY_ASSIGN_OR_RETURN(device, Device::Open(*plugin, options.device, {}));
    return OkStatus();
  }();
  recorder.Add("load/open", opened);
  if (!opened.ok() || options.limit < Level::kTrains) return OkStatus();
  CheckStructs(recorder, *plugin, *device);
  CheckDevice(recorder, *plugin, *device, options.seed);
  recorder.Run("device/sticky_error", [&] { return CheckInChild("sticky_error", *plugin, options); });
  CheckOps(recorder, *device, *reference_device, options.seed);
  CheckGradients(recorder, *device, *reference_device, options.seed);
  CheckTraining(recorder, *device, *reference_device, options.seed);
  if (options.limit >= Level::kDistributed) {
    recorder.Run("distributed/all_reduce", [&] { return CheckDeviceRanks(*plugin, options); });
  }
  if (options.limit >= Level::kFast) CheckSpeed(recorder, *device);
  return OkStatus();
}

}  // namespace

StatusOr<Report> RunConformance(const Options& options) {
  SY_ASSIGN_OR_RETURN(auto expected, ReadExpectedFailures(options.expected_failures));
  Recorder recorder(options.filter, std::move(expected));
  StatusOr<std::shared_ptr<Plugin>> plugin = Registry::Get().Find(PluginKind::kBackend, options.plugin);
  if (!plugin.ok()) {
    auto collective = Registry::Get().Find(PluginKind::kCollective, options.plugin);
    if (collective.ok()) plugin = std::move(collective);
  }
  Report report;
  report.plugin = report.path = options.plugin;
  recorder.Add("load/plugin", plugin.status());
  bool collective = false;
  if (plugin.ok()) {
    report.plugin = (*plugin)->name();
    report.path = (*plugin)->path();
    report.version = (*plugin)->version();
    collective = (*plugin)->Interface<void>("device/1") == nullptr;
    if (!collective) {
      SY_RETURN_IF_ERROR(CheckBackend(recorder, *plugin, options));
    } else if (options.limit >= Level::kDistributed) {
      CheckCollective(recorder, **plugin, options);
    }
  }
  if (options.filter.empty()) {
    Grade(recorder, collective ? kCollectiveDemands : kBackendDemands, report);
  } else {
    report.lacks = "not graded: only some checks ran";
  }
  report.checks = recorder.checks();
  return report;
}

}  // namespace switchyard::conform
