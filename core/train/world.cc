#include "core/train/world.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/environment.h"
#include "core/base/logging.h"

namespace switchyard {
namespace {

// auto: one node → shm, several → mpi; the first that loads. A device's own collective (nccl, hccl) has a higher priority and refuses what it cannot.
StatusOr<std::shared_ptr<Plugin>> ChooseCollective(const std::string& name, const ProcessMap& processes, std::string* why) {
  Registry& registry = Registry::Get();
  if (name != "auto") return registry.Find(PluginKind::kCollective, name);
  std::vector<Candidate> candidates;
  for (const Candidate& c : registry.candidates()) {
    if (c.kind == PluginKind::kCollective) candidates.push_back(c);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.priority > b.priority; });
  std::string refused;
  for (const Candidate& c : candidates) {
    auto plugin = registry.Find(PluginKind::kCollective, c.name);
    if (!plugin.ok()) {
      refused += fmt::format("\n  {}: {}", c.name, Message(plugin.status()));
      continue;
    }
    const auto* api = (*plugin)->Interface<sy_collective_v1>("collective/1");
    sy_collective_info info{};
    info.header = SY_HEADER(sy_collective_info);
    sy_error error = EmptyError();
    if (const sy_status status = api->query(&info, &error); status != SY_OK) {
      refused += fmt::format("\n  {}: {}", c.name, error.message);
      continue;
    }
    if ((info.flags & SY_COLLECTIVE_ONE_NODE) != 0 && processes.nodes > 1) {
      refused += fmt::format("\n  {}: joins ranks of one node only, and there are {} nodes", c.name, processes.nodes);
      continue;
    }
    *why = fmt::format("{}: highest priority that can join {} ranks on {} node{}", c.name, processes.world, processes.nodes, processes.nodes > 1 ? "s" : "");
    return plugin;
  }
  return NotFound("--collective=auto: no collective plugin can join {} ranks; tried:{}", processes.world, refused.empty() ? " none was found" : refused);
}

}  // namespace

World::~World() = default;

StatusOr<std::unique_ptr<World>> World::Join(const WorldRequest& request) {
  auto world = std::make_unique<World>();
  SY_ASSIGN_OR_RETURN(world->processes, ProcessMap::FromEnvironment());
  SetLogRank(world->processes.rank, world->processes.world);
  if (world->size() > 1) {
    WatchOptions watch;
    watch.freeze_limit_ms = request.freeze_limit_ms;
    SY_ASSIGN_OR_RETURN(world->rendezvous, Rendezvous::Connect(world->processes, request.init_timeout_ms, watch));
    // The main thread may sit in a kernel or a collective: it is not waited for longer than survivors may take to leave.
    world->rendezvous->OnFailure([](const Status& status) {
      LogError("{}; leaving", Message(status));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      _exit(3);
    });
  }

  DeviceRequest device;
  device.device = request.device;
  device.device_list = request.device_list;
  device.ranks_per_device = request.ranks_per_device;
  device.cpu_devices = request.cpu_devices;
  device.local_rank = world->processes.local_rank;
  device.local_world = world->processes.local_world;
  const std::vector<PluginDevices> survey = SurveyDevices(Registry::Get(), device);
  SY_ASSIGN_OR_RETURN(world->choice, ChooseDevice(device, survey));

  SY_ASSIGN_OR_RETURN(const std::shared_ptr<Plugin> plugin, Registry::Get().Find(PluginKind::kBackend, world->choice.plugin));
  SY_ASSIGN_OR_RETURN(const DeviceInfo info, plugin->Describe(world->choice.index));
  OpenOptions options;
  options.deterministic = request.deterministic;
  if ((info.flags & SY_DEVICE_CPU_CORES) != 0) {
    options.cores = CoresOfLocalRank(AllowedCores(), world->processes.local_rank, world->processes.local_world);
    options.threads = request.threads > 0 ? request.threads : static_cast<int>(options.cores.size());
    if (options.threads != static_cast<int>(options.cores.size())) options.cores.clear();
    world->threads = options.threads;
  }
  SY_ASSIGN_OR_RETURN(world->device, Device::Open(*plugin, world->choice.index, options));
  if (plugin->name() != "reference") {
    const auto reference = Registry::Get().Find(PluginKind::kBackend, "reference");
    if (reference.ok()) {
      OpenOptions one_thread;
      one_thread.threads = 1;
      SY_ASSIGN_OR_RETURN(world->reference, Device::Open(**reference, 0, one_thread));
    }
  }

  std::shared_ptr<Plugin> collective;
  world->collective = "none";
  if (world->size() > 1 || request.collective != "auto") {  // one rank needs none, but a name must be right
    SY_ASSIGN_OR_RETURN(collective, ChooseCollective(request.collective, world->processes, &world->collective_why));
  }
  if (world->size() > 1) {
    world->collective = collective->name();
    SY_ASSIGN_OR_RETURN(world->communicator, Communicator::Join(collective, world->processes, *world->rendezvous, world->device.get(), "world", request.init_timeout_ms));
  }
  return world;
}

}  // namespace switchyard
