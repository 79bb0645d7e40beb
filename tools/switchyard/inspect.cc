// explain, ops, devices, doctor, models, datasets, version: commands that show something and train nothing.
#include <map>

#include "absl/flags/flag.h"
#include "core/base/logging.h"
#include "core/base/names.h"
#include "core/graph/op.h"
#include "core/parallel/recompute.h"
#include "core/plan/roofline.h"
#include "core/runtime/plugins/doctor.h"
#include "core/runtime/plugins/registry.h"
#include "core/train/fitting.h"
#include "core/train/mixed_precision.h"
#include "core/train/plans.h"
#include "core/train/timetable.h"
#include "tools/switchyard/commands.h"
#include "tools/switchyard/flags.h"
#include "tools/switchyard/hints.h"
#include "tools/switchyard/mesh_search.h"
#include "tools/switchyard/run_setup.h"
#include "tools/switchyard/stages.h"

namespace switchyard {
namespace {

Status CheckBatch(const RunSetup& setup) {
  if (setup.automatic_batch) return InvalidArgument("--batch_size=auto depends on a run's device; give a number here");
  return OkStatus();
}

StatusOr<Graph> TrainingGraph(const RunSetup& setup) {
  const TrainConfig& c = setup.config;
  SY_RETURN_IF_ERROR(CheckBatch(setup));
  SY_ASSIGN_OR_RETURN(const auto task, TaskOf(c, setup.model, nullptr));
  SY_ASSIGN_OR_RETURN(const Program program, ProgramOf(c, *task, {}, 0, 1, DeviceTraits()));
  return program.Find("update")->graph;
}

// The training data, where the user named it and it is here: a run takes its classes, channels and length from it.
// Null: the model's sizes stand, and the length is not known.
StatusOr<std::unique_ptr<Dataset>> NamedData(const Settings& settings) {
  if (!settings.IsGiven("dataset")) return std::unique_ptr<Dataset>();
  SY_ASSIGN_OR_RETURN(const ResolvedModel model, ResolveModel(OptionsOf(settings)));
  return DataAtHand(DatasetOptionsOf(ConfigOf(settings), model));
}

// What is saved and what it costs.
std::string RecomputeLine(const std::string& setting, const TrainingPlans& plans, const TrainingPlans& kept) {
  const auto bytes = static_cast<double>(plans.PlannedBytes()), before = static_cast<double>(kept.PlannedBytes());
  return fmt::format(
      "--recompute={}: {:.1f} MB instead of {:.1f} MB ({:.3f} x), {:.3f} GFLOP instead of {:.3f} ({:.3f} x)\n", setting,
      bytes / 1e6, before / 1e6, bytes / before, plans.Report().flops / 1e9, kept.Report().flops / 1e9,
      plans.Report().flops / kept.Report().flops);
}

// --rates, and with --measure what this device reaches. Without either, of ranks that need not be here, those of the
// usual machine.
StatusOr<StatedRates> RatesOf(const TrainConfig& config, World& here) {
  SY_ASSIGN_OR_RETURN(const MixedPrecision mixed, MixedPrecisionOf(config, here.device->info().static_loss_scale));
  const bool measure = absl::GetFlag(FLAGS_measure), elsewhere = absl::GetFlag(FLAGS_world).has_value() && !measure;
  const std::string given = absl::GetFlag(FLAGS_rates);
  StatedRates rates;
  rates.nodes = config.ranks_per_node.has_value();
  const bool usual = given.empty() && elsewhere;
  SY_RETURN_IF_ERROR(ParseRates(usual ? kUsualMachine : given, mixed.half != DType::kF32, &rates));
  if (usual) rates.machine += ", as --rates names nothing else";
  if (!measure) return rates;
  if (rates.device.flops_per_s > 0 || rates.device.bytes_per_s > 0)
    return InvalidArgument("--measure and --rates={} both say what the device reaches; give one of them", given);
  SY_ASSIGN_OR_RETURN(rates.device, MeasureRates(*here.device, mixed.half));
  return rates;
}

// The shortest run that has all plans, for what is explained without the length of its run.
int64_t ShortestRun(const TrainConfig& config) {
  return config.powersgd_compression ? config.start_compress_iter + 1 : 1;
}

// What a rank sends along each axis of the mesh, by GroupIndex.
nlohmann::ordered_json JsonByAxis(const PlanReport& report) {
  constexpr const char* kNames[] = {"world", "data", "pipeline", "tensor", "node", "across_nodes"};
  nlohmann::ordered_json axes = nlohmann::ordered_json::object();
  for (const auto& [group, bytes] : report.wire_bytes_of_group) axes[kNames[group]] = bytes;
  return axes;
}
// "": along one at most.
std::string TrafficByAxis(const PlanReport& report) {
  constexpr const char* kAmong[] = {"all ranks",
                                    "data ranks",
                                    "stages",
                                    "ranks that divide layers",
                                    "data ranks of a node",
                                    "data ranks of different nodes"};
  std::vector<std::string> parts;
  for (const auto& [group, bytes] : report.wire_bytes_of_group) {
    if (bytes > 0) parts.push_back(fmt::format("{:.2f} MiB among {}", bytes / (1 << 20), kAmong[group]));
  }
  return parts.size() < 2 ? "" : fmt::format("on the wire: {}\n", fmt::join(parts, ", "));
}

std::string TimesText(const UpdateCost& cost, const StatedRates& rates) {
  return fmt::format(
             "an update of this run takes {:.3f} ms where all sending is hidden behind computing, {:.3f} ms where none "
             "is, {}\n",
             1e3 * cost.least_seconds, 1e3 * cost.most_seconds, TextOf(rates)) +
         HostRateText(cost, rates);
}

// --memory_limit, else what this device has.
double AvailableBytes(const TrainConfig& config, const World& here) {
  return config.memory_limit ? static_cast<double>(MemoryLimitOf(config)) : DeviceBytesOf(here);
}

// given: what the user said, without what SetUpModel made of it.
Status ExplainSearch(const Settings& given, const RunSetup& setup, World& here, int world, int64_t updates,
                     double available, const StatedRates& rates) {
  SY_ASSIGN_OR_RETURN(const MeshSearch search,
                      SearchMeshes(given, setup.config, setup.model, here, world, updates, available, rates));
  SY_RETURN_IF_ERROR(CheckFound(search));
  if (!absl::GetFlag(FLAGS_json)) {
    fmt::print("{}", TextOf(search, rates));
    return OkStatus();
  }
  nlohmann::ordered_json told = JsonOf(search);
  if (rates.complete()) told["rates"] = TextOf(rates);
  fmt::print("{}\n", told.dump(2));
  return OkStatus();
}

}  // namespace

Status ExplainCommand(const CommandLine& line) {
  const std::optional<int> stated = absl::GetFlag(FLAGS_world);
  int world = stated.value_or(1);
  constexpr int kMostRanks = 1 << 20;
  if (world < 1 || world > kMostRanks)
    return InvalidArgument("--world: expected 1 to {} ranks, found {}", kMostRanks, world);
  if (const TrainConfig asked = ConfigOf(line.settings); !stated) {
    world = asked.dp.value_or(1) * asked.tp * asked.pp;
    if (asked.mode == "dp" && asked.devices) world = *asked.devices;
  }
  SY_ASSIGN_OR_RETURN(const auto data, NamedData(line.settings));
  SY_ASSIGN_OR_RETURN(const RunSetup setup, SetUpModel(line.settings, data.get(), world));
  if (ShowSettings(setup.settings, 0)) return OkStatus();
  TrainConfig c = setup.config;
  SY_RETURN_IF_ERROR(CheckBatch(setup));
  SY_ASSIGN_OR_RETURN(const Mesh mesh, MeshOf(world, c.pp, c.tp));
  std::optional<int64_t> updates = c.steps;
  int64_t per_epoch = 0;
  if (data != nullptr) {
    SY_ASSIGN_OR_RETURN(const Timetable timetable, Timetable::Of(c, data->size(), mesh.data));
    updates = timetable.updates;
    per_epoch = timetable.updates_per_epoch;
  }
  const int64_t planned = updates.value_or(ShortestRun(c));
  WorldRequest request = WorldRequestOf(c);
  request.pipeline = request.tensor = 1;  // here is one process, whatever is explained
  request.memory_limit = kNoMemoryLimit;  // of the run, not of what is measured here
  const std::vector<int> cores = AllowedCores();
  const int of_node = std::min(world, c.ranks_per_node.value_or(world));
  if (!request.threads)  // what kernels take depends on it: as many as a rank of the run has
    request.threads = static_cast<int>(std::max<size_t>(1, CoresOfLocalRank(cores, 0, of_node).size()));
  request.computes_on_host |= absl::GetFlag(FLAGS_search);  // which may come to --offload
  const auto joined = World::Join(request);
  if (!joined.ok() && line.settings.Has("device"))
    return Status(
        joined.status().code(),
        Message(joined.status()) +
            "; explain asks a device which kernels it has: without --device it plans with those of this host, "
            "whose workspace and fusions differ, and takes --memory_limit for the memory of what is meant");
  SY_RETURN_IF_ERROR(joined.status());
  const auto& here = *joined;
  here->host_threads = std::max(1, static_cast<int>(cores.size()));  // plans are made on all cores
  if (absl::GetFlag(FLAGS_search)) {
    WarnOfSettingsOfOtherTasks(setup);  // the search chooses what else has an effect
  } else {
    RunFacts facts = FactsOf(setup, mesh, *here->device);
    facts.updates = updates.value_or(kUnknownLength);
    facts.updates_per_epoch = per_epoch;
    WarnOfSettingsWithoutEffect(setup, facts, "ranks_per_node");
  }
  const double available = AvailableBytes(c, *here);
  SY_ASSIGN_OR_RETURN(const StatedRates rates, RatesOf(c, *here));
  if (absl::GetFlag(FLAGS_search)) return ExplainSearch(line.settings, setup, *here, world, planned, available, rates);
  SY_RETURN_IF_ERROR(CheckMicroBatches(line.settings, setup, world));
  std::optional<RecomputeChoice> automatic;
  if (c.recompute == kAutoRecompute) {
    SY_ASSIGN_OR_RETURN(automatic, LeastRecompute(c, setup.model, *here, mesh, planned, available));
    c.recompute = automatic->setting;
  }
  SY_ASSIGN_OR_RETURN(const auto deciding, TrainingPlans::DecidingReplica(c, setup.model, mesh, planned, *here,
                                                                          available, TrainingPlans::kMostReplicas));
  const Replica& replica = deciding.replica;
  const TrainingPlans& plans = deciding.Most();
  const int rank = deciding.rank + static_cast<int>(deciding.most);
  PlanReport report = plans.Report();
  TrainingPlans kept;  // the same run with nothing computed again
  if (c.recompute != "none") {
    TrainConfig without = c;
    without.recompute = "none";
    SY_RETURN_IF_ERROR(kept.CompileRun(without, setup.model, mesh, rank, planned, *here->device, here->reference.get(),
                                       false, here->host.get()));
  }
  const UpdateCost cost = CostOf(replica, mesh, c.accumulation, available, rates);
  if (cost.lacks_windows) report.peer_memory_bytes = 0;
  const bool fits = static_cast<double>(cost.bytes) <= available;
  const bool measured = absl::GetFlag(FLAGS_measure);
  if (absl::GetFlag(FLAGS_json)) {
    nlohmann::ordered_json told = {{"model", c.model},
                                   {"batch_size", c.batch_size},
                                   {"ranks", world},
                                   {"rank", rank},
                                   {"device", here->device->info().plugin},
                                   {"threads", here->threads},
                                   {"precision", c.precision},
                                   {"updates", updates ? nlohmann::ordered_json(*updates) : nullptr},
                                   {"launches", report.launches},
                                   {"collectives", report.collectives},
                                   {"waits_between_streams", report.edges},
                                   {"overlap", report.overlap},
                                   {"fallbacks", report.fallbacks.size()},
                                   {"second_choices", report.second_choices.size()},
                                   {"accumulation", c.accumulation},
                                   {"gflop_per_step", report.flops / 1e9},
                                   {"gflop_per_update", plans.UpdateFlops() / 1e9},
                                   {"wire_bytes", report.wire_bytes},
                                   {"wire_bytes_between_nodes", report.wire_bytes_between_nodes},
                                   {"wire_bytes_by_axis", JsonByAxis(report)},
                                   {"memory_bytes", plans.PlannedBytes()},
                                   {"host_bytes", plans.PlannedHostBytes() - plans.PlannedFileBytes()},
                                   {"file_bytes", plans.PlannedFileBytes()},
                                   {"peer_memory_bytes", report.peer_memory_bytes},
                                   {"device_bytes", cost.bytes},
                                   {"checkpoint_bytes", report.checkpoint_bytes},
                                   {"checkpoint_host_bytes", report.checkpoint_host_bytes},
                                   {"memory_by_class", ByClass(report.memory)},
                                   {"recompute", c.recompute}};
    if (mesh.pipeline > 1) told["pipeline"] = JsonOf(ReportOf(replica, mesh, c.accumulation));
    if (measured) told["estimate"] = EstimateJson(FamiliesOf(plans.Main(), rates.device), rates.device);
    if (rates.complete()) {
      told["update_ms"] = {{"least", 1e3 * cost.least_seconds}, {"most", 1e3 * cost.most_seconds}};
      told["rates"] = TextOf(rates);
    }
    if (c.memory_limit) told["fits"] = fits;
    fmt::print("{}\n", told.dump(2));
    return OkStatus();
  }
  const std::string threads =
      here->threads > 0 ? fmt::format(", {} thread{} a rank", here->threads, here->threads > 1 ? "s" : "") : "";
  fmt::print("{} ({}), batch {} per rank, {} rank{}, {}, on {} ({}){}\n", c.model, ParametersText(setup.resolved),
             c.batch_size, world, world > 1 ? "s" : "", c.precision, here->device->info().plugin,
             here->device->info().name, threads);
  if (world > 1)
    fmt::print("of rank {}, which takes the most memory{}\n", rank,
               deciding.of_all ? "" : " of those that were planned: with many ranks not every one is");
  fmt::print("\n");
  if (c.accumulation > 1 && mesh.pipeline == 1)
    fmt::print("of the last of an update's {} micro-steps, which updates; all of them compute {:.3f} GFLOP\n\n",
               c.accumulation, plans.UpdateFlops() / 1e9);
  fmt::print("{}{}", report.ToText(), TrafficByAxis(report));
  if (measured) fmt::print("\n{}", EstimateText(FamiliesOf(plans.Main(), rates.device), rates.device));
  if (report.collectives > 0)
    fmt::print("--overlap={:d}: {}\n", report.overlap,
               report.overlap ? "collectives run beside computing where the device has streams"
                              : "each collective right before what reads it, and nothing is computed beside it");
  if (rates.complete()) {
    fmt::print("{}", TimesText(cost, rates));
  } else if (!absl::GetFlag(FLAGS_rates).empty()) {
    fmt::print("--rates={}: no time of an update is told without compute, memory and link\n",
               absl::GetFlag(FLAGS_rates));
  }
  if (cost.lacks_windows)
    fmt::print(
        "collectives go through host memory: windows on the device (peer/1), {:.1f} MB, do not fit beside the plan\n",
        static_cast<double>(plans.WindowBytes()) / 1e6);
  if (c.memory_limit) {
    const auto [taken, limit] = MegabytesOf(static_cast<double>(cost.bytes), available);
    fmt::print("--memory_limit={}: {} of {} MB, {}\n", *c.memory_limit, taken, limit, fits ? "fits" : "too large");
  }
  for (const auto& [op, nodes] : plans.program.gathered)
    fmt::print("--tp={}: whole on every rank of a model: {}\n", mesh.tensor,
               fmt::format("{} {} node{}", nodes, op, nodes > 1 ? "s" : ""));
  for (const std::string& sentence : InTooFewParts(plans.program)) fmt::print("{}\n", sentence);
  if (mesh.pipeline > 1) fmt::print("{}", TextOf(ReportOf(replica, mesh, c.accumulation), mesh.StageOf(rank)));
  if (c.recompute != "none") fmt::print("{}", RecomputeLine(c.recompute, plans, kept));
  if (automatic)
    fmt::print("--recompute=auto is {} here: {:.1f} MB planned, {:.1f} MB for a rank\n", c.recompute,
               static_cast<double>(automatic->bytes) / 1e6, available / 1e6);
  if (!updates)
    fmt::print(
        "not counted: 4 bytes of state for each update of the run but the first{}; --dataset or --steps says how "
        "many, and --dataset also how many classes and channels\n",
        planned == 1 ? "" : fmt::format(" {}", planned));
  return OkStatus();
}

Status OpsCommand(const CommandLine& line) {
  if (!line.settings.Has("model")) {
    for (const auto& [name, op] : AllOps()) {
      fmt::print("{:<32} {}\n", name, op.summary);
      if (op.factors) fmt::print("{:<32}   {}\n", "", op.factors.shown());
    }
    fmt::print(
        "\nbelow an op: its axes (core/graph/factors.h)\n"
        "--model=NAME lists those that a model needs, with shapes and dtypes; core/abi/ops.h specifies each\n");
    return OkStatus();
  }
  SY_ASSIGN_OR_RETURN(const RunSetup setup, SetUpModel(line.settings, nullptr, 1));
  if (ShowSettings(setup.settings, 0)) return OkStatus();
  SY_ASSIGN_OR_RETURN(const Graph graph, TrainingGraph(setup));
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

Status DevicesCommand(const CommandLine&) {
  fmt::print("{}", absl::GetFlag(FLAGS_json) ? DevicesJson(Registry::Get()) : DevicesReport(Registry::Get()));
  return OkStatus();
}

Status DoctorCommand(const CommandLine&) {
  fmt::print("{}", absl::GetFlag(FLAGS_json) ? DoctorJson(Registry::Get()) : DoctorReport(Registry::Get()));
  return OkStatus();
}

Status ModelsCommand(const CommandLine&) {
  for (const ModelInfo& info : Models()) {
    const auto model = ResolveModel({.name = info.name});
    fmt::print("{:<18} {:>8.2f} M  {}\n", info.name,
               model.ok() ? static_cast<double>(ParameterCount(*model)) / 1e6 : 0.0, info.help);
  }
  return OkStatus();
}

Status DatasetsCommand(const CommandLine& line) {
  const std::string name = absl::GetFlag(FLAGS_have);
  if (!name.empty()) {
    DatasetOptions options;
    options.name = name;
    options.data = line.settings.Get<std::string>("data");
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

Status VersionCommand(const CommandLine&) {
  fmt::print("switchyard {} (plugin ABI {}.{})\n", SWITCHYARD_VERSION, SY_ABI_MAJOR, SY_ABI_MINOR);
  return OkStatus();
}

}  // namespace switchyard
