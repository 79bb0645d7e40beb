// How the ranks of PeerMemory come together: each offers a window, reaches those of the others, and moves patterns both
// ways before anybody relies on it. After every step all ranks hear how it went for each, so that they leave together.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "core/base/logging.h"
#include "core/base/text.h"
#include "core/runtime/collectives/peer_memory.h"

namespace switchyard {
namespace {

constexpr int kFreedMs = 30000;  // for the others to free what they have of this rank
constexpr char kYes = 'y', kNo = 'n';
constexpr uint64_t kProbeBytes = (uint64_t{64} << 10) + 13;  // of a pattern: pages, and a part of one

// What `writer` leaves at `place`, a number of the probe: no two are alike, nor any two parts of one.
std::string PatternOf(int writer, uint64_t place) {
  std::string bytes(kProbeBytes, '\0');
  uint64_t state = 0x9E3779B97F4A7C15u * (place * 64 + static_cast<uint64_t>(writer) + 1);
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

}  // namespace

StatusOr<std::vector<std::string>> PeerMemory::Tell(const std::string& what, const std::string& own) {
  const auto key = [&](int rank) { return fmt::format("peer/{}/{}/{}", request_.name, what, rank); };
  SY_RETURN_IF_ERROR(rendezvous_.Put(key(request_.rank), own));
  std::vector<std::string> all;
  for (int rank = 0; rank < request_.size; ++rank) {
    SY_ASSIGN_OR_RETURN(std::string theirs, rendezvous_.Get(key(rank), request_.timeout_ms));
    all.push_back(std::move(theirs));
  }
  return all;
}

StatusOr<bool> PeerMemory::Agree(const std::string& what, const Status& own) {
  SY_ASSIGN_OR_RETURN(const auto answers, Tell(what, own.ok() ? std::string(1, kYes) : kNo + own.ToString()));
  for (int rank = 0; rank < request_.size; ++rank) {
    const std::string& answer = answers[static_cast<size_t>(rank)];
    if (answer.starts_with(kYes)) continue;
    if (request_.rank == 0)
      LogInfo("collectives go through host memory: {} on rank {}: {}", what, rank, answer.substr(1));
    return false;
  }
  return true;
}

StatusOr<std::unique_ptr<PeerMemory>> PeerMemory::Join(const Request& request, Rendezvous& rendezvous) {
  std::unique_ptr<PeerMemory> peers(new PeerMemory(request, rendezvous));
  std::string own(1, kNo);
  if (request.wanted && request.size <= kMostRanks && request.device->reaches_peers() && peers->MakeWindow().ok()) {
    const auto description = request.device->Export(peers->window(request.rank));
    if (description.ok()) own = kYes + *description;
  }
  if (own[0] == kNo) {  // which the others hear; this rank need not hear them
    peers->windows_.clear();
    SY_RETURN_IF_ERROR(rendezvous.Put(fmt::format("peer/{}/window/{}", request.name, request.rank), own));
    return nullptr;
  }
  const auto descriptions = peers->Tell("window", own);
  const bool offered = descriptions.ok() && std::all_of(descriptions->begin(), descriptions->end(),
                                                        [](const auto& theirs) { return theirs.starts_with(kYes); });
  if (!offered) {
    peers->windows_.clear();  // nobody has it
    if (!descriptions.ok()) return descriptions.status();
    return nullptr;
  }
  using Step = Status (PeerMemory::*)();
  constexpr std::pair<const char*, Step> kSteps[] = {{"writes of the own window", &PeerMemory::MarkOwn},
                                                     {"reads of the others' windows", &PeerMemory::ReadOthers},
                                                     {"writes to the others' windows", &PeerMemory::MarkOthers},
                                                     {"reads of what the others wrote", &PeerMemory::ReadOwn}};
  SY_ASSIGN_OR_RETURN(bool all, peers->Agree("imports of the others' windows", peers->ReachOthers(*descriptions)));
  for (const auto& [name, step] : kSteps) {
    if (!all) return nullptr;
    SY_ASSIGN_OR_RETURN(all, peers->Agree(name, ((*peers).*step)()));
  }
  if (!all) return nullptr;
  SY_ASSIGN_OR_RETURN(const auto sums, peers->Tell("sums", std::to_string(peers->sums_of_)));
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    uint32_t theirs = 0;
    if (!absl::SimpleAtoi(sums[rank], &theirs))
      return DataLoss(
          "rank {} tells the sums of its device as '{}', expected a number; are all ranks of the same version?", rank,
          Printable(sums[rank]));
    peers->sums_of_ &= theirs;
  }
  return peers;
}

Status PeerMemory::MakeWindow() {
  windows_.resize(static_cast<size_t>(request_.size));
  const uint64_t block = MostOfBlock();
  Buffer& own = windows_[static_cast<size_t>(request_.rank)];
  SY_ASSIGN_OR_RETURN(own, request_.device->AllocateExportable(kWindowBytes + block));
  SY_ASSIGN_OR_RETURN(slots_, request_.device->Allocate(block * static_cast<uint64_t>(request_.size)));
  // Of one element, of an odd number and of the most that a part has: what a device takes may depend on it.
  for (const int32_t dtype : {SY_F32, SY_BF16, SY_F16}) {
    const uint64_t most = block / BytesOf(dtype);
    if (MakeSum(dtype, 1).ok() && MakeSum(dtype, 1003).ok() && MakeSum(dtype, most).ok()) sums_of_ |= 1u << dtype;
  }
  return OkStatus();
}

Status PeerMemory::ReachOthers(const std::vector<std::string>& descriptions) {
  for (int rank = 0; rank < request_.size; ++rank) {
    if (rank == request_.rank) continue;
    Buffer& theirs = windows_[static_cast<size_t>(rank)];
    SY_ASSIGN_OR_RETURN(theirs, request_.device->ImportPeer(descriptions[static_cast<size_t>(rank)].substr(1),
                                                            kWindowBytes + MostOfBlock()));
  }
  return OkStatus();
}

// The owner's patterns lie at both ends and in the middle, at an address that no line begins at; those of the others,
// by rank, in the first part of the blocks.
std::vector<uint64_t> PeerMemory::OwnerPlaces() const {
  const uint64_t bytes = kWindowBytes + MostOfBlock();
  return {0, bytes / 2 + 1, bytes - kProbeBytes};
}

uint64_t PeerMemory::PlaceOf(int writer) const { return Align(kProbeBytes) * static_cast<uint64_t>(writer); }

Status PeerMemory::MarkOwn() {
  const std::vector<uint64_t> places = OwnerPlaces();
  for (size_t i = 0; i < places.size(); ++i) {
    SY_RETURN_IF_ERROR(
        request_.device->Upload(window(request_.rank).at(places[i]), PatternOf(request_.rank, i).data(), kProbeBytes));
  }
  return OkStatus();
}

Status PeerMemory::Expect(sy_place place, const std::string& pattern, int writer) {
  std::string found(pattern.size(), '\0');
  SY_RETURN_IF_ERROR(request_.device->Download(found.data(), place, found.size()));
  return found == pattern ? OkStatus() : Internal("what rank {} wrote does not arrive", writer);
}

Status PeerMemory::ReadOthers() {
  const std::vector<uint64_t> places = OwnerPlaces();
  for (int rank = 0; rank < request_.size; ++rank) {
    for (size_t i = 0; i < places.size(); ++i)
      SY_RETURN_IF_ERROR(Expect(window(rank).at(places[i]), PatternOf(rank, i), rank));
  }
  return OkStatus();
}

Status PeerMemory::MarkOthers() {
  for (int rank = 0; rank < request_.size; ++rank) {
    const std::string pattern = PatternOf(request_.rank, 3 + static_cast<uint64_t>(rank));
    SY_RETURN_IF_ERROR(request_.device->Upload(window(rank).at(PlaceOf(request_.rank)), pattern.data(), kProbeBytes));
  }
  return OkStatus();
}

Status PeerMemory::ReadOwn() {
  for (int writer = 0; writer < request_.size; ++writer) {
    SY_RETURN_IF_ERROR(Expect(window(request_.rank).at(PlaceOf(writer)),
                              PatternOf(writer, 3 + static_cast<uint64_t>(request_.rank)), writer));
  }
  return OkStatus();
}

PeerMemory::~PeerMemory() {
  if (windows_.empty()) return;
  for (int rank = 0; rank < request_.size; ++rank) {
    if (rank != request_.rank) windows_[static_cast<size_t>(rank)].reset();
  }
  const auto key = [&](int rank) { return fmt::format("peer/{}/freed/{}", request_.name, rank); };
  Status status = rendezvous_.Put(key(request_.rank), "");
  for (int rank = 0; rank < request_.size && status.ok(); ++rank)
    status = rendezvous_.Get(key(rank), kFreedMs).status();
  if (!status.ok()) request_.device->KeepMemory();
}

}  // namespace switchyard
