#include "core/runtime/probe.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "core/abi/device.h"
#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/runtime/device.h"
#include "core/runtime/library.h"
#include "core/runtime/process_state.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kReportDescriptor = 3;
constexpr int kReportLost = 99;     // exit status of a probe that could not write its report
constexpr int kHardwareFactor = 4;  // count and query may start a driver
constexpr int kMostQueries = 16;
constexpr char kAccepted[] = "accepted";

// How long one stage of a probe may take.
std::chrono::seconds TimeLimit(const std::string& stage) {
  const auto seconds = EnvironmentInt("SWITCHYARD_PROBE_TIMEOUT");
  const int limit = seconds && *seconds > 0 ? static_cast<int>(*seconds) : 5;
  const bool hardware = stage == "count" || stage == "query";
  return std::chrono::seconds(hardware ? kHardwareFactor * limit : limit);
}

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
  return fmt::format("probe 2 abi {}.{} size {} mtime {}.{:09}", SY_ABI_MAJOR, SY_ABI_MINOR, info.st_size,
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
  {
    std::ofstream file(draft);
    file << cache.dump(1) << "\n";
    if (!file.flush()) return;
  }
  std::filesystem::rename(draft, CachePath(), error);
}

// What the probe said, line by line: "stage NAME"*, then "accepted" or "refused REASON".
struct ProbeReport {
  std::string stage = "dlopen", verdict;
  bool late = false;  // a stage took too long
};

// Reads until the verdict, or until the probe closes its end. A process that the plugin started may hold that end open,
// so nothing after the verdict is waited for.
ProbeReport ReadReport(int descriptor) {
  ProbeReport report;
  std::string line;
  auto deadline = Clock::now() + TimeLimit(report.stage);
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
    if (line.rfind("stage ", 0) != 0) {
      report.verdict = line;
      return report;
    }
    report.stage = line.substr(6);
    deadline = Clock::now() + TimeLimit(report.stage);
    line.clear();
  }
}

// Waits for the process to end, at most as long as a stage may take (it may have closed the pipe and gone on), and ends
// whatever it started. The wait status; 0: it had to be killed.
int WaitForEnd(pid_t process, bool late) {
  const auto deadline = Clock::now() + (late ? std::chrono::seconds(0) : TimeLimit(""));
  int status = 0;
  pid_t found = 0;
  while (found == 0) {
    found = waitpid(process, &status, WNOHANG);
    if (found < 0 && errno == EINTR) found = 0;
    if (found != 0 || Clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(-process, SIGKILL);  // its group: the probe itself, and what it started
  if (found == process) return status;
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
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(path.c_str()), nullptr};
  pid_t process = 0;
  const int failure = posix_spawn(&process, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(writer);
  if (failure != 0) {
    close(ends[0]);
    return Internal("{} could not be started: {}", program, std::strerror(failure));
  }
  const ProbeReport report = ReadReport(ends[0]);
  close(ends[0]);
  const int status = WaitForEnd(process, report.late);
  if (report.late) {
    return FailedPrecondition("did not return from {} within {} s", report.stage, TimeLimit(report.stage).count());
  }
  if (WIFSIGNALED(status)) {
    return FailedPrecondition("crashed in {} (signal {}, {})", report.stage, WTERMSIG(status),
                              strsignal(WTERMSIG(status)));
  }
  if (report.verdict == kAccepted) return OkStatus();
  if (report.verdict.rfind("refused ", 0) == 0) return FailedPrecondition("{}", report.verdict.substr(8));
  if (WIFEXITED(status) && WEXITSTATUS(status) == kReportLost) {
    return FailedPrecondition("closed file descriptors that are not its own, after {}", report.stage);
  }
  return FailedPrecondition("called exit({}) in {}", WIFEXITED(status) ? WEXITSTATUS(status) : 0, report.stage);
}

// count and query may start a driver, and the program will call them without any protection.
Status AskDevices(const OpenedLibrary& library, const std::function<void(const std::string&)>& stage) try {
  const auto found = library.interfaces.find("device/1");
  if (found == library.interfaces.end()) return OkStatus();
  const auto* api = reinterpret_cast<const sy_device_v1*>(found->second.data());
  stage("count");
  int32_t count = 0;
  sy_error error = EmptyError();
  if (api->count(&count, &error) != SY_OK) return OkStatus();  // why, it says to everybody who asks
  for (int32_t index = 0; index < std::min(count, kMostQueries); ++index) {
    if (index == 0) stage("query");
    sy_device_info info{};
    info.header = SY_HEADER(sy_device_info);
    api->query(index, &info, &error);
  }
  return OkStatus();
} catch (const std::exception& exception) {
  return FailedPrecondition("it threw a C++ exception across the plugin interface: {}", exception.what());
} catch (...) {
  return FailedPrecondition("it threw a C++ exception across the plugin interface");
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

int ProbeMain(int argc, char** argv) {
  if (argc != 2 || fcntl(kReportDescriptor, F_GETFD) < 0) {
    const char text[] = "switchyard-probe is started by switchyard, to try a plugin before loading it\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    return 2;
  }
  // No core files of plugins that crash, and a place for what they print.
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int printed = memfd_create("printed", MFD_CLOEXEC);
  if (printed >= 0) dup2(printed, STDOUT_FILENO);
  const pid_t self = getpid();
  const auto report = [self](std::string line) {
    if (getpid() != self) _exit(0);  // a copy of the process that the plugin made
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';
    if (write(kReportDescriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(kReportLost);
  };
  const auto stage = [&](const std::string& name) { report("stage " + name); };
  const ProcessState before = ProcessState::Now();
  const auto library = OpenLibrary(argv[1], stage);
  Status verdict = library.status();
  if (const std::string changes = ProcessState::Now().ChangesSince(before); verdict.ok() && !changes.empty()) {
    verdict = FailedPrecondition("it {} when it was loaded; a plugin leaves the process as it found it", changes);
  }
  if (verdict.ok()) verdict = AskDevices(*library, stage);
  report(verdict.ok() ? kAccepted : "refused " + Message(verdict));
  _exit(0);  // a plugin's static destructors are not what is being tried here
}

}  // namespace switchyard
