#include "core/runtime/processes/process_map.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>

#include "core/base/environment.h"
#include "core/base/logging.h"
#include "core/runtime/processes/slurm.h"

namespace switchyard {
namespace {

constexpr int kDefaultPort = 29500;  // where nothing says otherwise; also what PyTorch's env:// takes

// A whole number that must lie in [low, high], or nullopt where the variable is not set.
StatusOr<std::optional<int>> Number(const std::string& name, int low, int high) {
  const auto text = Environment(name);
  if (!text) return std::optional<int>();
  const auto number = EnvironmentInt(name);
  if (!number || *number < low || *number > high) {
    return InvalidArgument("{}: expected a whole number from {} to {}, found \"{}\"", name, low, high, *text);
  }
  return number;
}

// The variables in which a launcher tells a process its place.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
};

constexpr int kMostRanks = 1 << 20;

// Rank and world size, and where the launcher says them local rank and local world size.
StatusOr<ProcessMap> Read(const Variables& names) {
  SY_ASSIGN_OR_RETURN(const auto world, Number(names.world, 1, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto rank, Number(names.rank, 0, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto local_rank, Number(names.local_rank, 0, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto local_world, Number(names.local_world, 1, kMostRanks));
  if (!world || !rank) {
    return InvalidArgument("{} is set but {} is not; a launcher sets both", rank ? names.rank : names.world,
                           rank ? names.world : names.rank);
  }
  if (*rank >= *world) {
    return InvalidArgument("{}={} but {}={}; ranks count from 0 to {}", names.rank, *rank, names.world, *world,
                           *world - 1);
  }
  ProcessMap map;
  map.launcher = names.launcher;
  map.rank = *rank;
  map.world = *world;
  map.local_world = local_world.value_or(*world);
  map.local_rank = local_rank.value_or(*rank % map.local_world);
  if (map.local_world > map.world) {
    return InvalidArgument("{}={} but {}={}; a node cannot hold more ranks than the run has", names.local_world,
                           map.local_world, names.world, map.world);
  }
  if (map.local_rank >= map.local_world && local_world) {
    return InvalidArgument("{}={} but {}={}; local ranks count from 0", names.local_rank, map.local_rank,
                           names.local_world, map.local_world);
  }
  map.nodes = (map.world + map.local_world - 1) / map.local_world;
  map.node = map.rank / map.local_world;
  return map;
}

// The first of these variables that is set.
const char* FirstSet(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (Environment(name)) return name;
  }
  return *names.begin();
}

std::optional<std::string> MasterAddress(const std::optional<std::string>& otherwise) {
  const auto address = Environment("MASTER_ADDR");
  return address ? address : otherwise;
}

// Where MASTER_ADDR (else `otherwise`) and MASTER_PORT say something, it is taken.
Status ReadMaster(ProcessMap& map, const std::optional<std::string>& otherwise) {
  SY_ASSIGN_OR_RETURN(const auto port, Number("MASTER_PORT", 1, 65535));
  if (port) map.master_port = *port;
  map.master_address = MasterAddress(otherwise);
  return OkStatus();
}

StatusOr<ProcessMap> FromMpirun(const std::optional<std::string>& master_address) {
  SY_ASSIGN_OR_RETURN(ProcessMap map, Read({"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}));
  map.one_node = Environment("OMPI_COMM_WORLD_LOCAL_SIZE") && map.local_world == map.world;
  // PMIx, which mpirun always offers, tells the ranks where rank 0 listens; whoever wants to go without says both.
  if (MasterAddress(master_address) && Environment("MASTER_PORT")) SY_RETURN_IF_ERROR(ReadMaster(map, master_address));
  return map;
}

StatusOr<ProcessMap> FromEnv(const std::optional<std::string>& master_address) {
  SY_ASSIGN_OR_RETURN(ProcessMap map, Read({"env", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  SY_ASSIGN_OR_RETURN(const auto node, Number("GROUP_RANK", 0, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto nodes, Number("GROUP_WORLD_SIZE", 1, kMostRanks));
  if (node) map.node = *node;
  map.nodes = std::max(nodes.value_or(map.nodes), map.node + 1);
  map.one_node = Environment("LOCAL_WORLD_SIZE") && map.local_world == map.world;
  map.run_id = Environment("TORCHELASTIC_RUN_ID").value_or("");
  map.master_port = kDefaultPort;
  SY_RETURN_IF_ERROR(ReadMaster(map, master_address));
  // torchrun listens at MASTER_PORT itself then: https://docs.pytorch.org/docs/stable/elastic/run.html
  if (Environment("TORCHELASTIC_USE_AGENT_STORE") == "True") map.master_port += map.master_port < 65535 ? 1 : -1;
  if (map.master_address || map.world == 1) return map;
  if (map.local_world != map.world || map.nodes > 1) {
    return InvalidArgument("WORLD_SIZE={} on several nodes, but MASTER_ADDR is not set; set it to the host of rank 0",
                           map.world);
  }
  map.master_address = "127.0.0.1";
  return map;
}

// srun tells of every step; a batch script sees the job's variables, but no step's.
bool InSlurmStep() {
  if (!Environment("SLURM_PROCID") || !(Environment("SLURM_NTASKS") || Environment("SLURM_STEP_NUM_TASKS")))
    return false;
  if (!Environment("SLURM_JOB_ID") || Environment("SLURM_STEP_ID") || Environment("SLURM_STEP_NUM_TASKS")) return true;
  if (Environment("SLURM_NTASKS").value_or("1") != "1") {
    LogWarning("SLURM_NTASKS={}, but this process is the batch script's own; start the ranks with srun",
               *Environment("SLURM_NTASKS"));
  }
  return false;
}

StatusOr<ProcessMap> FromSlurm(const std::optional<std::string>& master_address) {
  const char* const world_name = FirstSet({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  // What the job asked for, which its steps inherit, whatever they are: it counts where it can be the step's.
  const char* per_node_name = "SLURM_NTASKS_PER_NODE";
  SY_ASSIGN_OR_RETURN(const auto per_node, Number(per_node_name, 1, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto tasks_of_step, Number(world_name, 1, kMostRanks));
  SY_ASSIGN_OR_RETURN(const auto place_on_node, Number("SLURM_LOCALID", 0, kMostRanks));
  if (per_node && (*per_node > tasks_of_step.value_or(*per_node) || *per_node <= place_on_node.value_or(0)))
    per_node_name = "";
  SY_ASSIGN_OR_RETURN(ProcessMap map, Read({"slurm", "SLURM_PROCID", world_name, "SLURM_LOCALID", per_node_name}));
  SY_ASSIGN_OR_RETURN(const auto node, Number("SLURM_NODEID", 0, kMostRanks));
  if (node) map.node = *node;

  bool shape_known = per_node && *per_node_name != 0;
  const char* const tasks_name = FirstSet({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (const auto list = Environment(tasks_name)) {
    const auto tasks = ExpandSlurmTasks(*list);
    if (!tasks.ok()) return Annotate(tasks.status(), fmt::format("{}={}", tasks_name, *list));
    const int sum = std::accumulate(tasks->begin(), tasks->end(), 0);
    const bool of_step = tasks_name == std::string("SLURM_STEP_TASKS_PER_NODE");
    if (sum != map.world && of_step)
      return InvalidArgument("{}={} are {} tasks, but {}={}", tasks_name, *list, sum, world_name, map.world);
    if (sum == map.world) {  // the job's list may tell of another shape than the step's
      shape_known = true;
      map.nodes = static_cast<int>(tasks->size());
      if (map.node >= map.nodes)
        return InvalidArgument("SLURM_NODEID={} but {}={} tells of {} nodes", map.node, tasks_name, *list, map.nodes);
      map.local_world = (*tasks)[static_cast<size_t>(map.node)];
      if (!Environment("SLURM_LOCALID")) map.local_rank = map.rank % map.local_world;
      if (map.local_rank >= map.local_world)
        return InvalidArgument("SLURM_LOCALID={} but node {} has {} tasks ({}={})", map.local_rank, map.node,
                               map.local_world, tasks_name, *list);
    }
  }

  map.one_node = shape_known && map.nodes == 1;
  map.master_port = kDefaultPort;
  if (const auto job = Environment("SLURM_JOB_ID")) {
    map.run_id = fmt::format("slurm-{}-{}", *job, Environment("SLURM_STEP_ID").value_or(""));
    // Steps that share a node must not meet at one port.
    const int64_t step = EnvironmentInt("SLURM_STEP_ID").value_or(0);
    map.master_port =
        static_cast<int>(20000 + (31 * int64_t{EnvironmentInt("SLURM_JOB_ID").value_or(0)} + step) % 10000);
  }
  SY_RETURN_IF_ERROR(ReadMaster(map, master_address));
  if (map.master_address || map.world == 1) return map;
  const char* const hosts_name = FirstSet({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto list = Environment(hosts_name);
  if (!list) {
    if (map.nodes > 1)
      return InvalidArgument("{} tasks of Slurm on {} nodes, but neither SLURM_STEP_NODELIST nor MASTER_ADDR is set",
                             map.world, map.nodes);
    map.master_address = "127.0.0.1";
    return map;
  }
  const auto hosts = ExpandSlurmHosts(*list);
  if (!hosts.ok()) return Annotate(hosts.status(), fmt::format("{}={}", hosts_name, *list));
  map.master_address = hosts->front();
  return map;
}

}  // namespace

StatusOr<ProcessMap> ProcessMap::FromEnvironment(const std::optional<std::string>& master_address) {
  if (master_address && master_address->empty())
    return InvalidArgument("the address of rank 0 is empty; give the host where it runs, or none");
  if (Environment("OMPI_COMM_WORLD_SIZE")) return FromMpirun(master_address);
  if (Environment("RANK") || Environment("WORLD_SIZE")) return FromEnv(master_address);
  if (InSlurmStep()) return FromSlurm(master_address);
  ProcessMap map;
  map.launcher = "alone";
  return map;
}

std::vector<int> CoresOfLocalRank(const std::vector<int>& allowed, int local_rank, int local_world) {
  const int cores = static_cast<int>(allowed.size());
  if (cores == 0 || local_world < 1) return allowed;
  if (cores < local_world) return {allowed[local_rank % cores]};
  // The first cores % local_world ranks take one core more.
  const int share = cores / local_world, extra = cores % local_world;
  const int first = local_rank * share + std::min(local_rank, extra);
  const int count = share + (local_rank < extra ? 1 : 0);
  return {allowed.begin() + first, allowed.begin() + first + count};
}

}  // namespace switchyard
