#include "core/runtime/processes/greeting.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "core/base/logging.h"
#include "core/base/secret.h"
#include "core/runtime/processes/handshake.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// Of a visitor, for a holder that has not proved yet who it is: until it challenges, and until it proves it. To leave
// after the hello would look like the death of a member, so the second is long.
constexpr auto kChallengePatience = std::chrono::milliseconds(5000), kProofPatience = std::chrono::milliseconds(60000);

constexpr size_t kNonce = 0, kProof = 1, kFirstOfHello = 2;  // fields of the message

// What the list says of one member. As the frame's own header, in the byte order of these machines.
struct ListedMember {
  uint32_t kind, pid, via;
};

// The list of members; false where it is none of `count`.
bool MembersIn(const std::vector<std::string>& fields, int count, std::vector<Member>* members) {
  const auto size = static_cast<size_t>(count);
  const size_t kinds = fields.size() / 2;
  if (fields.size() % 2 != 1 || fields.back().size() != size * sizeof(ListedMember)) return false;
  members->clear();
  members->reserve(size);
  for (size_t at = 0; at < size; ++at) {
    ListedMember listed;
    std::memcpy(&listed, fields.back().data() + at * sizeof listed, sizeof listed);
    if (listed.kind >= kinds || listed.via >= size) return false;
    members->push_back({fields[2 * listed.kind], static_cast<int>(listed.pid), fields[2 * listed.kind + 1],
                        static_cast<int>(listed.via)});
  }
  return true;
}

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

}  // namespace

std::vector<std::string> HelloOf(const MeetingTerms& terms, int number, const Member& self) {
  return {terms.noun,
          EngineVersion(),
          std::to_string(number),
          std::to_string(terms.count),
          self.host,
          std::to_string(self.pid),
          self.about};
}

Member MemberOf(const std::vector<std::string>& hello) {
  const int number = std::atoi(hello[kNumber].c_str());
  return {hello[kHost], std::atoi(hello[kPid].c_str()), hello[kAbout], number};
}

std::optional<std::vector<std::string>> HelloIn(const MeetingTerms& terms, const Strangers::Arrival& arrival) {
  const auto& fields = arrival.first.fields;
  if (arrival.first.type != MessageType::kHello || fields.size() != kFirstOfHello + kHelloFields ||
      fields[kFirstOfHello + kNoun] != terms.noun)
    return std::nullopt;
  std::vector<std::string> hello(fields.begin() + kFirstOfHello, fields.end());
  if (!SameDigest(fields[kProof], Proof(Side::kVisitor, terms.token, arrival.nonce, fields[kNonce], hello)))
    return std::nullopt;
  return hello;
}

std::unique_ptr<MessageLink> LetIn(const MeetingTerms& terms, Strangers::Arrival& arrival) {
  auto visitor = std::move(arrival.link);
  visitor->Trust();
  const auto& fields = arrival.first.fields;
  const std::vector<std::string> hello(fields.begin() + kFirstOfHello, fields.end());
  visitor->Send(MessageType::kProof, {Proof(Side::kHolder, terms.token, arrival.nonce, fields[kNonce], hello)});
  visitor->Flush();
  return visitor;
}

Status Greet(const MeetingTerms& terms, const std::vector<std::string>& hello, const std::string& place,
             MeetingDeadline deadline, MessageLink& link) {
  const Status silent = Unavailable("{} 0 at {} does not answer", terms.noun, place);
  const Status stranger = FailedPrecondition(
      "{} closed the connection; does {} 0 of the same run listen there, with the same token?", place, terms.noun);
  auto patience = std::min(deadline, Clock::now() + kChallengePatience);
  const auto challenge = NextMessage(link, patience);
  if (!challenge && Clock::now() >= patience) return silent;
  if (!challenge || challenge->type != MessageType::kChallenge || challenge->fields.size() != 1) return stranger;
  SY_ASSIGN_OR_RETURN(const std::string nonce, NewNonce());
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
  if (known) link.Trust();
  return known ? OkStatus() : stranger;
}

StatusOr<std::unique_ptr<MessageLink>> VisitHolder(const MeetingTerms& terms, const std::vector<std::string>& hello,
                                                   const std::string& address, int port, MeetingDeadline deadline) {
  SY_ASSIGN_OR_RETURN(const int descriptor, ConnectTo(address, port, std::min(MillisecondsUntil(deadline), 2000)));
  auto link = std::make_unique<MessageLink>(descriptor, kLargestFrameOfStrangers);
  SY_RETURN_IF_ERROR(Greet(terms, hello, fmt::format("{} port {}", address, port), deadline, *link));
  return link;
}

Status AwaitVerdict(const MeetingTerms& terms, const std::string& place, MeetingDeadline deadline, MessageLink& link,
                    std::vector<Member>* members) {
  const auto said = NextMessage(link, deadline);
  if (said) return HearVerdict(terms, *said, members);
  if (MillisecondsUntil(deadline) == 0) return Unavailable("{} 0 at {} does not answer", terms.noun, place);
  return FailedPrecondition("{} 0 at {} has left the meeting", terms.noun, place);
}

std::string DiedWhileGathering(const MeetingTerms& terms, const std::string& name) {
  return fmt::format("{} died while the {}s were gathering", name, terms.noun);
}

Status HearVerdict(const MeetingTerms& terms, const Frame& said, std::vector<Member>* members) {
  if (said.type == MessageType::kFailure && said.fields.size() == 1)
    return Status(absl::StatusCode::kCancelled, said.fields[0]);
  if (said.type == MessageType::kWelcome && MembersIn(said.fields, terms.count, members)) return OkStatus();
  return FailedPrecondition("{} 0 says what nobody understands", terms.noun);
}

std::vector<std::string> FieldsOf(const std::vector<Member>& members) {
  std::map<std::pair<std::string, std::string>, uint32_t> kinds;
  std::vector<std::string> fields;
  std::string list;
  for (const Member& member : members) {
    const auto [kind, is_new] = kinds.try_emplace({member.host, member.about}, static_cast<uint32_t>(kinds.size()));
    if (is_new) {
      fields.push_back(member.host);
      fields.push_back(member.about);
    }
    const ListedMember listed{kind->second, static_cast<uint32_t>(member.pid), static_cast<uint32_t>(member.via)};
    list.append(reinterpret_cast<const char*>(&listed), sizeof listed);
  }
  fields.push_back(std::move(list));
  return fields;
}

Status VisitUntil(const MeetingTerms& terms, int number, const std::vector<std::string>& places,
                  MeetingDeadline deadline, const std::function<Status(const std::string&, MeetingDeadline)>& visit) {
  // A little longer than number 0 waits, so that its word on who is missing arrives.
  deadline +=
      std::clamp<Clock::duration>(deadline - Clock::now(), std::chrono::milliseconds(100), std::chrono::seconds(2));
  Status last = Unavailable("{} 0 gave no address", terms.noun);
  auto say_at = terms.patience ? Clock::now() + *terms.patience : Clock::time_point::max();
  for (int pause_ms = 20; MillisecondsUntil(deadline) > 0; pause_ms = std::min(2 * pause_ms, 300)) {
    for (const std::string& place : places) {
      const Status visited = visit(place, deadline);
      if (visited.ok()) return visited;
      if (absl::IsCancelled(visited)) return Unavailable("{}", Message(visited));
      // Having been turned away says more than that nobody is there any more.
      if (!absl::IsFailedPrecondition(last)) last = visited;
    }
    if (Clock::now() >= say_at) {
      say_at = Clock::time_point::max();
      LogWarning("{} {} has found no {} 0 yet and tries for {} s more at most: {}", terms.noun, number, terms.noun,
                 MillisecondsUntil(deadline) / 1000, Message(last));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return DeadlineExceeded("{} {} found no {} 0 in time: {}; {}", terms.noun, number, terms.noun, Message(last),
                          terms.advice);
}

}  // namespace switchyard
