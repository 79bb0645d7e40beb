// Where plugins are found. A Registry scans the search path once (SWITCHYARD_PLUGIN_PATH, then the folder beside the
// program), reads manifests, and loads a library only when it is asked for; every candidate keeps the reason why it was
// taken or refused. Entries of the search path must be absolute, and neither they nor the libraries writable by others.
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/plugins/plugin.h"

namespace switchyard {

// A plugin that was found, loaded or not.
struct Candidate {
  std::string name, path, summary;  // name "" if the manifest could not be read
  PluginKind kind = PluginKind::kBackend;
  int priority = 0;
  std::optional<std::string> host;  // of a backend: whose kernels stand for its own on the host; else the cpu's
  bool tried = false;               // loading it was tried
  bool built = true;                // false: the manifest is there, its library is not
  Status verdict;                   // OK: it can be used (as far as was tried); else why it was refused
  std::string found_in;             // the search-path entry
};

// Several candidates of one kind may have one name: the first in the order of the search path that can be loaded is
// taken. One that is refused (by the probe, say) hides nothing: the next of its name is taken instead, with its own
// priority, and a warning says so. Only a path names one library and no other.
class Registry {
 public:
  // The process's registry, scanned at first use.
  static Registry& Get();
  explicit Registry(std::vector<std::string> search_path);
  static std::vector<std::string> DefaultSearchPath();

  const std::vector<Candidate>& candidates() const { return candidates_; }
  const std::vector<std::string>& search_path() const { return search_path_; }
  // Loads the named plugin, or says every plugin tried, where it was looked for and why it was refused. `name` may be a
  // path to a library.
  StatusOr<std::shared_ptr<Plugin>> Find(PluginKind kind, const std::string& name);
  // For --device=auto and --collective=auto: loads candidates of that kind with a priority above 0, the highest first,
  // and offers each, or why it is refused, to `take`, until that returns true. Of each name the first that loads.
  using Take = std::function<bool(const Candidate&, const StatusOr<std::shared_ptr<Plugin>>&)>;
  void OfferByPriority(PluginKind kind, const Take& take);
  // The refused candidates in whose place this one is taken.
  std::vector<const Candidate*> InPlaceOf(const Candidate& taken) const;
  // For doctor: tries every candidate and fills in its verdict.
  void TryAll();
  // Of the plugins that were found, each once.
  std::vector<std::string> Names(PluginKind kind) const;

 private:
  void Scan(const std::string& folder);
  Candidate ReadManifest(const std::string& path) const;
  StatusOr<std::shared_ptr<Plugin>> Load(Candidate& candidate);
  void WarnOfReplacement(const Candidate& taken) const;
  std::vector<Candidate> candidates_;
  std::vector<std::string> search_path_;
};

}  // namespace switchyard
