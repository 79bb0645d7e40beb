#include "tools/conform/peer_checks.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "tools/conform/given_struct.h"
#include "tools/conform/own_process.h"

namespace switchyard::conform {
namespace {

constexpr uint64_t kShared = (1 << 20) + 256 + 3;  // bytes that are shared
constexpr uint64_t kOdd = 4099;                    // where in them one side writes

Status ExpectBytes(Device& device, const Buffer& buffer, const Bytes& expected, const char* when) {
  Bytes found(expected.size());
  SY_RETURN_IF_ERROR(Annotate(device.Download(found.data(), buffer.at(0), found.size()), when));
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != expected[i]) return Internal("{}: byte {} is {}, expected {}", when, i, found[i], expected[i]);
  }
  return OkStatus();
}

// What an owner and an importer, here on two devices or one, do to the same memory is seen by the other.
Status ExchangeBytes(Device& owner, const Buffer& own, Device& importer, const Buffer& imported, uint64_t seed) {
  Bytes data = RandomBytes(kShared, seed);
  SY_RETURN_IF_ERROR(owner.Upload(own.at(0), data.data(), data.size()));
  SY_RETURN_IF_ERROR(ExpectBytes(importer, imported, data, "what the owner wrote, read by the importer"));
  const Bytes part = RandomBytes(kOdd, seed + 1);
  SY_RETURN_IF_ERROR(importer.Upload(imported.at(kOdd), part.data(), part.size()));
  std::copy(part.begin(), part.end(), data.begin() + kOdd);
  SY_RETURN_IF_ERROR(ExpectBytes(owner, own, data, "what the importer wrote, read by the owner"));
  // Inside the device, both ways, and a fill.
  SY_ASSIGN_OR_RETURN(const Buffer other, importer.Allocate(kShared));
  SY_ASSIGN_OR_RETURN(const Stream stream, importer.NewStream());
  SY_RETURN_IF_ERROR(importer.Copy(stream, other.at(0), imported.at(0), kShared));
  SY_RETURN_IF_ERROR(importer.Fill(stream, imported.at(kShared - kOdd), 0x5C, kOdd));
  SY_RETURN_IF_ERROR(importer.Copy(stream, imported.at(0), other.at(kOdd), kOdd));
  SY_RETURN_IF_ERROR(importer.Synchronize(stream));
  SY_RETURN_IF_ERROR(ExpectBytes(importer, other, data, "a copy out of imported memory"));
  std::copy_n(data.begin() + kOdd, kOdd, data.begin());
  std::fill(data.end() - kOdd, data.end(), uint8_t{0x5C});
  return ExpectBytes(owner, own, data, "a copy and a fill of imported memory");
}

// A place beyond the end is refused, at the call or by the stream.
Status ExpectWithin(Device& device, const Buffer& imported) {
  const Bytes data(64);
  for (const uint64_t offset : {kShared - 63, uint64_t{1} << 40}) {
    SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
    Status status = device.Copy(stream, imported.at(offset), HostPlace(data.data()), data.size());
    if (status.ok()) status = device.Synchronize(stream);
    if (status.ok()) return Internal("64 bytes were copied to offset {} of {} imported bytes", offset, kShared);
  }
  return OkStatus();
}

// kUnimplemented: `device` cannot reach that memory.
StatusOr<Buffer> ImportShared(Device& device, const std::string& description) {
  return device.ImportPeer(description, kShared);
}

struct SharedMemory {
  Buffer own;
  std::string description;
};
StatusOr<SharedMemory> Share(Device& device) {
  SharedMemory shared;
  SY_ASSIGN_OR_RETURN(shared.own, device.AllocateExportable(kShared));
  SY_ASSIGN_OR_RETURN(shared.description, device.Export(shared.own));
  return shared;
}

Status CheckExport(Device& device, const sy_peer_v1& api) {
  SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
  if (shared.description.empty()) return Internal("a description of 0 bytes");
  SY_ASSIGN_OR_RETURN(const std::string again, device.Export(shared.own));
  SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, again));
  // A room that is too small, by one byte and altogether.
  WatchedError error;
  for (const size_t room : {size_t{0}, shared.description.size() - 1}) {
    Bytes description(SY_MEMORY_DESCRIPTION_BYTES, kUntouched);
    uint32_t bytes = 0;
    const sy_status status = api.export_memory(device.handle(), shared.own.handle(), description.data(),
                                               static_cast<uint32_t>(room), &bytes, error.get());
    SY_RETURN_IF_ERROR(error.Judge(status, "export_memory"));
    SY_RETURN_IF_ERROR(
        ExpectStatus(status, {SY_INVALID},
                     fmt::format("export_memory of {} bytes into room for {}", shared.description.size(), room)));
    if (std::count(description.begin(), description.end(), kUntouched) != SY_MEMORY_DESCRIPTION_BYTES) {
      return Internal("export_memory wrote into room for {} bytes, though it refused", room);
    }
  }
  // Memory that was not allocated for it: refused, or exported as well as any.
  SY_ASSIGN_OR_RETURN(const Buffer ordinary, device.Allocate(kShared));
  std::string description(SY_MEMORY_DESCRIPTION_BYTES, '\0');
  uint32_t bytes = 0;
  const sy_status status = api.export_memory(device.handle(), ordinary.handle(), description.data(),
                                             SY_MEMORY_DESCRIPTION_BYTES, &bytes, error.get());
  SY_RETURN_IF_ERROR(error.Judge(status, "export_memory"));
  if (status != SY_OK) {
    return ExpectStatus(status, {SY_INVALID, SY_UNSUPPORTED}, "export_memory of a buffer that is not exportable");
  }
  description.resize(bytes);
  SY_ASSIGN_OR_RETURN(const Buffer too, ImportShared(device, description));
  return ExchangeBytes(device, ordinary, device, too, 3);
}

// In the exporting process, on the device itself.
Status CheckImportHere(Device& device, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
  SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, shared.description));
  SY_RETURN_IF_ERROR(ExchangeBytes(device, shared.own, device, imported, seed));
  return ExpectWithin(device, imported);
}

Status CheckOtherDevice(const Plugin& plugin, Device& device, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const int count, plugin.DeviceCount());
  if (count < 2) return Unimplemented("there is one device");
  SY_ASSIGN_OR_RETURN(const auto other, Device::Open(plugin, (device.info().index + 1) % count, {}));
  for (const bool out : {true, false}) {
    Device& owner = out ? device : *other;
    Device& importer = out ? *other : device;
    SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(owner));
    SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(importer, shared.description));
    SY_RETURN_IF_ERROR(ExchangeBytes(owner, shared.own, importer, imported, seed));
  }
  return OkStatus();
}

// Each import is one of its own; what is freed harms neither the owner nor another import.
Status CheckReferences(Device& device, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
  for (int round = 0; round < 3; ++round) {
    SY_ASSIGN_OR_RETURN(Buffer first, ImportShared(device, shared.description));
    SY_ASSIGN_OR_RETURN(Buffer second, ImportShared(device, shared.description));
    if (first.handle() == second.handle()) return Internal("two imports are one buffer");
    SY_RETURN_IF_ERROR(Annotate(ExchangeBytes(device, shared.own, device, first, seed), "the first of two imports"));
    first.reset();
    SY_RETURN_IF_ERROR(
        Annotate(ExchangeBytes(device, shared.own, device, second, seed + 1), "after another import was freed"));
    second.reset();
    const Bytes data = RandomBytes(kShared, seed + 2);
    SY_RETURN_IF_ERROR(device.Upload(shared.own.at(0), data.data(), data.size()));
    SY_RETURN_IF_ERROR(ExpectBytes(device, shared.own, data, "the owner's memory after its imports were freed"));
  }
  // New memory does not lie where the owner still has his.
  const Bytes data = RandomBytes(kShared, seed + 3), other = RandomBytes(kShared, seed + 4);
  SY_RETURN_IF_ERROR(device.Upload(shared.own.at(0), data.data(), data.size()));
  SY_ASSIGN_OR_RETURN(const SharedMemory later, Share(device));
  SY_RETURN_IF_ERROR(device.Upload(later.own.at(0), other.data(), other.size()));
  return ExpectBytes(device, shared.own, data, "the owner's memory after its imports were freed");
}

// What no export_memory wrote is refused. A change that means nothing (padding) may pass, if what comes of it is the
// memory that was exported, and no more than that.
Status CheckForged(Device& device, const sy_peer_v1& api, uint64_t seed) {
  SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
  WatchedError error;
  const auto import = [&](const std::string& description, sy_buffer** buffer) {
    return api.import_memory(device.handle(), description.data(), static_cast<uint32_t>(description.size()), buffer,
                             error.get());
  };
  const auto refuse = [&](const std::string& description, const std::string& what) -> Status {
    sy_buffer* handle = nullptr;
    const sy_status status = import(description, &handle);
    if (status == SY_OK) device.api()->free(device.handle(), handle);
    SY_RETURN_IF_ERROR(error.Judge(status, "import_memory of " + what));
    return ExpectStatus(status, {SY_INVALID, SY_UNSUPPORTED}, "import_memory of " + what);
  };
  const std::string& good = shared.description;
  for (const size_t bytes : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
    SY_RETURN_IF_ERROR(refuse(good.substr(0, bytes), fmt::format("{} bytes of {}", bytes, good.size())));
  }
  SY_RETURN_IF_ERROR(refuse(std::string(SY_MEMORY_DESCRIPTION_BYTES, '\0'), "zeros"));
  const Bytes noise = RandomBytes(good.size(), seed);
  SY_RETURN_IF_ERROR(refuse(std::string(noise.begin(), noise.end()), "random bytes"));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string forged = good;
    forged[i] = static_cast<char>(forged[i] ^ 0x5A);
    const std::string what = fmt::format("import_memory of a description whose byte {} was changed", i);
    sy_buffer* handle = nullptr;
    const sy_status status = import(forged, &handle);
    SY_RETURN_IF_ERROR(error.Judge(status, what));
    SY_RETURN_IF_ERROR(ExpectStatus(status, {SY_INVALID, SY_UNSUPPORTED, SY_OK}, what));
    if (status != SY_OK) continue;
    device.api()->free(device.handle(), handle);
    SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, forged));
    SY_RETURN_IF_ERROR(Annotate(ExchangeBytes(device, shared.own, device, imported, seed + i), what));
    SY_RETURN_IF_ERROR(Annotate(ExpectWithin(device, imported), what));
  }
  SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, good));
  return ExchangeBytes(device, shared.own, device, imported, seed);
}

Status CheckPeerThreads(Device& device, uint64_t seed) {
  constexpr int kThreads = 4, kRounds = 15;
  constexpr uint64_t kPart = kShared / kThreads;
  SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
  std::vector<Status> results(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      results[t] = Caught([&]() -> Status {
        for (int round = 0; round < kRounds; ++round) {
          SY_ASSIGN_OR_RETURN(const std::string description, device.Export(shared.own));
          SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, description));
          const Bytes data = RandomBytes(kPart, seed + static_cast<uint64_t>(kRounds * t + round));
          Bytes found(kPart);
          const uint64_t at = kPart * static_cast<uint64_t>(t);
          SY_RETURN_IF_ERROR(device.Upload(imported.at(at), data.data(), kPart));
          SY_RETURN_IF_ERROR(device.Download(found.data(), shared.own.at(at), kPart));
          if (found != data) return Internal("thread {} round {}: imported memory is not the owner's", t, round);
        }
        return OkStatus();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) SY_RETURN_IF_ERROR(status);
  return OkStatus();
}

Status CheckPeerLeaks(Device& device) {
  constexpr int kRounds = 120, kSettled = 20;
  uint64_t descriptors = 0, resident = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kSettled) {
      descriptors = OpenDescriptors();
      resident = ResidentBytes();
    }
    SY_ASSIGN_OR_RETURN(const SharedMemory shared, Share(device));
    SY_ASSIGN_OR_RETURN(const Buffer imported, ImportShared(device, shared.description));
    SY_RETURN_IF_ERROR(device.Fill(Stream(), imported.at(0), 1, kShared));
  }
  if (OpenDescriptors() >= descriptors + kRounds - kSettled) {
    return Internal("{} exports and imports, all freed, kept {} file descriptors", kRounds - kSettled,
                    OpenDescriptors() - descriptors);
  }
  if (ResidentBytes() > resident + (kRounds - kSettled) * kShared / 2) {
    return Internal("{} exports and imports of {} bytes, all freed, kept {} bytes", kRounds - kSettled, kShared,
                    ResidentBytes() - resident);
  }
  return OkStatus();
}

}  // namespace

void CheckPeers(Recorder& recorder, const Plugin& plugin, Device& device, uint64_t seed) {
  const auto* const api = plugin.Interface<sy_peer_v1>("peer/1");
  const auto run = [&](const char* name, auto check) {
    recorder.Run(std::string("peer/") + name, [&]() -> Status {
      if (api == nullptr) return Unimplemented(kNoPeers);
      return check();
    });
  };
  run("export", [&] { return CheckExport(device, *api); });
  run("import_here", [&] { return CheckImportHere(device, seed); });
  run("other_device", [&] { return CheckOtherDevice(plugin, device, seed); });
  run("references", [&] { return CheckReferences(device, seed); });
  run("forged", [&] { return CheckForged(device, *api, seed); });
  run("threads", [&] { return CheckPeerThreads(device, seed); });
  run("leaks", [&] { return CheckPeerLeaks(device); });
}

}  // namespace switchyard::conform
