#include "core/runtime/process_map.h"

#include <algorithm>
#include <optional>

#include "core/base/environment.h"

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

StatusOr<ProcessMap> Read(const Variables& names) {
  constexpr int kMost = 1 << 20;
  SY_ASSIGN_OR_RETURN(const auto world, Number(names.world, 1, kMost));
  SY_ASSIGN_OR_RETURN(const auto rank, Number(names.rank, 0, kMost));
  SY_ASSIGN_OR_RETURN(const auto local_rank, Number(names.local_rank, 0, kMost));
  SY_ASSIGN_OR_RETURN(const auto local_world, Number(names.local_world, 1, kMost));
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
  return map;
}

// The first host of a Slurm node list such as "gpu[004-007,9],login1".
std::string FirstHost(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end == std::string::npos ? end : end - bracket - 1);
}

}  // namespace

StatusOr<ProcessMap> ProcessMap::FromEnvironment() {
  ProcessMap map;
  map.launcher = "alone";
  if (Environment("OMPI_COMM_WORLD_SIZE")) {
    SY_ASSIGN_OR_RETURN(map, Read({"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}));
  } else if (Environment("RANK") || Environment("WORLD_SIZE")) {
    SY_ASSIGN_OR_RETURN(map, Read({"env", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  } else if (Environment("SLURM_PROCID") && Environment("SLURM_NTASKS")) {
    SY_ASSIGN_OR_RETURN(map, Read({"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}));
  }
  map.nodes = (map.world + map.local_world - 1) / map.local_world;
  map.node = map.rank / map.local_world;
  // PMIx, which mpirun always offers, tells the ranks where rank 0 listens; elsewhere the environment must.
  if (map.world == 1 || map.launcher == "mpirun") return map;
  SY_ASSIGN_OR_RETURN(const auto port, Number("MASTER_PORT", 1, 65535));
  map.master_port = port.value_or(kDefaultPort);
  if (const auto address = Environment("MASTER_ADDR")) {
    map.master_address = *address;
  } else if (map.launcher == "slurm") {
    map.master_address =
        FirstHost(Environment("SLURM_STEP_NODELIST").value_or(Environment("SLURM_JOB_NODELIST").value_or("localhost")));
  } else if (map.local_world == map.world) {
    map.master_address = "127.0.0.1";
  } else {
    return InvalidArgument("WORLD_SIZE={} on several nodes, but MASTER_ADDR is not set; set it to the host of rank 0",
                           map.world);
  }
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
