#include "core/plan/profile.h"

#include <algorithm>
#include <set>

namespace switchyard {
namespace {

double SecondsOf(uint64_t start_ns, uint64_t end_ns) { return 1e-9 * static_cast<double>(end_ns - start_ns); }

// Process 0 and thread 0 are the kernel's idle task to Perfetto, which shows them in ways of their own, so both are
// counted from 1 (https://github.com/google/perfetto/issues/394). The thread with the number of its process is the main
// one, which comes first: the host's.
int ProcessOf(int rank) { return 1 + rank; }
int ThreadOf(int rank, int track) { return ProcessOf(rank) + track; }
constexpr int kHostTrack = 0;
int TrackOf(const Step& step) { return 1 + kHostTrack + step.stream; }

nlohmann::ordered_json TraceEvent(const std::string& name, const std::string& category, int rank, int track,
                                  uint64_t start_ns, uint64_t end_ns) {
  return {{"ph", "X"},
          {"name", name},
          {"cat", category},
          {"pid", ProcessOf(rank)},
          {"tid", ThreadOf(rank, track)},
          {"ts", static_cast<double>(start_ns) / 1e3},
          {"dur", static_cast<double>(end_ns - start_ns) / 1e3}};
}

nlohmann::ordered_json TrackName(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"},
          {"name", what},
          {"pid", ProcessOf(rank)},
          {"tid", ThreadOf(rank, track)},
          {"args", {{"name", name}}}};
}

// Of what the device reaches. A family that is faster than that works in caches, or was measured in a better moment:
// how much faster says nothing.
std::string Share(double share) { return share > 1 ? ">100 %" : fmt::format("{:.1f} %", 100 * share); }

}  // namespace

void Profile::BeginUpdate(int64_t number) {
  update_ = number;
  updates_.push_back({fmt::format("update {}", number), Instance::Now(), 0});
}

void Profile::EndUpdate() { updates_.back().end_ns = Instance::Now(); }

void Profile::Add(const std::string& name, const Plan& plan, const std::vector<Instance::Timing>& timings) {
  runs_.push_back({name, &plan, update_, timings});
}

void Profile::Waited(const std::string& what, double seconds) {
  const uint64_t now = Instance::Now();
  waits_.push_back({what, now - static_cast<uint64_t>(1e9 * seconds), now});
}

double Profile::seconds() const {
  double seconds = 0;
  for (const Span& update : updates_) seconds += SecondsOf(update.start_ns, update.end_ns);
  return seconds;
}

std::vector<FamilyWork> Profile::Families(const DeviceRates& rates) const {
  std::vector<FamilyWork> families;
  for (const Run& run : runs_) {
    for (const Instance::Timing& timing : run.timings) {
      FamilyWork& work =
          AddStep(*run.plan, run.plan->schedule().steps[static_cast<size_t>(timing.step)], rates, families);
      work.seconds += SecondsOf(timing.start_ns, timing.end_ns);
    }
  }
  std::stable_sort(families.begin(), families.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return families;
}

std::string Profile::TraceJson(int rank) const {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  std::set<int> tracks;
  for (const Span& update : updates_)
    events.push_back(TraceEvent(update.name, "update", rank, kHostTrack, update.start_ns, update.end_ns));
  for (const Span& wait : waits_)
    events.push_back(TraceEvent("wait for " + wait.name, "wait", rank, kHostTrack, wait.start_ns, wait.end_ns));
  for (const Run& run : runs_) {
    for (const Instance::Timing& timing : run.timings) {
      const Step& step = run.plan->schedule().steps[static_cast<size_t>(timing.step)];
      const Node& node = run.plan->graph().node(step.node);
      tracks.insert(TrackOf(step));
      const std::string family = FamilyNameOf(*run.plan, step);
      nlohmann::ordered_json event = TraceEvent(step.kind == Step::kCopy ? "copy" : node.op, family, rank,
                                                TrackOf(step), timing.start_ns, timing.end_ns);
      event["args"] = {{"node", node.name},    {"family", family},         {"plan", run.name},
                       {"update", run.update}, {"bytes", step.cost.bytes}, {"flops", step.cost.flops},
                       {"stream", step.stream}};
      if (!node.outputs.empty()) event["args"]["output"] = ToString(node.outputs[0]);
      if (step.kind == Step::kFallback) event["args"]["plugin"] = "reference";
      events.push_back(std::move(event));
    }
  }
  events.push_back(TrackName("process_name", rank, kHostTrack, fmt::format("rank {}", rank)));
  events.push_back(TrackName("thread_name", rank, kHostTrack, "host"));
  for (const int track : tracks) {
    const int stream = track - 1 - kHostTrack;
    events.push_back(TrackName("thread_name", rank, track,
                               stream == kComputeStream ? "computing"
                               : stream < kFirstCommunicationStream
                                   ? StreamName(stream)
                                   : fmt::format("communication of group {}", stream - CommunicationStream(0))));
  }
  return nlohmann::ordered_json({{"traceEvents", events}, {"displayTimeUnit", "ms"}}).dump() + "\n";
}

std::string Profile::Table(const DeviceRates& rates) const {
  const auto count = static_cast<double>(std::max<int64_t>(updates(), 1));
  std::string text =
      fmt::format("{} updates, each step waited for: {:.3f} ms per update\n", updates(), 1e3 * seconds() / count);
  text += RatesText(rates);
  text += fmt::format("{:<16}{:>7}{:>11}{:>8}{:>11}{:>9}{:>9}{:>9}  {:<9}{:>8}\n", "family", "calls", "ms", "share",
                      "GFLOP/s", "of peak", "GB/s", "of copy", "bound", "of it");
  double left = seconds();
  for (const FamilyWork& work : Families(rates)) {
    left -= work.seconds;
    const std::string bound = BoundOf(work, rates);
    text += fmt::format("{:<16}{:>7}{:>11.3f}{:>6.1f} %{:>11.1f}{:>9}{:>9.2f}{:>9}  {:<9}{:>8}\n", work.family,
                        work.calls / updates(), 1e3 * work.seconds / count, 100 * work.seconds / seconds(),
                        work.cost.flops / work.seconds / 1e9, Share(rates.ComputeSeconds(work.cost) / work.seconds),
                        work.cost.bytes / work.seconds / 1e9, Share(rates.MemorySeconds(work.cost) / work.seconds),
                        bound, bound.empty() ? "" : Share(work.least_seconds / work.seconds));
  }
  text +=
      fmt::format("{:<16}{:>7}{:>11.3f}{:>6.1f} %\n", "between them", "", 1e3 * left / count, 100 * left / seconds());
  const bool cached = text.find(">100 %") != std::string::npos;
  return text + (cached ? ">100 %: faster than a large array or product here, as what stays in a cache is\n" : "");
}

nlohmann::ordered_json Profile::ToJson(const DeviceRates& rates) const {
  const auto count = static_cast<double>(std::max<int64_t>(updates(), 1));
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (const FamilyWork& work : Families(rates)) {
    lines.push_back({{"family", work.family},
                     {"calls", work.calls / updates()},
                     {"ms", 1e3 * work.seconds / count},
                     {"share", work.seconds / seconds()},
                     {"gflops", work.cost.flops / work.seconds / 1e9},
                     {"gb_per_s", work.cost.bytes / work.seconds / 1e9},
                     {"bound", BoundOf(work, rates)},
                     {"least_ms", 1e3 * work.least_seconds / count}});
  }
  return {{"updates", updates()},
          {"ms", 1e3 * seconds() / count},
          {"peak_gflops", rates.flops_per_s / 1e9},
          {"peak_gb_per_s", rates.bytes_per_s / 1e9},
          {"families", lines}};
}

}  // namespace switchyard
