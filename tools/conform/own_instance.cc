#include "tools/conform/own_instance.h"

#include <dlfcn.h>

#include <atomic>
#include <vector>

#include "core/runtime/plugins/abi_status.h"

namespace switchyard::conform {
namespace {

std::atomic<bool> mixed{false};
char contexts[OwnInstance::kMost];  // their addresses tell the hosts apart

template <int Number>
void OwnLog(void* context, int32_t level, const char* text) {
  if (context != &contexts[Number]) mixed = true;
  Host()->log(Host()->context, level, text);
}

template <int Number>
const char* OwnSetting(void* context, const char* name) {
  if (context != &contexts[Number]) mixed = true;
  return Host()->setting(Host()->context, name);
}

template <int Number>
constexpr sy_host MakeHost() {
  return {SY_HEADER(sy_host), &contexts[Number], OwnLog<Number>, OwnSetting<Number>};
}

const sy_host hosts[OwnInstance::kMost] = {MakeHost<0>(), MakeHost<1>(), MakeHost<2>(), MakeHost<3>()};
int used = 0;

}  // namespace

StatusOr<std::unique_ptr<OwnInstance>> OwnInstance::Make(const Plugin& plugin) {
  if (used == kMost) return ResourceExhausted("more than {} instances in one process", kMost);
  void* const library = dlopen(plugin.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto create =
      library == nullptr ? nullptr : reinterpret_cast<sy_plugin_create_fn>(dlsym(library, "sy_plugin_create"));
  if (create == nullptr) return Internal("{} exports no sy_plugin_create", plugin.path());
  sy_plugin table{};
  table.header = SY_HEADER(sy_plugin);
  sy_error error = EmptyError();
  SY_RETURN_IF_ERROR(FromAbi(create(&hosts[used++], &table, &error), error, "another sy_plugin_create"));
  std::unique_ptr<OwnInstance> instance(new OwnInstance());
  SY_ASSIGN_OR_RETURN(instance->library_, CheckPlugin(table, [](const std::string&) {}));
  return instance;
}

std::string OwnInstance::Interfaces() const {
  std::vector<std::string> names;
  for (const auto& [name, table] : library_.interfaces) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Status OwnInstance::HostsAreApart() {
  return mixed ? Internal("a function of one host was called with the context of another") : OkStatus();
}

}  // namespace switchyard::conform
