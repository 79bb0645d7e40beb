// The page of promises and the kit know of each other: every line of the page's tables has checks, and every check that
// is named there is one that runs.
#include "tools/conform/promises.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/runtime/plugins/registry.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/conform/conform.h"
#include "tools/conform/name_filter.h"

namespace switchyard::conform {
namespace {

std::string Page() {
  const auto page = ReadWholeFile(SWITCHYARD_SOURCE "/core/abi/PROMISES.md", 1 << 20);
  EXPECT_TRUE(page.ok()) << page.status();
  return page.ok() ? *page : "";
}

// The first column of the table of which the header's first cell is `header`.
std::vector<std::string> FirstColumn(const std::string& page, const std::string& header) {
  std::vector<std::string> entries;
  std::istringstream lines(page);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    const bool row = line.rfind("| ", 0) == 0;
    const std::string cell = row ? line.substr(2, line.find(" |", 2) - 2) : "";
    if (inside && row) entries.push_back(cell);
    inside = (inside && line.rfind('|', 0) == 0) || cell == header;
  }
  return entries;
}

std::vector<std::string> EntriesOf(const std::vector<Promise>& promises) {
  std::vector<std::string> entries;
  for (const Promise& promise : promises) entries.push_back(promise.entry);
  return entries;
}

constexpr char kRefusals[] = "what a plugin refuses", kUnknownValues[] = "a value that the reader does not know";

TEST(Promises, OfThePageAreThoseOfTheKit) {
  const std::string page = Page();
  EXPECT_EQ(FirstColumn(page, kRefusals), EntriesOf(RefusalPromises()))
      << "core/abi/PROMISES.md and tools/conform/promises.cc differ: give each line of the page its checks";
  EXPECT_EQ(FirstColumn(page, kUnknownValues), EntriesOf(UnknownValuePromises()))
      << "core/abi/PROMISES.md and tools/conform/promises.cc differ: give each line of the page its checks";
}

TEST(Promises, ThatTheKitDoesNotKnowAreFound) {
  std::string page = Page();
  const std::string last = "| strides that are not taken |";
  ASSERT_NE(page.find(last), std::string::npos);
  page.insert(page.find(last), "| a planted promise | `SY_INVALID` |\n");
  EXPECT_THAT(FirstColumn(page, kRefusals), testing::Contains("a planted promise"));
  EXPECT_NE(FirstColumn(page, kRefusals), EntriesOf(RefusalPromises()));
}

// One that offers what the check is about: the null plugin has all of a backend but imports of memory of other kinds,
// and has streams.
std::string PluginFor(const std::string& check) {
  if (check.rfind("collective/", 0) == 0) return "shm";
  if (check.rfind("interposer/", 0) == 0) return "validate";
  if (check == "semaphore/no_streams") return "cpu";
  return check == "refusal/unknown_memory_kind" ? "reference" : "null";
}

TEST(Promises, HaveChecksThatRun) {
  std::map<std::string, std::vector<std::string>> wanted;  // by plugin: patterns
  for (const auto* promises : {&RefusalPromises(), &UnknownValuePromises()}) {
    for (const Promise& promise : *promises) {
      for (const std::string& check : promise.checks) wanted[PluginFor(check)].push_back(check);
    }
  }
  EXPECT_EQ(wanted.size(), 5u);
  for (const auto& [plugin, patterns] : wanted) {
    const auto report = RunConformance({.plugin = plugin,
                                        .only = fmt::format("load,{}", fmt::join(patterns, ",")),
                                        .ranks = {2},
                                        .self = {ProgramFolder() + "/conform_kit_test", "conform"}});
    ASSERT_TRUE(report.ok()) << report.status();
    for (const std::string& pattern : patterns) {
      const NameFilter filter(pattern);
      EXPECT_TRUE(std::any_of(
          report->checks.begin(), report->checks.end(),
          [&](const Check& check) { return check.outcome == Outcome::kPass && filter.Matches(check.name); }))
          << plugin << " has no check " << pattern << " that passes";
    }
  }
}

}  // namespace
}  // namespace switchyard::conform
