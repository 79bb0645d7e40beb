#include "tools/switchyard/compare.h"

#include <algorithm>
#include <iterator>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "core/base/child_process.h"
#include "core/base/environment.h"
#include "core/runtime/processes/process_map.h"
#include "fmt/ranges.h"
#include "tools/switchyard/flags.h"

namespace switchyard {
namespace {

constexpr int kRounds = 3;

struct Configuration {
  std::string name;
  int ranks = 1;                   // that take part
  bool launched = false;           // as processes, else all are in one
  std::vector<std::string> flags;  // beside those of all
  std::vector<double> ms;          // of the measured updates of all rounds
  nlohmann::json last;             // what `bench --json` said in the last round
  std::string failure;             // "": none
};

// "ddp:O1:bucket_mb=4": who takes part, then levels of mixed precision and settings.
StatusOr<Configuration> Parse(const std::string& text, int ranks) {
  Configuration c{.name = text};
  const std::vector<std::string> words = absl::StrSplit(text, ':');
  const bool dp = words[0] == "dp", ddp = words[0] == "ddp";
  if (!dp && !ddp && words[0] != "single") {
    return InvalidArgument(
        "--compare={}: expected dp (one process that drives all devices), ddp (a process for each device) or single "
        "(one rank alone), then levels and settings, as ddp:O1 or ddp:allreduce_dtype=fp16",
        text);
  }
  c.ranks = dp || ddp ? ranks : 1;
  c.launched = c.ranks > 1 && ddp;
  c.flags.push_back(dp ? "--mode=dp" : "--mode=ddp");
  if (dp) c.flags.push_back(fmt::format("--devices={}", ranks));
  for (auto word = words.begin() + 1; word != words.end(); ++word) {
    const bool level = word->size() == 2 && (*word)[0] == 'O';
    if (!level && word->find('=') == std::string::npos)
      return InvalidArgument("--compare={}: expected O0 to O3 or a setting with its value, found \"{}\"", text, *word);
    c.flags.push_back(level ? "--amp=" + *word : "--" + *word);
  }
  return c;
}

// The settings that the user gave, from wherever, as flags.
std::vector<std::string> FlagsOf(const Settings& settings) {
  std::vector<std::string> flags;
  for (const Setting& row : settings.table().rows()) {
    // Which ranks there are and where they meet their launcher says.
    if (!settings.IsGiven(row.name) || row.name == "master_addr" || row.name == "local_rank") continue;
    const nlohmann::json& value = settings.Value(row.name);
    std::vector<std::string> words;
    for (const nlohmann::json& part : value.is_array() ? value : nlohmann::json::array({value}))
      words.push_back(part.is_string() ? part.get<std::string>() : part.dump());
    flags.push_back(fmt::format("--{}={}", row.name, fmt::join(words, ",")));
  }
  return flags;
}

// What the ranks said, without figures: the first errors, else the last line. Ranks and launcher write in any order.
std::string Complaint(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  std::vector<std::string> errors;
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(errors),
               [](const std::string& line) { return line.find("error:") != std::string::npos; });
  if (!errors.empty()) return fmt::format("{}", fmt::join(errors, "; "));
  return lines.empty() ? "it said nothing" : lines.back();
}

Status Measure(Configuration& c, const std::vector<std::string>& given) {
  const std::string program = ProgramFolder() + "/switchyard";
  std::vector<std::string> command = {program};
  if (c.launched) command.insert(command.end(), {"launch", fmt::format("--nproc_per_node={}", c.ranks)});
  command.insert(command.end(), {"bench", "--json", "--nproc_per_node=1",
                                 fmt::format("--warmup_steps={}", absl::GetFlag(FLAGS_warmup_steps))});
  // What the configuration says stands in for what was given for all.
  for (const std::string& flag : given) {
    const std::string name = flag.substr(0, flag.find('=') + 1);
    if (std::none_of(c.flags.begin(), c.flags.end(), [&](const std::string& own) { return own.starts_with(name); }))
      command.push_back(flag);
  }
  command.insert(command.end(), c.flags.begin(), c.flags.end());
  int exit_status = 0;
  SY_ASSIGN_OR_RETURN(const std::string output, RunProgram(command, &exit_status));
  if (exit_status != 0) return Internal("exit status {}: {}", exit_status, Complaint(output));
  const std::vector<std::string> lines = absl::StrSplit(output, '\n');
  for (const std::string& line : lines) {
    c.last = nlohmann::json::parse(line, nullptr, false);
    if (c.last.is_object()) break;
  }
  if (!c.last.is_object()) return Internal("expected figures as JSON, found: {}", Complaint(output));
  for (const double ms : c.last.at("samples_ms")) c.ms.push_back(ms);
  return OkStatus();
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Status CompareRuns(const CommandLine& line) {
  SY_ASSIGN_OR_RETURN(const ProcessMap processes, ProcessMap::FromEnvironment());
  if (processes.world > 1) {
    return InvalidArgument(
        "bench --compare starts its ranks itself, found {} ranks; start it without a launcher, with --nproc_per_node",
        processes.world);
  }
  const int ranks = absl::GetFlag(FLAGS_nproc_per_node);
  if (ranks < 1) return InvalidArgument("--nproc_per_node: expected at least 1 rank to compare on, found {}", ranks);
  std::vector<Configuration> configurations;
  const std::vector<std::string> wanted = absl::StrSplit(absl::GetFlag(FLAGS_compare), ',');
  for (const std::string& text : wanted) {
    SY_ASSIGN_OR_RETURN(configurations.emplace_back(), Parse(text, ranks));
  }
  const std::vector<std::string> given = FlagsOf(line.settings);
  // In turn, so that a machine that slows down slows down all.
  for (int round = 0; round < kRounds; ++round) {
    for (Configuration& c : configurations) {
      if (c.failure.empty()) c.failure = Message(Measure(c, given));
    }
  }
  const bool json = absl::GetFlag(FLAGS_json);
  auto rows = nlohmann::ordered_json::array();
  if (!json)
    fmt::print("{:<28}{:>6}{:>12}{:>12}{:>9}{:>14}\n", "", "ranks", "ms/step", "samples/s", "ratio", "MB a rank");
  double first = 0;
  int failed = 0;
  for (const Configuration& c : configurations) {
    if (!c.failure.empty()) {
      ++failed;
      rows.push_back({{"configuration", c.name}, {"ranks", c.ranks}, {"failure", c.failure}});
      if (!json) fmt::print("{:<28}{:>6}  failed: {}\n", c.name, c.ranks, c.failure);
      continue;
    }
    const double ms = MedianOf(c.ms);
    const double rate = c.last.at("images_per_s").get<double>() * c.last.at("median_ms").get<double>() / ms;
    if (first == 0) first = rate;
    const auto bytes = c.last.at("memory_bytes").get<uint64_t>();
    rows.push_back({{"configuration", c.name},
                    {"ranks", c.ranks},
                    {"median_ms", ms},
                    {"updates", c.ms.size()},
                    {"images_per_s", rate},
                    {"ratio", rate / first},
                    {"memory_bytes", bytes}});
    if (!json) {
      fmt::print("{:<28}{:>6}{:>12.1f}{:>12.1f}{:>9.3f}{:>14.1f}\n", c.name, c.ranks, ms, rate, rate / first,
                 static_cast<double>(bytes) / 1e6);
    }
  }
  if (json) fmt::print("{}\n", rows.dump());
  if (failed > 0) return Internal("{} of {} configurations failed", failed, configurations.size());
  return OkStatus();
}

}  // namespace switchyard
