#include "core/runtime/plugins/probe.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
#include <optional>
#include <thread>

#include "core/abi/device.h"
#include "core/base/child_process.h"
#include "core/base/environment.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/logging.h"
#include "core/runtime/plugins/abi_status.h"
#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/plugin.h"
#include "core/runtime/plugins/process_state.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kReportDescriptor = 3;
constexpr int kReportLost = 99;     // exit status of a probe that could not write its report
constexpr int kExited = 98;         // of one that accepted the library, and that nothing kept from exiting as it wanted
constexpr int kHardwareFactor = 4;  // count and query may start a driver
constexpr auto kGrace = std::chrono::milliseconds(200);  // for what has ended, and is still seen
constexpr size_t kLongestReason = 4096;                  // bytes
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
    deadline = Clock::now() + TimeLimit(report.stage);
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
  const auto deadline = Clock::now() + (late ? std::chrono::seconds(0) : TimeLimit(""));
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
  const auto seen_until = Clock::now() + kGrace;
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
    return FailedPrecondition("did not return from {} within {} s", report.stage, TimeLimit(report.stage).count());
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

// What a library did to the process around it when it was loaded, or OK.
Status CheckUnchanged(const ProcessState& before) {
  const std::string changes = ProcessState::Now().ChangesSince(before);
  if (changes.empty()) return OkStatus();
  return FailedPrecondition("it {} when it was loaded; a plugin leaves the process as it found it", changes);
}

// Threads of its own: a driver may have some once it was asked for devices, a library that was only loaded may not.
Status CheckNoThreads(const ProcessState& before) {
  int more = 0;
  for (const auto deadline = Clock::now() + kGrace; Clock::now() < deadline;) {
    more = ProcessState::Now().threads() - before.threads();
    if (more <= 0) return OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return FailedPrecondition("it started {} thread{} when it was loaded; a plugin has none before a device is opened",
                            more, more == 1 ? "" : "s");
}

// Those that left the group of the probe would outlive it. What a child has started becomes a child of the probe when
// the child ends, so that it goes on until there are none.
void EndChildren() {
  for (const auto deadline = Clock::now() + std::chrono::milliseconds(TimeLimit("")) / 2; Clock::now() < deadline;) {
    std::error_code error;
    for (std::filesystem::directory_iterator task("/proc/self/task", error), end; !error && task != end;
         task.increment(error)) {
      std::ifstream children(task->path() / "children");
      for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
    }
    const pid_t ended = waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno == ECHILD) return;
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A struct that a plugin fills, with bytes behind it that it must leave alone.
template <typename T>
struct Guarded {
  explicit Guarded(const T& initial) : value(initial) { std::memset(guard, kGuard, sizeof guard); }
  bool Whole() const {
    return std::all_of(std::begin(guard), std::end(guard), [](unsigned char byte) { return byte == kGuard; });
  }
  static constexpr unsigned char kGuard = 0xA5;
  T value;
  unsigned char guard[64];
};

// count and query may start a driver, and the program will call them without any protection.
Status AskDevices(const OpenedLibrary& library, const std::function<void(const std::string&)>& stage) try {
  const auto found = library.interfaces.find("device/2");
  if (found == library.interfaces.end()) return OkStatus();
  const auto* api = reinterpret_cast<const sy_device_v2*>(found->second.data());
  stage("count");
  int32_t count = 0;
  Guarded<sy_error> error(EmptyError());
  sy_instance* const instance = library.table.instance;
  const sy_status status = api->count(instance, &count, &error.value);
  if (!error.Whole()) return FailedPrecondition("count wrote behind the end of sy_error");
  if (status != SY_OK) return OkStatus();  // why, it says to everybody who asks
  if (count < 0 || count > kMostDevices) {
    return FailedPrecondition("count answered {} devices; expected 0 to {}", count, kMostDevices);
  }
  for (int32_t index = 0; index < count; ++index) {
    if (index == 0) stage("query");
    Guarded<sy_device_info> info({.header = SY_HEADER(sy_device_info)});
    api->query(instance, index, &info.value, &error.value);
    if (!error.Whole()) return FailedPrecondition("query wrote behind the end of sy_error");
    if (!info.Whole()) return FailedPrecondition("query wrote behind the end of sy_device_info");
  }
  return OkStatus();
} catch (const std::exception& exception) {
  return FailedPrecondition("it threw a C++ exception across the plugin interface: {}",
                            Printable(exception.what(), kLongestReason));
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
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that processes whose parents have ended are seen, too
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
  if (verdict.ok()) verdict = CheckUnchanged(before);
  if (verdict.ok()) verdict = CheckNoThreads(before);
  if (verdict.ok()) verdict = AskDevices(*library, stage);
  // What is changed from here on may be the doing of a driver that the plugin cannot do without; only a process that
  // would stay is no driver's need.
  const ProcessState after = ProcessState::Now();
  if (verdict.ok() && after.children() && !before.children()) {
    verdict = FailedPrecondition("it started a process when it was asked for its devices");
  }
  if (const std::string changes = after.ChangesSince(before); verdict.ok() && !changes.empty()) {
    report(fmt::format("note when it was asked for its devices it {}", changes));
  }
  if (!verdict.ok()) {
    report("refused " + Message(verdict));
    EndChildren();
    _exit(0);
  }
  stage("exit");
  report(kAccepted);
  std::exit(kExited);
}

}  // namespace switchyard
