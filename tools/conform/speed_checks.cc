#include "tools/conform/speed_checks.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "tools/conform/op_cases.h"
#include "tools/conform/op_data.h"

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kLaunchLimit = 10;  // µs of host time for a kernel of a few elements

// Ops of which no case can be prepared in that dtype.
std::set<std::string> Missing(Device& device, sy_dtype dtype, const std::set<std::string>& wanted) {
  std::set<std::string> missing = wanted;
  for (const OpCase& one : OpCases()) {
    if (missing.count(one.op) && PrepareOp(device, MakeProblem(one, dtype, 1)).ok()) missing.erase(one.op);
  }
  return missing;
}

Status Complain(const std::set<std::string>& missing) {
  return missing.empty() ? OkStatus() : Unimplemented("no kernel for {}", fmt::join(missing, ", "));
}

Status CheckLaunch(Device& device) {
  constexpr int kBatches = 15, kLaunches = 200;
  const auto& cases = OpCases();
  const auto one = std::find_if(cases.begin(), cases.end(), [](auto& c) { return c.id() == "pointwise/one_element"; });
  const Problem problem = MakeProblem(*one, SY_F32, 1);
  SY_ASSIGN_OR_RETURN(const Kernel kernel, PrepareOp(device, problem));
  SY_ASSIGN_OR_RETURN(auto bound, BoundOp::Make(device, problem, kernel, {}));
  SY_RETURN_IF_ERROR(bound->Fill());
  std::vector<double> microseconds;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = Clock::now();
    for (int i = 0; i < kLaunches; ++i) SY_RETURN_IF_ERROR(bound->Launch());
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kLaunches);
    SY_RETURN_IF_ERROR(bound->Collect().status());
  }
  std::nth_element(microseconds.begin(), microseconds.begin() + kBatches / 2, microseconds.end());
  const double median = microseconds[kBatches / 2];
  if (median <= kLaunchLimit) return OkStatus();
  return Unimplemented("a launch takes {:.1f} µs of host time, at most {} is fast", median, kLaunchLimit);
}

}  // namespace

void CheckSpeed(Recorder& recorder, Device& device) {
  recorder.Run("fast/all_ops", [&] {
    std::vector<std::string> names = OpNames();
    std::erase_if(names, MadeByFusion);
    return Complain(Missing(device, SY_F32, {names.begin(), names.end()}));
  });
  recorder.Run("fast/half", [&]() -> Status {
    const std::set<std::string> wanted = {"matmul", "attention", "attention_backward", "layer_norm", "pointwise"};
    const uint64_t dtypes = device.info().dtypes;
    if (!(dtypes & (1u << SY_BF16 | 1u << SY_F16))) return Unimplemented("neither bf16 nor f16");
    return Complain(Missing(device, dtypes & (1u << SY_BF16) ? SY_BF16 : SY_F16, wanted));
  });
  recorder.Run("fast/launch", [&] { return CheckLaunch(device); });
}

}  // namespace switchyard::conform
