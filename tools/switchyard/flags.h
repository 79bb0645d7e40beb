// Flags of single commands, beside the training settings.
#pragma once

#include <string>

#include "absl/flags/declare.h"

ABSL_DECLARE_FLAG(std::string, config);
ABSL_DECLARE_FLAG(std::string, checkpoint);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(int, world);
ABSL_DECLARE_FLAG(int, top);
ABSL_DECLARE_FLAG(std::string, have);
ABSL_DECLARE_FLAG(int, nproc_per_node);
ABSL_DECLARE_FLAG(int, nnodes);
ABSL_DECLARE_FLAG(int, node_rank);
ABSL_DECLARE_FLAG(std::string, master_addr);
ABSL_DECLARE_FLAG(int, master_port);
ABSL_DECLARE_FLAG(int, warmup_steps);

namespace switchyard {
constexpr const char* kCommandFlags[] = {"config", "checkpoint", "json", "world", "top", "have", "nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "warmup_steps"};
}
