#include "core/runtime/processes/slurm.h"

#include <charconv>

namespace switchyard {
namespace {

constexpr size_t kMostHosts = 1 << 20;

// The whole of `text` as a number; false for anything else.
bool ReadNumber(const std::string& text, int* number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return code == std::errc() && end == text.data() + text.size() && *number >= 0 && !text.empty();
}

// Splits at commas outside of brackets.
std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// "004-007,9" → "004" "005" "006" "007" "9"; numbers keep the width of the range's start.
StatusOr<std::vector<std::string>> ExpandRanges(const std::string& ranges) {
  std::vector<std::string> numbers;
  for (const std::string& range : SplitAtCommas(ranges)) {
    const size_t dash = range.find('-');
    const std::string start = range.substr(0, dash), end = dash == std::string::npos ? start : range.substr(dash + 1);
    int first = 0, last = 0;
    if (!ReadNumber(start, &first) || !ReadNumber(end, &last) || last < first ||
        last - first >= static_cast<int>(kMostHosts))
      return InvalidArgument("\"{}\" is no range of numbers", range);
    for (int number = first; number <= last; ++number) numbers.push_back(fmt::format("{:0{}}", number, start.size()));
  }
  return numbers;
}

// One name with any number of brackets.
Status ExpandName(const std::string& name, std::vector<std::string>* hosts) {
  std::vector<std::string> made = {""};
  for (size_t at = 0; at < name.size();) {
    const size_t open = name.find('[', at), end = open == std::string::npos ? name.size() : open;
    std::vector<std::string> choices = {""};
    size_t next = end;
    if (open != std::string::npos) {
      const size_t close = name.find(']', open);
      if (close == std::string::npos) return InvalidArgument("\"{}\" has no closing bracket", name);
      SY_ASSIGN_OR_RETURN(choices, ExpandRanges(name.substr(open + 1, close - open - 1)));
      next = close + 1;
    }
    if (made.size() * choices.size() > kMostHosts)
      return InvalidArgument("\"{}\" names more than {} hosts", name, kMostHosts);
    std::vector<std::string> longer;
    for (const std::string& start : made) {
      for (const std::string& choice : choices) longer.push_back(start + name.substr(at, end - at) + choice);
    }
    made = std::move(longer);
    at = next;
  }
  hosts->insert(hosts->end(), made.begin(), made.end());
  return hosts->size() <= kMostHosts ? OkStatus() : InvalidArgument("more than {} hosts", kMostHosts);
}

}  // namespace

StatusOr<std::vector<std::string>> ExpandSlurmHosts(const std::string& list) {
  std::vector<std::string> hosts;
  for (const std::string& name : SplitAtCommas(list)) {
    if (name.empty()) return InvalidArgument("a host without a name");
    SY_RETURN_IF_ERROR(ExpandName(name, &hosts));
  }
  return hosts;
}

StatusOr<std::vector<int>> ExpandSlurmTasks(const std::string& list) {
  std::vector<int> tasks;
  for (const std::string& entry : SplitAtCommas(list)) {
    const size_t open = entry.find("(x");
    int count = 0, repeat = 1;
    const bool repeats = open != std::string::npos;
    if (!ReadNumber(entry.substr(0, open), &count) || count < 1 ||
        (repeats && (entry.back() != ')' || !ReadNumber(entry.substr(open + 2, entry.size() - open - 3), &repeat))) ||
        repeat < 1 || tasks.size() + static_cast<size_t>(repeat) > kMostHosts)
      return InvalidArgument("\"{}\": expected a number of tasks such as 4 or 4(x2)", entry);
    tasks.insert(tasks.end(), static_cast<size_t>(repeat), count);
  }
  return tasks;
}

}  // namespace switchyard
