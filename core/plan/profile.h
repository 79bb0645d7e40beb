// What some updates of a run spent their time on, step by step (Instance::Record): for Perfetto (ui.perfetto.dev) and
// chrome://tracing as tracks of a rank, and by op family beside what the device could do. Each step was waited for, so
// that its time is its own: nothing overlaps as it does without. Files of several ranks become one by putting their
// events together: jq -s '{traceEvents: map(.traceEvents) | add}' profile*.json. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/plan/roofline.h"

namespace switchyard {

class Profile {
 public:
  // The steps that are added between the two are those of update `number`; what else it does shows as a gap.
  void BeginUpdate(int64_t number);
  void EndUpdate();
  // The last run of an instance of `plan`, which must outlive this.
  void Add(const std::string& name, const Plan& plan, const std::vector<Instance::Timing>& timings);
  // The host has just waited so long.
  void Waited(const std::string& what, double seconds);

  int64_t updates() const { return static_cast<int64_t>(updates_.size()); }
  double seconds() const;  // of all updates
  // Of all updates, the longest first.
  std::vector<FamilyWork> Families(const DeviceRates& rates) const;

  // Trace Event Format: pid is the rank + 1, tid 1 the host, 2 + s the stream s of the plan; times are those of the
  // steady clock, which ranks of one machine share. args of a step: node, family, plan, update, bytes, flops, output.
  std::string TraceJson(int rank) const;
  // The families of one update, with rates reached and the bound that each has, and what is left between the steps.
  std::string Table(const DeviceRates& rates) const;
  nlohmann::ordered_json ToJson(const DeviceRates& rates) const;

 private:
  struct Span {
    std::string name;
    uint64_t start_ns = 0, end_ns = 0;
  };
  struct Run {
    std::string name;
    const Plan* plan = nullptr;
    int64_t update = 0;
    std::vector<Instance::Timing> timings;
  };
  std::vector<Span> updates_, waits_;
  std::vector<Run> runs_;
  int64_t update_ = 0;
};

}  // namespace switchyard
