// The probe's own side: the main function of switchyard-probe.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
#include <thread>

#include "core/abi/device.h"
#include "core/runtime/plugins/abi_status.h"
#include "core/runtime/plugins/library.h"
#include "core/runtime/plugins/plugin.h"
#include "core/runtime/plugins/probe.h"
#include "core/runtime/plugins/probe_terms.h"
#include "core/runtime/plugins/process_state.h"

namespace switchyard {
namespace {

// What a library did to the process around it when it was loaded, or OK.
Status CheckUnchanged(const ProcessState& before) {
  const std::string changes = ProcessState::Now().ChangesSince(before);
  if (changes.empty()) return OkStatus();
  return FailedPrecondition("it {} when it was loaded; a plugin leaves the process as it found it", changes);
}

// Threads of its own: a driver may have some once it was asked for devices, a library that was only loaded may not.
Status CheckNoThreads(const ProcessState& before) {
  int more = 0;
  for (const auto deadline = std::chrono::steady_clock::now() + kProbeGrace;
       std::chrono::steady_clock::now() < deadline;) {
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
  for (const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(ProbeTimeLimit("")) / 2;
       std::chrono::steady_clock::now() < deadline;) {
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

}  // namespace

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
