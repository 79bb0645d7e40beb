//   dying_writer_program OUTPUT VICTIM
// A rank of a run whose ranks share the optimizer's state and save every second of eight updates, in the run folder
// OUTPUT/bar_net/bars/a/run; where that has a checkpoint, the run goes on from it. The rank VICTIM, if there is one, is
// killed in the middle of what it writes of the checkpoint of update 4.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/train/file_calls.h"
#include "core/train/trainer.h"
#include "tests/faults/bars.h"

namespace switchyard {
namespace {

// What it holds is written with room for the header, which comes last.
FileCalls CallsOfVictim() {
  FileCalls calls = SystemFileCalls();
  calls.write = [real = calls.write, writes = 0](int descriptor, const void* data, size_t bytes) mutable {
    std::error_code none;
    const std::string path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none);
    if (path.find("/.step-00000004.tmp/state-") != std::string::npos && ++writes == 1) {
      (void)real(descriptor, data, bytes / 2);
      fprintf(stderr, "is killed in %s\n", std::filesystem::path(path).filename().c_str());
      kill(getpid(), SIGKILL);
    }
    return real(descriptor, data, bytes);
  };
  return calls;
}

Status Train(const std::string& output, int victim) {
  SY_ASSIGN_OR_RETURN(const auto world, World::Join({.device = "cpu", .collective = "shm", .threads = 1}));
  TrainConfig config = BarsConfig();
  config.optimizer = "adamw";
  config.zero = 1;
  config.steps = 8;
  config.save_every = 2;
  config.keep = 0;
  config.output = output;
  config.suffix = "a";
  const std::string run = output + "/bar_net/bars/a/run";
  if (std::filesystem::exists(run + "/checkpoints/latest")) config.resume = run;
  const Bars bars;
  SY_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(config, BarsModel(), bars, bars, *world));
  const FileCalls calls = CallsOfVictim();
  if (world->rank() == victim) ReplaceFileCalls(&calls);
  const Status status = trainer->Train().status();
  ReplaceFileCalls(nullptr);
  return status;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const switchyard::Status status = switchyard::Train(argv[1], std::atoi(argv[2]));
  if (!status.ok()) fprintf(stderr, "error: %s\n", switchyard::Message(status).c_str());
  return status.ok() ? 0 : 1;
}
