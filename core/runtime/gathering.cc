#include "core/runtime/gathering.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/pmix_bootstrap.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using Links = std::vector<std::unique_ptr<MessageLink>>;

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

struct Identity {
  std::string
      node;  // equal on two ranks where they can share memory and abstract sockets: boot id and network namespace
  std::string host;
  int pid = 0;
};

Identity OwnIdentity() {
  Identity self{"", HostName(), getpid()};
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), self.node);
  char space[64] = {};
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) > 0) self.node += space;
  if (self.node.empty()) self.node = self.host;
  return self;
}

// Where rank 0 listens, and the word that tells a rank of this run from a stranger.
struct Meeting {
  std::vector<std::string> addresses;
  int port = 0;
  std::string token;
};

std::string RandomToken() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

bool UsesPmix(const ProcessMap& processes) { return processes.master_address.empty() && pmix::Offered(); }

// Several Rendezvous may follow each other in one process.
std::string NextKey() {
  static int count = 0;
  return fmt::format("switchyard-{}", count++);
}

// Opens rank 0's listening socket and tells the others where it is.
StatusOr<int> OpenMeeting(const ProcessMap& processes, Meeting* meeting) {
  if (UsesPmix(processes)) {
    SY_RETURN_IF_ERROR(pmix::Start());
    const bool one_node = processes.local_world == processes.world;
    SY_ASSIGN_OR_RETURN(const int listener, ListenOn(one_node ? "127.0.0.1" : "", 0));
    SY_ASSIGN_OR_RETURN(const int port, PortOf(listener));
    meeting->token = RandomToken();
    std::string text = fmt::format("{} {}", port, meeting->token);
    for (const std::string& address : one_node ? std::vector<std::string>{"127.0.0.1"} : OwnAddresses())
      text += " " + address;
    SY_RETURN_IF_ERROR(pmix::Publish(NextKey(), text));
    return listener;
  }
  meeting->token = Environment("SWITCHYARD_RUN_TOKEN").value_or("");
  // Our own launcher has opened the socket already, so that nobody else can take its port.
  if (const auto inherited = EnvironmentInt("SWITCHYARD_MASTER_SOCKET")) {
    const int listener = fcntl(*inherited, F_DUPFD_CLOEXEC, 3);
    const auto port = listener >= 0 ? PortOf(listener) : StatusOr<int>(-1);
    if (port.ok() && *port == processes.master_port) return listener;
    if (listener >= 0) close(listener);
  }
  const bool local = processes.master_address == "127.0.0.1" || processes.master_address == "localhost";
  return ListenOn(local ? processes.master_address : "", processes.master_port);
}

StatusOr<Meeting> FindMeeting(const ProcessMap& processes, int timeout_ms) {
  Meeting meeting;
  if (!UsesPmix(processes)) {
    if (processes.master_address.empty()) {
      return FailedPrecondition(
          "{} ranks were started by {}, which does not say where rank 0 listens; set MASTER_ADDR and "
          "MASTER_PORT, or use switchyard launch",
          processes.world, processes.launcher);
    }
    return Meeting{{processes.master_address}, processes.master_port, Environment("SWITCHYARD_RUN_TOKEN").value_or("")};
  }
  SY_RETURN_IF_ERROR(pmix::Start());
  SY_ASSIGN_OR_RETURN(const std::string text, pmix::LookUp(NextKey(), 0, timeout_ms));
  std::istringstream words(text);
  words >> meeting.port >> meeting.token;
  for (std::string address; words >> address;) meeting.addresses.push_back(address);
  return meeting;
}

void Fill(ProcessMap& processes, const std::vector<Identity>& identities) {
  std::map<std::string, int> nodes;
  processes.hosts.clear();
  processes.host_names.clear();
  processes.pids.clear();
  processes.local_world = processes.local_rank = 0;
  for (int rank = 0; rank < processes.world; ++rank) {
    const Identity& identity = identities[rank];
    processes.hosts.push_back(nodes.emplace(identity.node, static_cast<int>(nodes.size())).first->second);
    processes.host_names.push_back(identity.host);
    processes.pids.push_back(identity.pid);
    if (identity.node != identities[processes.rank].node) continue;
    ++processes.local_world;
    if (rank < processes.rank) ++processes.local_rank;
  }
  processes.nodes = static_cast<int>(nodes.size());
  processes.node = processes.hosts[processes.rank];
}

// Rank 0's side.
class Reception {
 public:
  Reception(const ProcessMap& processes, std::string token)
      : world_(processes.world), token_(std::move(token)), links_(world_), identities_(world_) {
    identities_[0] = OwnIdentity();
  }

  StatusOr<Links> Run(int listener, Clock::time_point deadline) {
    Status problem = OkStatus();
    while (problem.ok() && present_ + 1 < world_) {
      if (MillisecondsUntil(deadline) == 0)
        problem = Missing();
      else
        problem = Round(listener, std::min(MillisecondsUntil(deadline), 100));
    }
    std::vector<std::string> table;
    for (const Identity& identity : identities_) {
      table.insert(table.end(), {identity.node, identity.host, std::to_string(identity.pid)});
    }
    for (const auto& link : links_) {
      if (link == nullptr) continue;
      if (problem.ok())
        link->Send(MessageType::kWelcome, table);
      else
        link->Send(MessageType::kFailure, {Message(problem)});
      link->Flush();
    }
    if (!problem.ok()) return problem;
    return std::move(links_);
  }
  const std::vector<Identity>& identities() const { return identities_; }

 private:
  Status Missing() const {
    std::string missing;
    int count = 0;
    for (int rank = 1; rank < world_; ++rank) {
      if (links_[rank] != nullptr) continue;
      missing += fmt::format("{}{}", count++ > 0 ? ", " : "", rank);
    }
    return DeadlineExceeded(
        "rank{} {} of {} did not come in time; see {} output, and check that every rank was started",
        count > 1 ? "s" : "", missing, world_, count > 1 ? "their" : "its");
  }

  // Waits a little for something to happen, and deals with it.
  Status Round(int listener, int wait_ms) {
    std::vector<pollfd> polled{{listener, POLLIN, 0}};
    for (const auto& link : strangers_) polled.push_back({link->descriptor(), POLLIN, 0});
    for (const auto& link : links_) {
      if (link != nullptr) polled.push_back({link->descriptor(), POLLIN, 0});
    }
    poll(polled.data(), polled.size(), wait_ms);
    for (int descriptor = AcceptFrom(listener); descriptor >= 0; descriptor = AcceptFrom(listener)) {
      strangers_.push_back(std::make_unique<MessageLink>(descriptor));
    }
    for (auto& link : strangers_) {
      std::vector<Frame> messages;
      const bool alive = link->Receive(&messages, 1);
      if (!messages.empty())
        SY_RETURN_IF_ERROR(Admit(link, messages[0]));
      else if (!alive)
        link.reset();
    }
    std::erase(strangers_, nullptr);
    for (int rank = 1; rank < world_; ++rank) {
      std::vector<Frame> early;
      if (links_[rank] != nullptr && !links_[rank]->Receive(&early)) {
        return Unavailable("{} died while the ranks were gathering", Name(rank));
      }
    }
    return OkStatus();
  }

  std::string Name(int rank) const {
    return fmt::format("rank {} (pid {} on host {})", rank, identities_[rank].pid, identities_[rank].host);
  }

  // Takes the stranger behind `link` in, or sends it away (link becomes null either way).
  Status Admit(std::unique_ptr<MessageLink>& link, const Frame& hello) {
    auto visitor = std::move(link);
    const auto& fields = hello.fields;
    if (hello.type != MessageType::kHello || fields.size() != 6 || fields[2] != token_) {
      LogWarning("a process that is not of this run connected to rank 0; it was sent away");
      return OkStatus();
    }
    const int rank = std::atoi(fields[0].c_str()), world = std::atoi(fields[1].c_str());
    const Identity identity{fields[3], fields[4], std::atoi(fields[5].c_str())};
    Status problem = OkStatus();
    if (world != world_ || rank < 1 || rank >= world_) {
      problem = InvalidArgument("pid {} on host {} says that it is rank {} of {}, but rank 0 was started with {} ranks",
                                identity.pid, identity.host, rank, world, world_);
    } else if (links_[rank] != nullptr) {
      problem = InvalidArgument("two processes say that they are rank {}: pid {} on host {} and pid {} on host {}",
                                rank, identities_[rank].pid, identities_[rank].host, identity.pid, identity.host);
    }
    if (!problem.ok()) {
      visitor->Send(MessageType::kFailure, {Message(problem)});
      visitor->Flush();
      return problem;
    }
    identities_[rank] = identity;
    links_[rank] = std::move(visitor);
    ++present_;
    return OkStatus();
  }

  int world_, present_ = 0;
  std::string token_;
  Links links_, strangers_;
  std::vector<Identity> identities_;
};

// The other ranks' side: connects until it works, then waits for the table.
StatusOr<std::unique_ptr<MessageLink>> Visit(const ProcessMap& processes, Clock::time_point deadline,
                                             std::vector<Identity>* identities) {
  SY_ASSIGN_OR_RETURN(const Meeting meeting, FindMeeting(processes, MillisecondsUntil(deadline)));
  const Identity self = OwnIdentity();
  // A little longer than rank 0 waits, so that its word on who is missing arrives.
  deadline += std::chrono::seconds(2);
  Status last = Unavailable("rank 0 gave no address");
  while (MillisecondsUntil(deadline) > 0) {
    for (const std::string& address : meeting.addresses) {
      const auto connected = ConnectTo(address, meeting.port, std::min(MillisecondsUntil(deadline), 2000));
      if (!connected.ok()) {
        last = connected.status();
        continue;
      }
      auto link = std::make_unique<MessageLink>(*connected);
      link->Send(MessageType::kHello, {std::to_string(processes.rank), std::to_string(processes.world), meeting.token,
                                       self.node, self.host, std::to_string(self.pid)});
      link->Flush();
      std::vector<Frame> messages;
      for (bool alive = true; alive && messages.empty() && MillisecondsUntil(deadline) > 0;) {
        pollfd readable{link->descriptor(), POLLIN, 0};
        poll(&readable, 1, MillisecondsUntil(deadline));
        alive = link->Receive(&messages, 1);
      }
      last = Unavailable("rank 0 at {} port {} closed the connection; is it of the same run?", address, meeting.port);
      if (messages.empty()) continue;
      const auto& fields = messages[0].fields;
      if (messages[0].type == MessageType::kFailure && fields.size() == 1) return Unavailable("{}", fields[0]);
      if (messages[0].type != MessageType::kWelcome || fields.size() != static_cast<size_t>(processes.world) * 3)
        continue;
      for (size_t i = 0; i < fields.size(); i += 3) {
        identities->push_back({fields[i], fields[i + 1], std::atoi(fields[i + 2].c_str())});
      }
      return link;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return DeadlineExceeded("rank {} found no rank 0 in time: {}", processes.rank, Message(last));
}

}  // namespace

StatusOr<Links> Gather(ProcessMap& processes, int timeout_ms) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  Links links(processes.world);
  std::vector<Identity> identities;
  if (processes.world == 1) {
    identities.push_back(OwnIdentity());
  } else if (processes.rank == 0) {
    Meeting meeting;
    SY_ASSIGN_OR_RETURN(const int listener, OpenMeeting(processes, &meeting));
    Reception reception(processes, meeting.token);
    auto gathered = reception.Run(listener, deadline);
    close(listener);
    SY_RETURN_IF_ERROR(gathered.status());
    links = std::move(*gathered);
    identities = reception.identities();
  } else {
    SY_ASSIGN_OR_RETURN(links[0], Visit(processes, deadline, &identities));
  }
  Fill(processes, identities);
  return links;
}

}  // namespace switchyard
