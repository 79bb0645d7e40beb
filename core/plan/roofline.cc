#include "core/plan/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/random.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {
namespace {

constexpr int kRepetitions = 5;
constexpr double kLongEnough = 0.03;  // s
constexpr int64_t kMostRows = 8192;
constexpr int64_t kMostElements = 32 << 20;  // 128 MiB, more than caches hold
constexpr int64_t kFewestElements = 1 << 16;
constexpr double kFewSeconds = 0.01;  // that runs must take together, so that starting and ending them does not count

// Numbers of both signs and many magnitudes below 1, of any dtype: products of numbers that are all alike take less
// power, and so less time.
std::vector<unsigned char> RandomNumbers(uint64_t bytes, DType dtype) {
  constexpr size_t kPattern = size_t{4} * 65537;  // then again, which no row of a power of two falls in with
  RandomStream random(42);
  std::vector<unsigned char> numbers(bytes);
  const auto size = static_cast<size_t>(SizeOf(dtype));
  for (size_t i = 0; i < numbers.size() && i < kPattern; ++i) {
    const auto word = static_cast<unsigned char>(random.Next32());
    const bool top = i % size == size - 1;  // sign and exponent
    numbers[i] = top ? static_cast<unsigned char>((word & 0x83) | 0x38) : word;
  }
  for (size_t i = kPattern; i < numbers.size(); ++i) numbers[i] = numbers[i - kPattern];
  return numbers;
}

// In a state that nobody reads: it is computed where that lies, and not copied as an output of the graph is.
void Keep(Graph& graph, const Value& value) {
  graph.Assign(graph.Input("y", value.type(), {.role = Role::kState}), value);
}

// A graph on a device of its own inputs, ready to be timed.
struct TimedGraph {
  std::unique_ptr<KernelCache> kernels;
  std::unique_ptr<Layout> layout;
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Instance> instance;
  Stream stream;

  static StatusOr<TimedGraph> Make(const Graph& graph, Device& device, DType dtype) {
    TimedGraph made;
    made.kernels = std::make_unique<KernelCache>(device, KernelOptions());
    made.layout = std::make_unique<Layout>(device.info().alignment);
    PlanOptions options;
    options.capture = false;
    SY_ASSIGN_OR_RETURN(made.plan, Plan::Compile(graph, *made.kernels, nullptr, *made.layout, options));
    SY_ASSIGN_OR_RETURN(made.memory, Memory::Allocate(*made.layout, device, nullptr));
    SY_ASSIGN_OR_RETURN(made.instance, Instance::Bind(*made.plan, *made.memory, nullptr));
    SY_ASSIGN_OR_RETURN(made.stream, device.NewStream());
    for (const char* name : {"x", "w"}) {
      const Layout::Entry* const entry = made.layout->Find(name);
      if (entry == nullptr) continue;
      const std::vector<unsigned char> bytes = RandomNumbers(entry->bytes, dtype);
      SY_RETURN_IF_ERROR(made.memory->Upload(name, bytes.data(), bytes.size()));
    }
    SY_RETURN_IF_ERROR(made.Seconds(device, 1).status());  // the first run touches its memory
    return made;
  }

  // Of one run, where `runs` are queued behind each other.
  StatusOr<double> Seconds(Device& device, int runs) const {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) SY_RETURN_IF_ERROR(instance->Run(stream));
    SY_RETURN_IF_ERROR(device.Synchronize(stream));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / runs;
  }
};

StatusOr<double> BestSeconds(const TimedGraph& timed, Device& device) {
  double best = std::numeric_limits<double>::infinity();
  SY_ASSIGN_OR_RETURN(const double once, timed.Seconds(device, 1));
  const int runs = static_cast<int>(std::clamp(kFewSeconds / once, 1.0, 1000.0));
  for (int i = 0; i < kRepetitions; ++i) {
    SY_ASSIGN_OR_RETURN(const double seconds, timed.Seconds(device, runs));
    best = std::min(best, seconds);
  }
  return best;
}

StatusOr<double> ProductRate(Device& device, DType dtype) {
  double rate = 0;
  for (int64_t rows = 512;; rows *= 2) {
    Graph graph;
    const Value x = graph.Input("x", {dtype, {rows, rows}}, {.role = Role::kBatch});
    const Value w = graph.Input("w", {dtype, {rows, rows}}, {.role = Role::kBatch});
    Keep(graph, ops::Matmul(x, w));
    auto timed = TimedGraph::Make(graph, device, dtype);
    if (rate > 0 && timed.status().code() == absl::StatusCode::kResourceExhausted) return rate;
    SY_RETURN_IF_ERROR(timed.status());
    SY_ASSIGN_OR_RETURN(const double seconds, BestSeconds(*timed, device));
    rate = std::max(rate, timed->plan->report().flops / seconds);
    if (seconds > kLongEnough || rows == kMostRows) return rate;
  }
}

StatusOr<double> MemoryRate(Device& device) {
  for (int64_t elements = kMostElements;; elements /= 2) {
    Graph graph;
    const Value x = graph.Input("x", {DType::kF32, {elements}}, {.role = Role::kBatch});
    Keep(graph, ops::Scale(x, 2));
    auto timed = TimedGraph::Make(graph, device, DType::kF32);
    if (elements > kFewestElements && timed.status().code() == absl::StatusCode::kResourceExhausted) continue;
    SY_RETURN_IF_ERROR(timed.status());
    SY_ASSIGN_OR_RETURN(const double seconds, BestSeconds(*timed, device));
    return timed->plan->report().bytes / seconds;
  }
}

}  // namespace

StatusOr<DeviceRates> MeasureRates(Device& device, DType dtype) {
  DeviceRates rates;
  rates.dtype = dtype;
  SY_ASSIGN_OR_RETURN(rates.flops_per_s, ProductRate(device, dtype));
  SY_ASSIGN_OR_RETURN(rates.bytes_per_s, MemoryRate(device));
  return rates;
}

std::string FamilyNameOf(const Plan& plan, const Step& step) {
  return step.kind == Step::kCopy ? "copy" : FamilyOf(plan.graph().node(step.node).op);
}

FamilyWork& AddStep(const Plan& plan, const Step& step, const DeviceRates& rates, std::vector<FamilyWork>& families) {
  const std::string family = FamilyNameOf(plan, step);
  auto found = std::find_if(families.begin(), families.end(), [&](const auto& work) { return work.family == family; });
  if (found == families.end()) found = families.insert(families.end(), {.family = family});
  ++found->calls;
  found->cost.flops += step.cost.flops;
  found->cost.bytes += step.cost.bytes;
  if (step.stream < kStoreStream) found->least_seconds += rates.LeastSeconds(step.cost);
  return *found;
}

std::vector<FamilyWork> FamiliesOf(const Plan& plan, const DeviceRates& rates) {
  std::vector<FamilyWork> families;
  for (const Step& step : plan.schedule().steps) AddStep(plan, step, rates, families);
  std::stable_sort(families.begin(), families.end(),
                   [](const auto& a, const auto& b) { return a.least_seconds > b.least_seconds; });
  return families;
}

std::string BoundOf(const FamilyWork& work, const DeviceRates& rates) {
  if (work.least_seconds == 0) return "";
  return rates.ComputeSeconds(work.cost) > rates.MemorySeconds(work.cost) ? "compute" : "memory";
}

std::string RatesText(const DeviceRates& rates) {
  return fmt::format("measured here: {:.1f} GFLOP/s in a large product of {}, {:.1f} GB/s in scaling a large array\n",
                     rates.flops_per_s / 1e9, NameOf(rates.dtype), rates.bytes_per_s / 1e9);
}

std::string EstimateText(const std::vector<FamilyWork>& families, const DeviceRates& rates) {
  std::string text =
      RatesText(rates) + fmt::format("{:<16}{:>8}{:>14}{:>12}  {}\n", "family", "calls", "GFLOP", "least ms", "bound");
  double seconds = 0;
  for (const FamilyWork& work : families) {
    text += fmt::format("{:<16}{:>8}{:>14.3f}{:>12.3f}  {}\n", work.family, work.calls, work.cost.flops / 1e9,
                        1e3 * work.least_seconds, BoundOf(work, rates));
    seconds += work.least_seconds;
  }
  return text + fmt::format(
                    "a step computes for {:.3f} ms at these rates, less where tensors stay in a cache; traffic between "
                    "ranks, and what concerns the host, is not in it\n",
                    1e3 * seconds);
}

nlohmann::ordered_json EstimateJson(const std::vector<FamilyWork>& families, const DeviceRates& rates) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  double seconds = 0;
  for (const FamilyWork& work : families) {
    lines.push_back({{"family", work.family},
                     {"calls", work.calls},
                     {"flops", work.cost.flops},
                     {"bytes", work.cost.bytes},
                     {"bound", BoundOf(work, rates)},
                     {"least_ms", 1e3 * work.least_seconds}});
    seconds += work.least_seconds;
  }
  return {{"gflops", rates.flops_per_s / 1e9},
          {"gflops_of", NameOf(rates.dtype)},
          {"gb_per_s", rates.bytes_per_s / 1e9},
          {"least_ms", 1e3 * seconds},
          {"families", lines}};
}

}  // namespace switchyard
