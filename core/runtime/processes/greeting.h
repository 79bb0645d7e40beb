// What the processes of a meeting say to each other until all have come: a visitor proves that it belongs here and says
// who it is (hello), whoever lets it in proves the same, and at the end everybody gets the list of all members. Between
// meeting.h, which holds and attends meetings, and relay.h, where one visitor passes on what its neighbours say.
// Private to these two. Free functions, thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/meeting.h"
#include "core/runtime/processes/message_link.h"
#include "core/runtime/processes/strangers.h"

namespace switchyard {

// What a visitor says of itself and proves; in a message it comes after the visitor's nonce and proof.
enum HelloField { kNoun, kVersion, kNumber, kCount, kHost, kPid, kAbout, kHelloFields };
std::vector<std::string> HelloOf(const MeetingTerms& terms, int number, const Member& self);
Member MemberOf(const std::vector<std::string>& hello);

// Of who lets visitors in: the hello of whoever came; nothing where it does not prove that it is of this run and comes
// to this meeting. With LetIn the visitor is believed, and gets the proof that it came to the right place.
std::optional<std::vector<std::string>> HelloIn(const MeetingTerms& terms, const Strangers::Arrival& arrival);
std::unique_ptr<MessageLink> LetIn(const MeetingTerms& terms, Strangers::Arrival& arrival);

// Of a visitor: both sides prove who they are. Unavailable: nobody answers; FailedPrecondition: whoever listens there
// has no proof. `place` is for the words.
Status Greet(const MeetingTerms& terms, const std::vector<std::string>& hello, const std::string& place,
             MeetingDeadline deadline, MessageLink& link);
// A visit to number 0 up to that: the link to it. Errors as those of Greet.
StatusOr<std::unique_ptr<MessageLink>> VisitHolder(const MeetingTerms& terms, const std::vector<std::string>& hello,
                                                   const std::string& address, int port, MeetingDeadline deadline);
// The last word of a meeting. OK: the list of members; kCancelled: a failure, in its own words; else another visit may
// help.
Status AwaitVerdict(const MeetingTerms& terms, const std::string& place, MeetingDeadline deadline, MessageLink& link,
                    std::vector<Member>* members);
Status HearVerdict(const MeetingTerms& terms, const Frame& said, std::vector<Member>* members);

// The fields of kWelcome. Hosts, and what members say of themselves, are said once for all that have them in common, so
// that a list of W ranks takes twelve bytes a rank.
std::vector<std::string> FieldsOf(const std::vector<Member>& members);

std::string DiedWhileGathering(const MeetingTerms& terms, const std::string& name);

// Visits one place after the other, again and again, until a visit succeeds, has a last word (kCancelled) or the
// deadline passes.
Status VisitUntil(const MeetingTerms& terms, int number, const std::vector<std::string>& places,
                  MeetingDeadline deadline, const std::function<Status(const std::string&, MeetingDeadline)>& visit);

}  // namespace switchyard
