#include "core/runtime/processes/meeting.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/secret.h"
#include "core/runtime/processes/handshake.h"
#include "core/runtime/processes/strangers.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// Of a visitor, for a holder that has not proved yet who it is: until it challenges, and until it proves it. To leave
// after the hello would look like the death of a member, so the second is long.
constexpr auto kChallengePatience = std::chrono::milliseconds(5000), kProofPatience = std::chrono::milliseconds(60000);

// What a hello consists of: the visitor's nonce and proof, then what is proved.
enum HelloField { kNonce, kProof, kNoun, kVersion, kNumber, kCount, kHost, kPid, kAbout, kHelloFields };

std::vector<std::string> FieldsOf(const Member& member) {
  return {member.host, std::to_string(member.pid), member.about};
}
Member MemberOf(const std::vector<std::string>& fields, size_t from) {
  return {fields[from], std::atoi(fields[from + 1].c_str()), fields[from + 2]};
}

class Holder {
 public:
  Holder(const MeetingTerms& terms, std::vector<Member>* members)
      : terms_(terms), members_(*members), links_(static_cast<size_t>(terms.count)) {
    members_.resize(static_cast<size_t>(terms.count));
  }

  StatusOr<MeetingLinks> Run(int listener, MeetingDeadline deadline) {
    Strangers strangers(listener);
    const auto started = Clock::now();
    Status problem = OkStatus();
    while (problem.ok() && present_ + 1 < terms_.count) {
      if (MillisecondsUntil(deadline) == 0)
        problem = Missing(listener, Clock::now() - started);
      else
        problem = Round(strangers, std::min(MillisecondsUntil(deadline), 100));
    }
    std::vector<std::string> list;
    for (const Member& member : members_) {
      const auto fields = FieldsOf(member);
      list.insert(list.end(), fields.begin(), fields.end());
    }
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
  Status Missing(int listener, Clock::duration waited) const {
    std::vector<int> missing;
    for (int number = 1; number < terms_.count; ++number) {
      if (links_[static_cast<size_t>(number)] == nullptr) missing.push_back(number);
    }
    const auto port = PortOf(listener);
    return DeadlineExceeded("{} of {} did not come within {:.1f} s to {} 0 on host {} port {}; {}",
                            NameNumbers(terms_.noun, missing), terms_.count,
                            std::chrono::duration<double>(waited).count(), terms_.noun, members_[0].host,
                            port.ok() ? *port : 0, terms_.advice);
  }

  // Waits a little for something to happen, and deals with it.
  Status Round(Strangers& strangers, int wait_ms) {
    std::vector<pollfd> polled;
    strangers.AddTo(&polled);
    for (const auto& link : links_) {
      if (link != nullptr) polled.push_back({link->descriptor(), POLLIN, 0});
    }
    poll(polled.data(), polled.size(), wait_ms);
    for (Strangers::Arrival& arrival : strangers.Serve()) SY_RETURN_IF_ERROR(Admit(arrival));
    for (int number = 1; number < terms_.count; ++number) {
      const auto& link = links_[static_cast<size_t>(number)];
      std::vector<Frame> early;
      if (link != nullptr && !link->Receive(&early)) {
        return Unavailable("{} died while the {}s were gathering", Name(number), terms_.noun);
      }
    }
    return OkStatus();
  }

  std::string Name(int number) const { return MemberName(terms_.noun, number, members_[static_cast<size_t>(number)]); }

  // Whether the first word of whoever came proves that it is of this run and comes to this meeting.
  bool Belongs(const Strangers::Arrival& arrival) const {
    const auto& fields = arrival.first.fields;
    if (arrival.first.type != MessageType::kHello || fields.size() != kHelloFields || fields[kNoun] != terms_.noun)
      return false;
    const std::vector<std::string> hello(fields.begin() + kNoun, fields.end());
    return SameDigest(fields[kProof], Proof(Side::kVisitor, terms_.token, arrival.nonce, fields[kNonce], hello));
  }

  // Takes the visitor in or sends it away. An error ends the meeting: only who has the token can cause it.
  Status Admit(Strangers::Arrival& arrival) {
    if (!Belongs(arrival)) {
      if (!std::exchange(turned_one_away_, true))
        LogWarning("a process without the token of this run connected to {} 0; it was sent away", terms_.noun);
      return OkStatus();
    }
    auto visitor = std::move(arrival.link);
    visitor->Trust();
    const auto& fields = arrival.first.fields;
    const std::vector<std::string> hello(fields.begin() + kNoun, fields.end());
    visitor->Send(MessageType::kProof, {Proof(Side::kHolder, terms_.token, arrival.nonce, fields[kNonce], hello)});
    visitor->Flush();
    const int number = std::atoi(fields[kNumber].c_str()), count = std::atoi(fields[kCount].c_str());
    const Member member = MemberOf(fields, kHost);
    const std::string name = MemberName(terms_.noun, number, member);
    Status problem = OkStatus();
    if (fields[kVersion] != EngineVersion()) {
      problem = FailedPrecondition("{} runs version {}, but {} 0 runs {}; install the same version on every host", name,
                                   fields[kVersion], terms_.noun, EngineVersion());
    } else if (count != terms_.count) {
      problem = InvalidArgument("{} says that there are {} {}s, but {} 0 was started with {}", name, count, terms_.noun,
                                terms_.noun, terms_.count);
    } else if (number < 1 || number >= terms_.count) {
      problem = InvalidArgument("{}: expected a number from 1 to {}", name, terms_.count - 1);
    } else if (links_[static_cast<size_t>(number)] != nullptr) {
      const Member& twin = members_[static_cast<size_t>(number)];
      problem = InvalidArgument("two processes say that they are {} {}: pid {} on host {} and pid {} on host {}",
                                terms_.noun, number, twin.pid, twin.host, member.pid, member.host);
    }
    if (!problem.ok()) {
      visitor->Send(MessageType::kFailure, {Message(problem)});
      visitor->Flush();
      return problem;
    }
    members_[static_cast<size_t>(number)] = member;
    links_[static_cast<size_t>(number)] = std::move(visitor);
    ++present_;
    return OkStatus();
  }

  const MeetingTerms& terms_;
  std::vector<Member>& members_;
  MeetingLinks links_;
  int present_ = 0;
  bool turned_one_away_ = false;
};

// The next message; nothing where the link is closed first or the deadline passes.
std::optional<Frame> NextMessage(MessageLink& link, MeetingDeadline deadline) {
  std::vector<Frame> messages;
  while (link.Receive(&messages, 1) && messages.empty() && MillisecondsUntil(deadline) > 0) {
    pollfd readable{link.descriptor(), POLLIN, 0};
    poll(&readable, 1, MillisecondsUntil(deadline));
  }
  if (messages.empty()) return std::nullopt;
  return std::move(messages[0]);
}

// Both sides prove who they are. Unavailable: nobody answers; FailedPrecondition: whoever listens there has no proof.
Status Greet(const MeetingTerms& terms, const std::vector<std::string>& hello, const std::string& place,
             MeetingDeadline deadline, MessageLink& link) {
  const Status silent = Unavailable("{} 0 at {} does not answer", terms.noun, place);
  const Status stranger = FailedPrecondition(
      "{} closed the connection; does {} 0 of the same run listen there, with the same token?", place, terms.noun);
  auto patience = std::min(deadline, Clock::now() + kChallengePatience);
  const auto challenge = NextMessage(link, patience);
  if (!challenge && Clock::now() >= patience) return silent;
  if (!challenge || challenge->type != MessageType::kChallenge || challenge->fields.size() != 1) return stranger;
  const std::string nonce = NewNonce();
  std::vector<std::string> fields = {nonce, Proof(Side::kVisitor, terms.token, challenge->fields[0], nonce, hello)};
  fields.insert(fields.end(), hello.begin(), hello.end());
  link.Send(MessageType::kHello, fields);
  link.Flush();
  patience = std::min(deadline, Clock::now() + kProofPatience);
  const auto proof = NextMessage(link, patience);
  if (!proof && Clock::now() >= patience) return silent;
  const bool known =
      proof && proof->type == MessageType::kProof && proof->fields.size() == 1 &&
      SameDigest(proof->fields[0], Proof(Side::kHolder, terms.token, challenge->fields[0], nonce, hello));
  return known ? OkStatus() : stranger;
}

// One visit. OK: the list has come. kCancelled: the holder's last word, in its own words. Else another try may help.
Status VisitOnce(const MeetingTerms& terms, const std::vector<std::string>& hello, const std::string& address, int port,
                 MeetingDeadline deadline, std::unique_ptr<MessageLink>* link, std::vector<Member>* members) {
  SY_ASSIGN_OR_RETURN(const int descriptor, ConnectTo(address, port, std::min(MillisecondsUntil(deadline), 2000)));
  *link = std::make_unique<MessageLink>(descriptor, kLargestFrameOfStrangers);
  SY_RETURN_IF_ERROR(Greet(terms, hello, fmt::format("{} port {}", address, port), deadline, **link));
  (*link)->Trust();
  const auto answer = NextMessage(**link, deadline);
  if (answer && answer->type == MessageType::kFailure && answer->fields.size() == 1)
    return Status(absl::StatusCode::kCancelled, answer->fields[0]);
  if (!answer && MillisecondsUntil(deadline) == 0)
    return Unavailable("{} 0 at {} port {} does not answer", terms.noun, address, port);
  if (!answer || answer->type != MessageType::kWelcome || answer->fields.size() != static_cast<size_t>(terms.count) * 3)
    return FailedPrecondition("{} 0 at {} port {} has left the meeting", terms.noun, address, port);
  members->clear();
  for (size_t from = 0; from < answer->fields.size(); from += 3) members->push_back(MemberOf(answer->fields, from));
  return OkStatus();
}

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
  std::vector<std::string> hello = {terms.noun, EngineVersion(), std::to_string(number), std::to_string(terms.count)};
  for (const std::string& field : FieldsOf(self)) hello.push_back(field);
  // A little longer than number 0 waits, so that its word on who is missing arrives.
  deadline +=
      std::clamp<Clock::duration>(deadline - Clock::now(), std::chrono::milliseconds(100), std::chrono::seconds(2));
  Status last = Unavailable("{} 0 gave no address", terms.noun);
  for (int pause_ms = 20; MillisecondsUntil(deadline) > 0; pause_ms = std::min(2 * pause_ms, 300)) {
    for (const std::string& address : addresses) {
      std::unique_ptr<MessageLink> link;
      const Status visited = VisitOnce(terms, hello, address, port, deadline, &link, members);
      if (visited.ok()) return link;
      if (absl::IsCancelled(visited)) return Unavailable("{}", Message(visited));
      // Having been turned away says more than that nobody is there any more.
      if (!absl::IsFailedPrecondition(last)) last = visited;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return DeadlineExceeded("{} {} found no {} 0 in time: {}; {}", terms.noun, number, terms.noun, Message(last),
                          terms.advice);
}

}  // namespace switchyard
