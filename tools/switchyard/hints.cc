#include "tools/switchyard/hints.h"

#include "core/base/logging.h"
#include "core/graph/op.h"
#include "core/train/plans.h"

namespace switchyard {
namespace {

constexpr int64_t kLooks = 16;  // images that are looked at

// The height and width of all images that were looked at; 0 where they differ or cannot be read.
int SideOf(const Dataset& data) {
  int side = 0;
  const int64_t looks = std::min(kLooks, data.size());
  for (int64_t i = 0; i < looks; ++i) {
    const auto sample = data.Get(i * data.size() / looks);
    if (!sample.ok() || sample->image.height != sample->image.width) return 0;
    if (i > 0 && sample->image.height != side) return 0;
    side = sample->image.height;
  }
  return side;
}

double ForwardFlops(const ResolvedModel& model) {
  Graph graph;
  nn::Context context(graph);
  Shape shape = InputShape(model);
  shape.insert(shape.begin(), 1);
  BuildModel(model, context, graph.Input("images", {DType::kF32, shape}, {}));
  double flops = 0;
  for (const Node& node : graph.nodes()) flops += CostOf(graph, node).flops;
  return flops;
}

// A switch that is off unless told otherwise, and was told to be off.
bool IsOffAnyway(const Settings& settings, const std::string& name) {
  const nlohmann::json& value = settings.Value(name);
  return value == settings.table().Find(name)->standard && (value == false || value == 0 || value == "none");
}

}  // namespace

bool HasBatchNorms(const ResolvedModel& model) {
  for (const auto& [name, type] : WeightTypes(model)) {
    if (name.ends_with("running_mean")) return true;
  }
  return false;
}

RunFacts FactsOf(const RunSetup& setup, const Mesh& mesh, Device& device) {
  return {.updates = kUnknownLength,
          .ranks = mesh.data,
          .hierarchy = NodesDivideData(setup.config, mesh),
          .batch_norms = HasBatchNorms(setup.resolved),
          .content = setup.resolved.info->family->data,
          .own_memory = DeviceTraits::Of(device.info()).own_memory,
          .pins_batches = device.async() && device.offers_pinned_memory()};
}

void WarnOfSettingsWithoutEffect(const RunSetup& setup, const RunFacts& facts, const std::string& used) {
  const auto chosen = [&](const std::string& name) {
    return name != used && setup.settings.IsChosen(name) && !IsOffAnyway(setup.settings, name);
  };
  for (const std::string& sentence : SettingsWithoutEffect(setup.config, facts, chosen)) LogWarning("{}", sentence);
}

void WarnOfSettingsOfOtherTasks(const RunSetup& setup) {
  for (const std::string& sentence :
       SettingsOfOtherTasks(setup.config, setup.resolved.info->family->data,
                            [&](const std::string& name) { return setup.settings.IsChosen(name); }))
    LogWarning("{}", sentence);
}

void WarnOfSettingsOfUpdates(const Settings& given, const std::string& command) {
  for (const std::string& sentence : SettingsOfUpdates(command, [&](const std::string& name) {
         return given.Has(name) && given.OriginOf(name) == Origin::kFlag && given.Value(name) != "none";
       }))
    LogWarning("{}", sentence);
}

std::string EnlargementHint(const RunSetup& setup) {
  if (setup.train->content() != Content::kLabelledImages || setup.resolved.own.contains("patch")) return "";
  const int side = SideOf(*setup.train);
  if (side == 0 || side >= setup.resolved.image_size) return "";
  ModelOptions options = OptionsOf(setup.settings);
  options.image_size = side;
  options.channels = setup.resolved.channels;
  options.classes = setup.resolved.classes;
  const auto small = ResolveModel(options);
  if (!small.ok()) return "";
  const double times = ForwardFlops(setup.resolved) / ForwardFlops(*small);
  return fmt::format(
      "images of {0} x {0} are enlarged to {1} x {1}; --image_size={0} takes {2:.1f} times less computing", side,
      setup.resolved.image_size, times);
}

std::string MicroBatchHint(const RunSetup& setup) {
  const TrainConfig& c = setup.config;
  if (c.pp == 1 || c.accumulation == 1 || !setup.settings.SourceOf("accumulation").starts_with("pp=") ||
      !HasBatchNorms(setup.resolved))
    return "";
  return fmt::format(
      "--pp={} divides a batch into {} micro-batches, and batch norms normalise each of them, of {}, by itself; "
      "--num_microbatches says how many",
      c.pp, c.accumulation, c.batch_size);
}

}  // namespace switchyard
