// Who is where: rank, world size, node and local rank of this process and of all others, from Open MPI
// (OMPI_COMM_WORLD_*), env:// as torchrun and our own launcher set it (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// GROUP_RANK, MASTER_ADDR, MASTER_PORT), a Slurm step (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_NODEID,
// SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST), or nothing (one rank); the first that is there wins, in this order.
// Also the split of a node's cores among its local ranks. Plain data; thread-safe to read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct ProcessMap {
  int rank = 0, world = 1, local_rank = 0, local_world = 1, node = 0, nodes = 1;
  std::string launcher;                       // "mpirun", "slurm", "env", "alone", "threads"
  std::optional<std::string> master_address;  // where rank 0 listens; none where PMIx tells it
  int master_port = 0;
  bool one_node = false;                     // the launcher says that all ranks are on this node
  bool threads = false;                      // the ranks are threads of this process
  std::optional<std::string> node_identity;  // equal on the ranks of one node, and on them alone; else as it is found
  std::string run_id;  // equal on all ranks of a run and different in another, where the launcher has such a word
  // Of every rank, filled by Rendezvous::Connect, which also replaces the launcher's word on nodes and local ranks by
  // what it finds: ranks are on one node where they share a kernel and its network.
  std::vector<int> hosts;  // node index
  std::vector<std::string> host_names;
  std::vector<int> pids;

  // From the environment; contradictions ("RANK=3 but WORLD_SIZE=2") are errors that name the variables. Nodes may hold
  // different numbers of ranks. A Slurm batch script that was not started by srun is one rank, whatever it asked for.
  // master_address: of rank 0, where MASTER_ADDR does not say it.
  static StatusOr<ProcessMap> FromEnvironment(const std::optional<std::string>& master_address = {});
};

// The cores of local rank `local_rank`: the allowed cores of the node split evenly and contiguously; with fewer cores
// than ranks, cores are shared round robin.
std::vector<int> CoresOfLocalRank(const std::vector<int>& allowed, int local_rank, int local_world);

}  // namespace switchyard
