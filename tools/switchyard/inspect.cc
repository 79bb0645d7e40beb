// explain, ops, devices, doctor, models, datasets, version: commands that show something and train nothing.
#include <map>

#include "absl/flags/flag.h"
#include "core/base/names.h"
#include "core/graph/op.h"
#include "core/runtime/doctor.h"
#include "core/train/step.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/run_setup.h"
#include "tools/switchyard/settings.h"

namespace switchyard {
namespace {

StatusOr<Graph> TrainingGraph(const RunSetup& setup, int world) {
  const TrainConfig& c = setup.config;
  if (c.batch_size < 1) return InvalidArgument("--batch_size=auto depends on a run's device; give a number here");
  StepOptions o;
  o.batch = c.batch_size;
  o.height = o.width = c.image_size;
  o.channels = c.channels;
  o.precision = c.precision == "bf16" ? DType::kBF16 : DType::kF32;
  o.label_smoothing = c.label_smoothing;
  o.accumulation = c.accumulation;
  o.parallel.world = world;
  o.parallel.bucket_bytes = static_cast<uint64_t>(c.bucket_mb * 1e6);
  o.table_length = 1;
  o.optimizer.weight_decay = c.weight_decay;
  o.optimizer.clip = c.clip;
  SY_ASSIGN_OR_RETURN(o.optimizer.kind, ParseOptimizer(c.optimizer));
  try {
    return BuildTrainingStep(setup.model.build, o, c.accumulation > 1 ? MicroStep::kLast : MicroStep::kOnly);
  } catch (const BuildError& error) {
    return InvalidArgument("the model {} cannot be built: {}", setup.model.name, error.what());
  }
}

}  // namespace

Status ExplainCommand(const Arguments&) {
  const int world = absl::GetFlag(FLAGS_world);
  if (world < 1) return InvalidArgument("--world: expected at least 1, found {}", world);
  SY_ASSIGN_OR_RETURN(const RunSetup setup, SetUpModel(ResolvedSettings(), nullptr, world));
  const TrainConfig& c = setup.config;
  SY_ASSIGN_OR_RETURN(const Graph graph, TrainingGraph(setup, world));
  SY_ASSIGN_OR_RETURN(const auto here, World::Join(WorldRequestOf(c)));
  KernelOptions kernel_options;
  kernel_options.deterministic = c.deterministic;
  KernelCache kernels(*here->device, kernel_options);
  std::unique_ptr<KernelCache> reference;
  if (here->reference) reference = std::make_unique<KernelCache>(*here->reference, kernel_options);
  Layout layout(here->device->info().alignment, IoSlots(*here->device));
  PlanOptions options;
  options.fuse = c.compile;
  options.max_fallback = c.max_fallback;
  options.world = world;
  SY_ASSIGN_OR_RETURN(const auto plan, Plan::Compile(graph, kernels, reference.get(), layout, options));
  fmt::print("{} ({:.2f} M parameters), batch {} per rank, {} rank{}, {}, on {} ({})\n\n", c.model,
             static_cast<double>(ParameterCount(setup.resolved)) / 1e6, c.batch_size, world, world > 1 ? "s" : "",
             c.precision, here->device->info().plugin, here->device->info().name);
  fmt::print("{}", plan->report().ToText());
  return OkStatus();
}

Status OpsCommand(const Arguments&) {
  if (!WasGiven("model")) {
    for (const auto& [name, op] : AllOps()) fmt::print("{:<32} {}\n", name, op.summary);
    fmt::print(
        "\n--model=NAME lists those that a model needs, with shapes and dtypes; core/abi/ops.h specifies each\n");
    return OkStatus();
  }
  SY_ASSIGN_OR_RETURN(const RunSetup setup, SetUpModel(ResolvedSettings(), nullptr, 1));
  SY_ASSIGN_OR_RETURN(const Graph graph, TrainingGraph(setup, 1));
  struct Need {
    int count = 0;
    nlohmann::ordered_json inputs = nlohmann::ordered_json::array(), outputs = nlohmann::ordered_json::array();
  };
  std::map<std::pair<std::string, std::string>, Need> needs;
  const auto describe = [](const TensorType& type) {
    return nlohmann::ordered_json({{"dtype", NameOf(type.dtype)}, {"shape", type.shape}});
  };
  for (const Node& node : graph.nodes()) {
    if (IsStructural(node.op)) continue;
    Need need;
    std::string signature;
    for (const Ref& input : node.inputs) {
      need.inputs.push_back(describe(graph.type(input)));
      signature += ToString(graph.type(input)) + " ";
    }
    signature += "->";
    for (const TensorType& output : node.outputs) {
      need.outputs.push_back(describe(output));
      signature += " " + ToString(output);
    }
    Need& entry = needs.try_emplace({node.op, signature}, need).first->second;
    ++entry.count;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [key, need] : needs) {
    if (absl::GetFlag(FLAGS_json)) {
      list.push_back({{"op", key.first}, {"count", need.count}, {"inputs", need.inputs}, {"outputs", need.outputs}});
    } else {
      const std::string& text = key.second;
      fmt::print("{:<24} x{:<5} {}\n", key.first, need.count, text.size() > 160 ? text.substr(0, 157) + "..." : text);
    }
  }
  if (absl::GetFlag(FLAGS_json))
    fmt::print("{}\n", nlohmann::ordered_json(
                           {{"model", setup.model.name}, {"batch_size", setup.config.batch_size}, {"ops", list}})
                           .dump(2));
  return OkStatus();
}

Status DevicesCommand(const Arguments&) {
  fmt::print("{}", absl::GetFlag(FLAGS_json) ? DevicesJson(Registry::Get()) : DevicesReport(Registry::Get()));
  return OkStatus();
}

Status DoctorCommand(const Arguments&) {
  fmt::print("{}", absl::GetFlag(FLAGS_json) ? DoctorJson(Registry::Get()) : DoctorReport(Registry::Get()));
  return OkStatus();
}

Status ModelsCommand(const Arguments&) {
  for (const ModelInfo& info : Models()) {
    ModelOptions options;
    options.name = info.name;
    const auto model = ResolveModel(options);
    fmt::print("{:<18} {:>8.2f} M  {}\n", info.name,
               model.ok() ? static_cast<double>(ParameterCount(*model)) / 1e6 : 0.0, info.help);
  }
  return OkStatus();
}

Status DatasetsCommand(const Arguments&) {
  const std::string name = absl::GetFlag(FLAGS_have);
  if (!name.empty()) {
    DatasetOptions options;
    options.name = name;
    options.data = ResolvedSettings().data;
    SY_ASSIGN_OR_RETURN(const std::string path, LocateDataset(options));
    fmt::print("{}\n", path.empty() ? name + " needs no files" : path);
    return OkStatus();
  }
  for (const DatasetInfo& info : KnownDatasets()) {
    DatasetOptions options;
    options.name = info.name;
    options.download = false;
    const auto path = LocateDataset(options);
    fmt::print("{:<14} {}{}\n", info.name, info.help,
               path.ok() && !path->empty() ? fmt::format("; here: {}", *path) : "");
  }
  return OkStatus();
}

Status VersionCommand(const Arguments&) {
  fmt::print("switchyard {} (plugin ABI {}.{})\n", SWITCHYARD_VERSION, SY_ABI_MAJOR, SY_ABI_MINOR);
  return OkStatus();
}

}  // namespace switchyard
