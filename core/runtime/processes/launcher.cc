#include "core/runtime/processes/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/processes/descriptors.h"
#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/node_meeting.h"
#include "core/runtime/processes/rank_environment.h"
#include "core/runtime/processes/rank_output.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kForOthersToSay{1000};  // after the first error, that they have the same

struct Child {
  int rank = 0;
  pid_t pid = -1;
  bool running = false;
};

class Launcher {
 public:
  // restarted_run: what an earlier start of the ranks has begun, or ""; gone: nodes that have left since.
  Launcher(const LaunchOptions& options, std::string restarted_run, std::vector<int> gone)
      : options_(options), restarted_run_(std::move(restarted_run)), gone_(std::move(gone)) {
    if (options_.nnodes == 1) options_.master_address = "127.0.0.1";
  }
  ~Launcher() {
    for (const RankOutput& pipe : pipes_) close(pipe.from);
    if (socket_ >= 0) close(socket_);
    if (signals_ >= 0) {
      close(signals_);
      sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
    }
  }

  StatusOr<int> Run() {
    SY_RETURN_IF_ERROR(CheckOptions(options_));
    // Of each rank two pipes, of which both ends are open while it is started; of each node a connection.
    SY_RETURN_IF_ERROR(MakeRoomForDescriptors(2 * options_.nproc_per_node + options_.nnodes + 8,
                                              fmt::format("launch: {} ranks of this node", options_.nproc_per_node)));
    SY_RETURN_IF_ERROR(FindPlace());
    SY_RETURN_IF_ERROR(reports_.Open());
    SY_RETURN_IF_ERROR(TakeSignals());
    for (int local_rank = 0; local_rank < options_.nproc_per_node; ++local_rank) {
      if (const Status started = Start(local_rank); !started.ok()) {
        SignalAll(SIGKILL);
        nodes_->ReportFailure(fmt::format("{} on host {}", Message(started), HostName()), 1);
        return Annotate(started, "launch");
      }
    }
    if (socket_ >= 0) close(std::exchange(socket_, -1));
    reports_.StopWriting();
    while (Running() || !pipes_.empty()) {
      Round();
      if (stopping_ && Running() && Clock::now() >= kill_at_) SignalAll(SIGKILL);
      // A grandchild may hold a pipe open for ever.
      if (!Running() && Clock::now() >= ended_at_ + std::chrono::seconds(1)) break;
      if (!Running() || Clock::now() >= say_at_) Say();
    }
    Say();
    return exit_code_;
  }

  // After Run.
  const std::string& run() const { return reports_.run(); }
  bool was_stopped() const { return was_stopped_; }  // by a signal to this process
  NodeMeeting& nodes() { return *nodes_; }
  // Of another node than 0: the run for which node 0 starts the ranks again, once its own have ended; "": it does not,
  // is gone or does not answer, or somebody stops us.
  std::string AwaitAgain() {
    const auto deadline = Clock::now() + std::chrono::seconds(options_.rendezvous_timeout_s);
    for (nodes_->Serve(); !was_stopped_ && !nodes_->HasVerdict() && MillisecondsUntil(deadline) > 0; nodes_->Serve()) {
      std::vector<pollfd> polled{{signals_, POLLIN, 0}};
      nodes_->AddTo(&polled);
      poll(polled.data(), polled.size(), MillisecondsUntil(deadline));
      PassSignalsOn();
    }
    return was_stopped_ ? "" : nodes_->Again();
  }

 private:
  // Opens what rank 0 listens at, so that no other program can take the port in between, and meets the other nodes.
  Status FindPlace() {
    if (options_.node_rank == 0) {
      SY_ASSIGN_OR_RETURN(socket_, OpenNodeZero(options_));
    }
    SY_ASSIGN_OR_RETURN(nodes_, NodeMeeting::Join(options_, socket_, gone_));
    const NodePlace& place = nodes_->place();
    if (place.nodes < options_.nnodes && options_.node_rank == 0)
      LogWarning("launch: {} of {} nodes take part, with {} rank{}", place.nodes, options_.nnodes, place.world,
                 place.world > 1 ? "s" : "");
    return OkStatus();
  }

  Status TakeSignals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&taken, signal);
    signals_ = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) return Internal("signalfd: {}", std::strerror(errno));
    sigprocmask(SIG_BLOCK, &taken, &mask_before_);
    return OkStatus();
  }

  Status Start(int local_rank) {
    const NodePlace& place = nodes_->place();
    const int rank = place.first_rank + local_rank;
    int outputs[2][2] = {{-1, -1}, {-1, -1}}, failure[2];
    const bool piped = rank != 0;
    if (pipe2(failure, O_CLOEXEC) != 0 ||
        (piped && (pipe2(outputs[0], O_CLOEXEC) != 0 || pipe2(outputs[1], O_CLOEXEC) != 0))) {
      return ResourceExhausted("pipe: {}", std::strerror(errno));
    }
    const int inherited = rank == 0 && place.world > 1 ? socket_ : -1;  // a rank alone would leave it open
    const auto variables = EnvironmentOf(options_, place, local_rank, inherited, reports_, restarted_run_);
    auto environment = Pointers(variables), arguments = Pointers(options_.command);
    const pid_t launcher = getpid(), pid = fork();
    if (pid < 0) return ResourceExhausted("cannot start rank {}: {}", rank, std::strerror(errno));
    if (pid == 0) {
      // Its own process group, so that a signal of ours reaches what it starts, and one of the terminal does not come
      // twice.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
      if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
      fcntl(reports_.writer(), F_SETFD, 0);
      const int input = open("/dev/null", O_RDONLY);
      if (input >= 0) dup2(input, STDIN_FILENO);
      if (piped) {
        dup2(outputs[0][1], STDOUT_FILENO);
        dup2(outputs[1][1], STDERR_FILENO);
      }
      environ = environment.data();
      execvp(arguments[0], arguments.data());
      const int error = errno;
      [[maybe_unused]] const ssize_t written = write(failure[1], &error, sizeof error);
      _exit(127);
    }
    children_.push_back({rank, pid, true});
    close(failure[1]);
    for (int i = 0; piped && i < 2; ++i) {
      close(outputs[i][1]);
      fcntl(outputs[i][0], F_SETFL, O_NONBLOCK);
      pipes_.push_back({outputs[i][0], i == 0 ? STDOUT_FILENO : STDERR_FILENO, fmt::format("[{}] ", rank), "", false});
    }
    int error = 0;
    const bool failed = read(failure[0], &error, sizeof error) == sizeof error;
    close(failure[0]);
    return failed ? NotFound("cannot run {}: {}", options_.command[0], std::strerror(error)) : OkStatus();
  }

  bool Running() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }
  void SignalAll(int signal) {
    for (const Child& child : children_) {
      if (child.running) kill(-child.pid, signal);
    }
  }

  void Round() {
    std::vector<pollfd> polled{{signals_, POLLIN, 0}};
    for (const RankOutput& pipe : pipes_) polled.push_back({pipe.from, POLLIN, 0});
    nodes_->AddTo(&polled);
    polled.push_back({reports_.reader(), POLLIN, 0});
    const bool waits_for_time = stopping_ || !Running() || reports_.has_errors();
    poll(polled.data(), polled.size(), waits_for_time ? 50 : -1);
    for (size_t i = pipes_.size(); i-- > 0;) {
      if (polled[i + 1].revents != 0 && !pipes_[i].Pass()) {
        close(pipes_[i].from);
        pipes_.erase(pipes_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    reports_.Read();
    if (reports_.has_errors()) SayWithin(kForOthersToSay);
    PassSignalsOn();
    Reap();
    EndWhereARankIsMissing();
    const NodeFailure failure = nodes_->Serve();
    if (failure.code == 0 || stopping_ || !Running()) return;
    LogError("launch: {}; the ranks of this node are stopped", failure.text);
    culprit_ = failure.text;
    exit_code_ = failure.code;
    Stop();
  }

  // Signals to us are for the ranks.
  void PassSignalsOn() {
    signalfd_siginfo received;
    while (read(signals_, &received, sizeof received) == sizeof received) {
      const int signal = static_cast<int>(received.ssi_signo);
      if (signal == SIGCHLD) continue;
      was_stopped_ |= signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
      const bool again = signal == SIGINT && ++interrupts_ > 1;
      SignalAll(again ? SIGKILL : signal);
    }
  }

  void Stop() {
    if (stopping_) return;
    stopping_ = true;
    kill_at_ = Clock::now() + std::chrono::milliseconds(options_.grace_ms);
  }

  // Of all that have failed by now, the one that does not blame another is the culprit, whichever ended first. Where
  // all blame one whose end has not come here yet, it gives the exit code when it does.
  void Reap() {
    int status = 0;
    std::string culprit, error;
    bool is_own = false;  // the culprit's own end, not what a survivor says
    for (Child& child : children_) {
      if (!child.running || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.running = false;
      if (!Running()) ended_at_ = Clock::now();
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      const std::string own_name = fmt::format("rank {} (pid {}", child.rank, child.pid);
      if (code != 0 && stopping_ && culprit_.rfind(own_name, 0) == 0 && Clock::now() < kill_at_) exit_code_ = code;
      if (code == 0 || stopping_ || is_own) continue;
      const std::string reason = reports_.Of(child.pid);
      is_own = reason.empty() || reason.rfind(own_name, 0) == 0;
      if (!is_own && !culprit.empty()) continue;
      exit_code_ = code;
      error = reason.empty() ? reports_.ErrorOf(child.pid) : "";
      culprit = !reason.empty() ? reason
                : WIFSIGNALED(status)
                    ? fmt::format("{}) was killed by signal {} ({}) on host {}", own_name, WTERMSIG(status),
                                  strsignal(WTERMSIG(status)), HostName())
                    : fmt::format("{}) failed with exit code {} on host {}", own_name, code, HostName());
    }
    if (culprit.empty()) return;
    culprit_ = culprit;
    verdict_ = fmt::format("launch: {}{}", culprit, Running() ? "; the others are stopped" : "");
    SayWithin(kForOthersToSay);
    // Other nodes do not see what the rank says here.
    nodes_->ReportFailure(error.empty() ? culprit : fmt::format("{}: {}", culprit, error), exit_code_);
    Stop();
  }

  // A rank that leaves as a success before it has met the others leaves them waiting.
  void EndWhereARankIsMissing() {
    reports_.Read();
    if (stopping_ || !Running() || !reports_.someone_waits()) return;
    const auto missing = std::find_if(children_.begin(), children_.end(), [&](const Child& child) {
      return !child.running && !reports_.Waits(child.rank);
    });
    if (missing == children_.end()) return;
    exit_code_ = 1;
    culprit_ =
        fmt::format("rank {} (pid {}) ended with exit code 0 on host {} before it met the others, which wait for it",
                    missing->rank, missing->pid, HostName());
    verdict_ = fmt::format("launch: {}; they are stopped", culprit_);
    SayWithin(kForOthersToSay);
    nodes_->ReportFailure(culprit_, exit_code_);
    Stop();
  }

  void SayWithin(Clock::duration limit) { say_at_ = std::min(say_at_, Clock::now() + limit); }

  // What ranks have left to say, and who failed first.
  void Say() {
    std::map<pid_t, int> ranks;
    for (const Child& child : children_) ranks[child.pid] = child.rank;
    for (const std::string& error : reports_.TakeErrors(ranks, culprit_)) LogError("{}", error);
    if (!verdict_.empty()) LogError("{}", std::exchange(verdict_, ""));
    say_at_ = Clock::time_point::max();
  }

  LaunchOptions options_;
  const std::string restarted_run_;
  const std::vector<int> gone_;
  sigset_t mask_before_{};
  int signals_ = -1, socket_ = -1, interrupts_ = 0;
  int exit_code_ = 0;  // of the first failure, here or on another node
  bool stopping_ = false, was_stopped_ = false;
  std::string culprit_, verdict_;  // of the first failure here, and the line about it that is still to be said
  std::unique_ptr<NodeMeeting> nodes_;
  std::vector<Child> children_;
  std::vector<RankOutput> pipes_;
  LaunchReports reports_;
  Clock::time_point kill_at_, ended_at_, say_at_ = Clock::time_point::max();
};

}  // namespace

StatusOr<int> Launch(const LaunchOptions& options) {
  std::string run;
  std::vector<int> gone;
  for (int restarts = 0;; ++restarts) {
    Launcher launcher(options, run, gone);
    SY_ASSIGN_OR_RETURN(const int code, launcher.Run());
    if (code == 0 || !launcher.nodes().place().restarts) return code;
    const bool for_good = code == kEndsForGood;
    if (options.node_rank > 0) {
      run = launcher.AwaitAgain();
      if (run.empty()) return code;
      LogWarning("launch: starts the ranks of this node again, for the run {}", run);
      continue;
    }
    if (!launcher.run().empty()) run = launcher.run();
    gone = launcher.nodes().Gone();
    const int left = options.nnodes - static_cast<int>(gone.size());
    const bool may = !run.empty() && !launcher.was_stopped(), some_left = restarts < options.max_restarts;
    const bool wanted = may && !for_good && some_left;
    const bool enough = left >= options.least_nodes.value_or(options.nnodes);
    launcher.nodes().SayAgain(wanted && enough, run);
    if (wanted && !enough) {
      LogError("launch: {} of {} nodes are left, too few to start again; --nnodes=MIN:MAX says how many are enough",
               left, options.nnodes);
    }
    if (may && for_good) {
      LogError("launch: not started again: the same command would end like this again");
    } else if (may && !some_left) {
      LogError("launch: not started again: --max_restarts={} is used up", options.max_restarts);
    }
    if (!wanted || !enough) return code;
    LogWarning("launch: starts the ranks again, restart {} of {}, for the run {}", restarts + 1, options.max_restarts,
               run);
  }
}

}  // namespace switchyard
