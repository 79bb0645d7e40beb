// How fast a device could do what a plan asks for. Two rates bound every kernel: of multiplying and adding, and of
// moving bytes; both are measured, as no plugin tells them. A kernel is no faster than the slower of the two allows
// (Williams, Waterman, Patterson: Roofline, CACM 2009), unless its tensors stay in a cache. Not thread-safe.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/plan/plan.h"

namespace switchyard {

struct DeviceRates {
  double flops_per_s = 0;     // of a large matrix product
  double bytes_per_s = 0;     // read and written while a large f32 array is scaled into another
  DType dtype = DType::kF32;  // of the product

  double ComputeSeconds(const Cost& cost) const { return cost.flops / flops_per_s; }
  double MemorySeconds(const Cost& cost) const { return cost.bytes / bytes_per_s; }
  double LeastSeconds(const Cost& cost) const { return std::max(ComputeSeconds(cost), MemorySeconds(cost)); }
};

// Runs both, the product until a run takes 30 ms or 8192 rows, on random numbers; five times as many runs behind each
// other as take 10 ms, and takes the best. Takes up to 400 MiB of the device for a second or so, less where there is less.
StatusOr<DeviceRates> MeasureRates(Device& device, DType dtype);

// What the steps of one op family need.
struct FamilyWork {
  std::string family;
  int64_t calls = 0;
  Cost cost;
  double least_seconds = 0;  // the sum of its steps' LeastSeconds; 0 of collectives: they have another bound
  double seconds = 0;        // that they took; 0: nobody has run them
};
// One run of the plan, the longest least_seconds first.
std::vector<FamilyWork> FamiliesOf(const Plan& plan, const DeviceRates& rates);
// FamilyOf the step's op; "copy" of a copy.
std::string FamilyNameOf(const Plan& plan, const Step& step);
// Adds the work of one step to its family, and answers that.
FamilyWork& AddStep(const Plan& plan, const Step& step, const DeviceRates& rates, std::vector<FamilyWork>& families);

// "compute" or "memory", whichever takes the family longer; "" of collectives.
std::string BoundOf(const FamilyWork& work, const DeviceRates& rates);
std::string RatesText(const DeviceRates& rates);
// A line for each family and one for all: the least time that they take.
std::string EstimateText(const std::vector<FamilyWork>& families, const DeviceRates& rates);
nlohmann::ordered_json EstimateJson(const std::vector<FamilyWork>& families, const DeviceRates& rates);

}  // namespace switchyard
