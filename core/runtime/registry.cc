#include <algorithm>
#include <filesystem>

#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/names.h"
#include "core/runtime/plugin.h"
#include "core/runtime/trust.h"
#include "nlohmann/json.hpp"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kLargestManifest = 1 << 16;

// Plugin names are part of file names and messages.
bool IsName(const std::string& text) {
  return !text.empty() && text.size() < 64 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

Status ParseManifest(const std::string& path, Candidate& candidate, std::string& library) {
  const auto content = ReadWholeFile(path, kLargestManifest);
  if (!content.ok()) {
    return InvalidArgument("manifest {} is unreadable or larger than {} bytes", path, kLargestManifest);
  }
  const auto parsed = ParseJson(*content);
  if (!parsed.ok() || !parsed->is_object()) return InvalidArgument("manifest {} is not a JSON object", path);
  const json& manifest = *parsed;
  const auto text = [&](const char* key) {
    const auto value = manifest.find(key);
    return value != manifest.end() && value->is_string() ? value->get<std::string>() : std::string();
  };
  const std::string name = text("name"), kind = text("kind");
  library = text("library");
  if (!IsName(name)) return InvalidArgument("manifest {}: \"name\" is missing or not a plain name", path);
  candidate.name = name;
  candidate.summary = text("summary");
  bool known = false;
  for (const PluginKind one : {PluginKind::kBackend, PluginKind::kCollective, PluginKind::kInterposer}) {
    if (kind != KindName(one)) continue;
    candidate.kind = one;
    known = true;
  }
  if (!known) {
    return InvalidArgument("manifest {}: \"kind\" is \"{}\"; expected \"backend\", \"collective\" or \"interposer\"",
                           path, kind);
  }
  if (library.empty() || library.find('/') != std::string::npos) {
    return InvalidArgument("manifest {}: \"library\" is \"{}\"; expected a file name in the same folder", path,
                           library);
  }
  const auto abi = manifest.find("abi");
  if (abi == manifest.end() || !abi->is_number_integer() || *abi != SY_ABI_MAJOR) {
    return FailedPrecondition("manifest {}: \"abi\" is {}; this program knows {}", path,
                              abi == manifest.end() ? "missing" : Excerpt(*abi), SY_ABI_MAJOR);
  }
  const auto priority = manifest.find("priority");
  if (priority != manifest.end()) {
    if (!priority->is_number_integer()) return InvalidArgument("manifest {}: \"priority\" is not a whole number", path);
    candidate.priority = priority->get<int>();
  }
  return OkStatus();
}

std::string Join(const std::vector<std::string>& parts, const char* separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace

const char* KindName(PluginKind kind) {
  return kind == PluginKind::kBackend ? "backend" : kind == PluginKind::kCollective ? "collective" : "interposer";
}

const char* MainInterface(PluginKind kind) {
  return kind == PluginKind::kBackend ? "device/1" : kind == PluginKind::kCollective ? "collective/1" : "interpose/1";
}

std::vector<std::string> Registry::DefaultSearchPath() {
  std::vector<std::string> path;
  if (const auto text = Environment("SWITCHYARD_PLUGIN_PATH")) {
    for (size_t begin = 0; begin <= text->size();) {
      const size_t end = std::min(text->find(':', begin), text->size());
      if (end > begin) path.push_back(text->substr(begin, end - begin));
      begin = end + 1;
    }
  }
  path.push_back((fs::path(ProgramFolder()) / "../lib/switchyard/plugins").lexically_normal().string());
  return path;
}

Registry& Registry::Get() {
  static auto* const registry = new Registry(DefaultSearchPath());
  return *registry;
}

Registry::Registry(std::vector<std::string> search_path) : search_path_(std::move(search_path)) {
  for (const std::string& folder : search_path_) Scan(folder);
  // The first of a name wins, as with every search path.
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (!candidates_[i].verdict.ok()) continue;
    for (size_t j = i + 1; j < candidates_.size(); ++j) {
      if (candidates_[j].verdict.ok() && candidates_[j].name == candidates_[i].name &&
          candidates_[j].kind == candidates_[i].kind) {
        candidates_[j].verdict = FailedPrecondition("hidden by {}, which comes first", candidates_[i].path);
      }
    }
  }
}

Candidate Registry::ReadManifest(const std::string& path) const {
  Candidate candidate;
  candidate.path = path;
  candidate.found_in = fs::path(path).parent_path().string();
  std::string library;
  candidate.verdict = CheckTrusted(path);
  if (candidate.verdict.ok()) candidate.verdict = ParseManifest(path, candidate, library);
  if (!candidate.verdict.ok()) return candidate;
  candidate.path = candidate.found_in + "/" + library;
  candidate.verdict = CheckTrusted(candidate.path);
  return candidate;
}

void Registry::Scan(const std::string& folder) {
  Candidate entry;  // stands for the folder itself where that is refused
  entry.path = entry.found_in = folder;
  std::error_code error;
  if (!fs::path(folder).is_absolute()) {
    entry.verdict = FailedPrecondition("the search-path entry {} is not absolute; write the whole path", folder);
  } else if (!fs::is_directory(folder, error)) {
    entry.verdict = NotFound("the search-path entry {} is not a folder", folder);
  } else {
    entry.verdict = CheckTrusted(folder);
  }
  if (!entry.verdict.ok()) {
    candidates_.push_back(entry);
    return;
  }
  std::vector<std::string> manifests, libraries;
  for (fs::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    if (file->path().extension() == ".json") manifests.push_back(file->path().string());
    if (file->path().extension() == ".so") libraries.push_back(file->path().string());
  }
  std::sort(manifests.begin(), manifests.end());
  std::sort(libraries.begin(), libraries.end());
  for (const std::string& manifest : manifests) candidates_.push_back(ReadManifest(manifest));
  for (const std::string& library : libraries) {
    const bool named = std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.path == library || candidate.path == fs::path(library).replace_extension(".json").string();
    });
    if (named) continue;
    entry.path = library;
    entry.verdict = FailedPrecondition("no manifest names it; expected {} beside it",
                                       fs::path(library).filename().replace_extension(".json").string());
    candidates_.push_back(entry);
  }
}

StatusOr<std::shared_ptr<Plugin>> Registry::Load(Candidate& candidate) {
  if (!candidate.verdict.ok()) return candidate.verdict;
  candidate.tried = true;
  auto plugin = Plugin::Load(candidate.path);
  if (!plugin.ok()) {
    candidate.verdict = plugin.status();
    return candidate.verdict;
  }
  const char* const needed = MainInterface(candidate.kind);
  if ((*plugin)->name() != candidate.name) {
    candidate.verdict = FailedPrecondition("plugin {}: it calls itself \"{}\", its manifest \"{}\"", candidate.path,
                                           (*plugin)->name(), candidate.name);
  } else if ((*plugin)->Interface<void>(needed) == nullptr) {
    candidate.verdict = FailedPrecondition("plugin {}: its manifest says {}, but it offers no {}", candidate.path,
                                           KindName(candidate.kind), needed);
  }
  if (!candidate.verdict.ok()) return candidate.verdict;
  return plugin;
}

StatusOr<std::shared_ptr<Plugin>> Registry::Find(PluginKind kind, const std::string& name) {
  const std::string wanted = kind == PluginKind::kBackend && name == "gpu" ? "cuda" : name;
  if (wanted.find('/') != std::string::npos) {
    SY_ASSIGN_OR_RETURN(auto plugin, Plugin::Load(wanted));
    const char* const needed = MainInterface(kind);
    if (plugin->Interface<void>(needed) == nullptr) {
      return FailedPrecondition("plugin {}: it offers no {}", wanted, needed);
    }
    return plugin;
  }
  std::vector<std::string> tried;
  absl::StatusCode code = absl::StatusCode::kNotFound;
  for (Candidate& candidate : candidates_) {
    if (candidate.name != wanted || candidate.kind != kind) continue;
    auto plugin = Load(candidate);
    if (plugin.ok()) return plugin;
    code = absl::StatusCode::kFailedPrecondition;
    tried.push_back(fmt::format("{}: {}", candidate.path, Message(candidate.verdict)));
  }
  if (!tried.empty()) {
    return Status(code, fmt::format("{} \"{}\" cannot be used: {}", KindName(kind), name, Join(tried, "; ")));
  }
  // Nothing of that name: list what there is, and what was refused before its name was known.
  for (const Candidate& candidate : candidates_) {
    if (candidate.name.empty()) tried.push_back(fmt::format("{}: {}", candidate.path, Message(candidate.verdict)));
  }
  return Status(code, fmt::format("no {} \"{}\"{}; found: {}; looked in: {}{}", KindName(kind), name,
                                  DidYouMean(name, Names(kind)), Join(Names(kind), ", "), Join(search_path_, ", "),
                                  tried.empty() ? "" : "; refused: " + Join(tried, "; ")));
}

void Registry::TryAll() {
  for (Candidate& candidate : candidates_) (void)Load(candidate);
}

std::vector<std::string> Registry::ByPriority(PluginKind kind) const {
  std::vector<const Candidate*> usable;
  for (const Candidate& candidate : candidates_) {
    if (candidate.kind == kind && candidate.verdict.ok() && candidate.priority > 0) usable.push_back(&candidate);
  }
  std::stable_sort(usable.begin(), usable.end(), [](auto* a, auto* b) { return a->priority > b->priority; });
  std::vector<std::string> names;
  for (const Candidate* candidate : usable) names.push_back(candidate->name);
  return names;
}

std::vector<std::string> Registry::Names(PluginKind kind) const {
  std::vector<std::string> names;
  if (kind != PluginKind::kInterposer) names.push_back("auto");
  for (const Candidate& candidate : candidates_) {
    if (candidate.kind != kind || candidate.name.empty()) continue;
    if (std::find(names.begin(), names.end(), candidate.name) == names.end()) names.push_back(candidate.name);
    if (kind == PluginKind::kBackend && candidate.name == "cuda") names.push_back("gpu");
  }
  return names;
}

}  // namespace switchyard
