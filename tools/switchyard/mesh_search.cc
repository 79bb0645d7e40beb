#include "tools/switchyard/mesh_search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/parallel/recompute.h"
#include "core/train/fitting.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

constexpr int kMostShared = 16;         // ranks of a tensor group, stages of a pipeline
constexpr int kMicroBatchesAStage = 4;  // wanted, so that a pipeline waits little
constexpr size_t kMostLines = 20;

// The combinations that are open. `given` fixes an axis to what `config` says of it.
std::vector<MeshChoice> Combinations(const Settings& given, const TrainConfig& config, int ranks) {
  const auto divisors = [&](const char* name, int fixed) {
    std::vector<int> values;
    if (given.IsGiven(name)) return std::vector<int>{fixed};
    for (int value = 1; value <= kMostShared; ++value) {
      if (ranks % value == 0) values.push_back(value);
    }
    return values;
  };
  std::vector<int> stages = {0, 1, 2, 3};
  if (given.IsGiven("zero")) stages = {config.zero};
  std::vector<MeshChoice> all;
  for (const int tensor : divisors("tp", config.tp)) {
    for (const int pipeline : divisors("pp", config.pp)) {
      if (ranks % (tensor * pipeline) != 0) continue;
      const int data = ranks / (tensor * pipeline);
      if (config.dp && *config.dp != data) continue;
      for (const bool sequence : {false, true}) {
        if (given.IsGiven("sp") ? sequence != config.sp : sequence && tensor == 1) continue;
        for (const int zero : stages) {
          if (zero > 0 && data == 1 && !given.IsGiven("zero")) continue;
          all.push_back({.data = data, .tensor = tensor, .pipeline = pipeline, .sequence = sequence, .zero = zero});
        }
      }
    }
  }
  return all;
}

// How a rank may divide its samples into micro-batches, the fewest first.
std::vector<int64_t> MicroBatches(const MeshChoice& d, int64_t samples, const Settings& given,
                                  const TrainConfig& config) {
  if (samples % d.data != 0) return {};
  const int64_t own = samples / d.data;
  if (given.IsGiven("accumulation") || given.IsGiven("num_microbatches") || given.IsGiven("microbatch_size"))
    return own % config.accumulation == 0 ? std::vector<int64_t>{config.accumulation} : std::vector<int64_t>{};
  std::vector<int64_t> counts;
  for (int64_t count = 1; own % count == 0; count *= 2) counts.push_back(count);
  if (d.pipeline == 1) return counts;
  // As many as a stage wants, and more where that does not fit.
  const auto enough = std::find_if(counts.begin(), counts.end(),
                                   [&](int64_t count) { return count >= kMicroBatchesAStage * d.pipeline; });
  if (enough != counts.end()) return {enough, counts.end()};
  return counts.back() >= d.pipeline ? std::vector<int64_t>{counts.back()} : std::vector<int64_t>{};
}

// What to keep in host memory, in the order in which it is tried until some way fits: each costs more than the one
// before.
std::vector<std::string> OffloadsOf(const Settings& given, const TrainConfig& config, const Device& device) {
  if (given.IsGiven("offload") || !DeviceTraits::Of(device.info()).own_memory) return {config.offload};
  return {"none", "optimizer", "all"};
}

// What to try until it fits. More micro-batches come before blocks that are computed again, which cost more.
std::vector<MeshChoice> AttemptsOf(const MeshChoice& combination, int64_t samples, const Settings& given,
                                   const TrainConfig& config) {
  std::vector<std::string> recomputes = {"none", "blocks"};
  if (given.IsGiven("recompute") && config.recompute != kAutoRecompute) recomputes = {config.recompute};
  std::vector<MeshChoice> attempts;
  for (const std::string& recompute : recomputes) {
    for (const int64_t count : MicroBatches(combination, samples, given, config)) {
      MeshChoice d = combination;
      d.recompute = recompute;
      d.micro_batches = count;
      d.batch_size = samples / d.data / count;
      TrainConfig divided = config;
      divided.sp = d.sequence;
      divided.tp = d.tensor;
      if (d.batch_size % BatchUnit(divided) == 0) attempts.push_back(d);
    }
  }
  return attempts;
}

std::string Megabytes(double bytes) { return fmt::format("{:.1f}", bytes / 1e6); }

std::string FlagsOf(const MeshChoice& d) {
  std::string flags = fmt::format("--parallel=dp{}", d.data);
  if (d.tensor > 1) flags += fmt::format(",tp{}", d.tensor);
  if (d.pipeline > 1) flags += fmt::format(",pp{}", d.pipeline);
  if (d.zero > 0) flags += fmt::format(",zero{}", d.zero);
  if (d.sequence) flags += ",sp";
  flags += fmt::format(" --batch_size={}", d.batch_size);
  if (d.micro_batches > 1) flags += fmt::format(" --accumulation={}", d.micro_batches);
  if (d.recompute != "none") flags += " --recompute=" + d.recompute;
  if (d.offload != "none") flags += " --offload=" + d.offload;
  if (d.bucket_mb) flags += fmt::format(" --bucket_mb={}", *d.bucket_mb);
  return flags;
}

}  // namespace

StatusOr<MeshSearch> SearchMeshes(const Settings& given, const TrainConfig& config, const TrainableModel& model,
                                  World& here, int ranks, int64_t updates, double available, const StatedRates& rates) {
  MeshSearch search;
  SY_ASSIGN_OR_RETURN(const Mesh asked, MeshOf(ranks, config.pp, config.tp));
  search.samples = int64_t{config.batch_size} * asked.data * config.accumulation;
  search.ranks = ranks;
  search.available = available;
  // Fills in what a choice takes. InvalidArgument or Unimplemented where it cannot be.
  const auto plan = [&](MeshChoice* d) -> Status {
    TrainConfig c = config;
    c.tp = d->tensor, c.pp = d->pipeline, c.sp = d->sequence, c.zero = d->zero;
    c.recompute = d->recompute;
    c.offload = d->offload;
    if (d->bucket_mb) c.bucket_mb = d->bucket_mb;
    c.batch_size = static_cast<int>(d->batch_size);
    c.accumulation = static_cast<int>(d->micro_batches);
    const Mesh mesh = {.data = d->data, .pipeline = d->pipeline, .tensor = d->tensor};
    SY_ASSIGN_OR_RETURN(const auto deciding,
                        TrainingPlans::DecidingReplica(c, model, mesh, updates, here, available, FewReplicas(mesh)));
    d->cost = CostOf(deciding.replica, mesh, c.accumulation, available, rates);
    return OkStatus();
  };
  Status refusal = InvalidArgument(
      "--search: {} samples of an update do not divide over {} ranks in any way that was tried; give another "
      "--global_batch_size",
      search.samples, ranks);
  const auto fits = [&](const MeshChoice& d) { return static_cast<double>(d.cost.bytes) <= available; };
  const auto try_combination = [&](const MeshChoice& combination) -> Status {
    std::vector<MeshChoice> attempts = AttemptsOf(combination, search.samples, given, config);
    Status planned = attempts.empty() ? refusal : plan(&attempts[0]);
    if (planned.ok() && fits(attempts[0])) {
      search.fitting.push_back(attempts[0]);
      return OkStatus();
    }
    // Whether any does, the last one says: it takes the least.
    if (planned.ok() && attempts.size() > 1) planned = plan(&attempts.back());
    if (!planned.ok()) {
      if (planned.code() != absl::StatusCode::kInvalidArgument && planned.code() != absl::StatusCode::kUnimplemented)
        return planned;
      refusal = planned;
      ++search.refused;
      return OkStatus();
    }
    if (!fits(attempts.back())) {
      ++search.too_large;
      if (!search.smallest || attempts.back().cost.bytes < search.smallest->cost.bytes)
        search.smallest = attempts.back();
      return OkStatus();
    }
    for (size_t i = 1; i < attempts.size(); ++i) {
      SY_RETURN_IF_ERROR(plan(&attempts[i]));
      if (!fits(attempts[i])) continue;
      search.fitting.push_back(attempts[i]);
      break;
    }
    return OkStatus();
  };
  const auto try_combinations = [&](const std::string& offload, std::optional<double> bucket_mb) -> Status {
    search.refused = search.too_large = 0;
    for (MeshChoice combination : Combinations(given, config, ranks)) {
      combination.offload = offload;
      combination.bucket_mb = bucket_mb;
      SY_RETURN_IF_ERROR(try_combination(combination));
    }
    return OkStatus();
  };
  const std::vector<std::string> offloads = OffloadsOf(given, config, *here.device);
  for (const std::string& offload : offloads) {
    if (search.fitting.empty()) SY_RETURN_IF_ERROR(try_combinations(offload, {}));
  }
  // Buckets of a model that is only a few of them large are much of what it takes. They are not tried where even the
  // smallest way takes several times what there is, since that doubles or triples the search.
  constexpr double kMostSaved = 8;
  for (const double bucket_mb : kSmallerBucketsMb) {
    const auto near = [&] { return static_cast<double>(search.smallest->cost.bytes) <= kMostSaved * available; };
    if (search.fitting.empty() && !given.IsGiven("bucket_mb") && search.smallest && near())
      SY_RETURN_IF_ERROR(try_combinations(offloads.back(), bucket_mb));
  }
  if (search.fitting.empty() && !search.smallest) return refusal;
  const auto key = [](const MeshChoice& d) {
    return std::make_tuple(d.cost.most_seconds, d.cost.flops / (1 - d.cost.bubble), d.cost.wire_bytes,
                           d.cost.host_traffic, d.cost.bytes);
  };
  std::stable_sort(search.fitting.begin(), search.fitting.end(),
                   [&](const MeshChoice& a, const MeshChoice& b) { return key(a) < key(b); });
  return search;
}

Status CheckFound(const MeshSearch& search) {
  if (!search.fitting.empty()) return OkStatus();
  return ResourceExhausted(
      "--search: none of {} ways to divide {} samples over {} ranks fits into {} MB; the smallest, {}, takes {} MB. "
      "More ranks, a smaller --global_batch_size or a half --precision take less; --tp and --pp above {} and "
      "--pp_interleave are tried where they are given",
      search.too_large, search.samples, search.ranks, Megabytes(search.available), FlagsOf(*search.smallest),
      Megabytes(static_cast<double>(search.smallest->cost.bytes)), kMostShared);
}

std::string TextOf(const MeshSearch& search, const StatedRates& rates) {
  std::string text = fmt::format(
      "{} ranks, {} samples an update, {} MB a device: {} ways fit, {} are too large, {} are refused or do not "
      "divide\n\n",
      search.ranks, search.samples, Megabytes(search.available), search.fitting.size(), search.too_large,
      search.refused);
  text += fmt::format("{:>5}{:>4}{:>4}{:>4}{:>6}{:>11}{:>11}{:>7}{:>7}{:>10}{:>10}{:>12}{:>10}{:>9}", "dp", "tp", "pp",
                      "sp", "zero", "recompute", "offload", "batch", "micro", "MB", "host MB", "GFLOP", "wire MB",
                      "bubble");
  text += rates.complete() ? fmt::format("{:>11}{:>11}\n", "least ms", "most ms") : "\n";
  for (size_t i = 0; i < std::min(kMostLines, search.fitting.size()); ++i) {
    const MeshChoice& d = search.fitting[i];
    text +=
        fmt::format("{:>5}{:>4}{:>4}{:>4}{:>6}{:>11}{:>11}{:>7}{:>7}{:>10}{:>10}{:>12.3f}{:>10}{:>7.1f} %", d.data,
                    d.tensor, d.pipeline, d.sequence ? "yes" : "-", d.zero, d.recompute, d.offload, d.batch_size,
                    d.micro_batches, Megabytes(static_cast<double>(d.cost.bytes)) + (d.cost.lacks_windows ? "*" : ""),
                    Megabytes(static_cast<double>(d.cost.host_bytes)), d.cost.flops / 1e9, Megabytes(d.cost.wire_bytes),
                    100 * d.cost.bubble);
    text += rates.complete()
                ? fmt::format("{:>11.3f}{:>11.3f}\n", 1e3 * d.cost.least_seconds, 1e3 * d.cost.most_seconds)
                : "\n";
  }
  if (std::any_of(search.fitting.begin(), search.fitting.end(), [](const auto& d) { return d.cost.lacks_windows; }))
    text += "* collectives go through host memory: their windows on the device (peer/1) do not fit beside the plan\n";
  if (search.fitting.size() > kMostLines)
    text += fmt::format("and {} more (--json)\n", search.fitting.size() - kMostLines);
  if (rates.complete()) {
    text += fmt::format(
        "\nan update, estimated {}: least where all sending is hidden behind computing, most where none is\n",
        TextOf(rates));
    text += HostRateText(search.fitting[0].cost, rates);
  } else {
    text += "\nby FLOPs, waiting and traffic; times need --rates=compute:…,memory:…,link:… (or --measure and link)\n";
  }
  return text + "the first: " + FlagsOf(search.fitting[0]) + "\n";
}

nlohmann::ordered_json JsonOf(const MeshSearch& search) {
  nlohmann::ordered_json ways = nlohmann::ordered_json::array();
  for (const MeshChoice& d : search.fitting) {
    ways.push_back({{"dp", d.data},
                    {"tp", d.tensor},
                    {"pp", d.pipeline},
                    {"sp", d.sequence},
                    {"zero", d.zero},
                    {"recompute", d.recompute},
                    {"offload", d.offload},
                    {"batch_size", d.batch_size},
                    {"accumulation", d.micro_batches},
                    {"device_bytes", d.cost.bytes},
                    {"peer_memory_bytes", d.cost.window_bytes},
                    {"host_bytes", d.cost.host_bytes},
                    {"host_traffic_bytes", d.cost.host_traffic},
                    {"gflop_per_update", d.cost.flops / 1e9},
                    {"wire_bytes", d.cost.wire_bytes},
                    {"wire_bytes_between_nodes", d.cost.wire_bytes_between_nodes},
                    {"bubble", d.cost.bubble}});
    if (d.bucket_mb) ways.back()["bucket_mb"] = *d.bucket_mb;
    if (d.cost.most_seconds > 0) {
      ways.back()["least_ms"] = 1e3 * d.cost.least_seconds;
      ways.back()["most_ms"] = 1e3 * d.cost.most_seconds;
    }
  }
  return {{"ranks", search.ranks},         {"samples", search.samples}, {"available_bytes", search.available},
          {"too_large", search.too_large}, {"refused", search.refused}, {"fitting", ways}};
}

}  // namespace switchyard
