// How numbered processes come together at one TCP address: number 0 holds the meeting, the others attend. Each says its
// number, how many it expects, the version of its program and who it is, and learns the same of all others. The ranks
// of a run meet so, and before them the launchers of its nodes. Both sides prove first that they have the run's token
// (handshake.h). Strangers (no proof, another kind of meeting, another program) are sent away, and take little while
// they are here (strangers.h); two processes of the run with one number, another count or another version end the
// meeting for everybody, with the same words. Free functions, thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/message_link.h"

namespace switchyard {

struct MeetingTerms {
  std::string noun;    // "rank", "node": what is numbered; also tells one kind of meeting from another
  int count = 1;       // of all, the holder included
  std::string token;   // of the run: token.h
  std::string advice;  // for whoever waits in vain: "check --master_addr"
  // Of number 0: at the deadline it goes on where so many have come, number 0 included (else only with all), and it
  // does not wait for those of `gone`. Whoever is not there is a member without a pid; where `least` is given, it may
  // leave before the end, and come again.
  std::optional<int> least = {};
  std::vector<int> gone = {};
  std::optional<std::chrono::milliseconds> patience = {};  // after which who waits says once for whom; else never
};

struct Member {
  std::string host;
  int pid = 0;
  std::string about;  // what else the others should know
  int via = 0;        // whose link to number 0 it uses: its own number, unless another one relays for it (relay.h)
};

using MeetingLinks = std::vector<std::unique_ptr<MessageLink>>;  // by number
using MeetingDeadline = std::chrono::steady_clock::time_point;

// Of number 0: returns when all have come. members[0] is its own entry, the rest is filled; links[0] is null, and so is
// that of a member for whom another one relays or who did not come. Errors name the numbers that did not come by the
// deadline, or a member that died on the way. `listener` stays open.
StatusOr<MeetingLinks> HoldMeeting(const MeetingTerms& terms, int listener, MeetingDeadline deadline,
                                   std::vector<Member>* members);
// Of the others: tries `addresses` in turn until the deadline. Once let in it waits for the list of members twice as
// long as it had at the beginning, for number 0 may have begun later and waits until its own deadline.
StatusOr<std::unique_ptr<MessageLink>> AttendMeeting(const MeetingTerms& terms, int number, const Member& self,
                                                     const std::vector<std::string>& addresses, int port,
                                                     MeetingDeadline deadline, std::vector<Member>* members);

// "rank 1 (pid 4711 on host a)"
std::string MemberName(const std::string& noun, int number, const Member& member);
// "rank 3", "ranks 1-3, 7"; `numbers` ascends.
std::string NameNumbers(const std::string& noun, const std::vector<int>& numbers);

}  // namespace switchyard
