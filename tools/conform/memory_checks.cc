#include "tools/conform/memory_checks.h"

#include <algorithm>
#include <cstring>

#include "core/base/random.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

Status CheckUnalignedHost(Device& device, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(5000));
  for (const uint64_t shift : {1, 3, 13}) {
    const Bytes data = RandomBytes(4097 + shift, Key(seed, shift));
    Bytes found(data.size() + 1);
    SY_RETURN_IF_ERROR(device.Upload(buffer.at(7), data.data() + shift, 4097));
    SY_RETURN_IF_ERROR(device.Download(found.data() + shift + 1, buffer.at(7), 4097));
    if (!std::equal(data.begin() + static_cast<ptrdiff_t>(shift), data.end(),
                    found.begin() + static_cast<ptrdiff_t>(shift) + 1)) {
      return Internal("a copy from a host address with {} bytes beyond alignment arrived changed", shift);
    }
  }
  return OkStatus();
}

// From one part of a buffer to another that does not overlap it.
Status CheckInsideOneBuffer(Device& device, uint64_t seed) {
  constexpr uint64_t kPart = 1021;
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(3 * kPart));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  Bytes expected = RandomBytes(3 * kPart, seed), found(3 * kPart);
  SY_RETURN_IF_ERROR(device.Copy(stream, buffer.at(0), HostPlace(expected.data()), expected.size()));
  SY_RETURN_IF_ERROR(device.Copy(stream, buffer.at(2 * kPart), buffer.at(0), kPart));
  SY_RETURN_IF_ERROR(device.Copy(stream, HostPlace(found.data()), buffer.at(0), found.size()));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  std::copy_n(expected.begin(), kPart, expected.begin() + 2 * kPart);
  return found == expected ? OkStatus() : Internal("a copy inside one buffer arrived changed");
}

Status CheckFreeOfNothing(Device& device) {
  device.api()->free(device.handle(), nullptr);
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(1));
  return OkStatus();
}

// Until nothing is left, and again after everything was given back. What was allocated keeps its contents.
Status CheckExhaustion(Device& device, uint64_t seed) {
  const DeviceInfo& info = device.info();
  if (info.host_readable() || (info.flags & SY_DEVICE_CPU_CORES)) {
    return Unimplemented("its memory is the host's: filling it would be unkind");
  }
  const uint64_t part = std::max<uint64_t>(1, std::min(info.largest_allocation, info.memory_bytes / 8));
  uint64_t first_round = 0;
  for (int round = 0; round < 2; ++round) {
    std::vector<Buffer> all;
    Status full;
    while (full.ok() && all.size() < 64) {
      auto buffer = device.Allocate(part);
      full = buffer.status();
      if (buffer.ok()) all.push_back(*std::move(buffer));
    }
    if (full.ok()) return Unimplemented("{} allocations of {} bytes did not fill it", all.size(), part);
    if (full.code() != absl::StatusCode::kResourceExhausted)
      return Internal("a full device answered: {}", full.ToString());
    if (all.empty()) return Internal("nothing could be allocated on a device of {} bytes", info.memory_bytes);
    const Bytes data = RandomBytes(1000, seed);
    Bytes found(data.size());
    SY_RETURN_IF_ERROR(Annotate(device.Upload(all.back().at(0), data.data(), data.size()), "on a full device"));
    SY_RETURN_IF_ERROR(Annotate(device.Download(found.data(), all.back().at(0), found.size()), "on a full device"));
    if (found != data) return Internal("on a full device a copy arrived changed");
    if (round == 0) first_round = all.size();
    if (all.size() < first_round) {
      return Internal("after a full device was emptied, only {} of {} allocations fit again", all.size(), first_round);
    }
  }
  return OkStatus();
}

Status CheckNativeAddress(Device& device, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(257));
  SY_ASSIGN_OR_RETURN(void* const first, device.AddressOf(buffer));
  SY_ASSIGN_OR_RETURN(void* const second, device.AddressOf(buffer));
  if (first == nullptr) return Internal("the address of a buffer is NULL");
  if (first != second) return Internal("a buffer has two addresses");
  if (!device.info().host_readable()) return OkStatus();
  if (device.info().memory_kind != "host") {
    return Internal("host-readable memory is of kind \"{}\"", device.info().memory_kind);
  }
  const Bytes data = RandomBytes(257, seed);
  SY_RETURN_IF_ERROR(device.Upload(buffer.at(0), data.data(), data.size()));
  const bool same = std::memcmp(first, data.data(), data.size()) == 0;
  return same ? OkStatus() : Internal("the host reads other bytes at a buffer's address than were copied there");
}

// The memory of one buffer as another: both are the same bytes, and the owner outlives the borrower.
Status CheckImport(Device& device, uint64_t seed) {
  constexpr uint64_t kBytes = 8192;
  SY_ASSIGN_OR_RETURN(const Buffer owner, device.Allocate(kBytes));
  SY_ASSIGN_OR_RETURN(void* const native, device.AddressOf(owner));
  const Bytes data = RandomBytes(kBytes, seed), other = RandomBytes(kBytes, seed + 1);
  Bytes found(kBytes);
  for (int round = 0; round < 3; ++round) {
    SY_ASSIGN_OR_RETURN(const Buffer borrowed, device.Import(native, device.info().memory_kind, kBytes));
    SY_RETURN_IF_ERROR(device.Upload(borrowed.at(0), data.data(), kBytes));
    SY_RETURN_IF_ERROR(device.Download(found.data(), owner.at(0), kBytes));
    if (found != data) return Internal("what was written to imported memory did not reach its owner");
    SY_RETURN_IF_ERROR(device.Upload(owner.at(5), other.data(), 100));
    SY_RETURN_IF_ERROR(device.Download(found.data(), borrowed.at(0), kBytes));
    if (!std::equal(other.begin(), other.begin() + 100, found.begin() + 5)) {
      return Internal("what was written by the owner is not seen in imported memory");
    }
  }
  SY_RETURN_IF_ERROR(device.Upload(owner.at(0), data.data(), kBytes));
  SY_RETURN_IF_ERROR(device.Download(found.data(), owner.at(0), kBytes));
  return found == data ? OkStatus() : Internal("freeing imported memory harmed its owner");
}

Status CheckHostAlloc(const Plugin& plugin, Device& device, uint64_t seed) {
  const auto* api = plugin.Interface<sy_memory_ext_v2>("memory_ext/2");
  if (api == nullptr || api->host_alloc == nullptr)
    return Unimplemented("no host_alloc: the core uses ordinary memory");
  if (api->host_free == nullptr) return Internal("host_alloc without host_free");
  constexpr uint64_t kBytes = 1 << 20;
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device.Allocate(kBytes));
  const Bytes data = RandomBytes(kBytes, seed);
  for (int round = 0; round < 4; ++round) {
    void *from = nullptr, *to = nullptr;
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(api->host_alloc(device.handle(), kBytes, &from, &error), error, "host_alloc"));
    SY_RETURN_IF_ERROR(FromAbi(api->host_alloc(device.handle(), kBytes, &to, &error), error, "host_alloc"));
    if (from == nullptr || to == nullptr || from == to) return Internal("host_alloc gave {} and {}", from, to);
    std::memcpy(from, data.data(), kBytes);
    std::memset(to, 0, kBytes);
    Status copied = device.Upload(buffer.at(0), from, kBytes);
    if (copied.ok()) copied = device.Download(to, buffer.at(0), kBytes);
    const bool same = std::memcmp(to, data.data(), kBytes) == 0;
    api->host_free(device.handle(), from);
    api->host_free(device.handle(), to);
    SY_RETURN_IF_ERROR(copied);
    if (!same) return Internal("a copy through memory of host_alloc arrived changed");
  }
  void* nothing = nullptr;
  const sy_status huge = api->host_alloc(device.handle(), uint64_t{1} << 60, &nothing, nullptr);
  return huge == SY_OUT_OF_MEMORY || huge == SY_INVALID ? OkStatus()
                                                        : Internal("host_alloc of 2^60 bytes: status {}", huge);
}

Status CheckNativeStream(Device& device) {
  SY_ASSIGN_OR_RETURN(const Stream one, device.NewStream());
  SY_ASSIGN_OR_RETURN(const Stream two, device.NewStream());
  SY_ASSIGN_OR_RETURN(void* const first, device.NativeStream(one));
  SY_ASSIGN_OR_RETURN(void* const again, device.NativeStream(one));
  SY_ASSIGN_OR_RETURN(void* const second, device.NativeStream(two));
  if (first != again) return Internal("a stream has two native handles");
  return first != second ? OkStatus() : Internal("two streams have one native handle");
}

}  // namespace

void CheckMemory(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed) {
  recorder.Run("memory/unaligned_host", [&] { return CheckUnalignedHost(device, seed); });
  recorder.Run("memory/inside_one_buffer", [&] { return CheckInsideOneBuffer(device, seed); });
  recorder.Run("memory/free_of_nothing", [&] { return CheckFreeOfNothing(device); });
  recorder.Run("memory/exhaustion", [&] { return CheckExhaustion(device, seed); });
  recorder.Run("memory/native_address", [&] { return CheckNativeAddress(device, seed); });
  recorder.Run("memory/native_stream", [&] { return CheckNativeStream(device); });
  recorder.Run("memory/import", [&] { return CheckImport(device, seed); });
  recorder.Run("memory/host_alloc", [&] { return CheckHostAlloc(plugin, device, seed); });
}

}  // namespace switchyard::conform
