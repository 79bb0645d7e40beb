//   rank_program SCENARIO [COLLECTIVE [VICTIM]]            one rank of a small run
//   rank_program launch N SCENARIO [COLLECTIVE [VICTIM]]   starts N ranks of it with the launcher
// What happens to the victim, rank 1 where nothing else is said, is the scenario. A survivor prints "survivor R at T:
// MESSAGE" and a victim "victim at T", T in milliseconds of one clock, for the tests to read.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/base/environment.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/plugins/registry.h"
#include "core/runtime/processes/launch_report.h"
#include "core/runtime/processes/launcher.h"

namespace switchyard {
namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Say(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
}

[[noreturn]] void Die(int signal) {
  Say(fmt::format("victim at {}", Now()));
  raise(signal);
  std::_Exit(9);
}

// Sums that go from device to device: the victim dies while the others have its memory.
Status PlayOnDevices(std::shared_ptr<Plugin> plugin, const ProcessMap& processes, Rendezvous& rendezvous, bool victim) {
  SY_ASSIGN_OR_RETURN(auto backend, Registry::Get().Find(PluginKind::kBackend, "null"));
  SY_ASSIGN_OR_RETURN(auto device, Device::Open(*backend, 0, {}));
  SY_ASSIGN_OR_RETURN(auto communicator,
                      Communicator::Join(plugin, processes, rendezvous, device.get(), "world", 20000));
  if (!communicator->goes_through_peer_memory()) return Internal("the ranks do not reach each other's memory");
  constexpr uint64_t kCount = 1 << 20;
  SY_ASSIGN_OR_RETURN(const Buffer buffer, device->Allocate(kCount * sizeof(float)));
  SY_RETURN_IF_ERROR(device->Fill(Stream(), buffer.at(0), 0, kCount * sizeof(float)));
  SY_ASSIGN_OR_RETURN(const Stream stream, device->NewStream());
  SY_ASSIGN_OR_RETURN(const auto call,
                      communicator->Prepare("gradient", {Collective::kAllReduce, kCount}, {&buffer, 0}, {&buffer, 0}));
  for (int run = 0;; ++run) {
    if (victim && run == 5) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(7));
        Die(SIGKILL);
      }).detach();
    }
    SY_RETURN_IF_ERROR(communicator->Launch(*call, stream));
  }
}

// One large call to which the victim does not come, and rank 0 comes before the others.
Status PlayLate(const std::string& scenario, Communicator& communicator, bool victim) {
  std::vector<float> data(1 << 16, static_cast<float>(communicator.rank()));
  SY_RETURN_IF_ERROR(communicator.Barrier("begin"));
  if (victim) {
    Say(fmt::format("victim at {}", Now()));
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  if (communicator.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (scenario == "late_in_chain")
    return communicator.AllReduce("gradient", data.data(), data.data(), data.size(), SY_F32, SY_SUM);
  if (scenario == "late_in_messages") {  // one from every other rank
    std::vector<sy_transfer> transfers;
    for (int peer = 0; peer < communicator.size(); ++peer) {
      if (peer == communicator.rank()) continue;
      transfers.push_back({peer, 1, data.data(), sizeof(float)});
      transfers.push_back({peer, 0, data.data() + 1, sizeof(float)});
    }
    return communicator.SendReceive("activations", transfers);
  }
  const Status sent = communicator.Broadcast("gradient", data.data(), data.size(), SY_F32, 0);
  Say(fmt::format("rank {} has the numbers of rank {}", communicator.rank(), data.back()));
  return sent;
}

Status Play(const std::string& scenario, const std::string& collective, int victim_rank) {
  SY_ASSIGN_OR_RETURN(ProcessMap processes, ProcessMap::FromEnvironment());
  const bool victim = processes.rank == victim_rank;
  if (scenario == "exit") std::_Exit(victim ? 7 : 0);
  if (scenario == "absent" && victim) std::_Exit(0);
  if (scenario == "environment") {
    Say(fmt::format("{} {} {} {} {}", processes.rank, processes.world, processes.local_rank, processes.local_world,
                    processes.launcher));
    return OkStatus();
  }
  if (scenario == "long_line") {
    for (int piece = 0; victim && piece < 300; ++piece)
      std::fputs((piece == 0 ? "begin" : std::string(1 << 20, 'x')).c_str(), stdout);
    if (victim) std::puts(" end\nanother");
    return OkStatus();
  }
  if (scenario == "wait_for_signal") {
    sigset_t waited;
    sigemptyset(&waited);
    for (const int signal : {SIGTERM, SIGUSR1, SIGHUP, SIGUSR2}) sigaddset(&waited, signal);
    sigprocmask(SIG_BLOCK, &waited, nullptr);
    Say("ready");
    int signal = 0;
    sigwait(&waited, &signal);
    Say(fmt::format("got signal {}", signal));
    return OkStatus();
  }
  signal(SIGTERM,
         SIG_IGN);  // mpirun sends it to the survivors of a crash; like a training run, this program ends by itself
  SY_ASSIGN_OR_RETURN(auto rendezvous,
                      Rendezvous::Connect(processes, 20000, {.heartbeat_ms = 200, .freeze_limit_ms = 1500}));
  if (scenario == "kill_before_join" && victim) Die(SIGKILL);
  if (scenario == "blamed") {  // survivors have left long before the launcher hears of the death that they name
    if (!victim) {
      const auto at = static_cast<size_t>(victim_rank);
      TellLauncher(
          fmt::format("rank {} (pid {} on host {}) died", victim_rank, processes.pids[at], processes.host_names[at]));
      std::_Exit(3);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    Die(SIGKILL);
  }
  SY_ASSIGN_OR_RETURN(auto plugin, Registry::Get().Find(PluginKind::kCollective, collective));
  if (scenario == "kill_in_peers") return PlayOnDevices(plugin, processes, *rendezvous, victim);
  SY_ASSIGN_OR_RETURN(auto communicator, Communicator::Join(plugin, processes, *rendezvous, nullptr, "world", 20000));
  if (scenario.starts_with("late_in_")) return PlayLate(scenario, *communicator, victim);
  std::vector<float> data(scenario == "kill_in_large" ? 8 << 20 : 1000, 1.0f);
  const int calls = scenario == "reduce" ? 50 : 1 << 30;
  for (int call = 0; call < calls; ++call) {
    if (victim && call == 20) {
      if (scenario == "kill" || scenario == "kill_in_large") Die(SIGKILL);
      if (scenario == "freeze") Die(SIGSTOP);
      if (scenario == "leave") return OkStatus();
      if (scenario == "report") {
        const Status reason = DataLoss("train/7.jpg is not a JPEG");
        Say(fmt::format("victim at {}", Now()));
        rendezvous->ReportFailure(reason);
        return OkStatus();
      }
      if (scenario == "other_count")
        SY_RETURN_IF_ERROR(communicator->AllReduce("gradient", data.data(), data.data(), 999, SY_F32, SY_SUM));
      if (scenario == "other_dtype")
        SY_RETURN_IF_ERROR(communicator->AllReduce("gradient", data.data(), data.data(), 1000, SY_I32, SY_SUM));
      if (scenario == "other_tag")
        SY_RETURN_IF_ERROR(communicator->AllReduce("another", data.data(), data.data(), 1000, SY_F32, SY_SUM));
      if (scenario == "other_call")
        SY_RETURN_IF_ERROR(communicator->Broadcast("gradient", data.data(), 1000, SY_F32, 0));
    }
    if (scenario == "kill_in_large" && victim && call == 19) {  // dies while the others are in the middle of it
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(7));
        Die(SIGKILL);
      }).detach();
    }
    SY_RETURN_IF_ERROR(communicator->AllReduce("gradient", data.data(), data.data(), data.size(), SY_F32, SY_MAX));
  }
  Say(fmt::format("rank {} finished", processes.rank));
  return OkStatus();
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() > 3 && arguments[1] == "launch") {
    LaunchOptions options;
    options.nproc_per_node = std::atoi(arguments[2].c_str());
    options.command = {arguments[0]};
    options.command.insert(options.command.end(), arguments.begin() + 3, arguments.end());
    const auto code = Launch(options);
    if (!code.ok()) fprintf(stderr, "%s\n", Message(code.status()).c_str());
    return code.ok() ? *code : 1;
  }
  const Status status = Play(arguments[1], arguments.size() > 2 ? arguments[2] : "shm",
                             arguments.size() > 3 ? std::atoi(arguments[3].c_str()) : 1);
  if (status.ok()) return 0;
  Say(fmt::format("survivor {} at {}: {}",
                  Environment("OMPI_COMM_WORLD_RANK").value_or(Environment("RANK").value_or("0")), Now(),
                  Message(status)));
  std::_Exit(3);
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return switchyard::Main({argv, argv + argc});
}
