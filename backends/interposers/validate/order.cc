// What work uses, and what orders it.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

std::vector<Use>* Validate::UsesOf(const Named& named) {
  const auto look = [&](auto& objects) -> std::vector<Use>* {
    auto* const entry = objects.Find(named.handle);
    return entry == nullptr || entry->id != named.id ? nullptr : &entry->record.uses;
  };
  switch (named.kind) {
    case Named::kNothing:
      return nullptr;
    case Named::kBuffer:
      return look(buffers_);
    case Named::kBinding:
      return look(bindings_);
    case Named::kEvent:
      return look(events_);
    case Named::kGraph:
      return look(graphs_);
    case Named::kSemaphore:
      return look(semaphores_);
    case Named::kHostMemory:
      return look(host_memory_);
  }
  return nullptr;
}

void Validate::Note(std::vector<Use>& uses, const Use& use) {
  std::erase_if(uses, [&](const Use& old) { return old.line == use.line || timelines_.Finished(old.line, old.item); });
  uses.push_back(use);
}

StreamRecord* Validate::BeganCapture(uint64_t capture) {
  for (auto& [handle, entry] : streams_.live()) {
    if (entry.record.begins_capture && entry.record.capture == capture) return &entry.record;
  }
  return nullptr;
}

Use Validate::Replay(Use use, const void* graph) {
  const auto* const entry = graphs_.Find(graph);
  use.graph = graph;
  use.graph_id = entry->id;
  use.replay = entry->record.replays + 1;
  return use;
}

Submission Validate::Uses(Checked& check, Objects<StreamRecord>::Entry* stream, const char* function, Names names,
                          const Named& self, std::vector<Use>* uses_of_self) {
  if (stream == nullptr) return {};
  if (stream->record.capture != 0) {
    const uint64_t line = stream->record.capture_line, item = timelines_.Submit(line);
    if (auto* const first = BeganCapture(stream->record.capture); first != nullptr) {
      Capture& captured = first->captured;
      captured.names.insert(captured.names.end(), names->begin(), names->end());
      if (self.kind != Named::kNothing) captured.names.push_back(self);
      if (self.kind == Named::kBinding) captured.launches.push_back({self.handle, line, item});
    }
    return {.line = line, .item = item, .turn = stream->record.turn};
  }
  const uint64_t line = stream->record.line, item = timelines_.Submit(line);
  Use use{line, item, check.number(), function};
  const auto graph =
      std::find_if(names->begin(), names->end(), [](const Named& one) { return one.kind == Named::kGraph; });
  if (graph != names->end()) use = Replay(use, graph->handle);
  for (const Named& named : *names) {
    if (std::vector<Use>* const uses = UsesOf(named)) Note(*uses, use);
  }
  if (uses_of_self != nullptr) Note(*uses_of_self, use);
  return {line, item, std::move(names), self, stream->record.turn};
}

sy_status Validate::Heed(sy_device* device, sy_status status, const Submission& work) {
  if (status == SY_OK || status == SY_IN_PROGRESS) return status;
  const std::lock_guard lock(mutex_);
  if (auto* const entry = devices_.Find(device); entry != nullptr && status == SY_DEVICE_LOST)
    entry->record.lost = true;
  if (work.names == nullptr) return status;
  const auto take_back = [&](const Named& named) {
    std::vector<Use>* const uses = UsesOf(named);
    if (uses == nullptr) return;
    for (Use& use : *uses) {
      if (use.line == work.line && use.item == work.item) --use.item;  // what came before on that stream may use it
    }
  };
  std::erase_if(undecided_,
                [&](const Undecided& pair) { return pair.second.line == work.line && pair.second.item == work.item; });
  for (const Named& named : *work.names) take_back(named);
  take_back(work.self);
  return status;
}

// Two launches of one binding are ordered by a stream or a wait, and never two at once. Where one of them is behind a
// semaphore that nobody has signalled yet, the signal decides.
void Validate::CheckLaunch(Checked& check, const void* bound, Use launch, const Objects<StreamRecord>::Entry* stream) {
  const auto* const entry = bindings_.Find(bound);
  if (entry == nullptr) return;
  check.Expect(entry->record.running == 0, bindings_.Describe(bound),
               " is being launched in another thread at the same time; expected one launch after the other");
  if (stream != nullptr && stream->record.capture != 0) return CheckCaptured(check, bound, stream->record);
  if (stream != nullptr) {
    launch.line = stream->record.line;
    launch.item = timelines_.submitted(launch.line) + 1;
  }
  for (const Use& use : entry->record.uses) {
    if ((stream != nullptr && use.line == launch.line) || timelines_.Finished(use.line, use.item)) continue;
    const auto past = stream == nullptr ? Timelines::Past{} : timelines_.Before(launch.line, launch.item);
    if (Timelines::Holds(past, use.line, use.item) || IsBehindReplay(past, use, bound)) continue;
    check.Expect(IsHeld(past) || IsHeld(timelines_.Before(use.line, use.item)), bindings_.Describe(bound),
                 " is used by call ", use.call, ", ", use.function,
                 " on another stream, which nothing orders before this launch; expected an event or a wait between");
    if (check.good() && stream != nullptr) undecided_.push_back({bound, use, launch});
  }
}

// What is recorded runs in the order of the streams and of the waits inside of the capture, and in no other.
void Validate::CheckCaptured(Checked& check, const void* bound, const StreamRecord& stream) {
  const auto* const first = BeganCapture(stream.capture);
  if (first == nullptr) return;
  const auto past = timelines_.Before(stream.capture_line, timelines_.submitted(stream.capture_line));
  for (const Capture::Launch& launch : first->captured.launches) {
    check.Expect(launch.bound != bound || Timelines::Holds(past, launch.line, launch.item), bindings_.Describe(bound),
                 " is launched by the same capture on another stream, which nothing orders before this launch; "
                 "expected an event between");
  }
}

bool Validate::IsBehindReplay(const Timelines::Past& past, const Use& use, const void* bound) {
  const auto* const graph = use.graph == nullptr ? nullptr : graphs_.Find(use.graph);
  if (graph == nullptr || graph->id != use.graph_id) return false;
  const auto& names = *graph->record.names;
  const auto& events = graph->record.events;
  return std::any_of(names.begin(), names.end(), [](const Named& one) { return one.kind == Named::kSemaphore; }) ||
         std::any_of(events.begin(), events.end(), [&](const GraphEvent& event) {
           return (Timelines::Holds(past, event.line, use.replay) || timelines_.Finished(event.line, use.replay)) &&
                  std::find(event.bindings.begin(), event.bindings.end(), bound) != event.bindings.end();
         });
}

bool Validate::IsHeld(const Timelines::Past& past, const Waits& but) {
  return std::any_of(semaphores_.live().begin(), semaphores_.live().end(), [&](const auto& semaphore) {
    const auto& waits = semaphore.second.record.waits;
    return std::any_of(waits.begin(), waits.end(), [&](const auto& wait) {
      return Timelines::Holds(past, wait.line, wait.item) && std::find(but.begin(), but.end(), wait) == but.end();
    });
  });
}

// Before a signal, of the host or `on` a stream: does it let go a launch beside another of its binding?
void Validate::CheckSignal(Checked& check, const SemaphoreRecord& semaphore, uint64_t value, const StreamRecord* on) {
  Waits released;
  for (const auto& wait : semaphore.waits) {
    if (wait.value <= value) released.push_back(wait);
  }
  if (released.empty() || undecided_.empty()) return;
  if (semaphore.recorded || (on != nullptr && on->capture != 0)) return undecided_.clear();
  const auto signalled =
      on == nullptr ? Timelines::Past{} : timelines_.Before(on->line, timelines_.submitted(on->line) + 1);
  std::erase_if(undecided_, [&](const Undecided& pair) {
    const Use &first = pair.first, &second = pair.second;
    if (timelines_.Finished(first.line, first.item) || timelines_.Finished(second.line, second.item)) return true;
    bool concerned = false;
    const auto past = [&](const Use& use) {
      auto before = timelines_.Before(use.line, use.item);
      if (std::none_of(released.begin(), released.end(),
                       [&](const auto& wait) { return Timelines::Holds(before, wait.line, wait.item); }))
        return before;
      concerned = true;
      for (const auto& [line, item] : signalled) before[line] = std::max(before[line], item);
      return before;
    };
    const auto of_first = past(first), of_second = past(second);
    if (!concerned) return false;
    if (Timelines::Holds(of_first, second.line, second.item) || Timelines::Holds(of_second, first.line, first.item) ||
        IsBehindReplay(of_second, first, pair.bound) || IsBehindReplay(of_first, second, pair.bound))
      return true;
    if (IsHeld(of_first, released) || IsHeld(of_second, released)) return false;
    return check.Expect(false, bindings_.Describe(pair.bound), " is used by call ", first.call, ", ", first.function,
                        ", and on another stream by call ", second.call, ", ", second.function,
                        ": nothing else orders them, and this signal stands behind neither; expected it behind one");
  });
}

}  // namespace switchyard
