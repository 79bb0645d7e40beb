//   embedding_program WAIT COLLECTIVE VICTIM HARM REPORT
// One of two ranks of a program that embeds the library and does not end with it: once both have come, the rank VICTIM
// is killed or stopped (HARM: kill, stop), while the other is in WAIT (train, all_reduce, barrier, get). The other
// writes into the file REPORT what its wait came to, lets everything go, writes that it goes on, and ends by itself.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/train/trainer.h"
#include "tests/faults/bars.h"

namespace switchyard {
namespace {

struct Arguments {
  std::string wait, collective, harm, report;
  int victim = 0;
};

Status Train(World& world, const Bars& bars, const std::string& output) {
  TrainConfig config = BarsConfig();
  config.steps = 2000000;
  config.output = output;
  SY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(config, BarsModel(), bars, bars, world));
  return trainer->Train().status();
}

Status Wait(const Arguments& arguments, World& world, const Bars& bars) {
  constexpr int kLongMs = 600000;
  if (arguments.wait == "train") return Train(world, bars, arguments.report + ".run");
  if (arguments.wait == "barrier") return world.rendezvous->Barrier("together", kLongMs);
  if (arguments.wait == "get") return world.rendezvous->Get("nobody puts this", kLongMs).status();
  std::vector<float> values(100000, 1.0f);
  for (;;)
    SY_RETURN_IF_ERROR(
        world.communicator->AllReduce("values", values.data(), values.data(), values.size(), SY_F32, SY_MAX));
}

// Some time after all have come, and in the middle of the training.
void Harm(const Arguments& arguments, const Bars& bars) {
  while (arguments.wait == "train" && bars.reads < 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(getpid(), arguments.harm == "stop" ? SIGSTOP : SIGKILL);
}

Status Play(const Arguments& arguments) {
  const Bars bars;
  WorldRequest request{.device = "cpu", .collective = arguments.collective, .threads = 1, .freeze_limit_ms = 1500};
  SY_ASSIGN_OR_RETURN(const auto world, World::Join(request));
  SY_RETURN_IF_ERROR(world->rendezvous->Barrier("all have come", 20000));
  std::thread harm;
  if (world->rank() == arguments.victim) {
    harm = std::thread([&] { Harm(arguments, bars); });
    if (arguments.wait == "barrier") harm.join();  // never comes
  }
  const Status status = Wait(arguments, *world, bars);
  if (world->rank() == arguments.victim)
    std::_Exit(1);  // mpirun has woken it; what it says now would replace the report
  return status;
}

int Main(const Arguments& arguments) {
  signal(SIGTERM, SIG_IGN);  // mpirun sends it to the survivor
  const Status status = Play(arguments);
  std::ofstream report(arguments.report);
  report << Message(status) << "\nthe program goes on\n" << std::flush;
  return status.ok() ? 1 : 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  return switchyard::Main({argv[1], argv[2], argv[4], argv[5], std::atoi(argv[3])});
}
