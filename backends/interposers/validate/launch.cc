// Launches, and capture/2.
#include <algorithm>

#include "backends/interposers/validate/validate.h"

namespace switchyard {

sy_status Validate::Around(Call<&sy_launch_table::launch> call, sy_bound* bound, sy_stream* stream, sy_error* error) {
  Checked check(*this, "launch");
  if (!check.good()) return check.Refuse(error);
  auto* const entry = bindings_.Find(bound);
  if (entry == nullptr) {  // MakerOf guessed
    auto* const maker = static_cast<Validate*>(MakerOf(static_cast<const void*>(bound)));
    if (maker != this) {
      check.Leave();
      guess = maker;
      return maker->Around(call, bound, stream, error);
    }
    check.Live(bindings_, bound);
    return check.Refuse(error);
  }
  if (!entry->record.constants_written) {
    const auto& written = kernels_.Find(entry->record.kernel)->record.constants;
    entry->record.constants_written =
        std::find(written.begin(), written.end(), entry->record.constants) != written.end();
    check.Expect(entry->record.constants_written, bindings_.Describe(bound),
                 " names constants that write_constants has not written");
  }
  auto* const on = CheckStream(check, entry->record.device, stream);
  if (on != nullptr && on->record.capture != 0) {
    const auto* kernel = kernels_.Find(entry->record.kernel);
    check.Expect(kernel->record.capturable, kernels_.Describe(entry->record.kernel),
                 " is not capturable, and is launched on ", streams_.Describe(stream), " between begin and end");
  }
  CheckLaunch(check, bound, {.call = check.number(), .function = "launch"}, on);
  if (!check.good()) return check.Refuse(error);
  sy_device* const device = entry->record.device;
  const Submission work =
      Uses(check, on, "launch", entry->record.names, {Named::kBinding, bound, entry->id}, &entry->record.uses);
  const bool waits = stream == nullptr;
  entry->record.running += waits;
  check.Leave();
  const sy_status status = Heed(device, Forward(call, bound, stream, error), work);
  if (!waits) return status;
  check.Return();
  if (auto* const now = bindings_.Find(bound)) --now->record.running;
  return status;
}

sy_status Validate::Around(Call<&sy_capture_v2::begin> call, sy_device* device, sy_stream* stream,
                           const sy_capture_options* options, sy_error* error) {
  Checked check(*this, "begin of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr)
    check.Expect(entry->record.capture == 0, streams_.Describe(stream), " is being captured already");
  if (!check.good()) return check.Refuse(error);
  check.Leave();
  const sy_status status = Forward(call, device, stream, options, error);
  if (status != SY_OK) return status;
  check.Return();
  if (auto* const now = streams_.Find(stream)) {
    now->record.capture = ++captures_;
    now->record.begins_capture = true;
    now->record.capture_line = timelines_.New();
    now->record.captured = {.lines = {now->record.capture_line}};
  }
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v2::end> call, sy_device* device, sy_stream* stream, sy_graph** graph,
                           sy_error* error) {
  Checked check(*this, "end of a capture");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(streams_, stream, device);
  if (entry != nullptr) {
    check.Expect(entry->record.capture != 0, streams_.Describe(stream), " is not being captured");
    check.Expect(entry->record.capture == 0 || entry->record.begins_capture, streams_.Describe(stream),
                 " was drawn into a capture that ends where it was begun, on another stream");
  }
  if (!check.good()) return check.Refuse(error);
  const uint64_t capture = entry->record.capture;
  for (auto& [handle, other] : streams_.live()) {
    if (other.record.capture == capture) other.record.capture = 0;
  }
  entry->record.begins_capture = false;
  Capture captured = std::exchange(entry->record.captured, {});
  std::vector<GraphEvent> events = EventsOf(capture, captured);
  for (const uint64_t line : captured.lines) timelines_.Drop(line);
  check.Leave();
  const sy_status status = Forward(call, device, stream, graph, error);
  if (status != SY_OK) return status;
  check.Return();
  for (GraphEvent& event : events) event.line = timelines_.New();
  GraphState state;
  state.device = device;
  auto& added = graphs_.Add(*graph, std::move(state), check.Here());
  std::vector<Named>& names = captured.names;
  names.push_back({Named::kGraph, *graph, added.id});
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  added.record.names = Naming(std::move(names));
  added.record.events = std::move(events);
  return SY_OK;
}

sy_status Validate::Around(Call<&sy_capture_v2::launch> call, sy_device* device, sy_graph* graph, sy_stream* stream,
                           sy_error* error) {
  Checked check(*this, "launch of a graph");
  check.Live(devices_, device);
  auto* const entry = check.LiveOn(graphs_, graph, device);
  auto* const on = entry == nullptr ? nullptr : CheckStream(check, device, stream);
  if (entry != nullptr) {
    const Use launch = Replay({.call = check.number(), .function = "launch of a graph"}, graph);
    for (const Named& named : *entry->record.names) {
      if (named.kind == Named::kBinding) CheckLaunch(check, named.handle, launch, on);
    }
  }
  if (!check.good()) return check.Refuse(error);
  const Submission work = Uses(check, on, "launch of a graph", entry->record.names);
  RecordAnew(entry->record, work);
  check.Leave();
  return Heed(device, Forward(call, device, graph, stream, error), work);
}

// What an event of a capture stands behind, for whoever waits for it outside of the graph.
std::vector<GraphEvent> Validate::EventsOf(uint64_t number, const Capture& capture) {
  std::vector<GraphEvent> events;
  for (auto& [handle, entry] : events_.live()) {
    if (entry.record.capture != number) continue;
    const auto past = timelines_.Before(entry.record.line, entry.record.item);
    GraphEvent& event = events.emplace_back(GraphEvent{.event = NameOf(events_, handle)});
    event.is_last = std::all_of(capture.lines.begin(), capture.lines.end(), [&](uint64_t line) {
      return timelines_.submitted(line) == 0 || Timelines::Holds(past, line, timelines_.submitted(line));
    });
    const auto is_behind = [&](const Capture::Launch& one) {
      return std::all_of(capture.launches.begin(), capture.launches.end(), [&](const Capture::Launch& launch) {
        return launch.bound != one.bound || Timelines::Holds(past, launch.line, launch.item);
      });
    };
    for (const Capture::Launch& launch : capture.launches) {
      if (is_behind(launch)) event.bindings.push_back(launch.bound);
    }
  }
  return events;
}

// A replay records the events of its graph.
void Validate::RecordAnew(GraphState& graph, const Submission& replay) {
  if (replay.names == nullptr) return;
  ++graph.replays;
  for (const GraphEvent& one : graph.events) {
    const uint64_t item = timelines_.Submit(one.line);
    timelines_.Order(one.line, item, replay.line, one.is_last ? replay.item : replay.item - 1);
    auto* const event = events_.Find(one.event.handle);
    if (event == nullptr || event->id != one.event.id) continue;
    static_cast<Recording&>(event->record) = {.recorded = true, .replayed = true, .line = one.line, .item = item};
  }
}

void Validate::Around(Call<&sy_capture_v2::release> call, sy_device* device, sy_graph* graph) {
  Checked check(*this, "release of a graph", kNoStatus);
  check.Live(devices_, device);
  if (check.LiveOn(graphs_, graph, device) != nullptr) {
    check.Alone(graphs_, graph);
    CheckIdle(check, graphs_, graph);
  }
  if (!check.good()) return check.Report();
  graphs_.Remove(graph, check.Here());
  check.Leave();
  Forward(call, device, graph);
}

}  // namespace switchyard
