#include "core/runtime/plugins/probe.h"

#include <elf.h>
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
#include <optional>
#include <thread>

#include "core/abi/base.h"
#include "core/base/child_process.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/runtime/plugins/probe_terms.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

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
  return fmt::format("probe 3 abi {}.{} size {} mtime {}.{:09}", SY_ABI_MAJOR, SY_ABI_MINOR, info.st_size,
                     info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

// path → fingerprint of the libraries that passed. A cache that cannot be read or written is no error.
std::string CachePath() { return UserCacheFolder() + "/probe.json"; }

json ReadCache() {
  constexpr size_t kLargestCache = size_t{1} << 20;
  const auto text = ReadWholeFile(CachePath(), kLargestCache);
  if (UserCacheFolder().empty() || !text.ok()) return json::object();
  const auto cache = ParseJson(*text);
  return cache.ok() && cache->is_object() ? *cache : json::object();
}

void WriteCache(const json& cache) {
  if (UserCacheFolder().empty()) return;
  std::error_code error;
  std::filesystem::create_directories(UserCacheFolder(), error);
  const std::string draft = fmt::format("{}.{}", CachePath(), getpid());
  std::string text;
  try {
    text = cache.dump(1);
  } catch (const json::exception&) {  // a path that is no UTF-8 has no place in JSON
    return;
  }
  {
    std::ofstream file(draft);
    file << text << "\n";
    if (!file.flush()) return;
  }
  std::filesystem::rename(draft, CachePath(), error);
}

// What the probe said, line by line: "stage NAME" and "note TEXT" any number of times, then "accepted" or
// "refused REASON".
struct ProbeReport {
  std::string stage = "dlopen", note, verdict;
  bool late = false;  // a stage took too long
};

// Reads until the verdict, or until the probe closes its end. A process that the plugin started may hold that end open,
// so nothing after the verdict is waited for.
ProbeReport ReadReport(int descriptor) {
  ProbeReport report;
  std::string line;
  auto deadline = Clock::now() + ProbeTimeLimit(report.stage);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{descriptor, POLLIN, 0};
    const int count = left <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      report.late = true;
      return report;
    }
    char letter = 0;
    const ssize_t bytes = read(descriptor, &letter, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return report;
    if (letter != '\n') {
      if (line.size() < 4096) line += letter;
      continue;
    }
    if (line.rfind("note ", 0) == 0) {
      report.note = Printable(line.substr(5), kLongestReason);
      line.clear();
      continue;
    }
    if (line.rfind("stage ", 0) != 0) {
      report.verdict = Printable(line, kLongestReason);
      return report;
    }
    report.stage = Printable(line.substr(6), kLongestReason);
    deadline = Clock::now() + ProbeTimeLimit(report.stage);
    line.clear();
  }
}

struct End {
  std::optional<int> status;    // the wait status; none: it had to be killed
  bool left_a_process = false;  // something that it started outlived it
};

// Waits for the process to end, at most as long as a stage may take (it may have closed the pipe and gone on), and ends
// whatever it started.
End WaitForEnd(pid_t process, bool late) {
  const auto deadline = Clock::now() + (late ? std::chrono::seconds(0) : ProbeTimeLimit(""));
  int status = 0;
  pid_t found = 0;
  while (found == 0) {
    found = waitpid(process, &status, WNOHANG);
    if (found < 0 && errno == EINTR) found = 0;
    if (found != 0 || Clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  End end;
  if (found == process) end.status = status;
  const auto seen_until = Clock::now() + kProbeGrace;
  while (found == process && (end.left_a_process = kill(-process, 0) == 0) && Clock::now() < seen_until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(-process, SIGKILL);  // its group: the probe itself, and what it started
  while (found != process && waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return end;
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
  const ChildAttributes attributes(/*own_group=*/true);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(path.c_str()), nullptr};
  pid_t process = 0;
  const int failure = posix_spawn(&process, program.c_str(), &actions, attributes.get(), arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(writer);
  if (failure != 0) {
    close(ends[0]);
    return Internal("{} could not be started: {}", program, std::strerror(failure));
  }
  const ProbeReport report = ReadReport(ends[0]);
  close(ends[0]);
  const End end = WaitForEnd(process, report.late);
  const bool accepted = report.verdict == kAccepted;
  if (report.verdict.rfind("refused ", 0) == 0) return FailedPrecondition("{}", report.verdict.substr(8));
  if (report.late || !end.status) {
    return FailedPrecondition("did not return from {} within {} s", report.stage, ProbeTimeLimit(report.stage).count());
  }
  if (WIFSIGNALED(*end.status)) {
    return FailedPrecondition("crashed in {} (signal {}, {})", report.stage, WTERMSIG(*end.status),
                              strsignal(WTERMSIG(*end.status)));
  }
  const int exit_status = WEXITSTATUS(*end.status);
  if (exit_status == kReportLost) {
    return FailedPrecondition("closed file descriptors that are not its own, after {}", report.stage);
  }
  if (!accepted || exit_status != kExited)
    return FailedPrecondition("called exit({}) in {}", exit_status, report.stage);
  if (!report.note.empty()) LogWarning("plugin {}: {}", path, report.note);
  if (end.left_a_process) return FailedPrecondition("left a process behind when the program exited");
  return OkStatus();
}

// What dlopen would say in words that help nobody ("No such file or directory", of a library for another machine).
Status CheckElf(const std::string& path) {
  const auto header_of = [](const std::string& file_path) {
    Elf64_Ehdr header{};
    std::ifstream file(file_path, std::ios::binary);
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    return std::pair(header, file.gcount());
  };
  const auto [header, bytes] = header_of(path);
  if (bytes == 0) return FailedPrecondition("it cannot be loaded: it is empty");
  if (bytes < static_cast<std::streamsize>(sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return FailedPrecondition("it cannot be loaded: it is not a shared library (no ELF header)");
  }
  const Elf64_Ehdr own = header_of("/proc/self/exe").first;
  if (header.e_machine != own.e_machine || header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS]) {
    return FailedPrecondition(
        "it cannot be loaded: it was built for another machine (ELF machine {}, class {}; here {}, {})",
        header.e_machine, header.e_ident[EI_CLASS], own.e_machine, own.e_ident[EI_CLASS]);
  }
  if (header.e_type != ET_DYN)
    return FailedPrecondition("it cannot be loaded: it is no shared library (ELF type {})", header.e_type);
  return OkStatus();
}

}  // namespace

Status ProbeLibrary(const std::string& path) {
  SY_RETURN_IF_ERROR(CheckElf(path));
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

}  // namespace switchyard
