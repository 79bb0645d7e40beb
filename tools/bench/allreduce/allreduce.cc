// switchyard-bench-allreduce [repeats] [largest size in MB] [plugin.so]: all-reduce of f32 over the ranks that mpirun
// started, shared memory against MPI; also tcp, and the plugin of that file, such as tcp of another build. The ways are
// measured in turn within one run, each size `repeats` times (default 25); a time is the median over the repeats of the
// slowest rank's. Bus bandwidth as nccl-tests defines it: bytes / time · 2(n − 1) / n. Prints a table on standard
// error, JSON on standard output.
//
//   mpirun --bind-to none --oversubscribe -n 2 build/bin/switchyard-bench-allreduce
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/base/environment.h"
#include "core/runtime/collectives/communicator.h"
#include "core/runtime/plugins/registry.h"
#include "core/runtime/processes/process_map.h"
#include "nlohmann/json.hpp"
#ifdef BENCH_MPI
#include <mpi.h>
#endif

namespace switchyard {
namespace {

struct Way {
  std::string name;
  float* data;
  std::function<Status(uint64_t count)> run;  // timed from a common start to its end on the slowest rank
  std::vector<double> seconds;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Measures one size in all ways; the times of a repeat are the slowest rank's.
Status Measure(Communicator& referee, std::vector<Way>& ways, uint64_t count, int repeats) {
  for (Way& way : ways) way.seconds.clear();
  for (int repeat = -2; repeat < repeats; ++repeat) {  // the first two warm up
    for (Way& way : ways) {
      // As a backward pass leaves it: written by its own rank, and in that rank's cache.
      std::fill_n(way.data, count, 1.0f);
      SY_RETURN_IF_ERROR(referee.Barrier("start"));
      const double start = Seconds();
      SY_RETURN_IF_ERROR(way.run(count));
      double took = Seconds() - start;
      SY_RETURN_IF_ERROR(referee.AllReduce("slowest", &took, &took, 1, SY_F64, SY_MAX));
      if (repeat >= 0) way.seconds.push_back(took);
    }
  }
  return OkStatus();
}

// One core per rank, as in training.
void Pin(const ProcessMap& processes) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : CoresOfLocalRank(AllowedCores(), processes.local_rank, processes.local_world))
    CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

Status Run(int repeats, uint64_t largest, const std::string& another) {
  SY_ASSIGN_OR_RETURN(ProcessMap processes, ProcessMap::FromEnvironment());
  SY_ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::Connect(processes, 30000, {}));
  Pin(processes);
  std::vector<std::unique_ptr<Communicator>> communicators;
  const auto join = [&](const std::shared_ptr<Plugin>& plugin, const std::string& name) -> Status {
    SY_ASSIGN_OR_RETURN(auto joined, Communicator::Join(plugin, processes, *rendezvous, nullptr, name, 30000));
    communicators.push_back(std::move(joined));
    return OkStatus();
  };
  for (const char* name : {"shm", "mpi", "tcp"}) {
    SY_ASSIGN_OR_RETURN(auto plugin, Registry::Get().Find(PluginKind::kCollective, name));
    SY_RETURN_IF_ERROR(join(plugin, name));
  }
  if (!another.empty()) {
    SY_ASSIGN_OR_RETURN(auto plugin, Plugin::Load(another));
    SY_RETURN_IF_ERROR(join(plugin, "another"));
  }
  Communicator &shm = *communicators[0], &mpi = *communicators[1];
  std::vector<float> ordinary(largest / 4);
  SY_ASSIGN_OR_RETURN(void* const shared, shm.AllocateOwned(largest));
  float* const owned = static_cast<float*>(shared);
  std::vector<Way> ways;
  ways.push_back(
      {"shm", owned, [&](uint64_t count) { return shm.AllReduce("bench", owned, owned, count, SY_F32, SY_SUM); }, {}});
  ways.push_back(
      {"mpi",
       ordinary.data(),
       [&](uint64_t count) { return mpi.AllReduce("bench", ordinary.data(), ordinary.data(), count, SY_F32, SY_SUM); },
       {}});
#ifdef BENCH_MPI
  ways.push_back({"MPI_Allreduce",
                  ordinary.data(),
                  [&](uint64_t count) {
                    MPI_Allreduce(MPI_IN_PLACE, ordinary.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD);
                    return OkStatus();
                  },
                  {}});
#endif
  ways.push_back(
      {"shm, ordinary memory",
       ordinary.data(),
       [&](uint64_t count) { return shm.AllReduce("bench", ordinary.data(), ordinary.data(), count, SY_F32, SY_SUM); },
       {}});

  for (size_t i = 2; i < communicators.size(); ++i) {
    ways.push_back({i == 2 ? "tcp" : "the given plugin",
                    ordinary.data(),
                    [&, i](uint64_t count) {
                      return communicators[i]->AllReduce("bench", ordinary.data(), ordinary.data(), count, SY_F32,
                                                         SY_SUM);
                    },
                    {}});
  }

  nlohmann::json results = nlohmann::json::array();
  const double factor = 2.0 * (processes.world - 1) / processes.world;
  if (processes.rank == 0) {
    fmt::print(stderr, "{:>10}", "bytes");
    for (const Way& way : ways) fmt::print(stderr, "  {:>28}", way.name);
    fmt::print(stderr, "  {:>8}\n", "shm/mpi");
  }
  for (const uint64_t bytes : {64ull << 10, 256ull << 10, 1ull << 20, 4ull << 20, 25ull << 20, 100ull << 20}) {
    if (bytes > largest) break;
    SY_RETURN_IF_ERROR(Measure(shm, ways, bytes / 4, repeats));
    if (processes.rank != 0) continue;
    fmt::print(stderr, "{:>10}", bytes);
    double best_mpi = 1e9;
    for (const Way& way : ways) {
      const double seconds = Median(way.seconds), bus = static_cast<double>(bytes) / seconds * factor / 1e9;
      if (way.name == "mpi" || way.name == "MPI_Allreduce") best_mpi = std::min(best_mpi, seconds);
      fmt::print(stderr, "  {:>12.1f} us {:>8.2f} GB/s", seconds * 1e6, bus);
      results.push_back({{"bytes", bytes},
                         {"way", way.name},
                         {"median_us", seconds * 1e6},
                         {"bus_gb_per_s", bus},
                         {"best_us", *std::min_element(way.seconds.begin(), way.seconds.end()) * 1e6},
                         {"ranks", processes.world}});
    }
    fmt::print(stderr, "  {:>7.2f}x\n", best_mpi / Median(ways[0].seconds));
  }
  if (processes.rank == 0) fmt::print("{}\n", results.dump(1));
  return OkStatus();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 25;
  const uint64_t largest = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100) << 20;
  const switchyard::Status status = switchyard::Run(repeats > 0 ? repeats : 25, largest, argc > 3 ? argv[3] : "");
  if (!status.ok()) fmt::print(stderr, "{}\n", switchyard::Message(status));
  return status.ok() ? 0 : 1;
}
