#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "core/base/names.h"
#include "tools/conform/child.h"
#include "tools/conform/conform.h"
#include "tools/conform/op_cases.h"

namespace switchyard::conform {
namespace {

constexpr char kHelp[] =
    R"(switchyard conform [options] PLUGIN

Tests a plugin against the promises of the ABI. PLUGIN is a path to a library, or the name of an installed plugin.
Backends are compared with the reference plugin, op by op; collectives run with data on several ranks.
The last line names the level reached (Loads, Trains, Async, Distributed, Fast) and what the next one lacks.

  --device=N                which device of a backend (0)
  --device=NAME[:N]         for a collective: its ranks pass memory of that backend, rank r of device N + r (host memory)
  --only=PATTERN,…          only checks whose name fits one of the patterns: a part of the name, or the whole with * for anything
  --level=LEVEL             fail where only a lower level is reached
  --whole=PATTERN,…         fail where a check of a pattern did not pass, as it was unsupported, or none was tried
  --limit=LEVEL             leave out what only higher levels ask for (Fast)
  --ranks=1,2,4             how many ranks a collective is tried with (1,2,3,4,8)
  --expected_failures=FILE  JSON object of check names (* stands for anything) and reasons
  --check_timeout=SECONDS   a check that takes longer has failed (60)
  --seed=N                  of all test data (42)
  --json                    the report as JSON on standard output
  --json=FILE               the report as JSON in a file
  --verbose                 list the checks that passed, too
  --cases                   only print the table of cases of all ops as JSON; no PLUGIN

Exit status: 0 without failures, 1 with failures or where --level or --whole is missed or no check fits --only, 2 for a wrong command line.
)";

bool ParseNumber(const std::string& text, auto& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseRanks(const std::string& text, std::vector<int>& ranks) {
  ranks.clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int size = 0;
    if (!ParseNumber(text.substr(begin, end - begin), size) || size < 1 || size > 64) return false;
    ranks.push_back(size);
    begin = end + 1;
  }
  return true;
}

bool ParseLevel(const std::string& text, Level& level) {
  for (int i = static_cast<int>(Level::kLoads); i <= static_cast<int>(Level::kFast); ++i) {
    level = static_cast<Level>(i);
    if (text == LevelName(level)) return true;
  }
  return false;
}

bool ParsePatterns(const std::string& text, std::vector<std::string>& patterns) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) return false;
    patterns.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return true;
}

// "3", "cuda", "npu:2", "path/to/plugin.so:1"
bool ParseDevice(const std::string& text, Options& options) {
  if (ParseNumber(text, options.device)) return options.device >= 0;
  const size_t colon = text.rfind(':');
  options.device_plugin = text.substr(0, colon);
  if (colon != std::string::npos && !ParseNumber(text.substr(colon + 1), options.device)) return false;
  return !options.device_plugin.empty() && options.device >= 0;
}

Status ParseOption(const std::string& argument, Options& options) {
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
  bool good = true;
  if (name == "--verbose") {
    good = equals == std::string::npos;
    options.verbose = true;
  } else if (name == "--json") {
    options.json = equals == std::string::npos;
    options.json_file = value;
    good = options.json || !value.empty();
  } else if (name == "--device") {
    good = ParseDevice(value, options);
  } else if (name == "--seed") {
    good = ParseNumber(value, options.seed);
  } else if (name == "--ranks") {
    good = ParseRanks(value, options.ranks);
  } else if (name == "--limit") {
    good = ParseLevel(value, options.limit);
  } else if (name == "--level") {
    good = ParseLevel(value, options.level);
  } else if (name == "--whole") {
    good = ParsePatterns(value, options.whole);
  } else if (name == "--check_timeout") {
    good = ParseNumber(value, options.check_timeout_s) && options.check_timeout_s > 0;
  } else if (name == "--only") {
    options.only = value;
  } else if (name == "--expected_failures") {
    options.expected_failures = value;
  } else {
    return InvalidArgument(
        "unknown option {}{}", name,
        DidYouMean(name, {"--device", "--only", "--level", "--whole", "--limit", "--ranks", "--expected_failures",
                          "--check_timeout", "--seed", "--json", "--verbose", "--cases"}));
  }
  return good ? OkStatus() : InvalidArgument("{}: \"{}\" is not a value of it", name, value);
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file ? OkStatus() : Internal("{}: the report cannot be written", path);
}

}  // namespace

int ConformMain(const std::vector<std::string>& self, const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "--child") return ChildMain(arguments[1]);
  Options options;
  options.self = self;
  Status wrong;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--cases") {
      std::puts(OpCasesAsJson().c_str());
      return 0;
    }
    if (argument.rfind("-", 0) == 0) {
      wrong = ParseOption(argument, options);
    } else if (options.plugin.empty()) {
      options.plugin = argument;
    } else {
      wrong = InvalidArgument("expected one plugin, found {} and {}", options.plugin, argument);
    }
    if (!wrong.ok()) break;
  }
  if (wrong.ok() && options.plugin.empty())
    wrong = InvalidArgument("expected a plugin: switchyard conform path/to/plugin.so");
  if (!wrong.ok()) {
    std::fprintf(stderr, "switchyard conform: %s\n", Message(wrong).c_str());
    return 2;
  }
  const auto report = RunConformance(options);
  if (!report.ok()) {
    std::fprintf(stderr, "switchyard conform: %s\n", Message(report.status()).c_str());
    return 1;
  }
  std::fputs((options.json ? report->Json() + "\n" : report->Text(options.verbose)).c_str(), stdout);
  if (!options.json_file.empty()) {
    if (const Status written = WriteFile(options.json_file, report->Json() + "\n"); !written.ok()) {
      std::fprintf(stderr, "switchyard conform: %s\n", Message(written).c_str());
      return 1;
    }
  }
  return report->passed() && report->missed.empty() ? 0 : 1;
}

}  // namespace switchyard::conform
