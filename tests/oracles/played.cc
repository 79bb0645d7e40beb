#include "tests/oracles/played.h"

#include "core/data/loader.h"
#include "core/nn/initialize.h"
#include "core/parallel/pipeline.h"
#include "core/runtime/plugins/registry.h"
#include "core/train/mixed_precision.h"
#include "tests/parallel/nested_part.h"

namespace switchyard {

std::unique_ptr<Device> OneThreadedReference() {
  OpenOptions options;
  options.threads = 1;
  const auto plugin = Registry::Get().Find(PluginKind::kBackend, "reference");
  EXPECT_TRUE(plugin.ok()) << Message(plugin.status());
  if (!plugin.ok()) return nullptr;
  auto device = Device::Open(**plugin, 0, options);
  EXPECT_TRUE(device.ok()) << Message(device.status());
  return device.ok() ? std::move(*device) : nullptr;
}

namespace {

std::map<std::string, const Node*> StatesOf(const Program& program) {
  std::map<std::string, const Node*> states;
  for (const NamedGraph& plan : program.plans) {
    if (!plan.trains || !plan.buckets.reduces) continue;
    for (const Node& node : plan.graph.nodes()) {
      if (node.input && (node.input->role == Role::kParameter || node.input->role == Role::kState))
        states[node.name] = &node;
    }
  }
  return states;
}

}  // namespace

constexpr int64_t kUpdates = 8;  // of the run that is played, at most

Played::Played(const TrainConfig& config, int ranks, Device& reference) : ranks_(ranks), reference_(reference) {
  status_ = Begin(config);
}

Status Played::Begin(const TrainConfig& config) {
  TrainConfig alone = config;  // this process is one rank, whatever it plays
  alone.tp = alone.pp = 1;
  alone.sp = false;
  alone.zero = 0;
  alone.offload = "none";
  alone.powersgd_compression = false;
  World& world = SharedWorld();
  SY_ASSIGN_OR_RETURN(setup_, SettledRun(alone, world));
  TrainConfig resolved = setup_.config;
  ResolveMixedPrecision(world.device->info().static_loss_scale, &resolved);
  SY_RETURN_IF_ERROR(CheckTrainConfig(resolved));
  SY_ASSIGN_OR_RETURN(task_, TaskOf(resolved, setup_.model, world.device.get()));
  TrainConfig& played = setup_.config;
  played.tp = config.tp;
  played.pp = config.pp;
  played.sp = config.sp;
  played.zero = config.zero;
  played.offload = config.offload;
  played.powersgd_compression = config.powersgd_compression;
  SY_ASSIGN_OR_RETURN(const Mesh mesh, MeshOf(ranks_, config.pp, config.tp));
  for (int rank = 0; rank < ranks_; ++rank) {
    SY_ASSIGN_OR_RETURN(programs_.emplace_back(), ProgramOf(played, *task_, mesh, rank, kUpdates, {}));
  }
  for (const Program& program : programs_) states_.push_back(StatesOf(program));
  mesh_ = std::make_unique<MeshInterpreter>(programs_[0].mesh, reference_);
  DrawStart();
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const auto& [name, node] : States(rank)) {
      const auto found = start_.find(name);
      if (found == start_.end()) continue;
      std::vector<float> values = found->second.values;
      if (const auto& part = node->input->part) {
        std::vector<float> held(static_cast<size_t>(Elements(ShapeOf(*part))));
        CutPart(*part, sizeof(float), reinterpret_cast<const std::byte*>(values.data()),
                reinterpret_cast<std::byte*>(held.data()));
        held.resize(static_cast<size_t>(node->outputs[0].elements()));  // a zero where a rank has nothing
        values = std::move(held);
      }
      Set(rank, name, values);
    }
    Set(rank, "lr_table", std::vector<float>(kUpdates, played.lr));
    if (played.loss_scale == "dynamic") Set(rank, "loss_scale", std::vector{*played.init_scale});
  }
  RefreshHalves();
  return OkStatus();
}

// As a Trainer draws it, from the name and the seed alone.
void Played::DrawStart() {
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const auto& [name, node] : States(rank)) {
      if ((node->input->role != Role::kParameter && !node->input->of_model) || start_.contains(name)) continue;
      const auto& part = node->input->part;
      const TensorType whole = {DType::kF32, part ? WholeShape(*part) : node->outputs[0].shape};
      const auto seed = static_cast<uint64_t>(setup_.config.seed);
      start_[name] = {whole.shape, nn::InitialValues(name, whole, node->input->initializer, seed)};
    }
  }
}

void Played::Update(int64_t update, int spoilt) {
  for (const Action& action : programs_[0].schedule) {
    if (!action.RunsIn(update)) continue;
    const int first = programs_[0].mesh.pipeline > 1 ? 0 : action.micro_batch;
    for (int m = first; m <= action.micro_batch; ++m) Give(update, m, m - first, spoilt);
    RunPlan(action.plan);
  }
}

void Played::Give(int64_t update, int micro_batch, int place, int spoilt) {
  const std::vector<SampleTensor> inputs = task_->tensors();
  const TrainConfig& config = setup_.config;
  const Mesh& mesh = programs_[0].mesh;
  for (int rank = 0; rank < ranks_; ++rank) {
    const int data_rank = mesh.DataRankOf(rank);
    auto tensors = OwnSamples(setup_, *task_, update, data_rank, mesh.data);
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (rank == spoilt && inputs[t].row.dtype == DType::kF32) {
        auto* const values = reinterpret_cast<float*>(tensors[t].data());
        for (size_t i = 0; i < tensors[t].size() / sizeof(float); ++i) values[i] *= 1e6f;
      }
      const size_t bytes = tensors[t].size() / static_cast<size_t>(config.accumulation);
      mesh_->Set(rank, MicroBatchInput(inputs[t].name, place),
                 tensors[t].data() + static_cast<size_t>(micro_batch) * bytes, bytes);
    }
    std::vector<int32_t> ids;
    for (int i = 0; i < config.batch_size; ++i)
      ids.push_back((micro_batch * config.batch_size + i) * mesh.data + data_rank);
    Set(rank, MicroBatchInput("sample_ids", place), ids);
    Set(rank, MicroBatchInput("step", place), std::vector<int32_t>{static_cast<int32_t>(update), 0});
  }
}

void Played::TakeUp(const Played& other) {
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const auto& [name, input] : States(rank)) {
      const auto bytes = other.mesh_->Get(rank, name);
      if (bytes.ok() && !name.starts_with("half/")) mesh_->Set(rank, name, bytes->data(), bytes->size());
    }
  }
  RefreshHalves();
}

HostTensors Played::Weights(int rank) const {
  HostTensors found;
  for (const auto& [name, node] : States(rank)) {
    if (node->input->role != Role::kParameter && !node->input->of_model) continue;
    const auto& own = node->input->part;
    found[name] = {own ? WholeShape(*own) : node->outputs[0].shape, Together(rank, name)};
  }
  return found;
}

// What all ranks that share it hold of it together.
std::vector<float> Played::Together(int rank, const std::string& name) const {
  const auto& own = States(rank).at(name)->input->part;
  if (!own) return Floats(rank, name);
  const Mesh& mesh = programs_[0].mesh;
  std::vector<float> whole(static_cast<size_t>(Elements(WholeShape(*own))));
  for (int other = 0; other < ranks_; ++other) {
    const std::map<std::string, const Node*>& states = States(other);
    const auto found = states.find(name);
    if (found == states.end()) continue;  // nobody needs the average of nothing, and what is left of nothing is nowhere
    const Part& part = *found->second->input->part;  // of one that another stage of the pipeline has: nothing
    if (part.begin == part.end) continue;
    if (part.group == kDataGroup || mesh.DataRankOf(other) == mesh.DataRankOf(rank))
      PutIntoWhole(part, Floats(other, name), &whole);
  }
  return whole;
}

std::vector<float> Played::Whole(const std::string& name) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (States(rank).contains(name)) return Together(rank, name);
  }
  ADD_FAILURE() << "no rank has " << name;
  return {};
}

std::vector<float> Played::Floats(int rank, const std::string& name) const {
  const auto bytes = mesh_->Get(rank, name);
  EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
  if (!bytes.ok()) return {};
  std::vector<float> values(bytes->size() / sizeof(float));
  std::copy_n(bytes->data(), bytes->size(), reinterpret_cast<char*>(values.data()));
  return values;
}

EvaluationResult Played::Evaluate(const Dataset& dataset) {
  struct OfRank {
    std::unique_ptr<Loader> loader;
    std::unique_ptr<Collector> counting;
    Batch batch;
  };
  EvaluationResult result;
  std::vector<double> sums(static_cast<size_t>(task_->sums()));
  std::vector<OfRank> ranks(static_cast<size_t>(ranks_));
  LoaderOptions options;
  options.batch_size = setup_.config.batch_size;
  options.world = ranks_;
  options.workers = 0;
  for (OfRank& own : ranks) {
    auto samples = task_->Samples(dataset, false);
    EXPECT_TRUE(samples.ok()) << Message(samples.status());
    if (!samples.ok()) return result;
    auto loader = Loader::Create(std::move(*samples), options);
    EXPECT_TRUE(loader.ok()) << Message(loader.status());
    if (!loader.ok()) return result;
    ++options.rank;
    own.loader = std::move(*loader);
    EXPECT_TRUE(own.loader->StartEpoch(0).ok());
    own.counting = task_->Counting(own.loader->source(), sums, &result.count);
  }
  const std::vector<SampleTensor> inputs = task_->tensors();
  for (;;) {
    int more = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      OfRank& own = ranks[static_cast<size_t>(rank)];
      const auto next = own.loader->Next(&own.batch);
      EXPECT_TRUE(next.ok()) << Message(next.status());
      if (!next.ok() || !*next) continue;
      ++more;
      for (size_t t = 0; t < inputs.size(); ++t) {
        const auto bytes = static_cast<uint64_t>(options.batch_size * inputs[t].row.bytes());
        mesh_->Set(rank, inputs[t].name, own.batch.tensors[t], bytes);
      }
    }
    EXPECT_TRUE(more == 0 || more == ranks_) << more << " ranks have more batches than the others";
    if (more != ranks_) break;
    RunPlan("evaluate");
    for (int rank = 0; rank < ranks_; ++rank) {
      const OfRank& own = ranks[static_cast<size_t>(rank)];
      std::vector<std::vector<char>> outputs;
      for (const std::string& name : task_->outputs()) {
        auto bytes = mesh_->Get(rank, name);
        EXPECT_TRUE(bytes.ok()) << Message(bytes.status());
        if (!bytes.ok()) return result;
        outputs.push_back(std::move(*bytes));
      }
      for (size_t i = 0; i < own.batch.samples.size(); ++i) {
        if (own.batch.samples[i] < 0) continue;
        std::vector<const void*> rows;
        for (const auto& output : outputs)
          rows.push_back(output.data() + i * (output.size() / own.batch.samples.size()));
        EXPECT_TRUE(own.counting->Add(own.batch.samples[i], rows).ok());
      }
    }
  }
  const std::vector<double> values = task_->Metrics(sums, result.count);
  const std::vector<Metric> metrics = task_->metrics();
  for (size_t i = 0; i < metrics.size(); ++i) result.metrics[metrics[i].name] = values[i];
  return result;
}

void Played::RefreshHalves() { RunPlan("halves"); }

void Played::RunPlan(const std::string& name) {
  for (size_t i = 0; i < programs_[0].plans.size(); ++i) {
    if (programs_[0].plans[i].name == name) RunPlan(static_cast<int>(i));
  }
}

void Played::RunPlan(int plan) {
  std::vector<const Graph*> graphs;
  for (const Program& program : programs_) graphs.push_back(&program.plans[static_cast<size_t>(plan)].graph);
  const Status ran = mesh_->Run(graphs);
  ASSERT_TRUE(ran.ok()) << Message(ran);
}

}  // namespace switchyard
