#include "tools/conform/capture_checks.h"

#include <chrono>
#include <string>
#include <vector>

#include "tools/conform/bound_pair.h"
#include "tools/conform/given_struct.h"

namespace switchyard::conform {
namespace {

Status ExpectValue(BoundPair& pair, float expected, const char* when) {
  SY_ASSIGN_OR_RETURN(const float found, pair.Get());
  return found == expected ? OkStatus() : Internal("{}: expected {}, found {}", when, expected, found);
}

// A graph of a plugin, released with it.
class Captured {
 public:
  explicit Captured(Device& device) : device_(device), api_(device.capture()) {}
  ~Captured() {
    if (graph_ != nullptr) api_->release(device_.handle(), graph_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  Status Record(const Stream& stream, BoundPair& pair, int times) {
    sy_error error = EmptyError();
    SY_RETURN_IF_ERROR(FromAbi(api_->begin(device_.handle(), stream.handle(), nullptr, &error), error, "begin"));
    Status launched;
    for (int i = 0; i < times && launched.ok(); ++i) launched = pair.Launch(stream);
    SY_RETURN_IF_ERROR(FromAbi(api_->end(device_.handle(), stream.handle(), &graph_, &error), error, "end"));
    SY_RETURN_IF_ERROR(launched);
    return graph_ != nullptr ? OkStatus() : Internal("end succeeded without a graph");
  }
  Status Launch(const Stream& stream) {
    sy_error error = EmptyError();
    return FromAbi(api_->launch(device_.handle(), graph_, stream.handle(), &error), error, "launch of a graph");
  }

 private:
  Device& device_;
  const sy_capture_v2* api_;
  sy_graph* graph_ = nullptr;
};

StatusOr<std::unique_ptr<BoundPair>> CapturablePair(Device& device) {
  SY_ASSIGN_OR_RETURN(auto pair, BoundPair::Make(device, "conform"));
  if (!pair->capturable()) return Unimplemented("its pointwise kernels cannot be captured");
  return pair;
}

Status CheckReplay(Device& device) {
  SY_ASSIGN_OR_RETURN(const auto pair, CapturablePair(device));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_ASSIGN_OR_RETURN(const Stream other, device.NewStream());
  SY_RETURN_IF_ERROR(pair->Set(1));
  {
    Captured graph(device);
    SY_RETURN_IF_ERROR(graph.Record(stream, *pair, 3));
    SY_RETURN_IF_ERROR(device.Synchronize(stream));
    SY_RETURN_IF_ERROR(ExpectValue(*pair, 1, "after capturing, before any launch"));
    for (int i = 0; i < 4; ++i) SY_RETURN_IF_ERROR(graph.Launch(stream));
    SY_RETURN_IF_ERROR(device.Synchronize(stream));
    SY_RETURN_IF_ERROR(ExpectValue(*pair, BoundPair::After(1, 12), "after 4 launches of 3 runs"));
    SY_RETURN_IF_ERROR(pair->Set(-5));
    SY_RETURN_IF_ERROR(graph.Launch(other));
    SY_RETURN_IF_ERROR(device.Synchronize(other));
    SY_RETURN_IF_ERROR(ExpectValue(*pair, BoundPair::After(-5, 3), "after a launch on another stream"));
    SY_RETURN_IF_ERROR(pair->Launch(stream));
    SY_RETURN_IF_ERROR(graph.Launch(stream));
    SY_RETURN_IF_ERROR(device.Synchronize(stream));
    SY_RETURN_IF_ERROR(ExpectValue(*pair, BoundPair::After(-5, 7), "after a launch alone and one of the graph"));
  }
  SY_RETURN_IF_ERROR(pair->Set(2));
  SY_RETURN_IF_ERROR(pair->Launch(stream));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  return ExpectValue(*pair, BoundPair::After(2, 1), "after the graph was released");
}

Status CheckSeveralGraphs(Device& device) {
  SY_ASSIGN_OR_RETURN(const auto pair, CapturablePair(device));
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_RETURN_IF_ERROR(pair->Set(0));
  Captured one(device), two(device);
  SY_RETURN_IF_ERROR(one.Record(stream, *pair, 1));
  SY_RETURN_IF_ERROR(two.Record(stream, *pair, 2));
  for (Captured* graph : {&one, &two, &one}) SY_RETURN_IF_ERROR(graph->Launch(stream));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  return ExpectValue(*pair, BoundPair::After(0, 4), "after launches of two graphs");
}

// All or nothing: a capture inside a capture, or a wait inside of one, is refused or spoils the capture; the stream
// goes on working.
Status CheckSpoiled(Device& device) {
  SY_ASSIGN_OR_RETURN(const auto pair, CapturablePair(device));
  const sy_capture_v2* const api = device.capture();
  for (const bool nested : {true, false}) {
    SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
    sy_error error = EmptyError();
    sy_graph* graph = nullptr;
    SY_RETURN_IF_ERROR(FromAbi(api->begin(device.handle(), stream.handle(), nullptr, &error), error, "begin"));
    const sy_status spoiled = nested ? api->begin(device.handle(), stream.handle(), nullptr, &error)
                                     : device.api()->synchronize(device.handle(), stream.handle(), nullptr, &error);
    const sy_status ended = api->end(device.handle(), stream.handle(), &graph, &error);
    if (ended == SY_OK && graph != nullptr) api->release(device.handle(), graph);
    if (nested && spoiled == SY_OK) return Internal("a second begin on a stream that is being captured succeeded");
    if (!nested) {
      SY_RETURN_IF_ERROR(ExpectStatus(spoiled, {SY_UNSUPPORTED}, "synchronize of a stream that is being captured"));
      SY_RETURN_IF_ERROR(ExpectStatus(ended, {SY_UNSUPPORTED}, "end of a capture in which something was refused"));
    }
    if (ended != SY_OK && graph != nullptr) return Internal("a capture that failed left a graph");
    // A device may count the refused call against the stream; a new one has to work.
    SY_ASSIGN_OR_RETURN(const Stream fresh, device.NewStream());
    SY_RETURN_IF_ERROR(pair->Set(3));
    SY_RETURN_IF_ERROR(Annotate(pair->Launch(fresh), "after a spoiled capture"));
    SY_RETURN_IF_ERROR(Annotate(device.Synchronize(fresh), "after a spoiled capture"));
    SY_RETURN_IF_ERROR(ExpectValue(*pair, BoundPair::After(3, 1), "after a spoiled capture"));
  }
  return OkStatus();
}

class ProfilerSession {
 public:
  ProfilerSession(const sy_profiler_v2* api, Device& device) : api_(api), device_(device) {}
  Status Start() {
    sy_error error = EmptyError();
    return FromAbi(api_->start(device_.handle(), &error), error, "start");
  }
  Status Stop() {
    sy_error error = EmptyError();
    return FromAbi(api_->stop(device_.handle(), &error), error, "stop");
  }
  // Everything, `capacity` at a time.
  StatusOr<std::vector<sy_span>> Drain(uint32_t capacity) {
    std::vector<sy_span> all, some(capacity);
    for (int round = 0; round < 1000; ++round) {
      uint32_t count = 0;
      uint64_t offset = 0;
      sy_error error = EmptyError();
      SY_RETURN_IF_ERROR(
          FromAbi(api_->drain(device_.handle(), some.data(), capacity, &count, &offset, &error), error, "drain"));
      if (count > capacity) return Internal("drain gave {} spans into room for {}", count, capacity);
      if (count == 0) return all;
      all.insert(all.end(), some.begin(), some.begin() + count);
    }
    return Internal("drain does not come to an end");
  }

 private:
  const sy_profiler_v2* api_;
  Device& device_;
};

Status CheckSpans(ProfilerSession& profiler, Device& device) {
  constexpr int kRuns = 5;
  SY_ASSIGN_OR_RETURN(const Stream stream, device.NewStream());
  SY_RETURN_IF_ERROR(profiler.Start());
  const auto began = std::chrono::steady_clock::now();
  {
    std::string tag = "conform/spans";  // the plugin keeps a copy: this one is gone when the spans are read
    SY_ASSIGN_OR_RETURN(const auto pair, BoundPair::Make(device, tag.c_str()));
    SY_RETURN_IF_ERROR(pair->Set(1));
    for (int run = 0; run < kRuns; ++run) SY_RETURN_IF_ERROR(pair->Launch(stream));
    SY_RETURN_IF_ERROR(device.Synchronize(stream));
    tag.assign(tag.size(), '?');
  }
  const uint64_t elapsed = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began).count());
  SY_ASSIGN_OR_RETURN(const auto spans, profiler.Drain(3));
  std::vector<sy_span> own;
  for (const sy_span& span : spans) {
    if (span.tag == nullptr) return Internal("a span has no tag");
    if (span.tag == std::string("conform/spans")) own.push_back(span);
  }
  if (own.size() != 2 * kRuns) {
    return Internal("{} launches left {} spans with their tag, and {} others", 2 * kRuns, own.size(),
                    spans.size() - own.size());
  }
  uint64_t busy = 0;
  for (const sy_span& span : own) {
    if (span.end_ns < span.start_ns) return Internal("a span ends {} ns before it starts", span.start_ns - span.end_ns);
    if (device.async() && span.stream != stream.handle()) return Internal("a span has another stream than its launch");
    busy += span.end_ns - span.start_ns;
  }
  if (busy > elapsed) return Internal("kernels took {} ns in spans, on the wall {} ns", busy, elapsed);
  SY_RETURN_IF_ERROR(profiler.Stop());
  SY_ASSIGN_OR_RETURN(const auto pair, BoundPair::Make(device, "conform/spans"));
  SY_RETURN_IF_ERROR(pair->Set(1));
  SY_RETURN_IF_ERROR(pair->Launch(stream));
  SY_RETURN_IF_ERROR(device.Synchronize(stream));
  SY_ASSIGN_OR_RETURN(const auto late, profiler.Drain(16));
  return late.empty() ? OkStatus() : Internal("{} spans came after stop", late.size());
}

}  // namespace

void CheckCapture(Recorder& recorder, Device& device) {
  const auto run = [&](const char* name, auto check) {
    recorder.Run(std::string("capture/") + name, [&]() -> Status {
      return device.capture() != nullptr ? check(device)
                                         : Unimplemented("no capture/2: kernels are launched one by one");
    });
  };
  run("replay", CheckReplay);
  run("several_graphs", CheckSeveralGraphs);
  run("spoiled", CheckSpoiled);
}

void CheckProfiler(Recorder& recorder, const Plugin& plugin, Device& device) {
  recorder.Run("profiler/spans", [&]() -> Status {
    const auto* const api = plugin.Interface<sy_profiler_v2>("profiler/2");
    if (api == nullptr) return Unimplemented("no profiler/2: traces show host calls only");
    ProfilerSession profiler(api, device);
    return CheckSpans(profiler, device);
  });
}

}  // namespace switchyard::conform
