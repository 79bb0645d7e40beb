#include "core/runtime/processes/rank_environment.h"

#include <unistd.h>

extern char** environ;

namespace switchyard {

Status CheckOptions(const LaunchOptions& options) {
  if (options.nproc_per_node < 1 || options.nnodes < 1 || options.node_rank < 0 ||
      options.node_rank >= options.nnodes) {
    return InvalidArgument("launch: expected nproc_per_node >= 1 and 0 <= node_rank < nnodes, found {} and {} of {}",
                           options.nproc_per_node, options.node_rank, options.nnodes);
  }
  if (options.command.empty())
    return InvalidArgument("launch: no command; try: switchyard launch --nproc_per_node=2 train ...");
  if (options.max_restarts < 0)
    return InvalidArgument("launch: expected --max_restarts of at least 0, found {}", options.max_restarts);
  if (options.least_nodes && (*options.least_nodes < 1 || *options.least_nodes > options.nnodes)) {
    return InvalidArgument("launch: expected --nnodes=M, or --nnodes=MIN:MAX with 1 <= MIN <= MAX, found {}:{}",
                           *options.least_nodes, options.nnodes);
  }
  if (options.nnodes > 1 && options.master_port == 0)
    return InvalidArgument("launch: several nodes need a --master_port that is the same on all of them");
  if (options.master_port < 0 || options.master_port > 65535 || options.rendezvous_timeout_s < 1) {
    return InvalidArgument(
        "launch: expected a --master_port of 0 to 65535 and a --rdzv_timeout of at least 1 s, found {} and {}",
        options.master_port, options.rendezvous_timeout_s);
  }
  return OkStatus();
}

std::vector<std::string> EnvironmentOf(const LaunchOptions& options, const NodePlace& place, int local_rank, int socket,
                                       const LaunchReports& reports, const std::string& restarted_run) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    const auto starts = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
    const bool replaced = starts("OMPI_") || starts("PMIX_") || starts("PMI_") || starts("TORCHELASTIC_") ||
                          name == "GROUP_RANK" || name == "GROUP_WORLD_SIZE" || name == "RANK" ||
                          name == "WORLD_SIZE" || name == "LOCAL_RANK" || name == "LOCAL_WORLD_SIZE" ||
                          name == "MASTER_ADDR" || name == "MASTER_PORT" || name == "SWITCHYARD_MASTER_SOCKET" ||
                          name == "SWITCHYARD_LAUNCH_REPORT" || name == kRestartedRun || name == "SWITCHYARD_TOKEN" ||
                          name == "SWITCHYARD_TOKEN_FILE";
    // What the launcher has read itself: ranks of the same names would hold it against the variables below.
    const bool read = name == "SWITCHYARD_NPROC_PER_NODE" || name == "SWITCHYARD_MASTER_ADDR" ||
                      name == "SWITCHYARD_ADDR" || name == "SWITCHYARD_LOCAL_RANK";
    if (!replaced && !read) variables.push_back(text);
  }
  const auto set = [&](const char* name, const auto& value) { variables.push_back(fmt::format("{}={}", name, value)); };
  set("RANK", place.first_rank + local_rank);
  set("WORLD_SIZE", place.world);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", options.nproc_per_node);
  set("GROUP_RANK", place.node);
  set("GROUP_WORLD_SIZE", place.nodes);
  set("MASTER_ADDR", options.master_address);
  set("MASTER_PORT", place.port);
  set("SWITCHYARD_TOKEN", place.token);
  variables.push_back(reports.Variable());
  if (!restarted_run.empty()) set(kRestartedRun, restarted_run);
  if (socket >= 0) set("SWITCHYARD_MASTER_SOCKET", socket);
  return variables;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace switchyard
