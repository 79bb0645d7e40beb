// What a compiled plan holds. Internal to core/plan.
#pragma once

#include "core/plan/plan.h"
#include "core/plan/schedule.h"

namespace switchyard {

struct Plan::Impl {
  Graph graph;
  Device* device = nullptr;
  Device* reference = nullptr;
  Device* host = nullptr;
  PlanOptions options;
  StepSchedule schedule;
  PlanReport report;
};

}  // namespace switchyard
