#include "tools/switchyard/in_world.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/logging.h"

namespace switchyard {

Status InWorld(const TrainConfig& config, absl::FunctionRef<Status(World&)> body) {
  SY_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Join(WorldRequestOf(config)));
  const Status status = body(*world);
  if (!status.ok() && world->size() > 1) {
    // Of a peer's end the watch tells, and it ends this process (World::Join).
    if (!world->rendezvous->health().ok()) std::this_thread::sleep_for(std::chrono::seconds(2));
    LogError("{}", Message(status));
    std::fflush(nullptr);
    world->rendezvous->ReportFailure(status);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watch thread sends it
    _exit(1);
  }
  return status;
}

}  // namespace switchyard
