#include "tests/doubles/mesh/collectives.h"

#include <cstring>
#include <vector>

namespace doubles {
namespace {

class Run {
 public:
  Run(Mesh& mesh, const Collective& c) : mesh_(mesh), c_(c), bytes_(c.count * BytesOf(c.type)) {}

  Outcome Go() {
    switch (c_.kind) {
      case Kind::kAllReduce:
        return Reduced(false);
      case Kind::kReduceScatter:
        return Reduced(true);
      case Kind::kAllGather:
        return mesh_.AllGather(c_.send, bytes_, c_.receive, Tag());
      case Kind::kBroadcast:
        return Broadcast();
      case Kind::kAllToAll:
        return AllToAll();
    }
    return Outcome::kAborted;
  }

 private:
  // What ranks must agree on.
  uint64_t Tag() const {
    const bool reduces = c_.kind == Kind::kAllReduce || c_.kind == Kind::kReduceScatter;
    return (static_cast<uint64_t>(c_.count) << 24) + (static_cast<uint64_t>(c_.kind) << 16) +
           (static_cast<uint64_t>(c_.type) << 8) +
           static_cast<uint64_t>(reduces ? static_cast<int>(c_.reduction) : c_.root) + 2;
  }

  // Everybody sends everybody the block that the other reduces; for all_reduce that is the whole.
  Outcome Reduced(bool scatter) {
    char* const own = static_cast<char*>(const_cast<void*>(c_.send));
    std::vector<std::vector<char>> parts(mesh_.size(), std::vector<char>(bytes_));
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < mesh_.size(); ++peer) {
      char* const given = own + (scatter ? static_cast<size_t>(peer) * bytes_ : 0);
      if (peer == mesh_.rank()) {
        std::memcpy(parts[peer].data(), given, bytes_);
        continue;
      }
      transfers.push_back({peer, true, given, bytes_, Tag()});
      transfers.push_back({peer, false, parts[peer].data(), bytes_, Tag()});
    }
    if (const Outcome outcome = mesh_.Exchange(transfers); outcome != Outcome::kDone) return outcome;
    std::vector<const void*> terms;
    for (const auto& part : parts) terms.push_back(part.data());
    Reduce(c_.receive, terms, c_.count, c_.type, c_.reduction);
    return Outcome::kDone;
  }

  Outcome Broadcast() {
    std::vector<Transfer> transfers;
    if (mesh_.rank() == c_.root) {
      if (c_.send != c_.receive) std::memmove(c_.receive, c_.send, bytes_);
      for (int peer = 0; peer < mesh_.size(); ++peer) {
        if (peer != mesh_.rank()) transfers.push_back({peer, true, c_.receive, bytes_, Tag()});
      }
    } else {
      transfers.push_back({c_.root, false, c_.receive, bytes_, Tag()});
    }
    return mesh_.Exchange(transfers);
  }

  Outcome AllToAll() {
    char* const from = static_cast<char*>(const_cast<void*>(c_.send));
    char* const to = static_cast<char*>(c_.receive);
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < mesh_.size(); ++peer) {
      transfers.push_back({peer, true, from + static_cast<size_t>(peer) * bytes_, bytes_, Tag()});
      transfers.push_back({peer, false, to + static_cast<size_t>(peer) * bytes_, bytes_, Tag()});
    }
    return mesh_.Exchange(transfers);
  }

  Mesh& mesh_;
  const Collective& c_;
  const size_t bytes_;
};

}  // namespace

Outcome RunCollective(Mesh& mesh, const Collective& collective) { return Run(mesh, collective).Go(); }

}  // namespace doubles
