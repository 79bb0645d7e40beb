#include "core/runtime/plugins/doctor.h"

#include <algorithm>
#include <vector>

#include "core/abi/collective.h"
#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr size_t kLongestCell = 8192;  // bytes

// Columns padded to their widest cell; the last one is not padded. Cells hold words of plugins and names of files.
std::string Table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = Printable(cell, kLongestCell);
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::vector<std::string> Dtypes(uint64_t bits) {
  std::vector<std::string> names;
  for (sy_dtype dtype = 0; dtype < SY_DTYPE_COUNT; ++dtype) {
    if (bits >> dtype & 1) names.push_back(sy_dtype_name(dtype));
  }
  return names;
}

std::vector<std::string> Capabilities(const DeviceInfo& info, const Plugin& plugin) {
  std::vector<std::string> words;
  if (info.async()) words.push_back("asynchronous");
  if (info.host_readable()) words.push_back("host-readable");
  if (info.flags & SY_DEVICE_SHAREABLE) words.push_back("shareable");
  if (info.flags & SY_DEVICE_ADJACENT_IDS) words.push_back("adjacent ids");
  if (plugin.Interface<void>("kernel/2") == nullptr) words.push_back("no kernels");
  for (const char* name : {"memory_ext/2", "capture/2", "semaphore/1", "peer/1", "profiler/2", "region/2"}) {
    if (plugin.Interface<void>(name) != nullptr) words.push_back(std::string(name, std::string(name).size() - 2));
  }
  return words;
}

std::string Memory(uint64_t bytes) {
  return bytes == 0 ? "unknown" : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// Every plugin of one kind that loads, and for the rest the reason.
struct Found {
  const Candidate* candidate;
  std::shared_ptr<Plugin> plugin;  // null: candidate->verdict says why
  std::vector<DeviceInfo> devices;
  std::string problem;  // why it has no devices, or what it lacks beside them
  std::string instead;  // " in place of PATH", where one of its name came first and was refused
};

std::vector<Found> LoadAll(Registry& registry) {
  registry.TryAll();
  std::vector<Found> all;
  for (const Candidate& candidate : registry.candidates()) {
    Found found{&candidate, nullptr, {}, "", ""};
    if (candidate.verdict.ok()) {
      if (auto plugin = Plugin::Load(candidate.path); plugin.ok()) found.plugin = *plugin;
    }
    if (found.plugin != nullptr) {
      for (const Candidate* refused : registry.InPlaceOf(candidate)) found.instead += " in place of " + refused->path;
    }
    if (found.plugin != nullptr && candidate.kind == PluginKind::kBackend) {
      const auto count = found.plugin->DeviceCount(&found.problem);
      if (!count.ok()) found.problem = Message(count.status());
      for (int index = 0; count.ok() && index < *count; ++index) {
        if (auto info = found.plugin->Describe(index); info.ok()) {
          found.devices.push_back(*std::move(info));
        } else {
          found.problem = Message(info.status());
        }
      }
    }
    all.push_back(std::move(found));
  }
  return all;
}

// "2 devices", "one node, deterministic", or why there is nothing.
std::string Outcome(const Found& found) {
  if (!found.candidate->built) return "not built";
  if (found.plugin == nullptr) return "refused: " + Message(found.candidate->verdict);
  if (found.candidate->kind == PluginKind::kInterposer) return "taken" + found.instead;
  if (found.candidate->kind == PluginKind::kCollective) {
    const auto info = found.plugin->DescribeCollective();
    if (!info.ok()) return "loaded, but: " + Message(info.status());
    return fmt::format("taken{}{}{}{}", found.instead, info->flags & SY_COLLECTIVE_ONE_NODE ? ", one node" : "",
                       info->flags & SY_COLLECTIVE_DETERMINISTIC ? ", deterministic" : "",
                       info->flags & SY_COLLECTIVE_PROGRESSES_ALONE ? ", progresses alone" : "");
  }
  if (found.devices.empty()) {
    return "loaded, no device" + (found.problem.empty() ? "" : ": " + found.problem);
  }
  return fmt::format("taken{}, {} device{}{}{}", found.instead, found.devices.size(),
                     found.devices.size() == 1 ? "" : "s", found.problem.empty() ? "" : "; ", found.problem);
}

// What a plugin says of the libraries under it, each text once: its devices may have drivers of their own.
std::vector<std::string> Libraries(const Found& found) {
  std::vector<std::string> texts;
  const auto add = [&](const std::string& text) {
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  };
  for (const DeviceInfo& info : found.devices) add(info.libraries);
  if (found.plugin != nullptr && found.candidate->kind == PluginKind::kCollective)
    if (const auto info = found.plugin->DescribeCollective(); info.ok()) add(info->libraries);
  return texts;
}

// A line for each plugin that says something of them, "" where none does.
std::string LibrariesTable(const std::vector<Found>& all, bool backends_only) {
  std::vector<std::vector<std::string>> rows;
  for (const Found& found : all) {
    if (backends_only && found.candidate->kind != PluginKind::kBackend) continue;
    for (const std::string& text : Libraries(found)) rows.push_back({"  " + found.candidate->name, text});
  }
  return rows.empty() ? "" : "Libraries that were bound, by their own account:\n" + Table(std::move(rows));
}

// "Not built: cuda, nccl", or "": their manifests are there, their libraries are not.
std::string NotBuilt(const std::vector<Found>& all, bool backends_only) {
  std::vector<std::string> names;
  for (const Found& found : all) {
    const bool wanted = !backends_only || found.candidate->kind == PluginKind::kBackend;
    if (!found.candidate->built && wanted) names.push_back(found.candidate->name);
  }
  return names.empty() ? "" : fmt::format("not built: {}\n", fmt::join(names, ", "));
}

}  // namespace

std::string DevicesReport(Registry& registry) {
  std::vector<std::vector<std::string>> rows = {{"PLUGIN", "ID", "NAME", "MEMORY", "DTYPES", "CAPABILITIES"}};
  std::string rest;
  const std::vector<Found> all = LoadAll(registry);
  for (const Found& found : all) {
    if (found.candidate->kind != PluginKind::kBackend || !found.candidate->built) continue;
    for (const DeviceInfo& info : found.devices) {
      rows.push_back({info.plugin, std::to_string(info.index), info.name, Memory(info.memory_bytes),
                      fmt::format("{}", fmt::join(Dtypes(info.dtypes), " ")),
                      fmt::format("{}", fmt::join(Capabilities(info, *found.plugin), ", "))});
    }
    if (found.devices.empty()) {
      const std::string& name = found.candidate->name.empty() ? found.candidate->path : found.candidate->name;
      rest += Printable(fmt::format("{}: {}", name, Outcome(found)), kLongestCell) + "\n";
    }
  }
  return Table(std::move(rows)) + rest + NotBuilt(all, true) + LibrariesTable(all, true);
}

std::string DevicesJson(Registry& registry) {
  json devices = json::array();
  for (const Found& found : LoadAll(registry)) {
    for (const DeviceInfo& info : found.devices) {
      devices.push_back({{"plugin", info.plugin},
                         {"id", info.index},
                         {"name", info.name},
                         {"uuid", info.uuid},
                         {"memory_bytes", info.memory_bytes},
                         {"free_bytes", info.free_bytes},
                         {"dtypes", Dtypes(info.dtypes)},
                         {"libraries", info.libraries},
                         {"capabilities", Capabilities(info, *found.plugin)}});
    }
  }
  return json{{"devices", devices}}.dump(1, ' ', false, json::error_handler_t::replace);
}

std::string DoctorReport(Registry& registry) {
  std::string text = "Plugins are looked for in (SWITCHYARD_PLUGIN_PATH, then the folder beside the program):\n";
  for (const std::string& folder : registry.search_path()) text += "  " + Printable(folder, kLongestCell) + "\n";
  std::vector<std::vector<std::string>> rows = {{"PLUGIN", "KIND", "PRIORITY", "OUTCOME", "WHERE"}};
  const std::vector<Found> all = LoadAll(registry);
  for (const Found& found : all) {
    const Candidate& candidate = *found.candidate;
    if (!candidate.built) continue;
    const bool named = !candidate.name.empty();
    rows.push_back({named ? candidate.name : "-", named ? KindName(candidate.kind) : "-",
                    named ? std::to_string(candidate.priority) : "-", Outcome(found), candidate.path});
  }
  return text + Table(std::move(rows)) + NotBuilt(all, false) + LibrariesTable(all, false);
}

std::string DoctorJson(Registry& registry) {
  json candidates = json::array();
  for (const Found& found : LoadAll(registry)) {
    const Candidate& candidate = *found.candidate;
    candidates.push_back({{"name", candidate.name},
                          {"kind", KindName(candidate.kind)},
                          {"path", candidate.path},
                          {"found_in", candidate.found_in},
                          {"priority", candidate.priority},
                          {"summary", candidate.summary},
                          {"taken", found.plugin != nullptr},
                          {"devices", found.devices.size()},
                          {"libraries", Libraries(found)},
                          {"outcome", Outcome(found)}});
  }
  return json{{"search_path", registry.search_path()}, {"candidates", candidates}}.dump(1, ' ', false,
                                                                                        json::error_handler_t::replace);
}

}  // namespace switchyard
