// switchyard: one program, a command each for training, looking and porting.
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "absl/flags/flag.h"
#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/names.h"
#include "core/runtime/launcher.h"
#include "tools/conform/conform.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/settings.h"

namespace switchyard {
namespace {

struct Command {
  const char* name;
  const char* help;
  std::function<Status(const Arguments&)> run;
  bool trains;  // takes the training settings
};

const std::vector<Command>& Commands() {
  static const std::vector<Command> commands = {
      {"train", "train a model; `train --help` lists every setting", TrainCommand, true},
      {"eval", "evaluate a checkpoint exactly: --checkpoint=RUN", EvalCommand, true},
      {"predict", "classify image files: predict a.jpg b.png --checkpoint=RUN [--top=3] [--json]", PredictCommand, true},
      {"launch", "start ranks on this node: launch --nproc_per_node=2 train …", nullptr, false},
      {"devices", "devices that can be used [--json]", DevicesCommand, false},
      {"doctor", "every plugin that was found, and why it was taken or refused [--json]", DoctorCommand, false},
      {"models", "models and their sizes", ModelsCommand, false},
      {"datasets", "datasets; --have=NAME succeeds if it is here or can be downloaded", DatasetsCommand, false},
      {"ops", "ops of the engine; --model=NAME [--json]: those that a model needs, with shapes", OpsCommand, true},
      {"explain", "the plan of a model before it runs: kernels, FLOPs, bytes, memory, traffic; --world=N", ExplainCommand, true},
      {"bench", "time training steps on made-up data: --model=vit_small --batch_size=8 --steps=20 [--json]", BenchCommand, true},
      {"conform", "test any plugin against the ABI: conform PATH; `conform --help` lists its flags", nullptr, false},
      {"version", "version of the program and of the plugin ABI", VersionCommand, false},
  };
  return commands;
}

std::string Usage() {
  std::string text = "switchyard: train vision models on any hardware\n\n  switchyard <command> [flags]\n\n";
  for (const Command& c : Commands()) text += fmt::format("  {:<10} {}\n", c.name, c.help);
  text +=
      "\nEvery setting is a flag (--lr=1e-3), an environment variable (SWITCHYARD_LR=1e-3) and a key of a --config file, in this\n"
      "order of precedence. A first run:  switchyard launch --nproc_per_node=2 train --model=vit_micro --dataset=fashion-mnist\n";
  return text;
}

int Fail(const Status& status) {
  LogError("{}", Message(status));
  return 1;
}

// `launch [its flags] command …`: what follows belongs to the ranks.
int LaunchRanks(const std::vector<std::string>& arguments) {
  size_t own = 0;
  while (own < arguments.size() && arguments[own].starts_with("-") && arguments[own] != "--") {
    own += arguments[own].find('=') == std::string::npos && arguments[own] != "--help" && arguments[own] != "-h" ? 2 : 1;
  }
  own = std::min(own, arguments.size());
  const auto line = ParseCommandLine({arguments.begin(), arguments.begin() + static_cast<long>(own)});
  if (!line.ok()) return Fail(line.status());
  if (own < arguments.size() && arguments[own] == "--") ++own;
  if (line->help || own == arguments.size()) {
    fmt::print("switchyard launch --nproc_per_node=N [--nnodes=1 --node_rank=0 --master_addr=127.0.0.1 --master_port=0] COMMAND …\n\n"
               "Starts N ranks of a switchyard command (train, eval, bench) or of any program, prefixes their output, passes SIGTERM on,\n"
               "and ends with the status of the first rank that failed.\n");
    return line->help ? 0 : 2;
  }
  LaunchOptions options;
  options.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  options.nnodes = absl::GetFlag(FLAGS_nnodes);
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  options.master_address = absl::GetFlag(FLAGS_master_addr);
  options.master_port = absl::GetFlag(FLAGS_master_port);
  options.command.assign(arguments.begin() + static_cast<long>(own), arguments.end());
  for (const Command& c : Commands()) {
    if (options.command[0] == c.name) {
      options.command.insert(options.command.begin(), ProgramFolder() + "/switchyard");
      break;
    }
  }
  const auto code = Launch(options);
  return code.ok() ? *code : Fail(code.status());
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "help" || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("{}", Usage());
    return arguments.empty() ? 2 : 0;
  }
  if (arguments[0] == "--version") return VersionCommand({}).ok() ? 0 : 1;
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (arguments[0] == "launch") return LaunchRanks(rest);
  if (arguments[0] == "conform") return conform::ConformMain({ProgramFolder() + "/switchyard", "conform"}, rest);
  std::vector<std::string> names;
  for (const Command& c : Commands()) {
    names.push_back(c.name);
    if (arguments[0] != c.name) continue;
    const auto line = ParseCommandLine(rest);
    if (!line.ok()) return Fail(line.status());
    if (line->help) {
      fmt::print("switchyard {}: {}\n", c.name, c.help);
      if (c.trains) fmt::print("\n{}", SettingsHelp());
      return 0;
    }
    const Status status = c.run(line->positional);
    return status.ok() ? 0 : Fail(status);
  }
  return Fail(InvalidArgument("unknown command {}{}; `switchyard help` lists them", arguments[0], DidYouMean(arguments[0], names)));
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main({argv + 1, argv + argc}); }
