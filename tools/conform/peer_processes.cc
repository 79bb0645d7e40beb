// peer/1 between two processes, of which rank 0 owns the memory and rank 1 imports it; in the first check both do both.
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tools/conform/child.h"
#include "tools/conform/file_store.h"
#include "tools/conform/peer_checks.h"
#include "tools/conform/values.h"

namespace switchyard::conform {
namespace {

constexpr int kProcesses = 2;
constexpr uint64_t kHalf = 300007, kSharedBytes = 2 * kHalf;  // the owner writes the first half, its peer the second
constexpr uint64_t kMostPatienceMs = 20000;

Bytes HalfOf(int writer, int round) { return RandomBytes(kHalf, static_cast<uint64_t>(1000 + 10 * round + writer)); }

class PeerProcess {
 public:
  PeerProcess(const nlohmann::json& task, Device& device)
      : rank_(task.value("rank", 0)), store_(task.value("folder", "")), device_(device) {}

  Status BothWays() {
    SY_RETURN_IF_ERROR(ShareOwn());
    SY_ASSIGN_OR_RETURN(Buffer theirs, ImportTheirs());
    for (int round = 0; round < 3; ++round) {
      SY_RETURN_IF_ERROR(WriteHalf(own_.at(0), rank_, round));
      SY_RETURN_IF_ERROR(WriteHalf(theirs.at(kHalf), rank_, round));
      SY_RETURN_IF_ERROR(Meet(fmt::format("written-{}", round)));
      SY_RETURN_IF_ERROR(ExpectHalf(theirs.at(0), 1 - rank_, round, "what its owner wrote into imported memory"));
      SY_RETURN_IF_ERROR(ExpectHalf(own_.at(kHalf), 1 - rank_, round, "what a peer wrote into exported memory"));
      SY_RETURN_IF_ERROR(Meet(fmt::format("read-{}", round)));
    }
    // Imported once more while the first import is freed: the second reaches it as before.
    SY_ASSIGN_OR_RETURN(Buffer again, device_.ImportPeer(their_description_, kSharedBytes));
    theirs.reset();
    SY_RETURN_IF_ERROR(ExpectHalf(again.at(0), 1 - rank_, 2, "memory of which another import was freed"));
    again.reset();
    SY_RETURN_IF_ERROR(Meet("freed"));
    return ExpectHalf(own_.at(0), rank_, 2, "exported memory that nobody imports any more");
  }

  // The importer goes on, whatever it reads, and so does the rest of its device.
  Status OwnerDies() {
    if (rank_ == 0) {
      SY_RETURN_IF_ERROR(ShareOwn());
      SY_RETURN_IF_ERROR(WriteHalf(own_.at(0), 0, 0));
      SY_RETURN_IF_ERROR(Tell("written"));
      SY_RETURN_IF_ERROR(AwaitPeer("imported"));
      Die();
    }
    SY_ASSIGN_OR_RETURN(Buffer theirs, ImportTheirs());
    SY_RETURN_IF_ERROR(AwaitPeer("written"));
    SY_RETURN_IF_ERROR(ExpectHalf(theirs.at(0), 0, 0, "what its owner wrote into imported memory"));
    SY_RETURN_IF_ERROR(Tell("imported"));
    SY_RETURN_IF_ERROR(AwaitDeath());
    Bytes bytes(kHalf);
    for (int round = 0; round < 2; ++round) {
      (void)device_.Download(bytes.data(), theirs.at(0), kHalf);
      (void)device_.Upload(theirs.at(kHalf), bytes.data(), kHalf);
    }
    (void)device_.ImportPeer(their_description_, kSharedBytes);
    theirs.reset();
    return Annotate(UseOwnMemory(), "after the owner of imported memory died");
  }

  Status ImporterDies() {
    if (rank_ == 1) {
      SY_ASSIGN_OR_RETURN(const Buffer theirs, ImportTheirs());
      SY_RETURN_IF_ERROR(WriteHalf(theirs.at(kHalf), 1, 0));
      SY_RETURN_IF_ERROR(Tell("written"));
      Die();
    }
    SY_RETURN_IF_ERROR(ShareOwn());
    SY_RETURN_IF_ERROR(AwaitPeer("written"));
    SY_RETURN_IF_ERROR(AwaitDeath());
    SY_RETURN_IF_ERROR(ExpectHalf(own_.at(kHalf), 1, 0, "what a peer that died had written into exported memory"));
    SY_RETURN_IF_ERROR(WriteHalf(own_.at(0), 0, 1));
    SY_RETURN_IF_ERROR(ExpectHalf(own_.at(0), 0, 1, "exported memory after its importer died"));
    own_.reset();
    return Annotate(UseOwnMemory(), "after the importer of exported memory died");
  }

 private:
  std::string Key(const std::string& what, int rank) const { return fmt::format("peer-{}-{}", what, rank); }
  Status Tell(const std::string& what, const std::string& text = "yes") {
    return store_.Put(Key(what, rank_), text) ? OkStatus() : Internal("nothing can be put into the store");
  }
  StatusOr<std::string> Hear(const std::string& what) const {
    std::string text;
    if (store_.Wait(Key(what, 1 - rank_), text, kMostPatienceMs)) return text;
    return DeadlineExceeded("the other process never said \"{}\"", what);
  }
  Status AwaitPeer(const std::string& what) const { return Hear(what).status(); }
  Status Meet(const std::string& what) {
    SY_RETURN_IF_ERROR(Tell(what));
    return AwaitPeer(what);
  }
  Status AwaitDeath() const {
    std::string who;
    return store_.Wait("dead", who, kMostPatienceMs) ? OkStatus() : DeadlineExceeded("the other process did not die");
  }
  [[noreturn]] static void Die() {
    kill(getpid(), SIGKILL);
    _exit(1);
  }

  Status ShareOwn() {
    SY_ASSIGN_OR_RETURN(own_, device_.AllocateExportable(kSharedBytes));
    SY_ASSIGN_OR_RETURN(const std::string description, device_.Export(own_));
    return Tell("description", description);
  }
  StatusOr<Buffer> ImportTheirs() {
    SY_ASSIGN_OR_RETURN(their_description_, Hear("description"));
    return device_.ImportPeer(their_description_, kSharedBytes);
  }
  Status WriteHalf(sy_place place, int writer, int round) {
    return device_.Upload(place, HalfOf(writer, round).data(), kHalf);
  }
  Status ExpectHalf(sy_place place, int writer, int round, const char* what) {
    Bytes found(kHalf);
    SY_RETURN_IF_ERROR(device_.Download(found.data(), place, kHalf));
    return found == HalfOf(writer, round) ? OkStatus() : Internal("{} arrived changed", what);
  }
  Status UseOwnMemory() {
    SY_ASSIGN_OR_RETURN(const Buffer own, device_.AllocateExportable(kSharedBytes));
    SY_ASSIGN_OR_RETURN(const std::string description, device_.Export(own));
    SY_ASSIGN_OR_RETURN(const Buffer imported, device_.ImportPeer(description, kSharedBytes));
    SY_RETURN_IF_ERROR(WriteHalf(imported.at(0), rank_, 7));
    return ExpectHalf(own.at(0), rank_, 7, "memory that was exported anew");
  }

  const int rank_;
  const FileStore store_;
  Device& device_;
  Buffer own_;
  std::string their_description_;
};

struct PeerMode {
  const char* name;
  Status (PeerProcess::*run)();
  int victim;  // -1: nobody
};
constexpr PeerMode kPeerModes[] = {{"two_processes", &PeerProcess::BothWays, -1},
                                   {"owner_dies", &PeerProcess::OwnerDies, 0},
                                   {"importer_dies", &PeerProcess::ImporterDies, 1}};

Status RunTwoProcesses(const PeerMode& mode, const std::vector<int>& devices, const Plugin& plugin,
                       const Options& options) {
  SY_ASSIGN_OR_RETURN(
      const auto ranks,
      RunChildren({{"mode", "peer"}, {"plugin", plugin.path()}, {"devices", devices}, {"check", mode.name}}, kProcesses,
                  {.self = options.self, .silence_s = options.check_timeout_s}));
  Status status;
  for (int rank = 0; rank < kProcesses; ++rank) {
    for (const ChildResult& result : ranks[static_cast<size_t>(rank)]) {
      if (rank == mode.victim && result.lost) continue;  // as it should be
      // One that gives up leaves the other waiting: the cause is told.
      if (status.ok() || status.code() == absl::StatusCode::kDeadlineExceeded) status = result.status;
    }
  }
  if (status.code() == absl::StatusCode::kUnimplemented) return status;
  return Annotate(status, fmt::format("devices {} and {}", devices[0], devices[1]));
}

}  // namespace

void CheckPeerProcesses(Recorder& recorder, const Plugin& plugin, const Options& options) {
  for (const PeerMode& mode : kPeerModes) {
    recorder.Run(std::string("peer/") + mode.name, [&]() -> Status {
      SY_ASSIGN_OR_RETURN(const int count, plugin.DeviceCount());
      SY_ASSIGN_OR_RETURN(const DeviceInfo info, plugin.Describe(options.device));
      const bool shareable = info.flags & SY_DEVICE_SHAREABLE;
      if (!shareable && count < kProcesses) return Unimplemented("there is one device, and it cannot be shared");
      if (shareable) SY_RETURN_IF_ERROR(RunTwoProcesses(mode, {options.device, options.device}, plugin, options));
      if (count < kProcesses) return OkStatus();
      return RunTwoProcesses(mode, {options.device, (options.device + 1) % count}, plugin, options);
    });
  }
}

Status RunPeerProcess(const Plugin& plugin, const nlohmann::json& task) {
  const auto devices = task.value("devices", std::vector<int>{0, 0});
  const auto rank = static_cast<size_t>(task.value("rank", 0));
  if (rank >= devices.size()) return InvalidArgument("rank {} of {}", rank, devices.size());
  if (plugin.Interface<sy_peer_v1>("peer/1") == nullptr) return Unimplemented(kNoPeers);
  SY_ASSIGN_OR_RETURN(const auto device, Device::Open(plugin, devices[rank], {}));
  const std::string check = task.value("check", "");
  for (const PeerMode& mode : kPeerModes) {
    if (check == mode.name) return (PeerProcess(task, *device).*mode.run)();
  }
  return InvalidArgument("no check {}", check);
}

}  // namespace switchyard::conform
