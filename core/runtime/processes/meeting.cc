#include "core/runtime/processes/meeting.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/processes/greeting.h"
#include "core/runtime/processes/poller.h"
#include "core/runtime/processes/strangers.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

class Holder {
 public:
  Holder(const MeetingTerms& terms, std::vector<Member>* members)
      : terms_(terms),
        members_(*members),
        links_(static_cast<size_t>(terms.count)),
        present_(static_cast<size_t>(terms.count)),
        awaited_(static_cast<size_t>(terms.count), true) {
    members_.resize(static_cast<size_t>(terms.count));
    awaited_[0] = false;
    for (const int number : terms.gone) awaited_[static_cast<size_t>(number)] = false;
    absent_ = static_cast<int>(std::count(awaited_.begin(), awaited_.end(), true));
  }

  StatusOr<MeetingLinks> Run(int listener, MeetingDeadline deadline) {
    SY_ASSIGN_OR_RETURN(poller_, Poller::Make());
    Strangers strangers(listener);
    const auto started = Clock::now();
    Status problem = OkStatus();
    while (problem.ok() && !AllCame()) {
      const bool is_late = MillisecondsUntil(deadline) == 0;
      if (is_late && terms_.least && came_ + 1 >= *terms_.least) break;
      if (terms_.patience && !said_whom_ && Clock::now() - started >= *terms_.patience) {
        said_whom_ = true;
        LogWarning("{} 0 on host {} waits for {} of {}, {} s more at most", terms_.noun, members_[0].host,
                   NameNumbers(terms_.noun, Absent()), terms_.count, MillisecondsUntil(deadline) / 1000);
      }
      if (is_late)
        problem = Missing(listener, Clock::now() - started);
      else
        problem = Round(strangers, std::min(MillisecondsUntil(deadline), 100));
    }
    const std::vector<std::string> list = FieldsOf(members_);
    if (problem.ok() && !MessageLink::Fits(list))
      problem = ResourceExhausted("the list of {} {}s is longer than a message may be", terms_.count, terms_.noun);
    for (const auto& link : links_) {
      if (link == nullptr) continue;
      if (problem.ok())
        link->Send(MessageType::kWelcome, list);
      else
        link->Send(MessageType::kFailure, {Message(problem)});
      link->Flush();
    }
    if (!problem.ok()) return problem;
    return std::move(links_);
  }

 private:
  bool AllCame() const { return came_ + 1 >= terms_.least.value_or(1) && absent_ == 0; }

  std::vector<int> Absent() const {
    std::vector<int> absent;
    for (int number = 1; number < terms_.count; ++number) {
      if (awaited_[static_cast<size_t>(number)] && !present_[static_cast<size_t>(number)]) absent.push_back(number);
    }
    return absent;
  }

  Status Missing(int listener, Clock::duration waited) const {
    const auto port = PortOf(listener);
    return DeadlineExceeded("{} of {} did not come within {:.1f} s to {} 0 on host {} port {}; {}",
                            NameNumbers(terms_.noun, Absent()), terms_.count,
                            std::chrono::duration<double>(waited).count(), terms_.noun, members_[0].host,
                            port.ok() ? *port : 0, terms_.advice);
  }

  // Waits a little for something to happen, and deals with it.
  Status Round(Strangers& strangers, int wait_ms) {
    std::vector<pollfd> polled{{poller_->descriptor(), POLLIN, 0}};
    strangers.AddTo(&polled);
    poll(polled.data(), polled.size(), wait_ms);
    for (const int number : poller_->Wait(0)) SY_RETURN_IF_ERROR(Listen(number));
    for (Strangers::Arrival& arrival : strangers.Serve()) SY_RETURN_IF_ERROR(Greet(arrival));
    return OkStatus();
  }

  // What a member says before the meeting ends is about those for whom it relays.
  Status Listen(int number) {
    std::vector<Frame> said;
    const bool alive = links_[static_cast<size_t>(number)]->Receive(&said);
    for (const Frame& frame : said) {
      if (frame.type == MessageType::kFailure && frame.fields.size() == 1) return Unavailable("{}", frame.fields[0]);
      if (frame.type == MessageType::kJoin && frame.fields.size() == kHelloFields)
        SY_RETURN_IF_ERROR(Admit(frame.fields, number));
    }
    if (alive) return OkStatus();
    const std::string died = DiedWhileGathering(terms_, Name(number));
    if (!terms_.least) return Unavailable("{}", died);
    LogWarning("{}; the others wait for it to come again", died);
    poller_->Forget(links_[static_cast<size_t>(number)]->descriptor());
    links_[static_cast<size_t>(number)].reset();
    members_[static_cast<size_t>(number)] = {};
    SetPresent(number, false);
    return OkStatus();
  }

  std::string Name(int number) const { return MemberName(terms_.noun, number, members_[static_cast<size_t>(number)]); }

  // Takes the visitor in or sends it away. An error ends the meeting: only who has the token can cause it.
  Status Greet(Strangers::Arrival& arrival) {
    const auto hello = HelloIn(terms_, arrival);
    if (!hello) {
      if (!std::exchange(turned_one_away_, true))
        LogWarning("a process without the token of this run connected to {} 0; it was sent away", terms_.noun);
      return OkStatus();
    }
    auto visitor = LetIn(terms_, arrival);
    const int number = MemberOf(*hello).via;
    const Status admitted = Admit(*hello, number);
    if (!admitted.ok()) {
      visitor->Send(MessageType::kFailure, {Message(admitted)});
      visitor->Flush();
      return admitted;
    }
    if (!poller_->Watch(visitor->descriptor(), number))
      return Unavailable("cannot watch the connection to {}: {}", Name(number), std::strerror(errno));
    links_[static_cast<size_t>(number)] = std::move(visitor);
    return OkStatus();
  }

  Status Admit(const std::vector<std::string>& fields, int via) {
    const int number = std::atoi(fields[kNumber].c_str()), count = std::atoi(fields[kCount].c_str());
    Member member = MemberOf(fields);
    member.via = via;
    const std::string name = MemberName(terms_.noun, number, member);
    if (fields[kVersion] != EngineVersion())
      return FailedPrecondition("{} runs version {}, but {} 0 runs {}; install the same version on every host", name,
                                fields[kVersion], terms_.noun, EngineVersion());
    if (count != terms_.count)
      return InvalidArgument("{} says that there are {} {}s, but {} 0 was started with {}", name, count, terms_.noun,
                             terms_.noun, terms_.count);
    if (number < 1 || number >= terms_.count)
      return InvalidArgument("{}: expected a number from 1 to {}", name, terms_.count - 1);
    if (const Member& twin = members_[static_cast<size_t>(number)]; present_[static_cast<size_t>(number)])
      return InvalidArgument("two processes say that they are {} {}: pid {} on host {} and pid {} on host {}",
                             terms_.noun, number, twin.pid, twin.host, member.pid, member.host);
    members_[static_cast<size_t>(number)] = std::move(member);
    SetPresent(number, true);
    return OkStatus();
  }

  void SetPresent(int number, bool present) {
    present_[static_cast<size_t>(number)] = present;
    came_ += present ? 1 : -1;
    if (awaited_[static_cast<size_t>(number)]) absent_ += present ? -1 : 1;
  }

  const MeetingTerms& terms_;
  std::vector<Member>& members_;
  MeetingLinks links_;
  std::unique_ptr<Poller> poller_;       // of the links
  std::vector<bool> present_, awaited_;  // by number
  int came_ = 0, absent_ = 0;            // present; awaited and not present
  bool turned_one_away_ = false, said_whom_ = false;
};

}  // namespace

std::string MemberName(const std::string& noun, int number, const Member& member) {
  return fmt::format("{} {} (pid {} on host {})", noun, number, member.pid, member.host);
}

std::string NameNumbers(const std::string& noun, const std::vector<int>& numbers) {
  std::string text = noun + (numbers.size() == 1 ? " " : "s ");
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", first > 0 ? ", " : "", numbers[first]);
    if (last > first) text += fmt::format("{}{}", last > first + 1 ? "-" : ", ", numbers[last]);
    first = last + 1;
  }
  return text;
}

StatusOr<MeetingLinks> HoldMeeting(const MeetingTerms& terms, int listener, MeetingDeadline deadline,
                                   std::vector<Member>* members) {
  return Holder(terms, members).Run(listener, deadline);
}

StatusOr<std::unique_ptr<MessageLink>> AttendMeeting(const MeetingTerms& terms, int number, const Member& self,
                                                     const std::vector<std::string>& addresses, int port,
                                                     MeetingDeadline deadline, std::vector<Member>* members) {
  const std::vector<std::string> hello = HelloOf(terms, number, self);
  const auto patience = 2 * std::chrono::milliseconds(MillisecondsUntil(deadline));
  std::unique_ptr<MessageLink> link;
  const auto visit = [&](const std::string& address, MeetingDeadline until) -> Status {
    SY_ASSIGN_OR_RETURN(link, VisitHolder(terms, hello, address, port, until));
    until = std::max(until, Clock::now() + patience);
    return AwaitVerdict(terms, fmt::format("{} port {}", address, port), until, *link, members);
  };
  SY_RETURN_IF_ERROR(VisitUntil(terms, number, addresses, deadline, visit));
  return link;
}

}  // namespace switchyard
