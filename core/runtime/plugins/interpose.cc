#include "core/runtime/plugins/interpose.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/base/environment.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {

StatusOr<std::shared_ptr<Plugin>> Interpose(std::shared_ptr<Plugin> plugin,
                                            const std::vector<std::string>& interposers) {
  static std::mutex mutex;
  static auto* const made = new std::map<std::pair<const Plugin*, std::string>, std::shared_ptr<Plugin>>();
  const std::lock_guard lock(mutex);
  for (auto spec = interposers.rbegin(); spec != interposers.rend(); ++spec) {  // the innermost first
    std::shared_ptr<Plugin>& outer = (*made)[{plugin.get(), *spec}];
    if (outer == nullptr) {
      const size_t colon = std::min(spec->find(':'), spec->size());
      const std::string argument = colon < spec->size() ? spec->substr(colon + 1) : "";
      const std::string context = "--interpose=" + *spec;
      auto interposer = Registry::Get().Find(PluginKind::kInterposer, spec->substr(0, colon));
      if (!interposer.ok()) return Annotate(interposer.status(), context);
      auto wrapped = Plugin::Wrap(plugin, **interposer, argument);
      if (!wrapped.ok()) return Annotate(wrapped.status(), context);
      outer = *wrapped;
    }
    plugin = outer;
  }
  return plugin;
}

std::vector<std::string> InterposersFromEnvironment() {
  std::vector<std::string> names;
  const std::string text = Environment("SWITCHYARD_INTERPOSE").value_or("");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace switchyard
