#include "tools/conform/conform.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/runtime/plugins/registry.h"
#include "tools/conform/backend_checks.h"
#include "tools/conform/collective_checks.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/interposer_checks.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/recorder.h"

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
    {Level::kTrains,
     {"device/", "struct/", "argument/", "refusal/", "instance/", "threads/", "memory/", "op/", "strides/",
      "gradient/"},
     {"train/mlp"}},
    {Level::kAsync, {"async/", "capture/", "profiler/", "region/", "semaphore/"}, {"async/"}},
    {Level::kDistributed, {"peer/"}, {"distributed/"}},
    {Level::kFast, {}, {"fast/", "train/native"}},
};
const std::vector<Demand> kCollectiveDemands = {
    {Level::kLoads, {}, {"load/"}},
    {Level::kDistributed, {"collective/"}, {"collective/send_recv_batch/"}},
    {Level::kFast, {}, {"collective/all_reduce/", "collective/owned_memory/"}},
};
const std::vector<Demand> kInterposerDemands = {
    {Level::kLoads, {"interposer/"}, {"load/"}},
};

// A device without streams was asked for nothing that needs them.
bool IsSynchronous(const Recorder& recorder) {
  bool any = false;
  for (const Check& check : recorder.checks()) {
    if (check.name.rfind("async/", 0) != 0) continue;
    if (check.outcome != Outcome::kUnsupported || check.detail != kSynchronous) return false;
    any = true;
  }
  return any;
}

// "39 of 41 ops have native kernels, 2 fall back: attention, attention_backward". An op is native if one of its cases
// is.
std::string NativeKernels(const Recorder& recorder) {
  std::set<std::string> native;
  for (const Check& check : recorder.checks()) {
    if (check.name.rfind("op/", 0) != 0 || check.outcome == Outcome::kUnsupported) continue;
    native.insert(check.name.substr(3, check.name.find('/', 3) - 3));
  }
  std::vector<std::string> others;
  std::vector<std::string> names = OpNames();
  std::erase_if(names, MadeByFusion);
  for (const std::string& op : names) {
    if (!native.count(op)) others.push_back(op);
  }
  return fmt::format("{} of {} ops have native kernels, {} fall back{}{}", names.size() - others.size(), names.size(),
                     others.size(), others.empty() ? "" : ": ", fmt::join(others, ", "));
}

void Grade(const Recorder& recorder, const std::vector<Demand>& demands, Report& report) {
  const bool synchronous = IsSynchronous(recorder);
  for (const Demand& demand : demands) {
    std::string miss = recorder.FirstMiss(demand.clean, false);
    const bool streams = demand.level == Level::kAsync;
    if (miss.empty() && !(streams && synchronous)) miss = recorder.FirstMiss(demand.whole, true);
    for (const std::string& prefix : demand.whole) {
      if (miss.empty() && !recorder.Any(prefix)) miss = prefix + "*, which was not tried";
    }
    if (!miss.empty()) {
      report.lacks = fmt::format("{} lacks {}", LevelName(demand.level), miss);
      return;
    }
    report.level = demand.level;
    if (streams && synchronous) report.notes.push_back("Async as a synchronous device, without streams");
    if (demand.level == Level::kDistributed && report.kind == KindName(PluginKind::kBackend)) {
      report.notes.push_back(NativeKernels(recorder));
    }
  }
}

StatusOr<std::map<std::string, std::string>> ReadExpectedFailures(const std::string& path) {
  std::map<std::string, std::string> expected;
  if (path.empty()) return expected;
  constexpr size_t kLargestList = size_t{1} << 20;
  SY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kLargestList));
  const auto list = ParseJson(text);
  if (!list.ok() || !list->is_object()) {
    return InvalidArgument("{}: expected a JSON object of check names and reasons", path);
  }
  for (const auto& [name, reason] : list->items()) {
    if (!reason.is_string()) return InvalidArgument("{}: the reason of \"{}\" is not a text", path, Printable(name));
    expected[name] = reason.get<std::string>();
  }
  return expected;
}

// What was asked for and is not there.
std::vector<std::string> Missed(const Options& options, const Report& report) {
  std::vector<std::string> missed;
  const NameFilter only(options.only);
  // A check that failed although nobody asked for it says why those that were asked for were not tried.
  const auto explains = [&](const Check& check) { return only.Matches(check.name) || check.outcome == Outcome::kFail; };
  if (!report.kind.empty() && std::none_of(report.checks.begin(), report.checks.end(), explains))
    missed.push_back(fmt::format("\"{}\" of --only, which no check fits", options.only));
  if (report.level < options.level) missed.push_back(fmt::format("level {}", LevelName(options.level)));
  for (const std::string& pattern : options.whole) {
    const NameFilter filter(pattern);
    bool any = false;
    for (const Check& check : report.checks) {
      if (!filter.Matches(check.name)) continue;
      any = true;
      if (check.outcome == Outcome::kPass || check.outcome == Outcome::kUnexpectedPass) continue;
      missed.push_back(fmt::format("{}, of \"{}\" ({})", check.name, pattern, OutcomeName(check.outcome)));
      break;
    }
    if (!any) missed.push_back(fmt::format("\"{}\", which was not tried", pattern));
  }
  return missed;
}

}  // namespace

StatusOr<Report> RunConformance(const Options& options) {
  SY_ASSIGN_OR_RETURN(auto expected, ReadExpectedFailures(options.expected_failures));
  Recorder recorder(NameFilter(options.only), std::move(expected));
  StatusOr<std::shared_ptr<Plugin>> plugin = Registry::Get().Find(PluginKind::kBackend, options.plugin);
  if (!plugin.ok()) {
    auto collective = Registry::Get().Find(PluginKind::kCollective, options.plugin);
    if (collective.ok()) plugin = std::move(collective);
  }
  if (!plugin.ok()) {
    auto interposer = Registry::Get().Find(PluginKind::kInterposer, options.plugin);
    if (interposer.ok()) plugin = std::move(interposer);
  }
  Report report;
  report.plugin = report.path = options.plugin;
  report.device = options.device;
  report.seed = options.seed;
  recorder.Add("load/plugin", plugin.status());
  bool collective = false, interposer = false;
  if (plugin.ok()) {
    report.plugin = (*plugin)->name();
    report.path = (*plugin)->path();
    report.version = (*plugin)->version();
    collective = (*plugin)->Interface<void>("collective/2") != nullptr;
    interposer = !collective && (*plugin)->Interface<void>("interpose/2") != nullptr;
    report.kind = KindName(collective   ? PluginKind::kCollective
                           : interposer ? PluginKind::kInterposer
                                        : PluginKind::kBackend);
    if (!collective && !options.device_plugin.empty()) {
      return InvalidArgument("--device={}: {} is no collective, so a number is expected", options.device_plugin,
                             report.plugin);
    }
    if (interposer) {
      SY_RETURN_IF_ERROR(CheckInterposer(recorder, **plugin));
    } else if (!collective) {
      SY_RETURN_IF_ERROR(CheckBackend(recorder, *plugin, options));
    } else if (options.limit >= Level::kDistributed) {
      SY_RETURN_IF_ERROR(CheckCollective(recorder, **plugin, options));
    }
  }
  report.graded = options.only.empty();
  if (report.graded) {
    Grade(recorder, collective ? kCollectiveDemands : interposer ? kInterposerDemands : kBackendDemands, report);
  } else {
    report.lacks = "not graded: only some checks ran";
  }
  report.checks = recorder.checks();
  report.missed = Missed(options, report);
  return report;
}

}  // namespace switchyard::conform
