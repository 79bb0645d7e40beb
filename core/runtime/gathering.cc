#include "core/runtime/gathering.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include "core/base/environment.h"
#include "core/runtime/meeting.h"
#include "core/runtime/pmix_bootstrap.h"

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

// Where rank 0 listens, and the word that tells a rank of this run from a stranger.
struct Place {
  std::vector<std::string> addresses;
  int port = 0;
  std::string token;
};

bool UsesPmix(const ProcessMap& processes) { return processes.master_address.empty() && pmix::Offered(); }

// Several Rendezvous may follow each other in one process.
std::string NextKey() {
  static int count = 0;
  return fmt::format("switchyard-{}", count++);
}

// Opens rank 0's listening socket and tells the others where it is.
StatusOr<int> OpenMeeting(const ProcessMap& processes, std::string* token) {
  if (UsesPmix(processes)) {
    SY_RETURN_IF_ERROR(pmix::Start());
    const bool one_node = processes.local_world == processes.world;
    SY_ASSIGN_OR_RETURN(const int listener, ListenOn(one_node ? "127.0.0.1" : "", 0));
    SY_ASSIGN_OR_RETURN(const int port, PortOf(listener));
    *token = RandomToken();
    std::string text = fmt::format("{} {}", port, *token);
    for (const std::string& address : one_node ? std::vector<std::string>{"127.0.0.1"} : OwnAddresses())
      text += " " + address;
    SY_RETURN_IF_ERROR(pmix::Publish(NextKey(), text));
    return listener;
  }
  *token = processes.run_token;
  // Our own launcher has opened the socket already, so that nobody else can take its port.
  if (const auto inherited = EnvironmentInt("SWITCHYARD_MASTER_SOCKET")) {
    const int listener = fcntl(*inherited, F_DUPFD_CLOEXEC, 3);
    const auto port = listener >= 0 ? PortOf(listener) : StatusOr<int>(-1);
    if (port.ok() && *port == processes.master_port) return listener;
    if (listener >= 0) close(listener);
  }
  const auto listener =
      ListenOn(IsLoopback(processes.master_address) ? processes.master_address : "", processes.master_port);
  if (listener.ok()) return listener;
  return Annotate(listener.status(), "rank 0 (another run may be there already; choose another MASTER_PORT)");
}

StatusOr<Place> FindMeeting(const ProcessMap& processes, int timeout_ms) {
  if (!UsesPmix(processes)) {
    if (processes.master_address.empty()) {
      return FailedPrecondition(
          "{} ranks were started by {}, which does not say where rank 0 listens{}; set MASTER_ADDR and MASTER_PORT, or "
          "use switchyard launch",
          processes.world, processes.launcher, pmix::WhyNotOffered());
    }
    return Place{{processes.master_address}, processes.master_port, processes.run_token};
  }
  Place place;
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
    processes.hosts.push_back(nodes.emplace(member.about, static_cast<int>(nodes.size())).first->second);
    processes.host_names.push_back(member.host);
    processes.pids.push_back(member.pid);
    if (member.about != members[processes.rank].about) continue;
    ++processes.local_world;
    if (rank < processes.rank) ++processes.local_rank;
  }
  processes.nodes = static_cast<int>(nodes.size());
  processes.node = processes.hosts[processes.rank];
}

}  // namespace

StatusOr<std::vector<std::unique_ptr<MessageLink>>> Gather(ProcessMap& processes, int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  const Member self{HostName(), getpid(), NodeIdentity()};
  MeetingLinks links(processes.world);
  std::vector<Member> members = {self};
  MeetingTerms terms{"rank", processes.world, "",
                     processes.rank == 0 ? "see the output of the missing, and check that every rank was started"
                                         : "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT are its own"};
  if (processes.world > 1 && processes.rank == 0) {
    SY_ASSIGN_OR_RETURN(const int listener, OpenMeeting(processes, &terms.token));
    auto gathered = HoldMeeting(terms, listener, deadline, &members);
    close(listener);
    SY_RETURN_IF_ERROR(gathered.status());
    links = std::move(*gathered);
  } else if (processes.world > 1) {
    SY_ASSIGN_OR_RETURN(const Place place, FindMeeting(processes, timeout_ms));
    terms.token = place.token;
    SY_ASSIGN_OR_RETURN(links[0],
                        AttendMeeting(terms, processes.rank, self, place.addresses, place.port, deadline, &members));
  }
  Fill(processes, members);
  return links;
}

}  // namespace switchyard
