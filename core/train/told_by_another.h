// An error that another rank has met and told all, as one of the run folder, which rank 0 alone writes: every rank ends
// with it, and the rank whose it is reports it. Pure functions; thread-safe.
#pragma once

#include "absl/strings/cord.h"
#include "core/base/status.h"

namespace switchyard {

inline constexpr char kToldByAnother[] = "switchyard/told_by_another_rank";

// The same error, marked.
inline Status ToldByAnother(Status status) {
  if (!status.ok()) status.SetPayload(kToldByAnother, absl::Cord());
  return status;
}
inline bool WasToldByAnother(const Status& status) { return status.GetPayload(kToldByAnother).has_value(); }

}  // namespace switchyard
