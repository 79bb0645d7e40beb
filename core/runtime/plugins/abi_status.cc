#include "core/runtime/plugins/abi_status.h"

#include <cstring>
#include <iterator>

#include "core/base/text.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

std::string Text(const char* text, size_t capacity) { return Printable({text, strnlen(text, capacity)}, 2 * capacity); }

absl::StatusCode CodeOf(sy_status status) {
  switch (status) {
    case SY_UNSUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case SY_INVALID:
      return absl::StatusCode::kInvalidArgument;
    case SY_OUT_OF_MEMORY:
      return absl::StatusCode::kResourceExhausted;
    case SY_TIMEOUT:
      return absl::StatusCode::kDeadlineExceeded;
    case SY_DEVICE_LOST:
      return absl::StatusCode::kUnavailable;
    case SY_ABORTED:
      return absl::StatusCode::kAborted;
    default:
      return absl::StatusCode::kInternal;
  }
}

constexpr const char* kStatusNames[] = {"ok",          "unsupported", "invalid",        "out of memory", "timeout",
                                        "device lost", "aborted",     "internal error", "in progress"};

}  // namespace

sy_error EmptyError() {
  sy_error error{};
  error.header = SY_HEADER(sy_error);
  return error;
}

Status FromAbi(sy_status status, const sy_error& error, const std::string& what) {
  if (status == SY_OK) return OkStatus();
  std::string text = what + ": ";
  const std::string message = Text(error.message, sizeof error.message);
  if (!message.empty()) {
    text += message;
  } else if (status > 0 && static_cast<size_t>(status) < std::size(kStatusNames)) {
    text += kStatusNames[status];
  } else {
    text += fmt::format("the plugin returned status {}, which ABI version {} does not know", status, SY_ABI_MAJOR);
  }
  if (error.native_code != 0) text += fmt::format(" (native code {})", error.native_code);
  const std::string location = Text(error.location, sizeof error.location);
  if (!location.empty()) text += " [" + location + "]";
  return Status(CodeOf(status), text);
}

}  // namespace switchyard
