// One rank of a node stands between its neighbours and rank 0, so that rank 0 has a connection, a heartbeat and a
// message a node instead of one a rank. Ranks of one node find each other by an abstract socket, whose name nobody can
// guess who has not the run's token: the first that takes it relays, the others come to it with the same proof that
// rank 0 asks for (greeting.h), and where it goes away before all have met, another takes its place. Rank 0 relays for
// nobody and is told of all that come. The links stay for the rendezvous. Free function, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/runtime/processes/meeting.h"

namespace switchyard {

// As AttendMeeting. `node`: equal on the processes of one node, and on them alone. Links by number: of who relays, [0]
// and those of its neighbours; of the others, that to who relays (members[number].via) alone.
StatusOr<MeetingLinks> AttendThroughRelay(const MeetingTerms& terms, int number, const Member& self,
                                          const std::vector<std::string>& addresses, int port, const std::string& node,
                                          MeetingDeadline deadline, std::vector<Member>* members);

}  // namespace switchyard
