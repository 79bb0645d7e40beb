#include "core/plan/schedule.h"

#include <algorithm>
#include <map>

namespace switchyard {
namespace {

constexpr int kNothing = kRunStart - 1;

// Who used each byte of an arena last.
class LastUses {
 public:
  explicit LastUses(int streams) : streams_(streams) {}

  // Step `step` on `stream` reads or writes [begin, end): appends to `before` whom it has to wait for.
  void Use(uint64_t begin, uint64_t end, bool writes, int step, int stream, std::vector<int>* before) {
    if (begin == end) return;
    Cut(begin);
    Cut(end);
    auto span = spans_.lower_bound(begin);
    for (uint64_t at = begin; at < end; ++span) {
      if (span == spans_.end() || span->first > at) {  // nobody has used these bytes
        const uint64_t until = span == spans_.end() ? end : std::min(end, span->first);
        span = spans_.emplace_hint(span, at, Span{until, kNothing, std::vector<int>(streams_, kNothing)});
      }
      before->push_back(span->second.writer);
      if (writes) {
        before->insert(before->end(), span->second.readers.begin(), span->second.readers.end());
      } else {
        span->second.readers[stream] = step;
      }
      at = span->second.end;
    }
    if (!writes) return;
    spans_.erase(spans_.lower_bound(begin), spans_.lower_bound(end));
    spans_[begin] = {end, step, std::vector<int>(streams_, kNothing)};
  }

 private:
  struct Span {
    uint64_t end;
    int writer;
    std::vector<int> readers;  // by stream, since the writer
  };

  // No span lies on both sides of `at` any more.
  void Cut(uint64_t at) {
    auto span = spans_.lower_bound(at);
    if (span == spans_.begin()) return;
    --span;
    if (span->second.end <= at) return;
    Span behind = span->second;
    span->second.end = at;
    spans_.emplace(at, std::move(behind));
  }

  const int streams_;
  std::map<uint64_t, Span> spans_;  // by first byte
};

// What is known to have finished when a step begins, or ends: by stream, the last such step.
using Clock = std::vector<int>;

// Of `candidates` (taken apart), those that `clock` does not know of; it then does.
std::vector<int> Missing(std::vector<int> candidates, const std::vector<Step>& steps, const std::vector<Clock>& ends,
                         Clock* clock) {
  // An edge leads to a later step, so what implies another candidate comes before it here.
  std::sort(candidates.rbegin(), candidates.rend());
  std::vector<int> missing;
  for (const int earlier : candidates) {
    const int stream = earlier < 0 ? kComputeStream : steps[static_cast<size_t>(earlier)].stream;
    if ((*clock)[stream] >= earlier) continue;
    missing.push_back(earlier);
    if (earlier < 0) {
      (*clock)[stream] = earlier;
      continue;
    }
    const Clock& known = ends[static_cast<size_t>(earlier)];
    for (size_t s = 0; s < clock->size(); ++s) (*clock)[s] = std::max((*clock)[s], known[s]);
  }
  std::reverse(missing.begin(), missing.end());
  return missing;
}

}  // namespace

std::string StreamName(int stream) {
  constexpr const char* kNames[] = {"compute", "store", "fetch", "host"};
  return stream < kFirstCommunicationStream ? kNames[stream]
                                            : fmt::format("group {}", stream - kFirstCommunicationStream);
}

int StepSchedule::streams() const {
  int count = 1;
  for (const Step& step : steps) count = std::max(count, step.stream + 1);
  return count;
}

int StepSchedule::edges() const {
  size_t count = at_end.size();
  for (const Step& step : steps) count += step.waits.size();
  return static_cast<int>(count);
}

std::string StepSchedule::ToText(const Graph& graph) const {
  constexpr const char* kKinds[] = {"launch", "fallback", "host", "copy", "collective"};
  const auto list = [](const std::vector<int>& waits) {
    std::string text = waits.empty() ? "" : "  after";
    for (const int earlier : waits) text += earlier == kRunStart ? " start" : fmt::format(" {}", earlier);
    return text;
  };
  std::string text;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    text += fmt::format("{:>6}  {:<12}{:<12}{}{}\n", i, StreamName(step.stream), kKinds[step.kind],
                        graph.node(step.node).name, list(step.waits));
  }
  return text + fmt::format("{:>6}  {:<12}{:<12}{}\n", "", "compute", "end", list(at_end));
}

void AddEdges(StepSchedule& schedule, const Graph& graph, bool in_turn) {
  std::vector<Step>& steps = schedule.steps;
  const int streams = schedule.streams();
  if (streams == 1) return;
  std::map<int, LastUses> uses;  // by arena
  std::vector<Clock> ends;       // by step
  ends.reserve(steps.size());
  Clock never(static_cast<size_t>(streams), kNothing);
  std::vector<Clock> now(static_cast<size_t>(streams), never);  // by stream: the end of its last step
  now[kComputeStream][kComputeStream] = kRunStart;
  std::vector<int> step_of(static_cast<size_t>(graph.size()), kNothing);
  std::vector<int> before;
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    const int self = static_cast<int>(i);
    const auto use = [&](const PlanPlace& place, bool writes) {
      uses.try_emplace(place.arena, streams)
          .first->second.Use(place.offset, place.offset + place.bytes, writes, self, step.stream, &before);
    };
    before = {in_turn ? now[kComputeStream][kComputeStream] : kRunStart};
    for (const PlanPlace& place : step.inputs) use(place, false);
    use(step.residual, true);
    for (const PlanPlace& place : step.outputs) use(place, true);
    for (const int earlier : graph.node(step.node).control) before.push_back(step_of[static_cast<size_t>(earlier)]);
    std::erase(before, self);
    Clock& clock = now[static_cast<size_t>(step.stream)];
    step.waits = Missing(std::move(before), steps, ends, &clock);
    clock[static_cast<size_t>(step.stream)] = self;
    ends.push_back(clock);
    step_of[static_cast<size_t>(step.node)] = self;
  }
  std::vector<int> last;
  for (size_t stream = 0; stream < now.size(); ++stream) last.push_back(now[stream][stream]);
  schedule.at_end = Missing(std::move(last), steps, ends, &now[kComputeStream]);
}

}  // namespace switchyard
