#include "tools/switchyard/flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, config, "", "JSON file of settings; flags and environment variables win over it");
ABSL_FLAG(std::string, checkpoint, "", "eval, predict: a run folder, a checkpoint, or <run>/checkpoints/best");
ABSL_FLAG(bool, json, false, "print JSON");
ABSL_FLAG(int, world, 1, "explain: number of data-parallel ranks to plan for");
ABSL_FLAG(int, top, 3, "predict: classes to show for each file");
ABSL_FLAG(std::string, have, "", "datasets: succeed if this dataset is here or can be downloaded");
ABSL_FLAG(int, nproc_per_node, 1, "launch: ranks to start on this node");
ABSL_FLAG(int, nnodes, 1, "launch: number of nodes");
ABSL_FLAG(int, node_rank, 0, "launch: index of this node");
ABSL_FLAG(std::string, master_addr, "127.0.0.1", "launch: address of node 0");
ABSL_FLAG(int, master_port, 0, "launch: port of node 0; 0: any free one (one node only)");
ABSL_FLAG(int, warmup_steps, 3, "bench: updates before the measured ones");
