#include "tests/cli/program.h"
#include "tests/faults/killed_runs.h"

namespace switchyard {
namespace {

// A save after every second update, evaluations between them. With --dropout, so that what is drawn in training has to
// go on where it was.
constexpr char kRun[] =
    "--dataset=shapes --train_size=64 --validation_size=20 --batch_size=4 --steps=20 --save_every=2 --keep=2 "
    "--log_every=1 ";
constexpr char kVit[] =
    "--model=vit_micro --image_size=16 --patch=4 --width=16 --depth=2 --heads=4 --dropout=0.1 --drop_path=0.2 ";
constexpr char kPlaces[] = "--threads=1 --workers=1 --download=0 ";

class Modes {
 public:
  // Of a ViT on the reference device with `launch`, for each number of ranks.
  void Add(const std::string& name, std::initializer_list<int> ranks, const std::string& run, const std::string& places,
           const std::string& starter = "launch", const std::string& model = kVit,
           const std::string& device = "reference") {
    for (const int n : ranks) {
      modes_.push_back({fmt::format("{}, {}", name, n), starter, n, model + kRun + run,
                        fmt::format("{}--device={} {}", kPlaces, device, places)});
    }
  }
  std::vector<KilledMode> Take() { return std::move(modes_); }

 private:
  std::vector<KilledMode> modes_;
};

}  // namespace

std::vector<KilledMode> KilledModes() {
  Modes modes;
  modes.Add("alone", {1}, "--save_every=1", "", "alone");
  modes.Add("threads of one process", {1}, "", "--mode=dp --devices=2", "launch", kVit, "cpu --cpu_devices=2");
  modes.Add("shm", {2, 3, 4}, "", "--collective=shm");
  modes.Add("saved every update", {2, 4}, "--save_every=1", "--collective=shm");
  if (HasCollective("tcp")) modes.Add("tcp", {2, 3, 4}, "", "--collective=tcp");
  if (HasCollective("tcp")) {
    modes.Add("two nodes", {2, 4}, "", "--collective=tcp", "nodes");
    modes.Add("two nodes, pp, zero 1", {4}, "--accumulation=2", "--collective=tcp --pp=2 --zero=1", "nodes");
  }
  if (HasMpirun()) modes.Add("mpirun, shm", {2, 4}, "", "--collective=shm", "mpirun");
  if (HasMpirun() && HasCollective("mpi")) {
    modes.Add("mpirun, mpi", {2, 3, 4}, "", "--collective=mpi", "mpirun");
    modes.Add("mpirun, mpi, zero 3", {2}, "", "--collective=mpi --zero=3", "mpirun");
    modes.Add("mpirun, mpi, tp", {2}, "", "--collective=mpi --tp=2", "mpirun");
    modes.Add("mpirun, mpi, pp", {2}, "--accumulation=2", "--collective=mpi --pp=2", "mpirun");
  }
  modes.Add("zero 1", {2, 3}, "", "--zero=1");
  modes.Add("zero 2", {2, 4}, "", "--zero=2");
  modes.Add("zero 3", {2, 4}, "", "--zero=3");
  if (HasCollective("tcp")) modes.Add("zero 3, tcp", {3}, "", "--zero=3 --collective=tcp");
  modes.Add("tp", {2, 4}, "", "--tp=2");
  modes.Add("tp of four", {4}, "", "--tp=4");
  modes.Add("tp, zero 1", {4}, "", "--tp=2 --zero=1");
  modes.Add("tp, zero 3", {4}, "", "--tp=2 --zero=3");
  modes.Add("tp, sp", {2, 4}, "", "--tp=2 --sp");
  modes.Add("tp, sp, pp", {4}, "--accumulation=2", "--tp=2 --sp --pp=2");
  modes.Add("pp", {2, 4}, "--accumulation=2", "--pp=2");
  modes.Add("pp of four, micro-batches", {4}, "--depth=4 --num_microbatches=4", "--pp=4");
  modes.Add("pp, interleaved", {2}, "--depth=4 --accumulation=2", "--pp=2 --pp_interleave=2");
  modes.Add("pp of three", {3}, "--depth=4 --accumulation=3", "--pp=3");
  modes.Add("tp, pp", {4}, "--accumulation=2", "--tp=2 --pp=2");
  modes.Add("pp, zero 1", {4}, "--accumulation=2", "--pp=2 --zero=1");
  modes.Add("fp16 O2, dynamic scale", {2, 3},
            "--precision=fp16 --amp=O2 --loss_scale=dynamic --scaler_preset=default --growth_interval=3", "");
  modes.Add("bf16", {2, 4}, "--precision=bf16 --amp=O2", "");
  modes.Add("fp16 O1, zero 3", {2}, "--precision=fp16 --amp=O1", "--zero=3");
  modes.Add("bf16, zero 1", {2}, "--precision=bf16 --amp=O2", "--zero=1");
  modes.Add("PowerSGD", {2, 4}, "--powersgd_compression --start_compress_iter=3", "");
  modes.Add("PowerSGD, hierarchical", {4}, "--powersgd_compression --start_compress_iter=3 --hierarchical_allreduce",
            "--ranks_per_node=2");
  modes.Add("gradients sent in bf16", {2, 4}, "--allreduce_dtype=bf16", "");
  modes.Add("zero 3, a part shared", {2}, "", "--zero=3 --shard_param_frac=0.5");
  modes.Add("tp, sp, zero 1", {4}, "", "--tp=2 --sp --zero=1");
  modes.Add("pp, interleaved, two data ranks", {4}, "--depth=4 --accumulation=2", "--pp=2 --pp_interleave=2");
  modes.Add("PowerSGD, pp", {4}, "--powersgd_compression --start_compress_iter=3 --accumulation=2", "--pp=2");
  modes.Add("hierarchical", {3, 4}, "--hierarchical_allreduce", "--ranks_per_node=2");
  modes.Add("hierarchical, zero 2", {4}, "--hierarchical_allreduce", "--ranks_per_node=2 --zero=2");
  modes.Add("offload of the optimizer", {2, 3}, "", "--offload=optimizer", "launch", kVit, "null");
  modes.Add("offload of the optimizer, zero 2", {2}, "", "--offload=optimizer --zero=2", "launch", kVit, "null");
  modes.Add("offload of all", {3, 4}, "", "--offload=all", "launch", kVit, "null");
  modes.Add("offload of all, zero 1", {2}, "", "--offload=all --zero=1", "launch", kVit, "null");
  modes.Add("offload of all, zero 3", {2, 3}, "", "--offload=all --zero=3", "launch", kVit, "null");
  modes.Add("offload into a file", {2}, "", "--offload=all --offload_dir=.", "launch", kVit, "null");
  modes.Add("average of weights", {2, 3}, "--ema_decay=0.5", "");
  modes.Add("accumulation", {2, 4}, "--accumulation=2", "");
  modes.Add("recomputation", {2}, "--recompute=blocks", "");
  modes.Add("LAMB", {2}, "--optimizer=lamb", "--zero=1");
  modes.Add("statistics of each rank", {2, 3}, "--broadcast_buffers=0", "", "launch",
            "--model=resnet18 --width=4 --image_size=16 --stem=small ", "cpu");
  modes.Add("statistics of all ranks", {2}, "--sync_batchnorm", "", "launch",
            "--model=resnet18 --width=4 --image_size=16 --stem=small ", "cpu");
  modes.Add("Swin", {2}, "", "", "launch",
            "--model=swin_tiny --image_size=16 --patch=2 --width=8 --depths=1,1 --heads=2 --window=4 ", "cpu");
  modes.Add("MLP", {2}, "", "", "launch", "--model=mlp --width=16 ", "cpu");
  return modes.Take();
}

}  // namespace switchyard
