#include "core/runtime/plugins/registry.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "core/runtime/plugins/manifest.h"
#include "core/runtime/plugins/trust.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::string Join(const std::vector<std::string>& parts, const char* separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

// What else a user may write in place of one of the names: "auto" chooses, "gpu" is cuda.
std::vector<std::string> WithWords(PluginKind kind, std::vector<std::string> names) {
  const bool cuda = std::find(names.begin(), names.end(), "cuda") != names.end();
  if (kind == PluginKind::kBackend && cuda) names.push_back("gpu");
  if (kind != PluginKind::kInterposer) names.push_back("auto");
  return names;
}

bool SameName(const Candidate& a, const Candidate& b) { return a.kind == b.kind && a.name == b.name; }

}  // namespace

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
  struct stat info {};
  candidate.built = lstat(candidate.path.c_str(), &info) == 0 || errno != ENOENT;
  candidate.verdict = candidate.built ? CheckTrusted(candidate.path)
                                      : NotFound("not built: its manifest is there, but not {}", candidate.path);
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
  for (Candidate& other : candidates_) {
    if (&other == &candidate || !SameName(other, candidate) || !other.verdict.ok()) continue;
    other.verdict = FailedPrecondition("hidden by {}, which comes first", candidate.path);
  }
  return plugin;
}

std::vector<const Candidate*> Registry::InPlaceOf(const Candidate& taken) const {
  std::vector<const Candidate*> refused;
  for (const Candidate& candidate : candidates_) {
    if (&candidate == &taken) break;
    if (SameName(candidate, taken) && candidate.built && !candidate.verdict.ok()) refused.push_back(&candidate);
  }
  return refused;
}

void Registry::WarnOfReplacement(const Candidate& taken) const {
  for (const Candidate* refused : InPlaceOf(taken)) {
    LogWarning("{} \"{}\": {} is taken in place of {}, which is refused: {}", KindName(taken.kind), taken.name,
               taken.path, refused->path, Message(refused->verdict));
  }
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
    const bool first = !candidate.tried;
    auto plugin = Load(candidate);
    if (plugin.ok() && first) WarnOfReplacement(candidate);
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
  const std::vector<std::string> found = Names(kind);
  return Status(code, fmt::format("no {} \"{}\"{}; found: {}; looked in: {}{}; SWITCHYARD_PLUGIN_PATH names further "
                                  "folders, with : between them",
                                  KindName(kind), Printable(name), DidYouMean(name, WithWords(kind, found)),
                                  found.empty() ? "none" : Join(found, ", "), Join(search_path_, ", "),
                                  tried.empty() ? "" : "; refused: " + Join(tried, "; ")));
}

void Registry::TryAll() {
  for (Candidate& candidate : candidates_) (void)Load(candidate);
}

void Registry::OfferByPriority(PluginKind kind, const Take& take) {
  std::set<const Candidate*> offered;
  for (;;) {
    std::vector<Candidate*> first;  // of each name, those that may be loaded now
    for (Candidate& candidate : candidates_) {
      const bool usable = candidate.kind == kind && candidate.verdict.ok();
      const auto same = [&](const Candidate* other) { return SameName(*other, candidate); };
      if (usable && std::none_of(first.begin(), first.end(), same)) first.push_back(&candidate);
    }
    Candidate* best = nullptr;
    for (Candidate* candidate : first) {
      if (candidate->priority <= 0 || offered.count(candidate)) continue;
      if (best == nullptr || candidate->priority > best->priority) best = candidate;
    }
    if (best == nullptr) return;
    offered.insert(best);
    const bool tried = best->tried;
    const auto plugin = Load(*best);
    if (plugin.ok() && !tried) WarnOfReplacement(*best);
    if (take(*best, plugin)) return;
  }
}

std::vector<std::string> Registry::Names(PluginKind kind) const {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates_) {
    if (candidate.kind != kind || candidate.name.empty()) continue;
    if (std::find(names.begin(), names.end(), candidate.name) == names.end()) names.push_back(candidate.name);
  }
  return names;
}

}  // namespace switchyard
