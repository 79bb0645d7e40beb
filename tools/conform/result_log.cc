#include "tools/conform/result_log.h"

#include <exception>

#include "core/base/text.h"
#include "nlohmann/json.hpp"

namespace switchyard::conform {

using nlohmann::json;

namespace {

std::string Line(const json& line) { return line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

constexpr size_t kLongestText = 4096;  // bytes

bool IsText(const json& entry, const char* key) { return entry.contains(key) && entry[key].is_string(); }
bool IsBegin(const json& entry) { return entry.is_object() && IsText(entry, "begin"); }
bool IsEnd(const json& entry) {
  if (!entry.is_object() || !IsText(entry, "end") || !IsText(entry, "message")) return false;
  const auto code = entry.find("code"), milliseconds = entry.find("milliseconds");
  return code != entry.end() && code->is_number_unsigned() &&
         *code <= static_cast<int>(absl::StatusCode::kUnauthenticated) && milliseconds != entry.end() &&
         milliseconds->is_number();
}

}  // namespace

void ResultLog::Begin(const std::string& name) {
  began_ = std::chrono::steady_clock::now();
  file_ << Line({{"begin", name}}) << std::flush;
}

void ResultLog::End(const std::string& name, const Status& status) {
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - began_;
  file_ << Line({{"end", name},
                 {"code", static_cast<unsigned>(status.code())},
                 {"message", Message(status)},
                 {"milliseconds", taken.count()}})
        << std::flush;
}

ChildResults ResultLog::Read(const std::string& path, const std::string& fate) {
  ChildResults results;
  std::ifstream file(path);
  std::string begun, last;
  bool open = false, closed = false, spoiled = false;
  for (std::string line; std::getline(file, line);) {
    const json entry = json::parse(line, nullptr, false);
    const bool begin = IsBegin(entry);
    if (!begin && !IsEnd(entry)) {  // at the end of the file: half a line, the process died while it wrote
      spoiled = true;
      continue;
    }
    const std::string name = entry[begin ? "begin" : "end"];
    if (open && (begin || name != begun)) {
      results.push_back(
          {begun, Internal("its result is not in the file of results; the plugin may have written there")});
    }
    open = begin;
    if (begin) {
      begun = name;
      spoiled = false;
      continue;
    }
    ChildResult result{name, Status(static_cast<absl::StatusCode>(entry["code"].get<int>()), entry["message"]),
                       entry["milliseconds"]};
    if (spoiled && !name.empty()) result.status = Internal("the plugin wrote into the kit's own file of results");
    spoiled = false;
    closed = name.empty();
    if (!closed) last = name;
    if (!closed || !result.status.ok()) results.push_back(std::move(result));
  }
  if (open) {
    results.push_back({begun, Unavailable("the process {} in this check", fate), 0, true});
  } else if (!closed) {
    const std::string where = last.empty() ? "before it could report" : "after " + last;
    results.push_back({"", Unavailable("the process {} {}", fate, where), 0, true});
  }
  return results;
}

Status Caught(const std::function<Status()>& check) try { return check(); } catch (const std::exception& exception) {
  return Internal("it threw a C++ exception across the plugin interface: {}",
                  Printable(exception.what(), kLongestText));
} catch (...) {
  return Internal("it threw a C++ exception across the plugin interface");
}

}  // namespace switchyard::conform
