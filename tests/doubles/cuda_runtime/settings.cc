#include "tests/doubles/cuda_runtime/settings.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/doubles/faults.h"

namespace cuda_double {
namespace {

Settings Read() {
  using doubles::NumberFrom;
  Settings settings;
  settings.devices = static_cast<int>(NumberFrom("CUDA_DOUBLE_DEVICES", settings.devices, 0, 64));
  settings.driver = NumberFrom("CUDA_DOUBLE_NO_DRIVER", 0, 0, 1) == 0;
  settings.driver_version = static_cast<int>(NumberFrom("CUDA_DOUBLE_DRIVER_VERSION", CUDART_VERSION, 1, 1'000'000));
  settings.runtime_version = static_cast<int>(NumberFrom("CUDA_DOUBLE_RUNTIME_VERSION", CUDART_VERSION, 1, 1'000'000));
  settings.memory_bytes = NumberFrom("CUDA_DOUBLE_MEMORY_BYTES", settings.memory_bytes, 0, 1ll << 46);
  settings.delay_us = static_cast<int>(NumberFrom("CUDA_DOUBLE_DELAY_US", 0, 0, 10'000'000));
  settings.peers = NumberFrom("CUDA_DOUBLE_PEERS", 1, 0, 1) == 1;
  settings.peer_limit = static_cast<int>(NumberFrom("CUDA_DOUBLE_PEER_LIMIT", settings.peer_limit, 0, 64));
  settings.graphs_ready = NumberFrom("CUDA_DOUBLE_GRAPHS_READY", 0, 0, 1) == 1;
  settings.lazy = NumberFrom("CUDA_DOUBLE_LAZY", 0, 0, 1) == 1;
  settings.contexts = NumberFrom("CUDA_DOUBLE_CONTEXTS", 1, 0, 1) == 1;
  if (NumberFrom("CUDA_DOUBLE_COUNTS", 0, 0, 1) == 1) {
    std::atexit([] {
      const Counts& counts = GetCounts();
      std::fprintf(stderr, "cuda double: %lld graphs, %lld kernels, %lld urgent nodes\n", counts.graphs.load(),
                   counts.kernels.load(), counts.urgent.load());
    });
  }
  if (const char* order = std::getenv("CUDA_DOUBLE_GRAPH_ORDER")) {
    settings.replay_last_first = std::string(order) == "last";
    if (!settings.replay_last_first && std::string(order) != "first") {
      doubles::BadSetting("CUDA_DOUBLE_GRAPH_ORDER", order, "first or last");
    }
  }
  return settings;
}

}  // namespace

const Settings& GetSettings() {
  static const Settings settings = Read();
  return settings;
}

Counts& GetCounts() {
  static auto& counts = *new Counts;  // outlives static objects
  return counts;
}

bool Strikes(const char* kind) {
  static auto& faults =
      *new doubles::Faults("CUDA_DOUBLE_FAULT", "alloc|launch|copy|graph|lost");  // outlives static objects
  return faults.Strikes(kind);
}

}  // namespace cuda_double
