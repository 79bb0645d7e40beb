#include "tools/conform/result_log.h"

#include "nlohmann/json.hpp"

namespace switchyard::conform {

using nlohmann::json;

namespace {

std::string Line(const json& line) { return line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

}  // namespace

void ResultLog::Begin(const std::string& name) {
  began_ = std::chrono::steady_clock::now();
  file_ << Line({{"begin", name}}) << std::flush;
}

void ResultLog::End(const std::string& name, const Status& status) {
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - began_;
  file_ << Line({{"end", name},
                 {"code", static_cast<int>(status.code())},
                 {"message", Message(status)},
                 {"milliseconds", taken.count()}})
        << std::flush;
}

ChildResults ResultLog::Read(const std::string& path, const std::string& fate) {
  ChildResults results;
  std::ifstream file(path);
  std::string begun;
  bool open = false, closed = false;
  for (std::string line; std::getline(file, line);) {
    const json entry = json::parse(line, nullptr, false);
    if (!entry.is_object()) continue;  // half a line: the process died while it wrote
    open = entry.contains("begin");
    if (open) {
      begun = entry.value("begin", "");
      continue;
    }
    ChildResult result{entry.value("end", ""),
                       Status(static_cast<absl::StatusCode>(entry.value("code", 0)), entry.value("message", "")),
                       entry.value("milliseconds", 0.0)};
    closed = result.name.empty();
    if (!closed || !result.status.ok()) results.push_back(std::move(result));
  }
  if (open) {
    results.push_back({begun, Unavailable("the process {} in this check", fate), 0, true});
  } else if (!closed) {
    results.push_back({"", Unavailable("the process {} before it could report", fate), 0, true});
  }
  return results;
}

}  // namespace switchyard::conform
