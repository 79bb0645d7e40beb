// Many ranks on one machine: as many processes, which are nothing but a Rendezvous each, meet over the loopback by the
// protocol of a run on several nodes, put, get, pass barriers and leave; or one of them is killed, and the others are
// asked when they knew; or, where they are "idle", all do nothing for ten heartbeats before they leave. Prints for each
// phase its time, from the moment that all were ready to the last one's end, and the messages and bytes, sent and
// received, of the busiest process and of all.
//
//   switchyard-bench-rendezvous RANKS [RANKS_PER_NODE=8] [idle|kill|kill_relay|freeze] [HEARTBEAT_MS=500]
#include "core/runtime/processes/rendezvous.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime/processes/message_link.h"
#include "core/runtime/processes/token.h"

namespace switchyard {
namespace {

constexpr int kTimeoutMs = 120000;
constexpr int kFreezeLimitMs = 3000;
constexpr int kBarriers = 10, kHeartbeats = 10;
constexpr const char* kPhases[] = {"meet", "put and get", "get one value", "10 barriers", "leave"};
constexpr int kPhaseCount = static_cast<int>(std::size(kPhases));

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Progress {  // of one rank, in shared memory
  double ended[kPhaseCount] = {};
  MessageLink::Traffic traffic[kPhaseCount] = {};
  int descriptors = 0;
  uint64_t idle_messages = 0;
  double idle_seconds = 0;
  std::atomic<double> told_at = 0;
  char told[200] = {};
};

struct Shared {
  std::atomic<int> step = 0;  // 2 p + 1: phase p may begin; 2 p + 2: all have ended it, and say what they sent
  std::atomic<int> ended[kPhaseCount] = {}, counted[kPhaseCount] = {};
  double began[kPhaseCount] = {};
  std::atomic<int> idled = 0;  // ranks that have counted what they sent while they were idle
  std::atomic<int> failed = 0;
  Progress ranks[];
};

struct Options {
  int ranks = 64, ranks_per_node = 8, heartbeat_ms = 500;
  std::string what = "leave";
  bool loses() const { return what != "leave" && what != "idle"; }
};

int OpenDescriptors() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

Status RunRank(const Options& options, int rank, const std::string& run_id, int port, Shared& shared) {
  Progress& own = shared.ranks[rank];
  const auto wait_for = [&](int step) {
    for (int now; (now = shared.step) < step;) syscall(SYS_futex, &shared.step, FUTEX_WAIT, now, nullptr, nullptr, 0);
  };
  const auto begin = [&](int phase) { wait_for(2 * phase + 1); };
  const auto end = [&](int phase) {
    own.ended[phase] = Seconds();
    ++shared.ended[phase];
    wait_for(2 * phase + 2);
    own.traffic[phase] = MessageLink::OfThisProcess();
    ++shared.counted[phase];
  };
  ProcessMap map;
  map.rank = rank;
  map.world = options.ranks;
  map.launcher = "env";
  map.master_address = "127.0.0.1";
  map.master_port = port;
  map.run_id = run_id;
  map.node_identity = fmt::format("node {} of {}", rank / options.ranks_per_node, port);
  map.one_node = options.ranks_per_node >= options.ranks;
  WatchOptions watch;
  watch.heartbeat_ms = options.heartbeat_ms;
  watch.freeze_limit_ms = options.what == "freeze" ? kFreezeLimitMs : 0;
  begin(0);
  SY_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::Connect(map, kTimeoutMs, watch));
  own.descriptors = OpenDescriptors();
  end(0);
  begin(1);
  SY_RETURN_IF_ERROR(rendezvous->Put(fmt::format("of/{}", rank), "here"));
  SY_RETURN_IF_ERROR(rendezvous->Get(fmt::format("of/{}", (rank + 1) % options.ranks), kTimeoutMs).status());
  end(1);
  begin(2);
  if (rank == 0) SY_RETURN_IF_ERROR(rendezvous->Put("one", "for all"));
  SY_RETURN_IF_ERROR(rendezvous->Get("one", kTimeoutMs).status());
  end(2);
  begin(3);
  for (int i = 0; i < kBarriers; ++i) SY_RETURN_IF_ERROR(rendezvous->Barrier("together", kTimeoutMs));
  end(3);
  begin(4);
  if (options.what == "idle") {
    const uint64_t messages = MessageLink::OfThisProcess().messages;
    const double start = Seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(kHeartbeats * options.heartbeat_ms));
    own.idle_messages = MessageLink::OfThisProcess().messages - messages;
    own.idle_seconds = Seconds() - start;
    // Nobody's goodbye is counted.
    for (++shared.idled; shared.idled < options.ranks;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } else if (options.what != "leave") {
    while (rendezvous->health().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::snprintf(own.told, sizeof own.told, "%s", Message(rendezvous->health()).c_str());
    own.told_at = Seconds();
    begin(kPhaseCount);  // never
  }
  rendezvous.reset();
  end(4);
  return OkStatus();
}

// Until all ranks have done something; false where one has failed.
bool AllHave(const Options& options, const Shared& shared, const std::atomic<int>& done) {
  while (done < options.ranks && shared.failed == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return shared.failed == 0;
}

void Go(Shared& shared, int step) {
  shared.step = step;
  syscall(SYS_futex, &shared.step, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

void Report(const Options& options, const Shared& shared, int phase) {
  double last = 0;
  uint64_t busiest = 0, all = 0, busiest_bytes = 0, all_bytes = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const Progress& one = shared.ranks[rank];
    const MessageLink::Traffic before = phase > 0 ? one.traffic[phase - 1] : MessageLink::Traffic{};
    const uint64_t messages = one.traffic[phase].messages - before.messages,
                   bytes = one.traffic[phase].bytes - before.bytes;
    last = std::max(last, one.ended[phase]);
    busiest = std::max(busiest, messages);
    busiest_bytes = std::max(busiest_bytes, bytes);
    all += messages;
    all_bytes += bytes;
  }
  std::printf("%-14s %8.4f s, busiest %lu messages %lu bytes, all %lu messages %lu bytes\n", kPhases[phase],
              last - shared.began[phase], busiest, busiest_bytes, all, all_bytes);
}

// One is killed, or stopped; the others are asked what they know.
int Lose(const Options& options, Shared& shared, const std::vector<pid_t>& pids, int victim) {
  const double at = Seconds();
  kill(pids[static_cast<size_t>(victim)], options.what == "freeze" ? SIGSTOP : SIGKILL);
  const double limit = at + 30;
  int told = 0, right = 0;
  double last = 0;
  while (told < options.ranks - 1 && Seconds() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    told = static_cast<int>(
        std::count_if(shared.ranks, shared.ranks + options.ranks, [](const Progress& one) { return one.told_at > 0; }));
  }
  const std::string name = fmt::format("rank {} (pid {}", victim, pids[static_cast<size_t>(victim)]);
  for (int rank = 0; rank < options.ranks; ++rank) {
    const Progress& one = shared.ranks[rank];
    last = std::max(last, one.told_at.load());
    right += one.told_at > 0 && std::string(one.told).starts_with(name);
  }
  std::printf("rank %d lost: %d of %d told its name, the last after %.3f s\n", victim, right, options.ranks - 1,
              last - at);
  return right == options.ranks - 1 ? 0 : 1;
}

int Run(const Options& options) {
  const size_t bytes = sizeof(Shared) + sizeof(Progress) * static_cast<size_t>(options.ranks);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  Shared& shared = *new (memory) Shared;
  for (int rank = 0; rank < options.ranks; ++rank) new (&shared.ranks[rank]) Progress;
  const std::string run_id = *RandomToken();
  const int listener = *ListenOn("127.0.0.1", 0), port = *PortOf(listener);
  close(listener);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) std::perror("fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Status status = RunRank(options, rank, run_id, port, shared);
      if (!status.ok()) {
        if (shared.failed++ == 0) std::fprintf(stderr, "rank %d: %s\n", rank, Message(status).c_str());
      }
      _exit(status.ok() ? 0 : 1);
    }
    pids.push_back(pid);
  }
  std::printf("%d ranks, %d on a node\n", options.ranks, options.ranks_per_node);
  int code = 0;
  for (int phase = 0; phase < kPhaseCount && code == 0; ++phase) {
    const bool last = phase == kPhaseCount - 1;
    shared.began[phase] = Seconds();
    Go(shared, 2 * phase + 1);
    if (last && options.loses()) {
      const bool relay = options.what == "kill_relay";
      // The neighbours' one with most descriptors relays for them.
      const int node = options.ranks / options.ranks_per_node - 1, first = node * options.ranks_per_node;
      Progress* const from = shared.ranks + first;
      const auto fewer = [](const Progress& a, const Progress& b) { return a.descriptors < b.descriptors; };
      const Progress* const found = relay ? std::max_element(from, shared.ranks + options.ranks, fewer)
                                          : std::min_element(from, shared.ranks + options.ranks, fewer);
      code = Lose(options, shared, pids, static_cast<int>(found - shared.ranks));
      break;
    }
    if (!AllHave(options, shared, shared.ended[phase])) code = 1;
    Go(shared, 2 * phase + 2);
    if (code == 0 && !AllHave(options, shared, shared.counted[phase])) code = 1;
  }
  const int reported = code != 0 ? 0 : options.loses() ? kPhaseCount - 1 : kPhaseCount;
  for (int phase = 0; phase < reported; ++phase) Report(options, shared, phase);
  if (code == 0) std::printf("descriptors of rank 0: %d\n", shared.ranks[0].descriptors);
  if (code == 0 && options.what == "idle") {
    const Progress& first = shared.ranks[0];
    std::printf("idle rank 0: %lu messages in %.3f s\n", first.idle_messages, first.idle_seconds);
  }
  if (code != 0 || options.loses()) {
    for (const pid_t pid : pids) kill(pid, SIGKILL);
  }
  for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  return code;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  switchyard::Options options;
  if (argc > 1) options.ranks = std::atoi(argv[1]);
  if (argc > 2) options.ranks_per_node = std::atoi(argv[2]);
  if (argc > 3) options.what = argv[3];
  if (argc > 4) options.heartbeat_ms = std::atoi(argv[4]);
  const bool known =
      !options.loses() || options.what == "kill" || options.what == "kill_relay" || options.what == "freeze";
  if (options.ranks < 2 || options.ranks_per_node < 1 || !known || options.heartbeat_ms < 1) {
    std::fprintf(stderr, "usage: %s RANKS [RANKS_PER_NODE] [leave|idle|kill|kill_relay|freeze] [HEARTBEAT_MS]\n",
                 argv[0]);
    return 2;
  }
  return switchyard::Run(options);
}
