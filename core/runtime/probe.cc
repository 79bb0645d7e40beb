#include "core/runtime/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/abi/base.h"
#include "core/base/environment.h"
#include "core/runtime/library.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kReportDescriptor = 3;
constexpr auto kTimeLimit = std::chrono::seconds(5);
constexpr char kAccepted[] = "accepted";

std::string ProbeProgram() {
  for (const char* place : {"/switchyard-probe", "/../bin/switchyard-probe"}) {
    const std::string path = ProgramFolder() + place;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

// What identifies the file, as text; "" if it is gone.
std::string Fingerprint(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "";
  return fmt::format("abi {}.{} size {} mtime {}.{:09}", SY_ABI_MAJOR, SY_ABI_MINOR, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

// path → fingerprint of the libraries that passed. A cache that cannot be read or written is no error.
std::string CachePath() { return UserCacheFolder() + "/probe.json"; }

json ReadCache() {
  std::ifstream file(CachePath());
  json cache = json::parse(file, nullptr, false);
  return cache.is_object() ? cache : json::object();
}

void WriteCache(const json& cache) {
  std::error_code error;
  std::filesystem::create_directories(UserCacheFolder(), error);
  const std::string draft = fmt::format("{}.{}", CachePath(), getpid());
  {
    std::ofstream file(draft);
    file << cache.dump(1) << "\n";
    if (!file.flush()) return;
  }
  std::filesystem::rename(draft, CachePath(), error);
}

// Reads lines until the probe closes its end or time is up; false: time is up.
bool ReadReport(int descriptor, std::string& report) {
  const auto deadline = Clock::now() + kTimeLimit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready{descriptor, POLLIN, 0};
    const int count = poll(&ready, 1, static_cast<int>(left));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    char text[4096];
    const ssize_t bytes = read(descriptor, text, sizeof text);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    if (report.size() < (1 << 16)) report.append(text, static_cast<size_t>(bytes));
  }
}

// Waits for the process to end, at most as long as a probe may take (it may have closed the pipe and gone on); 0: it
// had to be killed.
int WaitForEnd(pid_t process, bool ended) {
  const auto deadline = Clock::now() + (ended ? kTimeLimit : std::chrono::seconds(0));
  int status = 0;
  for (;;) {
    const pid_t found = waitpid(process, &status, WNOHANG);
    if (found == process) return status;
    if (found < 0 && errno != EINTR) return 0;
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  kill(process, SIGKILL);
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return 0;
}

Status RunProbe(const std::string& program, const std::string& path) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Internal("pipe: {}", std::strerror(errno));
  // Written to descriptor 3 of the child; a duplicate above 3 makes sure that dup2 clears the close-on-exec flag.
  const int writer = fcntl(ends[1], F_DUPFD_CLOEXEC, kReportDescriptor + 1);
  close(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writer, kReportDescriptor);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(path.c_str()), nullptr};
  pid_t process = 0;
  const int failure = posix_spawn(&process, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(writer);
  if (failure != 0) {
    close(ends[0]);
    return Internal("{} could not be started: {}", program, std::strerror(failure));
  }
  std::string report;
  const bool ended = ReadReport(ends[0], report);
  close(ends[0]);
  const int status = WaitForEnd(process, ended);

  // Lines: "stage NAME"* then "accepted" or "refused REASON".
  std::string stage = "dlopen", verdict;
  for (size_t begin = 0; begin < report.size();) {
    const size_t end = std::min(report.find('\n', begin), report.size());
    const std::string line = report.substr(begin, end - begin);
    if (line.rfind("stage ", 0) == 0) {
      stage = line.substr(6);
    } else {
      verdict = line;
    }
    begin = end + 1;
  }
  if (!ended) return FailedPrecondition("did not return from {} within {} s", stage, kTimeLimit.count());
  if (WIFSIGNALED(status)) {
    return FailedPrecondition("crashed in {} (signal {}, {})", stage, WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  if (verdict == kAccepted) return OkStatus();
  if (verdict.rfind("refused ", 0) == 0) return FailedPrecondition("{}", verdict.substr(8));
  return FailedPrecondition("called exit({}) in {}", WIFEXITED(status) ? WEXITSTATUS(status) : 0, stage);
}

}  // namespace

Status ProbeLibrary(const std::string& path) {
  const std::string program = ProbeProgram();
  if (program.empty()) return OkStatus();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string fingerprint = Fingerprint(path);
  json cache = ReadCache();
  const auto entry = cache.find(path);
  if (entry != cache.end() && entry->is_string() && entry->get<std::string>() == fingerprint) return OkStatus();
  SY_RETURN_IF_ERROR(RunProbe(program, path));
  cache = ReadCache();
  cache[path] = fingerprint;
  WriteCache(cache);
  return OkStatus();
}

int ProbeMain(int argc, char** argv) {
  if (argc != 2 || fcntl(kReportDescriptor, F_GETFD) < 0) {
    const char text[] = "switchyard-probe is started by switchyard, to try a plugin before loading it\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    return 2;
  }
  const auto report = [](std::string line) {
    for (char& c : line) {
      if (c == '\n') c = ' ';
    }
    line += '\n';
    [[maybe_unused]] const ssize_t written = write(kReportDescriptor, line.data(), line.size());
  };
  const auto library = OpenLibrary(argv[1], [&](const std::string& stage) { report("stage " + stage); });
  report(library.ok() ? kAccepted : "refused " + Message(library.status()));
  _exit(0);  // a plugin's static destructors are not what is being tried here
}

}  // namespace switchyard
