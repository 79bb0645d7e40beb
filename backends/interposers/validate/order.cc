// What may not be at work at the same time, and what has failed.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

// Two launches of one binding are ordered by a stream or a wait, and never two at once. An order that a replay's own
// events make, or a semaphore that nobody has signalled yet, is not known here and taken for one.
void Validate::CheckLaunch(Checked& check, const void* bound, const Objects<StreamRecord>::Entry* stream) {
  const auto* const entry = bindings_.Find(bound);
  if (entry == nullptr || (stream != nullptr && stream->record.capture != 0)) return;
  check.Expect(entry->record.running == 0, bindings_.Describe(bound),
               " is being launched by another thread at the same time; expected one launch after the other");
  for (const Use& use : entry->record.uses) {
    if (use.is_replay || (stream != nullptr && use.line == stream->record.line) ||
        timelines_.Finished(use.line, use.item))
      continue;
    check.Expect(stream != nullptr && MayBeBehind(stream->record.line, use), bindings_.Describe(bound),
                 " is used by call ", use.call, ", ", use.function,
                 " on another stream, which nothing orders before this launch; expected an event or a wait between");
  }
}

bool Validate::MayBeBehind(uint64_t line, const Use& use) {
  const auto before = timelines_.Before(line, timelines_.submitted(line));
  const auto holds = [&](uint64_t other, uint64_t item) {
    const auto found = before.find(other);
    return found != before.end() && found->second >= item;
  };
  if (holds(use.line, use.item)) return true;
  return std::any_of(semaphores_.live().begin(), semaphores_.live().end(), [&](const auto& semaphore) {
    const auto& waits = semaphore.second.record.waits;
    return std::any_of(waits.begin(), waits.end(), [&](const auto& wait) { return holds(wait.line, wait.item); });
  });
}

// After an event has answered `status`; `failed`: it had to be an error.
void Validate::CheckEvent(Checked& check, sy_event* event, const Recording& at, bool failed, sy_status status) {
  check.Promised(!failed || status != SY_OK, "it answered SY_OK though ", events_.Describe(event),
                 at.failed ? " has answered an error before" : " was recorded on a stream that had failed",
                 ": expected the stream's first error again");
  if (status != SY_INTERNAL && status != SY_DEVICE_LOST) return;
  timelines_.Fail(at.line);
  auto* const now = events_.Find(event);
  if (now != nullptr && now->record.line == at.line && now->record.item == at.item) now->record.failed = true;
}

}  // namespace switchyard
