// What may go wrong, where and when: the argument of --interpose=fault:ARGUMENT. One fault is CALL@N[+][:EFFECT], the
// N-th call of that kind, counted from 1 over all devices of the plugin; with + every later one too.
//
//   CALL          counts                                              effects (the first where none is named)
//   alloc         alloc, host_alloc                                   fail (out of memory), delay=MS
//   copy          copy, fill                                          delay=MS (100 where none is named), fail, lost
//   launch        launches of kernels; while a graph is captured too  lost, wrong, fail, delay=MS
//   prepare       prepare                                             fail, delay=MS
//   bind          bind                                                fail, delay=MS
//   synchronize   synchronize, event_synchronize                      fail, delay=MS
//   collective    all_reduce … barrier and send_recv_batch            fail, lost, delay=MS
//   device_lost   every call to a device that can fail, but count     fail: this one and every later one, with
//   DEVICE_LOST
//                 and query
//
// Pure, thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

enum class Site { kAlloc, kCopy, kLaunch, kPrepare, kBind, kSynchronize, kCollective, kDeviceLost, kNone };
enum class Effect { kFail, kDelay, kLost, kWrong };

struct FaultPlan {
  std::string text;  // as it was written
  Site site = Site::kNone;
  uint64_t first = 0;  // from 1
  bool onwards = false;
  Effect effect = Effect::kFail;
  uint64_t delay_ms = 0;
};

// Fills `plan`; else returns what is wrong with the text, and what was expected.
std::string ParseFault(const std::string& text, FaultPlan* plan);

}  // namespace switchyard
