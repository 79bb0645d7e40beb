// switchyard: one program, a command each for training, looking and porting.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <system_error>

#include "absl/flags/flag.h"
#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/base/names.h"
#include "core/base/text.h"
#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/launcher.h"
#include "core/settings/listing.h"
#include "tools/conform/conform.h"
#include "tools/switchyard/command_line.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/in_world.h"
#include "tools/switchyard/run_settings.h"

namespace switchyard {
namespace {

struct Command {
  const char* name;
  const char* arguments;  // what follows the name
  const char* summary;    // its line in the list of commands
  const char* details;    // more of its --help
  AcceptedFlags flags;
  std::function<Status(const CommandLine&)> run;  // null: main has a way of its own
};

const std::vector<Command>& Commands() {
  static const std::vector<Command> commands = {
      {"train",
       "[settings]",
       "train a model",
       "Ends with accuracy, images/s, the run folder and a picture of the loss.\n"
       "The classifier of --pretrained weights that name the dataset's classes in another order is put into the "
       "dataset's; --match_classes=position leaves it as it is.\n",
       {{"match_classes"}, true},
       TrainCommand},
      {"eval",
       "--checkpoint=RUN [settings]",
       "accuracy of a checkpoint, every sample counted once",
       "Settings are the checkpoint's; those given here win. Images are treated as when it was trained; classes are "
       "told by their names.\n"
       "Weights of Hugging Face or timm can stand in for a checkpoint, with --dataset; what their config.json does not "
       "say, --model does.\n",
       {{"checkpoint", "ema", "match_classes", "json"}, true},
       EvalCommand},
      {"predict",
       "FILE|FOLDER... --checkpoint=RUN",
       "classes of images with probabilities, or masks",
       "JPEG and PNG files of any size, treated as eval does; with weights whose folder does not say how, resized and "
       "cropped as photographs are, or as those of --dataset.\n"
       "Of a folder: every .jpg, .jpeg and .png file in it and in the folders below, by path.\n"
       "Ends at the first file that is no image, unless --max_bad_samples lets it go on.\n"
       "Where the model says a class for every pixel, writes NAME_mask.png beside each image, or into --output=FOLDER: "
       "of the image's size, its numbers are classes as masks of the data have them (of cityscapes label ids: 26 is a "
       "car). Of volumes, NAME_mask in the format that came in. Files of such "
       "names (and *_overlay.png) are left out of folders, and without --output no file is written over.\n",
       {{"checkpoint", "ema", "top", "overlay", "json"}, true, {}, true},
       PredictCommand},
      {"export",
       "FOLDER --checkpoint=RUN",
       "write trained weights as Hugging Face or timm load them",
       "Writes model.safetensors, config.json and, for Hugging Face, preprocessor_config.json.\n"
       "A checkpoint's own folder, RUN/checkpoints/best, is in Hugging Face's form already where that has the model: "
       "ViTs, Swins and residual networks but those with the small stem, of which it lacks the counters of batch "
       "norms, which no result depends on.\n",
       {{"checkpoint", "ema", "names"}, true, {}, true},
       ExportCommand},
      {"plot",
       "FOLDER... [--to=FOLDER --html]",
       "charts and a table that compare runs",
       "Of each folder the runs in it, at any depth: one chart (SVG and PNG) for each model and tag with loss, "
       "accuracy, "
       "throughput and memory of its runs.\n"
       "A log that is missing or broken is named, and the others are drawn.\n"
       "2+ epochs: two and a part of a third, where the log does not say how long an epoch is.\n"
       "--html adds a page; that of a single run shows validation samples with its predictions (--data says where).\n",
       {{"to", "html"}, true, {}, true},
       PlotCommand},
      {"launch",
       "--nproc_per_node=N [--max_restarts=R] [--nnodes=M|MIN:MAX --node_rank=I --master_addr=HOST --master_port=P "
       "--token_file=F] COMMAND...",
       "start several ranks of a command on this node",
       "Starts N ranks of a switchyard command (train, eval, bench) or of any program, prefixes the output of all but "
       "rank 0, passes SIGTERM on, and\n"
       "ends with the status of the first rank that failed. With --max_restarts=R a training that fails after it has "
       "begun is started again up to R times\n"
       "and goes on from its latest checkpoint (--save_every says how often there is one), on several nodes with those "
       "that are left, where they are MIN or more;\n"
       "but not after status 2: the command was refused, or came to numbers that are not finite, and would again.\n"
       "R is that of node 0, and all nodes have to see the run's folder. A first start waits --rdzv_timeout=S seconds "
       "(300) for MAX nodes, a later one for\n"
       "those that have not left. SIGTERM to one launcher is no failure: it ends the run on all nodes, with a "
       "checkpoint and as a success; to take one node\n"
       "away from the others, SIGKILL its launcher. On several nodes run it on each: HOST is node 0, P any port of it "
       "that is free; N may differ. A firewall\n"
       "between them has to let P through, and the ports that their systems choose (net.ipv4.ip_local_port_range). "
       "Several nodes share a secret, so that no\n"
       "stranger joins: --token_file=F, or\n"
       "$SWITCHYARD_TOKEN, or ~/.switchyard_token, made by: (umask 077; head -c 32 /dev/urandom | base64 > "
       "~/.switchyard_token)\n"
       "mpirun, Slurm (srun) and torchrun can start ranks as well.\n",
       {{"nproc_per_node", "max_restarts", "nnodes", "node_rank", "master_addr", "master_port", "rdzv_timeout",
         "token_file"}},
       nullptr},
      {"devices", "", "devices that can be used", "", {{"json"}}, DevicesCommand},
      {"doctor", "", "every plugin that was found, and why it was taken or refused", "", {{"json"}}, DoctorCommand},
      {"models", "", "models and their sizes", "", {}, ModelsCommand},
      {"datasets", "", "datasets, and where their files are", "", {{"have"}, false, {"data"}}, DatasetsCommand},
      {"ops",
       "[--model=NAME]",
       "ops of the engine, or those that a model needs, with shapes",
       "What a person who ports a backend reads first: core/abi/ops.h specifies each op.\n",
       {{"json"}, true},
       OpsCommand},
      {"explain",
       "[--model=NAME --batch_size=B --world=N]",
       "the plan of a training step: kernels, FLOPs, memory, traffic",
       "Nothing is run, and the ranks need not exist. With --measure two small programs are, to tell the least time "
       "that the device takes:\nno kernel is faster than its FLOPs over the rate of a large product, or its bytes over "
       "that of the memory, unless a cache holds its tensors.\n--search plans the ways to divide the run over --world "
       "ranks (--tp and --pp up to 16, --sp, --zero, micro-batches, --recompute), the samples of an update being\nthe "
       "same, and "
       "lists those that fit into --memory_limit, or this device: by the time that --rates tell (with --world an "
       "A100's, unless you say others), or else by work, waiting and traffic.\n",
       {{"world", "measure", "json", "search", "rates"}, true},
       ExplainCommand},
      {"bench",
       "[--model=NAME --batch_size=B --steps=N]",
       "time training steps on made-up data",
       "With --profile three more steps are recorded kernel by kernel into profile.json, for ui.perfetto.dev, and a "
       "table shows time, GFLOP/s and GB/s\nof each op family beside what this device reaches in a large product and "
       "in "
       "memory.\n"
       "With --compare=dp,ddp,ddp:O1,… each configuration in processes of its own, in turn, and a table of samples/s "
       "and memory.\n",
       {{"warmup_steps", "json", "compare", "nproc_per_node"}, true},
       BenchCommand},
      {"conform", "PLUGIN.so", "test any plugin against the ABI; names the level it reaches", "", {}, nullptr},
      {"version", "", "version of the program and of the plugin ABI", "", {}, VersionCommand},
  };
  return commands;
}

std::string Usage() {
  std::string text = "switchyard: train vision models on any hardware\n\n  switchyard <command> [flags]\n\n";
  for (const Command& c : Commands()) text += fmt::format("  {:<10} {}\n", c.name, c.summary);
  text +=
      "\n`switchyard <command> --help` explains one. A setting is a flag (--lr=1e-3), an environment variable "
      "(SWITCHYARD_LR=1e-3) or a\n"
      "key of a --config file; the first of these that says something wins. An empty value (--suffix=) takes it back. "
      "--show_settings prints what is in force\n"
      "and who said so.\n\n"
      "A first run, on two processes, with data that needs no file:\n\n"
      "  switchyard launch --nproc_per_node=2 train --model=vit_micro --dataset=shapes --epochs=2\n";
  return text;
}

std::string HelpOf(const Command& c) {
  std::string text =
      fmt::format("switchyard {}{}{}: {}\n", c.name, *c.arguments != '\0' ? " " : "", c.arguments, c.summary);
  if (*c.details != '\0') text += fmt::format("\n{}", c.details);
  std::vector<std::string> own = c.flags.own;
  if (c.flags.settings) own.insert(own.end(), {"config", "show_settings"});
  if (!own.empty()) text += "\n" + FlagsHelp(own);
  if (c.name == std::string("train")) return text + SettingsHelp(RunTable());
  return c.flags.settings ? text + "\nand the settings that `switchyard train --help` lists\n" : text;
}

const Command* FindCommand(const std::string& name) {
  for (const Command& c : Commands()) {
    if (name == c.name) return &c;
  }
  return nullptr;
}

int Fail(const Status& status) {
  LogError("{}", Message(status));
  return 1;
}

// The same of a command that may be one of several ranks.
int FailAsRank(const Status& status) {
  SayFailure(status);
  return ExitStatusOf(status);
}

// "3" nodes, or "2:3": three, of which two are enough after a failure or where the third does not come.
Status TakeNodes(const std::string& text, LaunchOptions& options) {
  int least = 0, most = 0;
  char colon = 0, more = 0;
  const int found = std::sscanf(text.c_str(), "%d%c%d%c", &least, &colon, &most, &more);
  if (found == 1 && least > 0) {
    options.nnodes = least;
    return OkStatus();
  }
  options.least_nodes = least;
  options.nnodes = most;
  if (found == 3 && colon == ':' && least > 0 && least <= most) return OkStatus();
  return InvalidArgument("launch: expected --nnodes=M, or --nnodes=MIN:MAX with 1 <= MIN <= MAX, found --nnodes={}",
                         text);
}

// `launch [its flags] command …`: what follows belongs to the ranks.
int LaunchRanks(const Command& launch, const std::vector<std::string>& arguments) {
  size_t own = 0;
  while (own < arguments.size() && arguments[own].starts_with("-") && arguments[own] != "--") {
    const bool alone =
        arguments[own].find('=') != std::string::npos || arguments[own] == "--help" || arguments[own] == "-h";
    own += alone ? 1 : 2;
  }
  own = std::min(own, arguments.size());
  const auto line = ParseCommandLine({arguments.begin(), arguments.begin() + static_cast<long>(own)}, launch.flags);
  if (!line.ok()) return Fail(line.status());
  if (line->help) {
    fmt::print("{}", HelpOf(launch));
    return 0;
  }
  if (own < arguments.size() && arguments[own] == "--") ++own;
  if (own == arguments.size())
    return Fail(InvalidArgument(
        "launch needs a command to start: switchyard launch --nproc_per_node=2 train --model=vit_micro"));
  LaunchOptions options;
  options.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  if (const Status nodes = TakeNodes(absl::GetFlag(FLAGS_nnodes), options); !nodes.ok()) return Fail(nodes);
  options.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  options.master_address = absl::GetFlag(FLAGS_master_addr);
  options.master_port = absl::GetFlag(FLAGS_master_port);
  options.rendezvous_timeout_s = absl::GetFlag(FLAGS_rdzv_timeout);
  // As for every rank: the secret itself counts for more than the file that the environment names.
  const std::string token_file = absl::GetFlag(FLAGS_token_file);
  const bool yields = Environment("SWITCHYARD_TOKEN") && Environment("SWITCHYARD_TOKEN_FILE") == token_file;
  if (!token_file.empty() && !yields) options.token_file = token_file;
  options.command.assign(arguments.begin() + static_cast<long>(own), arguments.end());
  if (FindCommand(options.command[0]) != nullptr)
    options.command.insert(options.command.begin(), ProgramFolder() + "/switchyard");
  const auto code = Launch(options);
  return code.ok() ? *code : Fail(code.status());
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    fmt::print(stderr, "{}", Usage());
    return 2;
  }
  const std::string& name = arguments[0];
  std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const Command* command = FindCommand(name == "--version" ? "version" : name);
  if (name == "help" || name == "--help" || name == "-h") {
    if (!rest.empty()) command = FindCommand(rest[0]);
    if (command == nullptr) {
      fmt::print("{}", Usage());
      return 0;
    }
    rest = {"--help"};
  }
  if (command == nullptr) {
    std::vector<std::string> names;
    for (const Command& c : Commands()) names.push_back(c.name);
    return Fail(InvalidArgument("unknown command {}{}; `switchyard help` lists them", name, DidYouMean(name, names)));
  }
  if (command->name == std::string("launch")) return LaunchRanks(*command, rest);
  if (command->name == std::string("conform"))
    return conform::ConformMain({ProgramFolder() + "/switchyard", "conform"}, rest);
  const auto line = ParseCommandLine(rest, command->flags);
  if (!line.ok()) return FailAsRank(line.status());
  if (line->help) {
    fmt::print("{}", HelpOf(*command));
    return 0;
  }
  const Status status = command->run(*line);
  return status.ok() ? 0 : FailAsRank(status);
}

// Nothing that the world can do wrong ends in an exception, but a plugin may throw one through its interface; if one
// comes, the process says so and ends in order.
constexpr char kWhoThrew[] =
    "either a plugin threw it through its interface, and `switchyard conform PLUGIN` tells in which call, or it is a "
    "defect of this program";

int GuardedMain(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : Printable(arguments[0]);
  try {
    const int code = Main(arguments);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return Fail(ResourceExhausted("cannot write the output of {}: {}", command, std::strerror(errno)));
    }
    return code;
  } catch (const std::bad_alloc&) {
    return Fail(
        ResourceExhausted("out of memory while running {}; close other programs, or use smaller data, a smaller "
                          "model or --batch_size, and look at the limits of this shell (ulimit -a)",
                          command));
  } catch (const std::exception& exception) {
    const auto* const of_system = dynamic_cast<const std::system_error*>(&exception);
    if (of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again) {
      return Fail(
          ResourceExhausted("the system gives {} no more threads; raise its limits (ulimit -u, a container's limit of "
                            "processes), or lower --threads and --workers",
                            command));
    }
    return Fail(Internal("{} ended by an exception: {}; {}", command, Printable(exception.what(), 4096), kWhoThrew));
  } catch (...) {
    return Fail(Internal("{} ended by an exception that is no std::exception; {}", command, kWhoThrew));
  }
}

// Where nothing can catch it: on a thread, in a destructor, out of code that may not throw.
const std::terminate_handler say_what_was_thrown = std::get_terminate();
void SayWhoThrew() {
  LogError("an exception that nothing catches ends the process; {}", kWhoThrew);
  say_what_was_thrown();
}

// A library that calls exit() in mid-run would make a success of it: its handlers run, and the status is its own.
std::atomic<bool> ended_by_itself = false;
const pid_t own_process = getpid();  // a child that a library forks may end as it likes

void RefuseToExit() {
  if (ended_by_itself || getpid() != own_process) return;
  LogError(
      "the process was ended by a call of exit() in mid-run, which only a library can have made: a plugin, or what it "
      "loads. `switchyard doctor` lists the plugins, and `switchyard conform PLUGIN` tells which call of one ends the "
      "process");
  std::fflush(stdout);
  _exit(1);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error like a full disk
  std::set_terminate(switchyard::SayWhoThrew);
  std::atexit(switchyard::RefuseToExit);
  const int code = switchyard::GuardedMain({argv + 1, argv + argc});
  switchyard::ended_by_itself = true;
  return code;
}
