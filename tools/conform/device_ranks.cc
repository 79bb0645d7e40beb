#include "tools/conform/device_ranks.h"

#include "tools/conform/child.h"
#include "tools/conform/file_store.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

constexpr int kRanks = 2;
constexpr uint64_t kBytes = 100003, kTimeoutMs = 20000;

Bytes Parcel(int rank, int round) {
  Bytes bytes(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + static_cast<uint64_t>(rank * 13 + round));
  return bytes;
}

}  // namespace

Status CheckDeviceRanks(const Plugin& plugin, const Options& options) {
  SY_ASSIGN_OR_RETURN(const int count, plugin.DeviceCount());
  SY_ASSIGN_OR_RETURN(const DeviceInfo info, plugin.Describe(options.device));
  if (count < kRanks && !(info.flags & SY_DEVICE_SHAREABLE)) {
    return Unimplemented("there is one device, and it cannot be shared");
  }
  SY_ASSIGN_OR_RETURN(const auto ranks,
                      RunChildren({{"mode", "device"}, {"plugin", plugin.path()}, {"count", count}}, kRanks,
                                  {.self = options.self, .silence_s = options.check_timeout_s}));
  for (const ChildResults& results : ranks) {
    for (const ChildResult& result : results) SY_RETURN_IF_ERROR(result.status);
  }
  return OkStatus();
}

Status RunDeviceRank(const Plugin& plugin, const nlohmann::json& task) {
  const int rank = task.value("rank", 0), peer = kRanks - 1 - rank;
  const FileStore store(task.value("folder", ""));
  SY_ASSIGN_OR_RETURN(const auto device, Device::Open(plugin, rank % task.value("count", 1), {}));
  SY_ASSIGN_OR_RETURN(const Buffer own, device->Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(const Buffer received, device->Allocate(kBytes));
  for (int round = 0; round < 5; ++round) {
    const Bytes sent = Parcel(rank, round);
    SY_RETURN_IF_ERROR(device->Upload(own.at(0), sent.data(), kBytes));
    std::string text(kBytes, '\0');
    SY_RETURN_IF_ERROR(device->Download(text.data(), own.at(0), kBytes));
    store.Put(fmt::format("{}-{}", rank, round), text);
    if (!store.Wait(fmt::format("{}-{}", peer, round), text, kTimeoutMs)) {
      return DeadlineExceeded("rank {} did not come", peer);
    }
    SY_RETURN_IF_ERROR(device->Upload(received.at(0), text.data(), kBytes));
    Bytes found(kBytes);
    SY_RETURN_IF_ERROR(device->Download(found.data(), received.at(0), kBytes));
    if (found != Parcel(peer, round)) return Internal("round {}: what rank {} sent arrived changed", round, peer);
    SY_RETURN_IF_ERROR(device->Download(found.data(), own.at(0), kBytes));
    if (found != sent) return Internal("round {}: the other process changed memory of rank {}", round, rank);
  }
  return OkStatus();
}

}  // namespace switchyard::conform
