#include "core/runtime/device/device_choice.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {
namespace {

PluginDevices Survey(PluginDevices found, const StatusOr<std::shared_ptr<Plugin>>& plugin) {
  if (!plugin.ok()) {
    found.verdict = plugin.status();
    return found;
  }
  found.plugin = (*plugin)->name();
  found.path = (*plugin)->path();
  std::string reason;
  const auto count = (*plugin)->DeviceCount(&reason);
  if (!count.ok()) {
    found.verdict = count.status();
    return found;
  }
  if (*count == 0) {
    found.verdict = NotFound("no device found{}{}", reason.empty() ? "" : ": ", reason);
    return found;
  }
  for (int index = 0; index < *count; ++index) {
    auto info = (*plugin)->Describe(index);
    if (!info.ok()) {
      found.verdict = info.status();
      return found;
    }
    found.devices.push_back(*std::move(info));
  }
  return found;
}

std::string Reasons(const std::vector<PluginDevices>& survey) {
  std::string text;
  for (const PluginDevices& plugin : survey) {
    if (plugin.verdict.ok()) continue;
    // Of a plugin that is not there the verdict gives the name.
    text += (text.empty() ? "" : "; ") +
            (plugin.path.empty() ? "" : fmt::format("{} ({}): ", plugin.plugin, plugin.path)) + Message(plugin.verdict);
  }
  return text;
}

std::string IdText(const std::vector<int>& ids) { return fmt::format("{}", fmt::join(ids, ",")); }

}  // namespace

StatusOr<std::vector<int>> ParseDeviceList(const std::string& text) {
  std::vector<int> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int id = 0;
    const auto [last, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || last != text.data() + end) {
      return InvalidArgument("--device_list={}: \"{}\" is not a device id; expected for example --device_list=0,1",
                             text, text.substr(begin, end - begin));
    }
    if (id < 0) return InvalidArgument("--device_list={}: the id {} is negative; ids start at 0", text, id);
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      return InvalidArgument("--device_list={}: the id {} is there twice; name each device once", text, id);
    }
    ids.push_back(id);
    begin = end + 1;
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<PluginDevices> SurveyDevices(Registry& registry, const DeviceRequest& request) {
  // The first survey decides: ids that are in use must not vanish where a later one is for fewer ranks.
  if (request.cpu_devices || Host()->setting(nullptr, "CPU_DEVICES") == nullptr) {
    const int count = request.cpu_devices.value_or(request.local_world);
    if (count > 0) ProvideSetting("CPU_DEVICES", std::to_string(count));  // ChooseDevice refuses other numbers
  }
  if (request.device != "auto") {
    const auto plugin = registry.Find(PluginKind::kBackend, request.device);
    return {Survey({request.device, "", 0, OkStatus(), {}}, plugin)};
  }
  std::vector<PluginDevices> survey;
  const auto add_refused = [&](bool tried) {
    for (const Candidate& candidate : registry.candidates()) {
      if (candidate.kind != PluginKind::kBackend || candidate.verdict.ok() || candidate.tried != tried) continue;
      survey.push_back({candidate.name, candidate.path, candidate.priority, candidate.verdict, {}});
    }
  };
  add_refused(true);  // by an earlier survey
  registry.OfferByPriority(PluginKind::kBackend, [&](const Candidate& candidate, const auto& plugin) {
    survey.push_back(Survey({candidate.name, candidate.path, candidate.priority, OkStatus(), {}}, plugin));
    return survey.back().verdict.ok();
  });
  if (survey.empty() || !survey.back().verdict.ok()) add_refused(false);
  return survey;
}

StatusOr<DeviceChoice> ChooseDevice(const DeviceRequest& request, const std::vector<PluginDevices>& survey) {
  if (request.local_world < 1 || request.local_rank < 0 || request.local_rank >= request.local_world) {
    return InvalidArgument("local rank {} of {} ranks on this node", request.local_rank, request.local_world);
  }
  for (const auto& [name, number] :
       {std::pair("ranks_per_device", request.ranks_per_device), {"cpu_devices", request.cpu_devices}}) {
    if (number && *number < 1) return InvalidArgument("--{}={}: expected a positive number", name, *number);
  }
  const PluginDevices* chosen = nullptr;
  for (const PluginDevices& plugin : survey) {
    if (plugin.verdict.ok() && !plugin.devices.empty() && (chosen == nullptr || plugin.priority > chosen->priority)) {
      chosen = &plugin;
    }
  }
  if (chosen == nullptr) {
    const std::string reasons = Reasons(survey);
    return NotFound("--device={}: {}; see: switchyard doctor", request.device,
                    reasons.empty() ? "no backend plugin was found" : reasons);
  }

  const int available = static_cast<int>(chosen->devices.size());
  std::vector<int> ids(chosen->devices.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (request.device_list) {
    SY_ASSIGN_OR_RETURN(ids, ParseDeviceList(*request.device_list));
  }
  if (ids.back() >= available) {
    return InvalidArgument("--device_list={}: {} has no device {}; it has 0 to {}", *request.device_list,
                           chosen->plugin, ids.back(), available - 1);
  }
  bool shareable = true, adjacent = false;
  for (const int id : ids) {
    shareable = shareable && (chosen->devices[id].flags & SY_DEVICE_SHAREABLE);
    adjacent = adjacent || (chosen->devices[id].flags & SY_DEVICE_ADJACENT_IDS);
  }
  const int count = static_cast<int>(ids.size());
  if (adjacent && ids.back() - ids.front() + 1 != count) {
    return InvalidArgument("--device_list={}: {} needs consecutive ids; choose for example {} to {}", IdText(ids),
                           chosen->plugin, ids.front(), ids.front() + count - 1);
  }
  const int per_device = request.ranks_per_device.value_or(shareable ? (request.local_world + count - 1) / count : 1);
  if (request.local_world > count * per_device) {
    return FailedPrecondition(
        "{} local ranks, but {} has {} device{} for them ({}) at {} per device; start fewer ranks, name more devices "
        "with --device_list, or share them with --ranks_per_device={}",
        request.local_world, chosen->plugin, count, count == 1 ? "" : "s", IdText(ids), per_device,
        (request.local_world + count - 1) / count);
  }
  DeviceChoice choice;
  choice.plugin = chosen->plugin;
  choice.ids = ids;
  choice.ranks_per_device = per_device;
  choice.index = ids[request.local_rank / per_device];
  choice.static_loss_scale = chosen->devices[choice.index].static_loss_scale;
  if (request.device == "auto") {
    const std::string reasons = Reasons(survey);
    choice.why = fmt::format("auto chose {}: the highest priority ({}) with a device{}{}", chosen->plugin,
                             chosen->priority, reasons.empty() ? "" : "; passed over: ", reasons);
  } else {
    choice.why = fmt::format("--device={}", request.device);
  }
  return choice;
}

StatusOr<int> CountReplicas(Registry& registry, DeviceRequest request, std::optional<int> devices) {
  if (devices && *devices < 1) return InvalidArgument("--devices={}: expected a positive number", *devices);
  int listed = 1;
  if (request.device_list) {
    SY_ASSIGN_OR_RETURN(const std::vector<int> ids, ParseDeviceList(*request.device_list));
    listed = static_cast<int>(ids.size());
  }
  const int on_each = std::max(1, request.ranks_per_device.value_or(1));
  request.local_rank = 0;
  request.local_world = devices.value_or(listed * on_each);
  SY_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(request, SurveyDevices(registry, request)));
  if (devices || request.device_list) return request.local_world;
  const int count = static_cast<int>(choice.ids.size()) * on_each;
  if (count > 1) return count;
  return FailedPrecondition(
      "--mode=dp drives all devices of {}, and it has one; say how many there are to be with --devices={}",
      choice.plugin, choice.plugin == "cpu" ? "2 (parts of the cores)" : "2 (which share it), or leave --mode=dp out");
}

}  // namespace switchyard
