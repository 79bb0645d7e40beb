#include "core/runtime/processes/relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/secret.h"
#include "core/runtime/processes/greeting.h"

namespace switchyard {
namespace {

// A socket of the abstract name, bound or connected to it; -1 with errno.
int SocketOf(const std::string& name, bool listens) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract address starts with a zero byte and is as long as its length says.
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const auto* const to = reinterpret_cast<sockaddr*>(&address);
  const bool done = made >= 0 && (listens ? bind(made, to, bytes) == 0 && listen(made, SOMAXCONN) == 0
                                          : connect(made, to, bytes) == 0);
  if (done) return made;
  const int code = errno;
  if (made >= 0) close(made);
  errno = code;
  return -1;
}

// Who relays, from its own welcome to that of all.
class Relay {
 public:
  // patience: for all others, once number 0 has let us in.
  Relay(const MeetingTerms& terms, int listener, std::chrono::milliseconds patience)
      : terms_(terms), listener_(listener), patience_(patience) {}
  ~Relay() { Close(); }

  // A visit, as VisitUntil has it: first number 0 lets us in, then we let the neighbours in.
  Status Run(const std::vector<std::string>& hello, const std::string& address, int port, MeetingDeadline deadline,
             MeetingLinks* links, std::vector<Member>* members) {
    SY_ASSIGN_OR_RETURN(upwards_, VisitHolder(terms_, hello, address, port, deadline));
    deadline = std::max(deadline, MeetingDeadline::clock::now() + patience_);
    Strangers strangers(listener_);
    while (MillisecondsUntil(deadline) > 0) {
      std::vector<pollfd> polled{{upwards_->descriptor(), POLLIN, 0}};
      for (const Neighbour& neighbour : neighbours_) polled.push_back({neighbour.link->descriptor(), POLLIN, 0});
      const size_t known = neighbours_.size();
      strangers.AddTo(&polled);
      poll(polled.data(), polled.size(), std::min(MillisecondsUntil(deadline), 100));
      for (size_t i = known; i-- > 0;) {
        if (polled[i + 1].revents != 0) Listen(i);
      }
      for (Strangers::Arrival& arrival : strangers.Serve()) Admit(arrival);
      std::vector<Frame> said;
      const bool alive = upwards_->Receive(&said, 1) && upwards_->Flush();
      if (!said.empty()) return PassOn(said[0], links, members);
      if (!alive) return FailedPrecondition("{} 0 at {} port {} has left the meeting", terms_.noun, address, port);
    }
    return Unavailable("{} 0 at {} port {} does not answer", terms_.noun, address, port);
  }

 private:
  struct Neighbour {
    int number;
    std::string name;
    std::unique_ptr<MessageLink> link;
  };

  void Close() {
    if (listener_ >= 0) close(std::exchange(listener_, -1));
  }
  // Number 0 is the judge of what neighbours say of themselves.
  void Admit(Strangers::Arrival& arrival) {
    const auto hello = HelloIn(terms_, arrival);
    if (!hello) return;
    upwards_->Send(MessageType::kJoin, *hello);
    const Member member = MemberOf(*hello);
    neighbours_.push_back({member.via, MemberName(terms_.noun, member.via, member), LetIn(terms_, arrival)});
  }
  void Listen(size_t index) {
    std::vector<Frame> early;
    if (neighbours_[index].link->Receive(&early)) return;
    upwards_->Send(MessageType::kFailure, {DiedWhileGathering(terms_, neighbours_[index].name)});
    neighbours_.erase(neighbours_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  Status PassOn(const Frame& said, MeetingLinks* links, std::vector<Member>* members) {
    Close();  // before anybody can begin another meeting
    const Status verdict = HearVerdict(terms_, said, members);
    const bool is_last_word = verdict.ok() || absl::IsCancelled(verdict);
    for (Neighbour& neighbour : neighbours_) {
      if (is_last_word) neighbour.link->Send(said.type, said.fields);
      neighbour.link->Flush();
      const bool listed = neighbour.number > 0 && neighbour.number < terms_.count;
      if (verdict.ok() && listed) (*links)[static_cast<size_t>(neighbour.number)] = std::move(neighbour.link);
    }
    if (verdict.ok()) (*links)[0] = std::move(upwards_);
    return verdict;
  }

  const MeetingTerms& terms_;
  int listener_;
  const std::chrono::milliseconds patience_;
  std::unique_ptr<MessageLink> upwards_;
  std::vector<Neighbour> neighbours_;
};

}  // namespace

StatusOr<MeetingLinks> AttendThroughRelay(const MeetingTerms& terms, int number, const Member& self,
                                          const std::vector<std::string>& addresses, int port, const std::string& node,
                                          MeetingDeadline deadline, std::vector<Member>* members) {
  const std::string name = "switchyard-" + Hexadecimal(HmacSha256(terms.token, "switchyard relay " + node));
  const std::vector<std::string> hello = HelloOf(terms, number, self);
  const auto patience = 2 * std::chrono::milliseconds(MillisecondsUntil(deadline));  // as in AttendMeeting
  MeetingLinks links(static_cast<size_t>(terms.count));
  const auto visit = [&](const std::string& address, MeetingDeadline until) -> Status {
    const std::string place = fmt::format("{} port {}", address, port);
    if (const int listener = SocketOf(name, true); listener >= 0)
      return Relay(terms, listener, patience).Run(hello, address, port, until, &links, members);
    if (errno != EADDRINUSE) return Unavailable("abstract socket {}: {}", name, std::strerror(errno));
    const int socket = SocketOf(name, false);
    if (socket < 0) return Unavailable("the {} that relays to {} on this node has left", terms.noun, place);
    auto link = std::make_unique<MessageLink>(socket, kLargestFrameOfStrangers);
    SY_RETURN_IF_ERROR(Greet(terms, hello, place + ", through another " + terms.noun + " of this node", until, *link));
    until = std::max(until, MeetingDeadline::clock::now() + patience);
    SY_RETURN_IF_ERROR(AwaitVerdict(terms, place, until, *link, members));
    links[static_cast<size_t>((*members)[static_cast<size_t>(number)].via)] = std::move(link);
    return OkStatus();
  };
  SY_RETURN_IF_ERROR(VisitUntil(terms, number, addresses, deadline, visit));
  return links;
}

}  // namespace switchyard
