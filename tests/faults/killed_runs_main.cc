// Kills ranks of training runs of every parallel mode, as killed_runs.h says, until something does not hold:
//   switchyard_kills [--kills=1000] [--seed=S] [--first=TRIAL] [--modes=TEXT] [--limit=SECONDS] [--folder=FOLDER]
// modes: those whose names have this text in them. seed: else drawn. Trial `first` of a seed draws the same again.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>

#include "fmt/format.h"
#include "tests/faults/killed_runs.h"

int main(int argc, char** argv) {
  using namespace switchyard;
  std::map<std::string, std::string> flags = {{"kills", "1000"}, {"seed", ""},    {"first", "0"},
                                              {"modes", ""},     {"limit", "60"}, {"folder", "."}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const bool is_flag = argument.starts_with("--") && equals != std::string::npos;
    if (!is_flag || !flags.contains(argument.substr(2, equals - 2))) {
      fmt::print(stderr, "{}: expected --kills=, --seed=, --first=, --modes=, --limit= or --folder=\n", argument);
      return 2;
    }
    flags[argument.substr(2, equals - 2)] = argument.substr(equals + 1);
  }
  std::vector<KilledMode> modes;
  for (const KilledMode& mode : KilledModes()) {
    if (mode.name.find(flags["modes"]) != std::string::npos) modes.push_back(mode);
  }
  if (modes.empty()) {
    fmt::print(stderr, "--modes={}: no mode has this in its name\n", flags["modes"]);
    return 2;
  }
  std::map<std::string, uint64_t> numbers;
  for (const char* name : {"kills", "seed", "first", "limit"}) {
    const std::string& text = flags[name];
    if (text.empty()) continue;  // the seed is drawn
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), numbers[name]);
    if (error != std::errc() || end != text.data() + text.size()) {
      fmt::print(stderr, "--{}={}: expected a whole number from 0 up\n", name, text);
      return 2;
    }
  }
  const uint64_t seed = numbers.contains("seed") ? numbers["seed"] : std::random_device()();
  const uint64_t first = numbers["first"], kills = numbers["kills"], most_trials = 10 * kills + 100;
  const std::string folder = std::filesystem::absolute(flags["folder"]);
  std::filesystem::create_directories(folder);
  fmt::print("{} kills over {} modes, seed {}\n", kills, modes.size(), seed);
  std::fflush(stdout);
  KilledRuns runs(folder, seed, static_cast<double>(numbers["limit"]));
  std::string finding;
  const auto start = std::chrono::steady_clock::now();
  uint64_t done = 0;
  for (; finding.empty() && static_cast<uint64_t>(runs.kills()) < kills; ++done) {
    finding = runs.Try(runs.ModeOf(first + done, modes), first + done);
    if (!finding.empty()) {
      fmt::print("{}\n  again: switchyard_kills --kills=20 --seed={} --first={} --modes='{}'\n", finding, seed,
                 first + done, flags["modes"]);
    } else if ((done + 1) % 50 == 0) {
      fmt::print("  {} kills\n", runs.kills());
    }
    std::fflush(stdout);
    if (finding.empty() && done + 1 == most_trials) {
      finding = "nearly no rank was found in time; is /proc/PID/task/TID/children there, and pidfd_open?";
      fmt::print("{}\n", finding);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}{} trials in {:.0f} s\n", runs.Table(), done, seconds);
  return finding.empty() ? 0 : 1;
}
