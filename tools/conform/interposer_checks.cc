#include "tools/conform/interposer_checks.h"

#include "core/abi/interpose.h"
#include "core/runtime/device/device.h"
#include "core/runtime/plugins/registry.h"
#include "tools/conform/given_struct.h"

namespace switchyard::conform {
namespace {

Status CheckForwarding(const std::shared_ptr<Plugin>& inner, const Plugin& interposer) {
  const auto outer = Plugin::Wrap(inner, interposer, "");
  if (outer.status().code() == absl::StatusCode::kInvalidArgument) return Unimplemented("it needs an argument");
  SY_RETURN_IF_ERROR(outer.status());
  const sy_plugin& table = (*outer)->table();
  if (table.name == nullptr || table.name != inner->name()) {
    return Internal("around {} it calls itself {}", inner->name(), table.name == nullptr ? "nothing" : table.name);
  }
  SY_ASSIGN_OR_RETURN(const auto device, Device::Open(**outer, 0, {}));
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device->Allocate(1000));
  const Bytes data = RandomBytes(1000, 1);
  Bytes found(data.size());
  SY_RETURN_IF_ERROR(device->Upload(buffer.at(0), data.data(), data.size()));
  SY_RETURN_IF_ERROR(device->Download(found.data(), buffer.at(0), found.size()));
  return found == data ? OkStatus() : Internal("a copy through it arrived changed");
}

Status CheckArgument(const Plugin& inner, const Plugin& interposer) {
  const auto* const api = interposer.Interface<sy_interpose_v2>("interpose/2");
  if (api == nullptr) return Internal("it offers no interpose/2");
  sy_plugin outer{};
  outer.header = SY_HEADER(sy_plugin);
  WatchedError error;
  const char* const nonsense = "conform/no such folder/\x01:@-1";
  const sy_status status = api->wrap(interposer.table().instance, &inner.table(), nonsense, &outer, error.get());
  SY_RETURN_IF_ERROR(error.Judge(status, "wrap"));
  if (status == SY_OK) return Unimplemented("every argument makes sense to it");
  return ExpectStatus(status, {SY_INVALID}, "wrap with an argument that makes no sense");
}

}  // namespace

Status CheckInterposer(Recorder& recorder, const Plugin& interposer) {
  const auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
  if (!reference.ok()) return Annotate(reference.status(), "the reference plugin is needed to go around");
  recorder.Run("interposer/forwarding", [&] { return CheckForwarding(*reference, interposer); });
  recorder.Run("interposer/argument", [&] { return CheckArgument(**reference, interposer); });
  return OkStatus();
}

}  // namespace switchyard::conform
