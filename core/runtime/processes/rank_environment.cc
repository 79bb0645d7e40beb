#include "core/runtime/processes/rank_environment.h"

#include <unistd.h>

extern char** environ;

namespace switchyard {

std::vector<std::string> EnvironmentOf(const LaunchOptions& options, const NodePlace& place, int local_rank, int socket,
                                       const LaunchReports& reports) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    const auto starts = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
    const bool replaced = starts("OMPI_") || starts("PMIX_") || starts("PMI_") || starts("TORCHELASTIC_") ||
                          name == "GROUP_RANK" || name == "GROUP_WORLD_SIZE" || name == "RANK" ||
                          name == "WORLD_SIZE" || name == "LOCAL_RANK" || name == "LOCAL_WORLD_SIZE" ||
                          name == "MASTER_ADDR" || name == "MASTER_PORT" || name == "SWITCHYARD_MASTER_SOCKET" ||
                          name == "SWITCHYARD_LAUNCH_REPORT" || name == "SWITCHYARD_TOKEN" ||
                          name == "SWITCHYARD_TOKEN_FILE";
    if (!replaced) variables.push_back(text);
  }
  const auto set = [&](const char* name, const auto& value) { variables.push_back(fmt::format("{}={}", name, value)); };
  set("RANK", place.first_rank + local_rank);
  set("WORLD_SIZE", place.world);
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", options.nproc_per_node);
  set("GROUP_RANK", options.node_rank);
  set("GROUP_WORLD_SIZE", options.nnodes);
  set("MASTER_ADDR", options.master_address);
  set("MASTER_PORT", place.port);
  set("SWITCHYARD_TOKEN", place.token);
  variables.push_back(reports.Variable());
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
