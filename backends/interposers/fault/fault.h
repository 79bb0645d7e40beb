// Makes one thing go wrong in a plugin, so that what the engine does about it can be tested on healthy hardware:
// grammar.h says what, where and when. A delay holds the caller; a call that is lost answers SY_OK without running; a
// wrong launch runs, and then has the first element of its first output (where the device copies no less, the first
// bytes that it can copy) overwritten, in order on its stream. The first call that is struck is logged as a warning.
// Thread-safe.
#pragma once

#include <atomic>

#include "backends/interposers/around.h"
#include "backends/interposers/fault/grammar.h"

namespace switchyard {

template <auto One, auto... Others>
inline constexpr bool kOneOf = (std::is_same_v<Call<One>, Call<Others>> || ...);

// Which kind of call a function counts as; Site::kDeviceLost stands for any other that a device answers.
template <auto Function>
constexpr Site SiteOf() {
  if (!kCanFail<Function> || kOneOf<Function, &sy_device_v2::count, &sy_device_v2::query>) return Site::kNone;
  if (kOneOf<Function, &sy_device_v2::alloc, &sy_memory_ext_v2::host_alloc>) return Site::kAlloc;
  if (kOneOf<Function, &sy_device_v2::copy, &sy_device_v2::fill>) return Site::kCopy;
  if (kOneOf<Function, &sy_launch_table::launch>) return Site::kLaunch;
  if (kOneOf<Function, &sy_kernel_v2::prepare, &sy_region_v2::prepare>) return Site::kPrepare;
  if (kOneOf<Function, &sy_kernel_v2::bind>) return Site::kBind;
  if (kOneOf<Function, &sy_device_v2::synchronize, &sy_device_v2::event_synchronize>) return Site::kSynchronize;
  if (kOneOf<Function, &sy_collective_v2::send_recv_batch, &sy_collective_v2::all_reduce,
             &sy_collective_v2::reduce_scatter, &sy_collective_v2::all_gather, &sy_collective_v2::broadcast,
             &sy_collective_v2::all_to_all, &sy_collective_v2::barrier>) {
    return Site::kCollective;
  }
  return kIsOf<Function, sy_collective_v2> ? Site::kNone : Site::kDeviceLost;
}

class Fault : public Wrapped {
 public:
  Fault(const sy_instance& interposer, const sy_plugin& inner, FaultPlan plan)
      : Wrapped(interposer, inner), plan_(std::move(plan)) {}

  template <auto Function, typename... Arguments>
  auto Around(Call<Function> call, Arguments... arguments) {
    if constexpr (!kCanFail<Function>) {
      Forward(call, arguments...);
    } else {
      if (!Strikes(SiteOf<Function>(), kName<Function>)) return Forward(call, arguments...);
      if (plan_.effect == Effect::kFail) return Fail(kName<Function>, ErrorOf(arguments...));
      if (plan_.effect == Effect::kLost) {
        (NoRequest(arguments), ...);
        return sy_status{SY_OK};
      }
      if (plan_.effect == Effect::kDelay) Delay();
      const sy_status status = Forward(call, arguments...);
      if constexpr (kIsOf<Function, sy_launch_table>) {
        if (plan_.effect == Effect::kWrong && status == SY_OK) return Corrupt(arguments...);
      }
      return status;
    }
  }

 private:
  // Counts the call; true if it is one of those that go wrong.
  bool Strikes(Site site, const char* function);
  sy_status Fail(const char* function, sy_error* error) const;
  void Delay() const;
  sy_status Corrupt(sy_bound* bound, sy_stream* stream, sy_error* error);
  // A collective that did not run has no request to poll.
  static void NoRequest(sy_request** request) { *request = nullptr; }
  template <typename Other>
  static void NoRequest(Other) {}

  const FaultPlan plan_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace switchyard
