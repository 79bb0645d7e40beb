#include "tools/conform/child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/environment.h"
#include "tools/conform/collective_rank.h"
#include "tools/conform/device_checks.h"
#include "tools/conform/device_ranks.h"
#include "tools/conform/file_store.h"

extern char** environ;

namespace switchyard::conform {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

StatusOr<pid_t> Spawn(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // A group of its own, so that a whole mpirun can be ended.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t process = 0;
  const int failure = posix_spawnp(&process, arguments[0], nullptr, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return Internal("{} could not be started: {}", command[0], std::strerror(failure));
  return process;
}

ChildResults ReadResults(const std::string& path, const std::string& fate) {
  std::ifstream file(path);
  const json list = json::parse(file, nullptr, false);
  ChildResults results;
  if (!list.is_array()) return {{"", Unavailable("the process {} before it could report", fate)}};
  for (const json& entry : list) {
    results.emplace_back(entry.value("name", ""),
                         Status(static_cast<absl::StatusCode>(entry.value("code", 0)), entry.value("message", "")));
  }
  return results;
}

std::string Fate(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

// Waits for all; after the time limit they are killed.
std::vector<std::string> WaitForAll(const std::vector<pid_t>& processes, const ChildOptions& options,
                                    const FileStore& store) {
  const auto deadline = Clock::now() + std::chrono::seconds(options.timeout_s);
  std::vector<std::string> fates(processes.size());
  size_t running = processes.size();
  bool late = false;
  while (running > 0) {
    for (size_t i = 0; i < processes.size(); ++i) {
      int status = 0;
      if (!fates[i].empty() || waitpid(processes[i], &status, WNOHANG) != processes[i]) continue;
      fates[i] = late ? fmt::format("did not end within {} s", options.timeout_s) : Fate(status);
      --running;
      if (static_cast<int>(i) == options.dies) store.Put("dead", std::to_string(i));
    }
    if (!late && Clock::now() > deadline) {
      late = true;
      for (size_t i = 0; i < processes.size(); ++i) {
        if (fates[i].empty()) kill(-processes[i], SIGKILL);
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
  const FileStore store(folder);
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
  const std::vector<std::string> fates = WaitForAll(processes, options, store);
  std::vector<ChildResults> results;
  for (int rank = 0; rank < size && status.ok(); ++rank) {
    results.push_back(ReadResults(fmt::format("{}/result-{}.json", folder, rank), fates[options.mpirun ? 0 : rank]));
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
  if (!task.contains("rank")) task["rank"] = EnvironmentInt("OMPI_COMM_WORLD_RANK").value_or(0);
  ChildResults results;
  auto plugin = Plugin::Load(task.value("plugin", ""));
  if (!plugin.ok()) {
    results.emplace_back("", plugin.status());
  } else if (task.value("mode", "") == "sticky_error") {
    auto device = Device::Open(**plugin, task.value("device", 0), {});
    results.emplace_back("sticky_error", device.ok() ? CheckStickyError(**device) : device.status());
  } else if (task.value("mode", "") == "device") {
    results.emplace_back("device", RunDeviceRank(**plugin, task));
  } else {
    results = RunRank(**plugin, task);
  }
  json list = json::array();
  for (const auto& [name, status] : results) {
    list.push_back({{"name", name}, {"code", static_cast<int>(status.code())}, {"message", Message(status)}});
  }
  const std::string result = fmt::format("{}/result-{}.json", task.value("folder", "."), task.value("rank", 0));
  std::ofstream(result) << list.dump(-1, ' ', false, json::error_handler_t::replace);
  return 0;
}

}  // namespace switchyard::conform
