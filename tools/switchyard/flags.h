// Flags of single commands, beside the training settings. main.cc says which command takes which.
#pragma once

#include <optional>
#include <string>

#include "absl/flags/declare.h"
#include "core/base/status.h"

ABSL_DECLARE_FLAG(std::string, config);
ABSL_DECLARE_FLAG(bool, show_settings);
ABSL_DECLARE_FLAG(std::string, checkpoint);
ABSL_DECLARE_FLAG(bool, ema);
ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(std::string, to);
ABSL_DECLARE_FLAG(bool, html);
ABSL_DECLARE_FLAG(std::optional<int>, world);
ABSL_DECLARE_FLAG(bool, measure);
ABSL_DECLARE_FLAG(bool, search);
ABSL_DECLARE_FLAG(std::string, rates);
ABSL_DECLARE_FLAG(int, top);
ABSL_DECLARE_FLAG(bool, overlay);
ABSL_DECLARE_FLAG(std::string, match_classes);
ABSL_DECLARE_FLAG(std::string, names);
ABSL_DECLARE_FLAG(std::string, have);
ABSL_DECLARE_FLAG(int, nproc_per_node);
ABSL_DECLARE_FLAG(std::string, nnodes);
ABSL_DECLARE_FLAG(int, max_restarts);
ABSL_DECLARE_FLAG(int, node_rank);
ABSL_DECLARE_FLAG(std::string, master_addr);
ABSL_DECLARE_FLAG(int, master_port);
ABSL_DECLARE_FLAG(int, rdzv_timeout);
ABSL_DECLARE_FLAG(std::string, token_file);
ABSL_DECLARE_FLAG(int, warmup_steps);
ABSL_DECLARE_FLAG(std::string, compare);

namespace switchyard {

// --match_classes; InvalidArgument where it is neither.
StatusOr<bool> MatchesClassesByName();

}  // namespace switchyard
