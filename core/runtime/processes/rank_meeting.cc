#include "core/runtime/processes/rank_meeting.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/secret.h"
#include "core/runtime/processes/descriptors.h"
#include "core/runtime/processes/meeting.h"
#include "core/runtime/processes/pmix_bootstrap.h"
#include "core/runtime/processes/relay.h"
#include "core/runtime/processes/token.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// Equal on two ranks where they can share memory and abstract sockets: boot id and network namespace.
std::string NodeIdentity() {
  std::string node;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), node);
  char space[64] = {};
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) > 0) node += space;
  return node.empty() ? HostName() : node;
}

// Where rank 0 listens, and the token of the run.
struct Place {
  std::vector<std::string> addresses;
  int port = 0;
  std::string token;
};

// Slurm's ranks know an address anyhow; where it offers PMIx as well, and the user gave neither an address nor a token,
// PMIx hands out both.
StatusOr<bool> UsesPmix(const ProcessMap& processes) {
  if (!pmix::Offered()) return false;
  if (!processes.master_address) return true;
  if (processes.launcher != "slurm" || Environment("MASTER_ADDR")) return false;
  SY_ASSIGN_OR_RETURN(const auto given, GivenToken());
  return !given.has_value();
}

// Several Rendezvous may follow each other in one process.
std::string NextKey() {
  static int count = 0;
  return fmt::format("switchyard-{}", count++);
}

// Where rank 0 listens without PMIx: on one node the loopback is enough, whatever its name says. "" = every address.
std::string AddressToListenOn(const ProcessMap& processes) {
  if (processes.master_address && IsLoopback(*processes.master_address)) return *processes.master_address;
  return processes.one_node ? "127.0.0.1" : "";
}

// Runs of one user are told apart by the launcher's word for them, where it has one.
StatusOr<std::string> TokenOf(const ProcessMap& processes) {
  SY_ASSIGN_OR_RETURN(const std::string token, FindToken(!AddressToListenOn(processes).empty()));
  return Hexadecimal(HmacSha256(token, "switchyard run " + processes.run_id));
}

// The socket at which our own launcher listens for rank 0, so that nobody else can take the port; -1 where there is
// none. It is taken over: once it is closed, nobody listens there.
int TakeInheritedSocket(int port) {
  static std::atomic<bool> taken{false};
  const auto inherited = EnvironmentInt("SWITCHYARD_MASTER_SOCKET");
  if (!inherited || taken.exchange(true)) return -1;
  int listens = 0;
  socklen_t length = sizeof listens;
  const bool own = getsockopt(*inherited, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
  if (!own || PortOf(*inherited).value_or(0) != port) return -1;
  fcntl(*inherited, F_SETFD, FD_CLOEXEC);
  return *inherited;
}

Status NoAddress(const ProcessMap& processes) {
  return FailedPrecondition(
      "{} ranks were started by {}, which does not say where rank 0 listens{}; set MASTER_ADDR and MASTER_PORT, or use "
      "switchyard launch",
      processes.world, processes.launcher, pmix::WhyNotOffered());
}

// Opens rank 0's listening socket and tells the others where it is.
StatusOr<int> OpenMeeting(const ProcessMap& processes, std::string* token) {
  SY_ASSIGN_OR_RETURN(const bool uses_pmix, UsesPmix(processes));
  if (uses_pmix) {
    SY_RETURN_IF_ERROR(pmix::Start());
    SY_ASSIGN_OR_RETURN(const int opened, ListenOn(processes.one_node ? "127.0.0.1" : "", 0));
    Descriptor listener(opened);
    SY_ASSIGN_OR_RETURN(const int port, PortOf(listener.get()));
    SY_ASSIGN_OR_RETURN(*token, RandomToken());
    std::string text = fmt::format("{} {}", port, *token);
    for (const std::string& address : processes.one_node ? std::vector<std::string>{"127.0.0.1"} : OwnAddresses())
      text += " " + address;
    SY_RETURN_IF_ERROR(pmix::Publish(NextKey(), text));
    return listener.release();
  }
  if (!processes.master_address) return NoAddress(processes);
  SY_ASSIGN_OR_RETURN(*token, TokenOf(processes));
  if (const int inherited = TakeInheritedSocket(processes.master_port); inherited >= 0) return inherited;
  const auto listener = ListenOn(AddressToListenOn(processes), processes.master_port);
  if (listener.ok()) return listener;
  return Annotate(listener.status(), "rank 0 (another run may be there already; choose another MASTER_PORT)");
}

StatusOr<Place> FindMeeting(const ProcessMap& processes, int timeout_ms) {
  Place place;
  SY_ASSIGN_OR_RETURN(const bool uses_pmix, UsesPmix(processes));
  if (!uses_pmix) {
    if (!processes.master_address) return NoAddress(processes);
    const std::string loopback = AddressToListenOn(processes);
    place.addresses = {loopback.empty() ? *processes.master_address : loopback};
    place.port = processes.master_port;
    SY_ASSIGN_OR_RETURN(place.token, TokenOf(processes));
    return place;
  }
  SY_RETURN_IF_ERROR(pmix::Start());
  SY_ASSIGN_OR_RETURN(const std::string text, pmix::LookUp(NextKey(), 0, timeout_ms));
  std::istringstream words(text);
  words >> place.port >> place.token;
  for (std::string address; words >> address;) place.addresses.push_back(address);
  return place;
}

void Fill(ProcessMap& processes, const std::vector<Member>& members) {
  std::map<std::string, int> nodes;
  processes.hosts.clear();
  processes.host_names.clear();
  processes.pids.clear();
  processes.local_world = processes.local_rank = 0;
  for (int rank = 0; rank < processes.world; ++rank) {
    const Member& member = members[rank];
    // Neighbours mostly follow each other.
    const bool as_before = rank > 0 && member.about == members[rank - 1].about;
    processes.hosts.push_back(as_before ? processes.hosts.back()
                                        : nodes.emplace(member.about, static_cast<int>(nodes.size())).first->second);
    processes.host_names.push_back(member.host);
    processes.pids.push_back(member.pid);
  }
  processes.nodes = static_cast<int>(nodes.size());
  processes.node = processes.hosts[processes.rank];
  for (int rank = 0; rank < processes.world; ++rank) {
    if (processes.hosts[rank] != processes.node) continue;
    ++processes.local_world;
    if (rank < processes.rank) ++processes.local_rank;
  }
}

}  // namespace

StatusOr<RankMeeting> MeetRanks(ProcessMap& processes, int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  const std::string node = processes.node_identity ? *processes.node_identity : NodeIdentity();
  const Member self{HostName(), getpid(), node, processes.rank};
  RankMeeting meeting;
  meeting.links.resize(processes.world);
  std::vector<Member> members = {self};
  SY_ASSIGN_OR_RETURN(const std::string token, RandomToken());
  MeetingTerms terms{"rank", processes.world, token,
                     processes.rank == 0 ? "see the output of the missing, and check that every rank was started"
                                         : "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT are its own"};
  if (processes.world > 1 && processes.rank == 0) {
    // A connection for each rank of this node and one a node, as far as the launcher has said which these are; it may
    // turn out that no rank relays, so there is room for all where there can be.
    const Status for_all =
        MakeRoomForDescriptors(processes.world, fmt::format("the connections of rank 0 to {} ranks", processes.world));
    if (processes.one_node) SY_RETURN_IF_ERROR(for_all);
    if (!for_all.ok())
      SY_RETURN_IF_ERROR(
          MakeRoomForDescriptors(processes.local_world + processes.nodes,
                                 fmt::format("the connections of rank 0 to {} ranks of this node and {} nodes",
                                             processes.local_world, processes.nodes)));
    SY_ASSIGN_OR_RETURN(const int listener, OpenMeeting(processes, &terms.token));
    auto links = HoldMeeting(terms, listener, deadline, &members);
    close(listener);
    SY_RETURN_IF_ERROR(links.status());
    meeting.links = std::move(*links);
  } else if (processes.world > 1) {
    SY_ASSIGN_OR_RETURN(const Place place, FindMeeting(processes, timeout_ms));
    terms.token = place.token;
    if (processes.one_node) {
      SY_ASSIGN_OR_RETURN(meeting.links[0],
                          AttendMeeting(terms, processes.rank, self, place.addresses, place.port, deadline, &members));
    } else {
      SY_RETURN_IF_ERROR(MakeRoomForDescriptors(
          processes.local_world, fmt::format("the connections of a relay to {} ranks", processes.local_world)));
      SY_ASSIGN_OR_RETURN(meeting.links, AttendThroughRelay(terms, processes.rank, self, place.addresses, place.port,
                                                            node, deadline, &members));
    }
  }
  for (const Member& member : members) meeting.via.push_back(member.via);
  meeting.key = HmacSha256(terms.token, "switchyard store");
  Fill(processes, members);
  return meeting;
}

StatusOr<std::vector<RankMeeting>> MeetThreads(std::vector<ProcessMap>& processes) {
  const int world = static_cast<int>(processes.size());
  const std::vector<Member> members(processes.size(), {HostName(), getpid(), NodeIdentity()});
  std::vector<RankMeeting> meetings(processes.size());
  SY_ASSIGN_OR_RETURN(const std::string key, RandomToken());
  for (int rank = 0; rank < world; ++rank) {
    ProcessMap& map = processes[rank];
    map.launcher = "threads";
    map.rank = rank;
    map.world = world;
    map.threads = map.one_node = true;
    Fill(map, members);
    meetings[rank].key = key;
    meetings[rank].links.resize(processes.size());
    meetings[rank].via.resize(processes.size());
    std::iota(meetings[rank].via.begin(), meetings[rank].via.end(), 0);
    if (rank == 0) continue;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
      return Internal("socketpair for rank {}: {}", rank, std::strerror(errno));
    meetings[0].links[rank] = std::make_unique<MessageLink>(ends[0]);
    meetings[rank].links[0] = std::make_unique<MessageLink>(ends[1]);
  }
  return meetings;
}

}  // namespace switchyard
