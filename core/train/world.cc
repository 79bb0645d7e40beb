#include "core/train/world.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/plugins/interpose.h"
#include "core/runtime/plugins/registry.h"

namespace switchyard {
namespace {

constexpr char kLastResort[] = "reference";  // the backend that has every kernel
constexpr char kHostBackend[] = "cpu";       // the one that is fast on the host's cores

// The registry is for one thread at a time, and ranks may be threads of one process.
std::mutex& AccessToPlugins() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

// Why this plugin cannot join the run; OK where nothing is known against it.
Status CanJoin(const Plugin& plugin, const World& world) {
  SY_ASSIGN_OR_RETURN(const CollectiveInfo info, plugin.DescribeCollective());
  const DeviceInfo& device = world.device->info();
  if ((info.flags & SY_COLLECTIVE_ONE_NODE) != 0 && world.processes.nodes > 1) {
    return FailedPrecondition("joins ranks of one node only, and there are {} nodes", world.processes.nodes);
  }
  if ((info.flags & SY_COLLECTIVE_UNLAUNCHED) != 0) {
    return FailedPrecondition("this process was not started by the launcher that it needs");
  }
  if (!info.Reaches(kHostMemory) && !info.Reaches(device.memory_kind)) {
    return FailedPrecondition("reaches neither host memory nor that of {} ({})", device.plugin, device.name);
  }
  // Of the run's devices only the first are driven where --ranks_per_device puts several ranks on each.
  const int each = world.choice.ranks_per_device, devices = (world.processes.local_world + each - 1) / each;
  if ((info.flags & SY_COLLECTIVE_DISTINCT_DEVICES) != 0 && world.processes.local_world > devices) {
    return FailedPrecondition("needs a device for each rank, and {} ranks of this node share {}",
                              world.processes.local_world, devices);
  }
  return OkStatus();
}

// The plugin of the highest priority that can join: a device's own (nccl, hccl) comes before shm, and shm before mpi.
StatusOr<std::string> BestCollective(const World& world) {
  std::string chosen, refused;
  const auto refuse = [&](const Candidate& candidate, const Status& verdict) {
    refused += fmt::format("\n  {}: {}", candidate.name, Message(verdict));
  };
  const std::lock_guard lock(AccessToPlugins());
  Registry& registry = Registry::Get();
  for (const Candidate& candidate : registry.candidates()) {
    if (candidate.kind == PluginKind::kCollective && !candidate.verdict.ok()) refuse(candidate, candidate.verdict);
  }
  registry.OfferByPriority(PluginKind::kCollective, [&](const Candidate& candidate, const auto& plugin) {
    const Status verdict = plugin.ok() ? CanJoin(**plugin, world) : plugin.status();
    if (verdict.ok()) chosen = candidate.name;
    if (!verdict.ok()) refuse(candidate, verdict);
    return verdict.ok();
  });
  if (!chosen.empty()) return chosen;
  return NotFound("--collective=auto: no collective plugin can join {} ranks; tried:{}", world.size(),
                  refused.empty() ? " none was found" : refused);
}

StatusOr<std::shared_ptr<Plugin>> ChooseCollective(World& world, const WorldRequest& request) {
  constexpr char kKey[] = "collective";
  const auto find = [](const std::string& wanted) {
    const std::lock_guard lock(AccessToPlugins());
    return Registry::Get().Find(PluginKind::kCollective, wanted);
  };
  const bool first = world.rank() == 0, is_auto = request.collective == "auto";
  std::string name = request.collective, of_rank_0;
  std::shared_ptr<Plugin> plugin;
  if (!is_auto) {
    SY_ASSIGN_OR_RETURN(plugin, find(name));
  } else if (first) {
    SY_ASSIGN_OR_RETURN(name, BestCollective(world));
  }
  if (!first) {
    SY_ASSIGN_OR_RETURN(of_rank_0, world.rendezvous->Get(kKey, request.init_timeout_ms));
  }
  if (is_auto) {
    if (!first) name = of_rank_0;
    SY_ASSIGN_OR_RETURN(plugin, find(name));
    const int nodes = world.processes.nodes;
    world.collective_why = fmt::format("{}: highest priority that can join {} ranks on {} node{}", name, world.size(),
                                       nodes, nodes > 1 ? "s" : "");
  }
  if (first) {
    SY_RETURN_IF_ERROR(world.rendezvous->Put(kKey, plugin->name()));
  } else if (plugin->name() != of_rank_0) {
    const Status differs = InvalidArgument(
        "--collective={}: rank 0 takes {}; start all ranks with the same --collective", name, of_rank_0);
    world.rendezvous->ReportFailure(differs);                     // the others would wait for this rank in theirs
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the watch thread sends it
    return differs;
  }
  const Status verdict = [&] {
    const std::lock_guard lock(AccessToPlugins());
    return CanJoin(*plugin, world);
  }();
  if (verdict.ok()) return plugin;
  const auto could = BestCollective(world);
  return FailedPrecondition("collective {}, {}: {}; {}", name, is_auto ? "which rank 0 chose" : "as asked for",
                            Message(verdict),
                            could.ok() ? fmt::format("--collective={} can join these ranks", *could)
                                       : "no other --collective can join these ranks");
}

// The first line in which two lists differ, in words: "…", or "no --lr" where that line is of the other alone.
std::string LinesThatDiffer(const std::string& list, const std::string& of_rank_0) {
  size_t line = 0;
  const auto at = [&line](const std::string& text) {
    return line < text.size() ? text.substr(line, text.find('\n', line) - line) : "";
  };
  while (line < list.size() && line < of_rank_0.size() && at(list) == at(of_rank_0)) line = list.find('\n', line) + 1;
  const std::string own = at(list), of_other = at(of_rank_0);
  // A line that one of them does not have at all is not compared with the one behind it.
  const auto comes_later = [&line](const std::string& text, const std::string& said) {
    const size_t end = said.find_first_of(" =");
    return end != std::string::npos && text.find("\n" + said.substr(0, end + 1), line) != std::string::npos;
  };
  const bool is_missing = own.empty() || comes_later(of_rank_0, own);
  const bool is_extra = of_other.empty() || comes_later(list, of_other);
  const auto none_of = [](const std::string& said) { return "no " + said.substr(0, said.find_first_of(" =")); };
  const auto quoted = [](const std::string& said) { return "\"" + said + "\""; };
  return fmt::format("{}, rank 0 has {}", is_missing && !is_extra ? none_of(of_other) : quoted(own),
                     is_extra && !is_missing ? none_of(own) : quoted(of_other));
}

}  // namespace

World::~World() = default;

StatusOr<std::unique_ptr<World>> World::Join(const WorldRequest& request) {
  auto world = std::make_unique<World>();
  SY_ASSIGN_OR_RETURN(world->processes, ProcessMap::FromEnvironment(request.master_address));
  SetLogRank(world->rank(), world->size());
  SY_RETURN_IF_ERROR(MeshOf(world->size(), request.pipeline, request.tensor).status());
  if (world->size() > 1) {
    WatchOptions watch;
    watch.freeze_limit_ms = request.freeze_limit_ms;
    SY_ASSIGN_OR_RETURN(world->rendezvous, Rendezvous::Connect(world->processes, request.init_timeout_ms, watch));
  }
  SY_RETURN_IF_ERROR(world->Open(request));
  return world;
}

StatusOr<std::unique_ptr<World>> World::Join(const WorldRequest& request, const ProcessMap& processes,
                                             std::shared_ptr<Rendezvous> rendezvous) {
  auto world = std::make_unique<World>();
  world->processes = processes;
  world->rendezvous = std::move(rendezvous);
  SY_RETURN_IF_ERROR(world->Open(request));
  return world;
}

Status World::Open(const WorldRequest& request) {
  if (request.threads && *request.threads < 1)
    return InvalidArgument("--threads={}: expected a positive number", *request.threads);
  SY_ASSIGN_OR_RETURN(mesh, MeshOf(size(), request.pipeline, request.tensor));
  if (rendezvous) {
    mesh.nodes = processes.hosts;
    if (request.on_peer_failure) rendezvous->OnFailure(request.on_peer_failure);
  }
  SY_RETURN_IF_ERROR(OpenDevice(request));
  collective = "none";
  if (size() > 1) return OpenCommunicator(request);
  if (request.collective == "auto") return OkStatus();
  const std::lock_guard lock(AccessToPlugins());  // one rank needs none, but a name must be right
  return Registry::Get().Find(PluginKind::kCollective, request.collective).status();
}

Status World::OpenDevice(const WorldRequest& request) {
  DeviceRequest wanted;
  wanted.device = request.device;
  wanted.device_list = request.device_list;
  wanted.ranks_per_device = request.ranks_per_device;
  wanted.cpu_devices = request.cpu_devices;
  wanted.local_rank = processes.local_rank;
  wanted.local_world = processes.local_world;
  std::shared_ptr<Plugin> plugin;
  StatusOr<std::shared_ptr<Plugin>> last_resort = NotFound("");
  {
    const std::lock_guard lock(AccessToPlugins());
    const std::vector<PluginDevices> survey = SurveyDevices(Registry::Get(), wanted);
    SY_ASSIGN_OR_RETURN(choice, ChooseDevice(wanted, survey));
    // A path means that library, whatever others call themselves.
    const bool path = request.device.find('/') != std::string::npos;
    SY_ASSIGN_OR_RETURN(plugin, Registry::Get().Find(PluginKind::kBackend, path ? request.device : choice.plugin));
    SY_ASSIGN_OR_RETURN(plugin, Interpose(plugin, request.interpose));
    if (plugin->name() != kLastResort) last_resort = Registry::Get().Find(PluginKind::kBackend, kLastResort);
  }
  SY_ASSIGN_OR_RETURN(const DeviceInfo info, plugin->Describe(choice.index));
  const std::vector<int> cores = CoresOfLocalRank(AllowedCores(), processes.local_rank, processes.local_world);
  host_threads = static_cast<int>(cores.size());
  OpenOptions options;
  options.deterministic = request.deterministic;
  options.memory_limit = request.memory_limit;
  if ((info.flags & SY_DEVICE_CPU_CORES) != 0) {
    options.cores = cores;
    threads = host_threads = request.threads.value_or(host_threads);
    options.threads = threads;
    if (threads != static_cast<int>(cores.size())) options.cores.clear();
  }
  SY_ASSIGN_OR_RETURN(device, Device::Open(*plugin, choice.index, options));
  if (request.computes_on_host && info.address_kind != SY_ADDRESS_HOST) SY_RETURN_IF_ERROR(OpenHost(request, cores));
  if (!last_resort.ok()) return OkStatus();
  OpenOptions one_thread;
  one_thread.threads = 1;
  SY_ASSIGN_OR_RETURN(reference, Device::Open(**last_resort, 0, one_thread));
  return OkStatus();
}

// The backend that the manifest of the device's plugin names, where its numbers are those of that one; else
// kHostBackend.
Status World::OpenHost(const WorldRequest& request, const std::vector<int>& cores) {
  StatusOr<std::shared_ptr<Plugin>> plugin = NotFound("");
  {
    const std::lock_guard lock(AccessToPlugins());
    std::string name = kHostBackend;
    for (const Candidate& candidate : Registry::Get().candidates()) {
      if (candidate.kind == PluginKind::kBackend && candidate.name == choice.plugin && candidate.host)
        name = *candidate.host;
    }
    plugin = Registry::Get().Find(PluginKind::kBackend, name);
  }
  if (!plugin.ok()) {
    LogWarning("what --offload leaves to the host runs on the reference plugin, which is slow: {}",
               Message(plugin.status()));
    return OkStatus();
  }
  if ((*plugin)->name() == kLastResort) return OkStatus();
  SY_ASSIGN_OR_RETURN(const DeviceInfo info, (*plugin)->Describe(0));
  if (info.address_kind != SY_ADDRESS_HOST) {
    return FailedPrecondition(
        "what --offload leaves to the host would run on the {} plugin, which the manifest of {} names: expected one "
        "whose memory is the host's; use --offload=none, or name another there",
        (*plugin)->name(), choice.plugin);
  }
  OpenOptions options;
  options.deterministic = request.deterministic;
  options.cores = cores;
  options.threads = request.threads.value_or(static_cast<int>(cores.size()));
  if (options.threads != static_cast<int>(cores.size())) options.cores.clear();
  SY_ASSIGN_OR_RETURN(host, Device::Open(**plugin, 0, options));
  return OkStatus();
}

Status World::OpenCommunicator(const WorldRequest& request) {
  SY_ASSIGN_OR_RETURN(std::shared_ptr<Plugin> plugin, ChooseCollective(*this, request));
  {
    const std::lock_guard lock(AccessToPlugins());
    SY_ASSIGN_OR_RETURN(plugin, Interpose(plugin, request.interpose));
  }
  collective = plugin->name();
  SY_ASSIGN_OR_RETURN(
      communicator, Communicator::Join(plugin, processes, *rendezvous, device.get(), "world", request.init_timeout_ms));
  return OkStatus();
}

StatusOr<GroupCommunicators> World::CommunicatorsOf(const std::vector<Group>& wanted) {
  std::vector<Communicator*> communicators;
  const int division = divisions++;
  for (const Group& group : wanted) {
    communicators.push_back(nullptr);
    const bool alone = group.ranks.size() == 1;
    if (alone && !group.uneven) continue;
    if (static_cast<int>(group.ranks.size()) == size()) {
      communicators.back() = communicator.get();
      continue;
    }
    // Others may have company in theirs, and all take part in a split.
    SY_ASSIGN_OR_RETURN(auto split, communicator->Split(alone ? -1 : group.ranks[0], rank(),
                                                        fmt::format("group/{}/{}", division, group.name)));
    if (alone) continue;
    groups.push_back(std::move(split));
    communicators.back() = groups.back().get();
  }
  return GroupCommunicators(std::move(communicators));
}

StatusOr<double> World::Mean(const char* name, double value) {
  if (!communicator) return value;
  SY_RETURN_IF_ERROR(communicator->AllReduce(name, &value, &value, 1, SY_F64, SY_SUM));
  return value / size();
}

StatusOr<uint64_t> World::Most(const char* name, uint64_t value) {
  auto most = static_cast<int64_t>(value);
  if (communicator) SY_RETURN_IF_ERROR(communicator->AllReduce(name, &most, &most, 1, SY_I64, SY_MAX));
  return static_cast<uint64_t>(most);
}

StatusOr<std::string> World::FirstDifference(const std::string& lines) {
  if (size() == 1) return std::string();
  std::string theirs = lines;
  SY_RETURN_IF_ERROR(BroadcastText(theirs, 0));
  int32_t first = theirs == lines ? size() : rank();
  SY_RETURN_IF_ERROR(communicator->AllReduce("first_difference", &first, &first, 1, SY_I32, SY_MIN));
  if (first == size()) return std::string();
  if (first < 1 || first > size())  // rank 0 cannot differ from itself
    return Internal(
        "{}: the smallest of numbers from 1 to {} came out as {}, so what its ranks send does not arrive; "
        "`switchyard conform` says more of it",
        collective, size(), first);
  std::string difference = rank() == first ? LinesThatDiffer(lines, theirs) : "";
  SY_RETURN_IF_ERROR(BroadcastText(difference, first));
  return fmt::format("rank {} has {}", first, difference);
}

Status World::BroadcastText(std::string& text, int root) {
  uint64_t length = text.size();
  SY_RETURN_IF_ERROR(communicator->Broadcast("text/length", &length, sizeof length, SY_U8, root));
  text.resize(length);
  return communicator->Broadcast("text", text.data(), length, SY_U8, root);
}

}  // namespace switchyard
