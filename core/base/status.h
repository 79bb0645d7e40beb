// Errors that the world can cause (files, memory, plugins, peers, flags) travel as absl::Status.
// A message says what was expected, what was found, and what to do. The helpers here format it with fmt:
//
//   return InvalidArgument("--batch_size: expected a positive number, found {}; try --batch_size=32", text);
//   SY_RETURN_IF_ERROR(file.Read(...));
//   SY_ASSIGN_OR_RETURN(auto plan, Compile(graph));
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace switchyard {

using absl::Status;
using absl::StatusOr;
inline Status OkStatus() { return absl::OkStatus(); }

#define SY_STATUS_HELPER(Name, Code)                                       \
  template <typename... Args>                                              \
  Status Name(fmt::format_string<Args...> format, Args&&... args) {        \
    return Status(Code, fmt::format(format, std::forward<Args>(args)...)); \
  }
SY_STATUS_HELPER(InvalidArgument, absl::StatusCode::kInvalidArgument)        // bad flag, file content or shape
SY_STATUS_HELPER(NotFound, absl::StatusCode::kNotFound)                      // missing file, plugin, dataset, model
SY_STATUS_HELPER(DataLoss, absl::StatusCode::kDataLoss)                      // truncated or corrupted bytes
SY_STATUS_HELPER(Unimplemented, absl::StatusCode::kUnimplemented)            // a plugin does not have this
SY_STATUS_HELPER(ResourceExhausted, absl::StatusCode::kResourceExhausted)    // memory, disk
SY_STATUS_HELPER(DeadlineExceeded, absl::StatusCode::kDeadlineExceeded)      // waited longer than the limit
SY_STATUS_HELPER(Unavailable, absl::StatusCode::kUnavailable)                // a peer or device is gone
SY_STATUS_HELPER(Aborted, absl::StatusCode::kAborted)                        // stopped on purpose
SY_STATUS_HELPER(FailedPrecondition, absl::StatusCode::kFailedPrecondition)  // a combination that cannot work
SY_STATUS_HELPER(Internal, absl::StatusCode::kInternal)                      // a defect of ours or of a plugin
#undef SY_STATUS_HELPER

// The message as std::string (Abseil of some distributions keeps a string_view of its own).
inline std::string Message(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}
// The same error with "context: " before its message.
inline Status Annotate(const Status& status, const std::string& context) {
  return status.ok() ? status : Status(status.code(), context + ": " + Message(status));
}

#define SY_CONCAT_INNER(a, b) a##b
#define SY_CONCAT(a, b) SY_CONCAT_INNER(a, b)
#define SY_RETURN_IF_ERROR(expression)                                              \
  do {                                                                              \
    if (::absl::Status sy_status = (expression); !sy_status.ok()) return sy_status; \
  } while (false)
#define SY_ASSIGN_OR_RETURN(lhs, expression) SY_ASSIGN_OR_RETURN_IMPL(SY_CONCAT(sy_result_, __LINE__), lhs, expression)
#define SY_ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                             \
  if (!result.ok()) return result.status();               \
  lhs = std::move(result).value()

}  // namespace switchyard
