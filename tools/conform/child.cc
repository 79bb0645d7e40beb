#include "tools/conform/child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "core/base/child_process.h"
#include "core/base/environment.h"
#include "core/runtime/plugins/interpose.h"
#include "core/runtime/plugins/plugin.h"
#include "tools/conform/backend_checks.h"
#include "tools/conform/collective_run.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/device_ranks.h"
#include "tools/conform/file_store.h"
#include "tools/conform/peer_checks.h"
#include "tools/conform/refusal_checks.h"
#include "tools/conform/semaphore_checks.h"

extern char** environ;

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr uintmax_t kMostWritten = 64 << 20;             // bytes of results; who writes more is not telling of checks
constexpr auto kLauncherEnds = std::chrono::seconds(3);  // mpirun, once none of its ranks runs any more

StatusOr<pid_t> Spawn(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const ChildAttributes attributes(/*own_group=*/true);  // so that a whole mpirun can be ended
  pid_t process = 0;
  const int failure = posix_spawnp(&process, arguments[0], nullptr, attributes.get(), arguments.data(), environ);
  if (failure != 0) return Internal("{} could not be started: {}", command[0], std::strerror(failure));
  return process;
}

struct Fate {
  std::string text;     // "was killed by signal 11 (Segmentation fault)"; "" as long as the process runs
  bool killed = false;  // by a signal, also after it had reported everything
};

Fate FateOf(int status) {
  if (!WIFSIGNALED(status)) return {fmt::format("ended with exit status {}", WEXITSTATUS(status))};
  return {fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status))), true};
}

std::string ResultPath(const std::string& folder, int rank) { return fmt::format("{}/result-{}.jsonl", folder, rank); }

// Grows with every line that a child writes.
uintmax_t BytesWritten(const std::string& folder, int size) {
  uintmax_t bytes = 0;
  for (int rank = 0; rank < size; ++rank) {
    std::error_code missing;
    const uintmax_t written = std::filesystem::file_size(ResultPath(folder, rank), missing);
    if (!missing) bytes += written;
  }
  return bytes;
}

// Whether every rank that mpirun started has ended, read or not by mpirun; false until all have told who they are.
bool AllRanksHaveEnded(const FileStore& store, int size) {
  for (int rank = 0; rank < size; ++rank) {
    std::string process, line;
    if (!store.Wait(fmt::format("process/{}", rank), process, 0)) return false;
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    if (!std::getline(file, line)) continue;
    const size_t state = line.rfind(')') + 2;  // behind the name of the program, which may hold anything
    if (state >= line.size() || line[state] != 'Z') return false;
  }
  return true;
}

// Waits for all. One that dies, or ends in a check, is announced to the others under the key "dead"; after too long a
// silence all are killed. An mpirun that goes on without any of its ranks, as one may whose rank died while the ranks
// met, is ended: that says nothing about them.
std::vector<Fate> WaitForAll(const std::vector<pid_t>& processes, const ChildOptions& options,
                             const std::string& folder, int size) {
  const FileStore store(folder);
  std::vector<Fate> fates(processes.size());
  size_t running = processes.size();
  auto heard = Clock::now();
  std::optional<Clock::time_point> ranks_ended;  // under mpirun, and it has not
  uintmax_t written = 0;
  bool late = false;
  for (int round = 0; running > 0; ++round) {
    for (size_t i = 0; i < processes.size(); ++i) {
      int status = 0;
      if (!fates[i].text.empty() || waitpid(processes[i], &status, WNOHANG) != processes[i]) continue;
      fates[i] = late ? Fate{fmt::format("had not moved for {} s", options.silence_s), true} : FateOf(status);
      const bool one_rank = static_cast<int>(processes.size()) == size;  // and not an mpirun
      const ChildResults results =
          one_rank ? ResultLog::Read(ResultPath(folder, static_cast<int>(i)), "") : ChildResults();
      if (WIFSIGNALED(status) || (!results.empty() && results.back().lost)) store.Put("dead", std::to_string(i));
      --running;
    }
    if (round % 50 == 0) {
      const uintmax_t now_written = BytesWritten(folder, size);
      if (now_written != written && now_written < kMostWritten) heard = Clock::now();
      written = now_written;
      if (options.mpirun && !ranks_ended && AllRanksHaveEnded(store, size)) ranks_ended = Clock::now();
      if (running > 0 && ranks_ended && Clock::now() - *ranks_ended > kLauncherEnds) {
        kill(-processes[0], SIGKILL);
        waitpid(processes[0], nullptr, 0);
        return {Fate{"ended"}};
      }
    }
    if (!late && Clock::now() - heard > std::chrono::seconds(options.silence_s)) {
      late = true;
      for (size_t i = 0; i < processes.size(); ++i) {
        if (fates[i].text.empty()) kill(-processes[i], SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return fates;
}

}  // namespace

StatusOr<std::vector<ChildResults>> RunChildren(json task, int size, const ChildOptions& options) {
  if (options.self.empty()) return Unimplemented("this program cannot start the kit in processes of their own");
  std::string folder = (std::filesystem::temp_directory_path() / "conform-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return Internal("{}: {}", folder, std::strerror(errno));
  task["size"] = size;
  task["folder"] = folder;
  std::vector<pid_t> processes;
  Status status;
  for (int rank = 0; rank < (options.mpirun ? 1 : size) && status.ok(); ++rank) {
    std::vector<std::string> command;
    if (options.mpirun) {
      command = {"mpirun",
                 "-quiet",
                 "--bind-to",
                 "none",
                 "--oversubscribe",
                 "--allow-run-as-root",
                 "--mca",
                 "odls_base_sigkill_timeout",  // seconds that the survivors of a death have to tell what they saw
                 "2",
                 "-n",
                 std::to_string(size)};
    } else {
      task["rank"] = rank;
    }
    const std::string file = fmt::format("{}/task-{}.json", folder, rank);
    std::ofstream(file) << task.dump();
    command.insert(command.end(), options.self.begin(), options.self.end());
    command.insert(command.end(), {"--child", file});
    const auto process = Spawn(command);
    if (process.ok()) {
      processes.push_back(*process);
    } else {
      status = process.status();
    }
  }
  if (!status.ok()) {
    for (const pid_t process : processes) kill(-process, SIGKILL);
  }
  const std::vector<Fate> fates = WaitForAll(processes, options, folder, size);
  std::vector<ChildResults> results;
  for (int rank = 0; rank < size && status.ok(); ++rank) {
    const Fate& fate = fates[options.mpirun ? 0 : rank];
    results.push_back(ResultLog::Read(ResultPath(folder, rank), fate.text));
    const bool told = !results.back().empty() && results.back().back().lost;
    if (fate.killed && !told) {
      results.back().push_back({"", Unavailable("the process {} after its last check", fate.text), 0, true});
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  SY_RETURN_IF_ERROR(status);
  return results;
}

int ChildMain(const std::string& path) {
  std::ifstream file(path);
  json task = json::parse(file, nullptr, false);
  if (!task.is_object() || !task.contains("folder")) return 2;
  if (!task.contains("rank")) {  // mpirun started it
    task["rank"] = EnvironmentInt("OMPI_COMM_WORLD_RANK").value_or(0);
    FileStore(task.value("folder", "."))
        .Put(fmt::format("process/{}", task.value("rank", 0)), std::to_string(getpid()));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read what it finds
  signal(SIGTERM, SIG_IGN);          // mpirun sends it to the survivors of a death, who have something to report
  ResultLog log(ResultPath(task.value("folder", "."), task.value("rank", 0)));
  auto plugin = Plugin::Load(task.value("plugin", ""));
  if (plugin.ok()) plugin = Interpose(*plugin, InterposersFromEnvironment());
  if (!plugin.ok()) {
    log.Close(plugin.status());
    return 0;
  }
  const std::string mode = task.value("mode", "");
  log.Close(Caught([&] {
    if (mode == "backend") return RunBackendChecks(*plugin, task, log);
    if (mode == "sticky_error") return RunStickyError(**plugin, task);
    if (mode == "bad_places") return RunBadPlaces(**plugin, task);
    if (mode == "failed_signal") return RunFailedSignal(**plugin, task);
    if (mode == "peer") return RunPeerProcess(**plugin, task);
    if (mode == "device") return RunDeviceRank(**plugin, task);
    return RunRank(**plugin, task, log);
  }));
  return 0;
}

}  // namespace switchyard::conform
