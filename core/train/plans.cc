#include "core/train/plans.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/parallel.h"
#include "core/graph/op.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/hierarchical_all_reduce.h"
#include "core/parallel/recompute.h"
#include "core/train/mixed_precision.h"
#include "core/train/snapshot.h"

namespace switchyard {

namespace {

// The mesh with the nodes of its ranks: as they are, or as many neighbours each as --ranks_per_node says, the last
// perhaps fewer.
Mesh WithNodes(const TrainConfig& config, Mesh mesh) {
  if (config.ranks_per_node) {
    mesh.nodes.clear();
    for (int rank = 0; rank < mesh.size(); ++rank) mesh.nodes.push_back(rank / *config.ranks_per_node);
  }
  return mesh;
}

// Where nobody says how large buckets are: a change of --zero, as a search makes, changes them too.
double BucketMb(const TrainConfig& config) {
  constexpr double kUsual = 25, kOfSharedUpdates = 12 * 1048576 * 4e-6;  // 12 * 2^20 numbers in f32
  return config.bucket_mb.value_or(config.zero > 0 ? kOfSharedUpdates : kUsual);
}

// Whose sums come first: those within nodes, where they are hierarchical.
int GradientsGroup(const Program& program) { return program.groups.size() > kNodeGroup ? kNodeGroup : kDataGroup; }

// Whether they run the same ops on the same types.
bool AlikeInSize(const TrainingPlans& a, const TrainingPlans& b) {
  const auto alike = [](const Node& x, const Node& y) { return x.op == y.op && x.outputs == y.outputs; };
  if (a.program.plans.size() != b.program.plans.size()) return false;
  for (size_t i = 0; i < a.program.plans.size(); ++i) {
    const auto &x = a.program.plans[i].graph.nodes(), &y = b.program.plans[i].graph.nodes();
    if (!std::equal(x.begin(), x.end(), y.begin(), y.end(), alike)) return false;
  }
  return a.PlannedBytes() == b.PlannedBytes() && a.PlannedHostBytes() == b.PlannedHostBytes();
}

bool OffloadsState(const Program& program) {
  return std::any_of(program.plans.begin(), program.plans.end(), [](const NamedGraph& plan) {
    const auto& nodes = plan.graph.nodes();
    return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.host; });
  });
}

}  // namespace

std::vector<std::string> InTooFewParts(const Program& program) {
  std::vector<std::string> sentences;
  for (const auto& [parts, weights] : program.too_few_parts)
    sentences.push_back(fmt::format(
        "--tp={}: whole on every rank of a model: {} weight{} in {} part{} (heads, or units), and all that reads {}; "
        "{}",
        program.mesh.tensor, weights, weights > 1 ? "s" : "", parts, parts > 1 ? "s" : "", weights > 1 ? "them" : "it",
        parts > 1 ? fmt::format("--tp={} or less divides {} too", parts, weights > 1 ? "them" : "it")
                  : "no --tp divides that"));
  return sentences;
}

bool NodesDivideData(const TrainConfig& config, const Mesh& mesh) {
  const Mesh placed = WithNodes(config, mesh);
  std::vector<int> nodes;  // of the data group of rank 0
  for (size_t rank = 0; rank < placed.nodes.size(); rank += static_cast<size_t>(placed.model_ranks()))
    nodes.push_back(placed.nodes[rank]);
  return HasHierarchy(nodes);
}

StatusOr<Program> ProgramOf(const TrainConfig& config, const Task& task, const Mesh& mesh, int rank, int64_t updates,
                            const DeviceTraits& device, bool evaluation_only) {
  ProgramOptions o;
  o.mesh = WithNodes(config, mesh);
  o.hierarchical_allreduce = config.hierarchical_allreduce;
  SY_ASSIGN_OR_RETURN(const MixedPrecision mixed, MixedPrecisionOf(config, device.static_loss_scale));
  o.precision = mixed.half;
  o.amp = mixed.level;
  o.norms_in_f32 = mixed.norms_in_f32;
  o.residuals_in_half = mixed.residuals_in_half;
  o.loss_scale = mixed.loss_scale;
  o.seed = config.seed;
  o.accumulation = config.accumulation;
  o.interleave = config.pp_interleave;
  // An evaluation has no backward pass, so that "auto" need not be decided.
  if (!evaluation_only || config.recompute != kAutoRecompute) {
    SY_ASSIGN_OR_RETURN(o.recompute, ParseRecompute(config.recompute));
  }
  o.bucket_bytes = static_cast<uint64_t>(BucketMb(config) * 1e6);
  o.delay_allreduce = config.delay_allreduce;
  o.allreduce_dtype = config.allreduce_dtype == "fp16"   ? DType::kF16
                      : config.allreduce_dtype == "bf16" ? DType::kBF16
                                                         : DType::kF32;
  if (config.powersgd_compression) o.power_sgd = {config.matrix_approximation_rank, config.start_compress_iter};
  if (config.grad_predivide) o.grad_predivide = static_cast<float>(*config.grad_predivide);
  SY_ASSIGN_OR_RETURN(o.optimizer.kind, ParseOptimizer(config.optimizer));
  o.optimizer.weight_decay = config.weight_decay;
  o.optimizer.clip = config.clip;
  o.optimizer.momentum = config.momentum;
  o.optimizer.dampening = config.dampening;
  o.optimizer.nesterov = config.nesterov;
  o.optimizer.beta1 = config.beta1;
  o.optimizer.beta2 = config.beta2;
  o.optimizer.eps = config.eps;
  o.optimizer.adam_w_mode = config.adam_w_mode;
  o.optimizer.grad_averaging = config.grad_averaging;
  o.optimizer.use_nvlamb = config.use_nvlamb;
  o.optimizer.max_grad_norm = config.max_grad_norm;
  o.optimizer.trust_coefficient = config.trust_coefficient;
  o.optimizer.layer_decay = config.layer_decay;
  o.optimizer.fused = config.fused_optimizer;
  o.optimizer.ema_decay = config.ema_decay;
  o.sequence = config.sp;
  o.zero = config.zero;
  o.shard_param_frac = config.shard_param_frac;
  if (device.own_memory && config.offload != "none")
    o.offload = config.offload == "all" ? Offload::kAll : Offload::kOptimizer;
  o.offload_optim_frac = config.offload_optim_frac;
  o.offload_param_frac = config.offload_param_frac;
  o.table_length = std::max<int64_t>(1, updates);
  o.sync_batchnorm = config.sync_batchnorm;
  o.broadcast_buffers = config.broadcast_buffers;
  o.find_unused_parameters = config.find_unused_parameters;
  o.evaluation_only = evaluation_only;
  return BuildProgram(task.workload(), o, rank);
}

Status TrainingPlans::Compile(const TrainConfig& config, Program built, Device& device, Device* reference,
                              Device* host) {
  program = std::move(built);
  plans.clear();
  KernelOptions kernel_options;
  kernel_options.deterministic = config.deterministic;
  // Ranks that divide layers compute alike what each has whole, and so by the same kernels.
  if (config.kernel_opt && program.mesh.tensor == 1) kernel_options.tuning = SY_TUNING_MEASURE;
  kernels = std::make_unique<KernelCache>(device, kernel_options);
  if (reference != nullptr) reference_kernels = std::make_unique<KernelCache>(*reference, kernel_options);
  if (host == nullptr) host = reference;
  uint64_t alignment = device.info().alignment;
  if (host != nullptr && OffloadsState(program)) {
    host_kernels = std::make_unique<KernelCache>(*host, kernel_options);
    alignment = std::max(alignment, host->info().alignment);
  }
  layout = std::make_unique<Layout>(alignment, IoSlots(device), GradientsGroup(program));
  copies_state = device.async();
  state_in_file = config.offload_dir.has_value();
  statistics_of_each_rank = !config.broadcast_buffers;
  gathers_checkpoints = !config.sharded_checkpoints;

  PlanOptions plan_options;
  plan_options.fuse = plan_options.capture = config.compile;
  plan_options.overlap = config.overlap;
  plan_options.max_fallback = config.max_fallback;
  plan_options.count_second_choice = config.count_second_choice;
  // Of parameters that are gathered (--zero=3): a bucket, with what pads it, is on its way while another one is read.
  // More would hold the whole of a small model, and take more than the pieces save.
  plan_options.prefetch_bytes = static_cast<uint64_t>(1.1e6 * BucketMb(config));
  for (const Group& group : program.groups) {
    plan_options.group_sizes.push_back(static_cast<int>(group.ranks.size()));
    if (program.mesh.nodes.empty()) continue;
    const auto node_of = [&](int rank) { return program.mesh.nodes[static_cast<size_t>(rank)]; };
    plan_options.group_spans.push_back(std::any_of(group.ranks.begin(), group.ranks.end(),
                                                   [&](int rank) { return node_of(rank) != node_of(group.ranks[0]); }));
  }
  for (const std::string& word : config.debug) {
    if (word == "sync") {
      plan_options.debug_sync = true;
    } else if (word == "nan") {
      plan_options.debug_nan = true;
    } else {
      return InvalidArgument("--debug: expected sync, nan or both, found {}", word);
    }
  }
  try {
    for (const NamedGraph& plan : program.plans) {
      SY_ASSIGN_OR_RETURN(auto compiled, Plan::Compile(plan.graph, *kernels, reference_kernels.get(), *layout,
                                                       plan_options, host_kernels.get()));
      plans.push_back(std::move(compiled));
    }
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be planned: {}", config.model, error.what());
  }
  KeepStateOfUpdates();
  return OkStatus();
}

std::string AtBeginOfUpdate(const std::string& name) { return "at_begin_of_update/" + name; }

void TrainingPlans::KeepStateOfUpdates() {
  for (const NamedGraph& plan : program.plans) {
    if (!plan.trains || plan.buckets.reduces) continue;
    for (const Node& node : plan.graph.nodes()) {
      if (!IsAssign(node)) continue;
      const Node& state = plan.graph.node(node.inputs[0].node);
      if (state.input->role == Role::kGradient) continue;
      const TensorType& type = state.outputs[0];
      layout->Place(AtBeginOfUpdate(state.name), kConstantsArena, type, static_cast<uint64_t>(type.bytes()));
    }
  }
}

StatusOr<Replica> TrainingPlans::OfReplica(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh,
                                           int rank, int64_t updates, World& here) {
  Replica replica(static_cast<size_t>(mesh.model_ranks()));
  const int first = mesh.DataRankOf(rank) * mesh.model_ranks();
  const auto plan_at = [&](const std::vector<int>& places) {
    std::vector<Status> ended(places.size());
    ParallelFor(here.host_threads, static_cast<int64_t>(places.size()), [&](int64_t i) {
      auto made = std::make_shared<TrainingPlans>();
      const int place = places[static_cast<size_t>(i)];
      ended[static_cast<size_t>(i)] = made->CompileRun(config, model, mesh, first + place, updates, *here.device,
                                                       here.reference.get(), false, here.host.get());
      replica[static_cast<size_t>(place)] = std::move(made);
    });
    const auto failed = std::find_if(ended.begin(), ended.end(), [](const Status& status) { return !status.ok(); });
    return failed == ended.end() ? OkStatus() : *failed;
  };
  // Shares of heads, hidden units and samples never grow from one rank of a stage to the next: those of the first and
  // the last being equal, so are all between them.
  std::vector<int> ends, between;
  for (int place = 0; place < mesh.model_ranks(); ++place) {
    const int within = place % mesh.tensor;
    if (within == 0 || within == mesh.tensor - 1) ends.push_back(place);
  }
  SY_RETURN_IF_ERROR(plan_at(ends));
  for (int place = 0; place < mesh.model_ranks(); ++place) {
    const int begin = place - place % mesh.tensor;
    auto& own = replica[static_cast<size_t>(place)];
    if (own != nullptr) continue;
    const auto& head = replica[static_cast<size_t>(begin)];
    if (AlikeInSize(*head, *replica[static_cast<size_t>(begin + mesh.tensor - 1)])) {
      own = head;
    } else {
      between.push_back(place);
    }
  }
  SY_RETURN_IF_ERROR(plan_at(between));
  return replica;
}

StatusOr<TrainingPlans::Deciding> TrainingPlans::DecidingReplica(const TrainConfig& config, const TrainableModel& model,
                                                                 const Mesh& mesh, int64_t updates, World& here,
                                                                 double available, int replicas) {
  constexpr double kNear = 0.01, kPadding = 1 << 16;
  constexpr int kReplicasNearby = 64;
  Deciding largest;
  uint64_t most = 0, windows = 0;
  std::set<int> tried;
  // The first, the last, and as many between them.
  const auto try_places = [&](int count) -> Status {
    count = std::min(count, mesh.data);
    for (int i = 0; i < count; ++i) {
      const int place = count == 1 ? 0 : static_cast<int>(int64_t{i} * (mesh.data - 1) / (count - 1));
      if (!tried.insert(place).second) continue;
      const int rank = place * mesh.model_ranks();
      SY_ASSIGN_OR_RETURN(Replica replica, OfReplica(config, model, mesh, rank, updates, here));
      for (size_t r = 0; r < replica.size(); ++r) {
        if (replica[r]->PlannedBytes() <= most) continue;
        most = replica[r]->PlannedBytes();
        windows = replica[r]->WindowBytes();
        largest = {replica, rank, r};
      }
    }
    return OkStatus();
  };
  // Padding alone tells replicas apart that have the parameters whole.
  const bool alike = config.zero == 0, padded = config.zero < 3 && mesh.data > replicas;
  SY_RETURN_IF_ERROR(try_places(alike || padded ? 1 : replicas));
  const auto is_near = [&](uint64_t bytes) {
    return std::abs(static_cast<double>(bytes) - available) <= std::max(kNear * available, kPadding);
  };
  if (!alike && (is_near(most) || is_near(most + windows))) SY_RETURN_IF_ERROR(try_places(kReplicasNearby));
  largest.of_all = alike || static_cast<int>(tried.size()) == mesh.data;
  return largest;
}

Status TrainingPlans::CompileRun(const TrainConfig& config, const TrainableModel& model, const Mesh& mesh, int rank,
                                 int64_t updates, Device& device, Device* reference, bool evaluation_only,
                                 Device* host) {
  SY_ASSIGN_OR_RETURN(const auto task, TaskOf(config, model, &device));
  SY_ASSIGN_OR_RETURN(Program run,
                      ProgramOf(config, *task, mesh, rank, updates, DeviceTraits::Of(device.info()), evaluation_only));
  TrainConfig unmeasured = config;
  unmeasured.kernel_opt = false;
  return Compile(unmeasured, std::move(run), device, reference, host);
}

std::optional<size_t> TrainingPlans::IndexOf(const std::string& plan) const {
  const NamedGraph* const found = program.Find(plan);
  if (found == nullptr) return std::nullopt;
  return static_cast<size_t>(found - program.plans.data());
}

bool TrainingPlans::EvaluatesTogether() const {
  const NamedGraph* const evaluate = program.Find("evaluate");
  if (evaluate == nullptr) return false;
  const auto& nodes = evaluate->graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return IsCollective(node.op); });
}

uint64_t TrainingPlans::PlannedBytes() const { return layout->bytes(); }
uint64_t TrainingPlans::LargestPiece() const {
  uint64_t largest = 0;
  for (size_t i = 0; i < layout->arenas().size(); ++i) {
    if (layout->arenas()[i].space != Arena::Space::kHost)
      largest = std::max(largest, layout->bytes(static_cast<int>(i)));
  }
  return largest;
}
uint64_t TrainingPlans::WindowBytes() const {
  const PlanReport& report = Main().report();
  return report.reaches_peers ? report.peer_memory_bytes : 0;
}
uint64_t TrainingPlans::PlannedHostBytes() const { return layout->host_bytes(); }
uint64_t TrainingPlans::PlannedFileBytes() const { return state_in_file ? layout->bytes(kHostStateArena) : 0; }

const Plan& TrainingPlans::Main() const {
  for (const char* name : {"compressed_update", "update"}) {
    if (const auto index = IndexOf(name)) return *plans[*index];
  }
  return *plans[IndexOf("evaluate").value()];
}

double TrainingPlans::UpdateFlops() const {
  double flops = 0;
  for (const Action& action : program.schedule) {
    if (action.RunsIn(kForEver)) flops += plans[static_cast<size_t>(action.plan)]->report().flops;
  }
  return flops;
}

PlanReport TrainingPlans::Report() const {
  PlanReport report = Main().report();
  report.memory = MemoryOf(*layout);
  if (copies_state) report.checkpoint_bytes = layout->bytes(kStateArena);
  report.memory[kHostStateArena].file = state_in_file;
  report.checkpoint_host_bytes = layout->bytes(kStateArena);
  if (gathers_checkpoints)
    report.checkpoint_host_bytes += GatheredBytes(*layout, statistics_of_each_rank, program.mesh.data);
  if (!state_in_file) report.checkpoint_host_bytes += layout->bytes(kHostStateArena);
  return report;
}

}  // namespace switchyard
